"""
The coordination schema, as the one script that creates it.
"""

from pathlib import Path
from typing import Final

__all__ = ["RUN_STORE_SCHEMA_SQL", "RUN_STORE_SCHEMA_VERSION"]

RUN_STORE_SCHEMA_VERSION: Final = 1
"""The layout's own version; equals `PRAGMA user_version` of a database that the script created."""

RUN_STORE_SCHEMA_SQL: Final[str] = Path(__file__).with_name("v1.sql").read_bytes().decode("utf-8")
"""The bytes of `v1.sql`, decoded; to be run once, whole, in one immediate transaction."""
