"""The run store's first open, and the reopening of one that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from campaigns.run_store.base import _RunStoreCampaign
from campaigns.run_store.observation import EMPTY_STORE
from harness import JSON, UNCHANGED, Evidence, Run
from store.run_store import RunStore, layout


class _Initialization(_RunStoreCampaign):
    """Open, which makes an empty store of whatever was left, and open again, which keeps it."""

    invariants = tuple(
        name for name in _RunStoreCampaign.invariants if name.startswith(("I0-01", "I0-18"))
    )

    def execute(self, root: Path, run: Run) -> None:
        run.step("open", lambda: RunStore.open(root).close(), then=EMPTY_STORE)
        run.promise("initialized")
        run.step("reopen", lambda: RunStore.open(root).close(), then=UNCHANGED)

    def after_recovery(self, expected: Any) -> JSON:
        """Opening is the recovery, and completes what it finds."""
        return EMPTY_STORE if expected is None else expected

    def promised_initialized(self, root: Path, evidence: Evidence) -> bool:
        """Once an open returned, the store is there, whole and empty, and its lock's file stays."""
        return bool(evidence.observed == EMPTY_STORE) and (root / layout.INIT_LOCK_NAME).is_file()


class FirstOpen(_Initialization):
    """In an empty folder."""


class EmptyDatabase(_Initialization):
    """Where a former open died after it made the database's file, which is empty."""

    def prepare(self, root: Path, run: Run) -> None:
        (root / layout.INIT_LOCK_NAME).touch(mode=0o600)
        layout.database_path(root).touch(mode=0o600)


class LeftoverProbe(_Initialization):
    """Where a former open died amid its probes, and left their folder with files in it."""

    def prepare(self, root: Path, run: Run) -> None:
        (root / layout.INIT_LOCK_NAME).touch(mode=0o600)
        probe = root / ".run-store-probe-0001"
        (probe / "source").mkdir(parents=True)
        (probe / "source" / "payload").write_bytes(b"half")
        (probe / "lock").touch()
