"""The first open of the runtime's database, and the reopening of one that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from campaigns.metabolism import invariants
from campaigns.metabolism.base import _MetabolismCampaign
from campaigns.metabolism.invariants import DATABASE, TABLES
from harness import JSON, UNCHANGED, Evidence, Run
from store.metabolism import connect

EMPTY: dict[str, Any] = {**{table: [] for table in TABLES}, "logs": {}}


class _Opening(_MetabolismCampaign):
    """Open, which makes an empty runtime of whatever was left, and open again, which keeps it."""

    invariants = (invariants.SOUND_DATABASE, invariants.READ_ONLY)

    def execute(self, root: Path, run: Run) -> None:
        run.step("open", lambda: connect(root / DATABASE).close(), then=EMPTY)
        run.promise("opened")
        run.step("open again", lambda: connect(root / DATABASE).close(), then=UNCHANGED)

    def after_recovery(self, expected: Any) -> JSON:
        """Opening is the recovery, and completes what it finds."""
        return EMPTY if expected is None else expected

    def promised_opened(self, root: Path, evidence: Evidence) -> bool:
        """Once an open returned, the tables are there."""
        return evidence.observed is not None and set(evidence.observed) >= set(TABLES)


class FirstOpen(_Opening):
    """In an empty folder."""

    def prepare(self, root: Path, run: Run) -> None:
        """Leave the folder empty."""


class EmptyDatabase(_Opening):
    """Where a former open died after it made the file, which is empty."""

    def prepare(self, root: Path, run: Run) -> None:
        (root / DATABASE).touch(mode=0o600)
