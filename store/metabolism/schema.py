"""
The runtime's schema, as the one script that creates it.
"""

from pathlib import Path
from typing import Final

__all__ = ["SCHEMA_SQL", "SCHEMA_VERSION"]

SCHEMA_VERSION: Final = 1
"""Equals ``PRAGMA user_version`` of a database that the script created."""

SCHEMA_SQL: Final[str] = Path(__file__).with_name("v1.sql").read_bytes().decode("utf-8")
"""The bytes of ``v1.sql``, decoded; to be run once, whole, in one immediate transaction."""
