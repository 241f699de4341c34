"""Claiming: the order of jobs, leases that are renewed, and claims that are stale."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import apsw

from campaigns.metabolism.base import (
    LEASE_NS,
    _MetabolismCampaign,
    enqueue,
    promise_claimed,
    withdraw_claimed,
)
from harness import UNCHANGED, Run
from store.metabolism import (
    Job,
    claim_next_job,
    complete_run,
    renew_claim,
    requeue_expired_jobs,
    start_run,
)
from store.metabolism.errors import StaleClaim

KEYS = {"slow": 200, "old": 100, "young": 100, "urgent": 0}
"""Key -> priority, oldest first; claimed in the order urgent, old, young, slow."""

LAPSED = "slow"
"""Key of the job whose lease has lapsed when it is claimed; it stays claimed all the same."""


class Claiming(_MetabolismCampaign):
    """Claim until nothing is due, renew a lease, let one lapse, and come back too late."""

    def prepare(self, root: Path, run: Run) -> None:
        super().prepare(root, run)
        with self.opened(root) as connection:
            for key, priority in KEYS.items():
                enqueue(connection, run, key, priority=priority)
            due = run.clock() + 7 * LEASE_NS // 4
            enqueue(connection, run, "not yet", priority=0, not_before_ns=due)

    def _work(self, connection: apsw.Connection, root: Path, run: Run) -> None:
        claims = [self._claim(connection, run, key) for key in ("urgent", "old", "young", "slow")]
        run.step("nothing is due", lambda: self._next(connection, run, "idle"), then=UNCHANGED)
        run.sleep(LEASE_NS / 2 / 1e9)
        withdraw_claimed(run, claims[0])
        renewed = run.step(
            "renew",
            lambda: renew_claim(connection, claims[0], lease_ns=LEASE_NS, now_ns=run.clock()),
        )
        promise_claimed(run, renewed)
        run.sleep(LEASE_NS / 1e9 - 1)
        run.step(
            "give back what lapsed", lambda: requeue_expired_jobs(connection, now_ns=run.clock())
        )
        again = self._claim(connection, run, "old", again=True)
        run.step(
            "stale claim cannot start",
            lambda: start_run(connection, claims[1], now_ns=run.clock()),
            raises=StaleClaim,
        )
        for label, claim in (("stale", claims[1]), ("given back", claims[2])):
            run.step(
                f"{label} claim cannot be renewed",
                partial(renew_claim, connection, claim, now_ns=run.clock()),
                raises=StaleClaim,
            )
        begun = run.step(
            "the second owner starts it",
            lambda: start_run(connection, again, now_ns=run.clock()),
        )
        run.step(
            "and ends it",
            lambda: complete_run(
                connection, begun, return_code=0, finalize_job=True, now_ns=run.clock()
            ),
        )
        run.step(
            "claim of an ended job cannot be renewed",
            lambda: renew_claim(connection, again, now_ns=run.clock()),
            raises=StaleClaim,
        )

    def _claim(
        self, connection: apsw.Connection, run: Run, key: str, *, again: bool = False
    ) -> Job:
        label = f"claim {key}{' again' if again else ''}"
        lease_ns = -1 if key == LAPSED else LEASE_NS
        claim = run.step(
            label, lambda: self._next(connection, run, f"worker of {key}", lease_ns=lease_ns)
        )
        if claim is None or claim.idempotency_key != key:
            raise AssertionError(f"{key!r} was to be claimed, and it was {claim}")
        promise_claimed(run, claim)
        return claim

    def _next(
        self, connection: apsw.Connection, run: Run, owner: str, *, lease_ns: int = LEASE_NS
    ) -> Job | None:
        return claim_next_job(connection, owner=owner, lease_ns=lease_ns, now_ns=run.clock())
