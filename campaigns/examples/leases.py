"""
Attempts under leases: whoever holds the newest guard may write, until it runs out.

Shows the virtual clock and identifiers, a refusal that must come (`raises`), a promise that time
ends, a store's own named points (`attach`), and an own `resume`, since guards die with the process.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from campaigns.examples._lease_store import TTL_NS, Stale, Store
from harness import Campaign, Evidence, Observer, Run


class Leases(Campaign):
    """A lease binds until it expires, an old guard is refused, and a retry comes through."""

    def attach(self, observer: Observer) -> None:
        """Let the store announce what it is about to do."""
        Store.observer = observer

    def prepare(self, root: Path, run: Run) -> None:
        """Make an empty store."""
        Store(root).close()

    def execute(self, root: Path, run: Run) -> None:
        """Reserve a task and move it on; the first guard is stale then."""
        with closing(Store(root)) as store:
            first = run.step(
                "reserve",
                partial(store.reserve, "a", 0, run.identifier("lease"), "me", run.clock()),
            )
            run.promise("leased", token=first.token, until=run.now_ns + TTL_NS // 2)
            run.step("advance", partial(store.advance, first, "executing", run.clock()))
            run.step(
                "refuse a stale guard",
                partial(store.advance, first, "validating", run.clock()),
                raises=Stale,
            )

    def recover(self, root: Path, run: Run) -> None:
        """Open the store, as every start does; leases run out by the clock alone."""
        Store(root).close()

    def observe(self, root: Path) -> dict[str, list[list[Any]]]:
        """Return all rows."""
        return {table: Store.rows(root, table) for table in ("attempt", "lease")}

    def promised_leased(self, root: Path, evidence: Evidence, *, token: str, until: int) -> bool:
        """Until its time the lease is there, or one that was given out for it."""
        if evidence.now_ns >= until:
            return True
        return any(row[0].startswith(token) and not row[3] for row in evidence.observed["lease"])

    def resume(self, root: Path, run: Run) -> None:
        """Wait until the dead holder's lease has run out, then try again under a new number."""
        assert run.past is not None
        with closing(Store(root)) as store:
            run.sleep(2 * TTL_NS / 1e9)
            store.expire(run.clock())
            number = len(run.past.observed["attempt"])
            guard = store.reserve("a", number, run.identifier("lease"), "again", run.clock())
            store.advance(guard, "executing", run.clock())

    def complete(self, root: Path, evidence: Evidence) -> bool:
        """The retry is being executed, and no earlier attempt is."""
        *earlier, last = [row[3] for row in evidence.observed["attempt"]]
        return last == "executing" and all(state == "interrupted" for state in earlier)
