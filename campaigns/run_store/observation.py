"""What a run store shows: every row of its sixteen tables, or that there is no schema yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from campaigns.tables import Rows, dump_tables
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


def observe(root: Path) -> dict[str, Rows] | None:
    """Return every row of the store; tables beyond the sixteen are shown too."""
    return dump_tables(layout.database_path(root))
