"""What a run store shows: every row of its sixteen tables, or that there is no schema yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw

from store.run_store import layout

TABLES = (
    "applicability_decisions",
    "artifacts",
    "attempt_artifacts",
    "attempt_observation_slots",
    "attempt_slots",
    "attempt_transitions",
    "attempts",
    "events",
    "finalization_claims",
    "leased_artifacts",
    "leases",
    "observation_artifacts",
    "observation_slots",
    "observations",
    "resolved_runs",
    "selected_observations",
)
"""All of them: a write to a table that is not observed would survive every crash unseen."""

EMPTY_STORE: dict[str, Any] = {table: [] for table in TABLES}

Rows = list[dict[str, Any]]


def observe(root: Path) -> dict[str, Rows] | None:
    """
    Return table -> rows as objects, ordered by primary key; None where no table exists.

    Tables beyond the sixteen are shown too.
    """
    database = layout.database_path(root)
    if not database.exists():
        return None
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        found = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
        ).fetchall()
        return {str(name): _rows(connection, str(name)) for (name,) in found} or None
    finally:
        connection.close()


def _rows(connection: apsw.Connection, table: str) -> Rows:
    about = connection.execute(f"PRAGMA table_info({table})").fetchall()
    names = [str(column[1]) for column in about]
    keys = {int(str(column[5])): str(column[1]) for column in about}
    order = ", ".join(keys[place] for place in sorted(keys) if place)
    rows = connection.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY {order}")
    return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
