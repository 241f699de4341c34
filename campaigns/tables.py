"""What the observation of a SQLite store shows: every row of every table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw

Rows = list[dict[str, Any]]


def dump_tables(database: Path) -> dict[str, Rows] | None:
    """
    Return table -> rows as objects, ordered by primary key; None where no table exists.

    All of them: a write to a table that is not observed would survive every crash unseen.
    """
    if not database.exists():
        return None
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        found = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
        ).fetchall()
        return {str(name): dump_table(connection, str(name)) for (name,) in found} or None
    finally:
        connection.close()


def dump_table(connection: apsw.Connection, table: str) -> Rows:
    """Return the rows of a table as objects, ordered by primary key."""
    about = connection.execute(f"PRAGMA table_info({table})").fetchall()
    names = [str(column[1]) for column in about]
    keys = {int(str(column[5])): str(column[1]) for column in about}
    order = ", ".join(keys[place] for place in sorted(keys) if place)
    rows = connection.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY {order}")
    return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
