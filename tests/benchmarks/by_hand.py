"""
One step of a crash test by hand: a fresh interpreter that crashes, or one that verifies.

``by_hand.py prepare|crash|verify STORE FOLDER [STOP]`` with STORE ``light`` or ``transitions``. It
imports the store and the workload, and nothing of the harness: in its place stand names that do
nothing, so a campaign's workload runs as a plain script would write it. Boundaries are counted, not
named; nothing is compared with a recording, and verifying is recover, one integrity check and
one observation: less than the harness does. So the ratio against it is a lower bound.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

_NAMES = ("JSON", "Check", "Evidence", "Observer", "Run", "UNCHANGED", "OBSERVED", "ANYTHING")


class Counter:
    """Counts boundaries, and ends the process at one."""

    def __init__(self, stop: int) -> None:
        self.count = 0
        self.stop = stop

    def reach(self, *_: object) -> None:
        """Count one boundary."""
        self.count += 1
        if self.count == self.stop:
            os._exit(86)

    def hook(self, connection: apsw.Connection) -> None:
        """Count the statements of a new connection."""
        mask = apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE
        connection.trace_v2(mask, self.reach, id=self)


class Run:
    """What a workload needs of a run, and no more."""

    past = None

    def __init__(self, counter: Counter) -> None:
        self.now_ns = 1_700_000_000_000_000_000
        self._counter = counter
        self._number = 0

    def step(self, label: str, action: Callable[[], Any], *, raises: Any = (), **_: Any) -> Any:
        """Run *action* between two boundaries."""
        self._counter.reach()
        try:
            result = action()
        except raises:
            result = None
        self._counter.reach()
        return result

    def promise(self, *_: object, **__: object) -> None:
        """Do nothing."""

    def clock(self) -> int:
        """Return the time, a millisecond later each time."""
        self.now_ns += 1_000_000
        return self.now_ns

    def identifier(self, kind: str) -> str:
        """Return a new name."""
        self._number += 1
        return f"{kind}-{self._number:04d}"


def campaign_of(store: str) -> Any:
    """Import a campaign without the harness."""
    stand_in = types.ModuleType("harness")
    stand_in.__dict__.update({name: object() for name in _NAMES}, Campaign=object)
    sys.modules["harness"] = stand_in
    if store == "light":
        from light_store import LightApsw  # type: ignore[import-not-found]

        return LightApsw()
    from campaigns.run_store.transitions import Transitions

    return Transitions()


def main() -> None:
    """Do one step, and print what it found."""
    what, store, folder, *rest = sys.argv[1:]
    root = Path(folder)
    os.chdir(root)
    campaign = campaign_of(store)
    counter = Counter(int(rest[0]) if rest else 0)
    run: Any = Run(counter)
    if what == "verify":
        campaign.recover(root, run)
        observed = campaign.observe(root)
        for path in sorted(root.rglob("*.db")) + sorted(root.rglob("*.sqlite*")):
            if path.suffix in (".db", ".sqlite", ".sqlite3"):
                connection = apsw.Connection(str(path))
                assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        print(len(str(observed)))
        return
    if what == "prepare":
        campaign.prepare(root, run)
        return
    apsw.connection_hooks.append(counter.hook)
    if hasattr(campaign, "attach"):
        campaign.attach(counter.reach)
    campaign.execute(root, run)
    print(counter.count)


if __name__ == "__main__":
    main()
