"""Giving back what lapsed leases hold, as an operation and at every start."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw

from campaigns.metabolism import invariants
from campaigns.metabolism.base import LEASE_NS, _MetabolismCampaign, enqueue
from campaigns.metabolism.invariants import BY_HAND, LEFT_RUNNING
from harness import JSON, OBSERVED, UNCHANGED, Check, Evidence, Run
from store.metabolism import (
    Job,
    claim_next_job,
    complete_run,
    requeue_expired_jobs,
    start_run,
    update_job_state,
)


class _Lapsed(_MetabolismCampaign):
    """
    A runtime that died, with everything in it that a lapsed lease may hold.

    Claimed; claimed over the ended run of a former claim; running with an open run. Three that are
    ambiguous: running by hand without a run, and over the run of a former claim only, and running
    over its ended run. And claimed under a lease that lives.
    """

    def prepare(self, root: Path, run: Run) -> None:
        super().prepare(root, run)
        with self.opened(root) as connection:
            self._lapse_twice(connection, run)
            for key, kind in (
                ("claimed", "job"),
                ("running", "job"),
                ("no run", BY_HAND),
                ("ended run", LEFT_RUNNING),
            ):
                enqueue(connection, run, key, kind=kind)
                claim = self._claim_lapsed(connection, run, key)
                if kind == BY_HAND:
                    update_job_state(connection, claim.job_id, "running", now_ns=run.clock())
                elif key != "claimed":
                    begun = start_run(connection, claim, now_ns=run.clock())
                    if kind == LEFT_RUNNING:
                        complete_run(connection, begun, return_code=3, now_ns=run.clock())
            enqueue(connection, run, "alive")
            claim_next_job(connection, owner="alive", lease_ns=LEASE_NS, now_ns=run.clock())

    def _lapse_twice(self, connection: apsw.Connection, run: Run) -> None:
        """Let two jobs lapse over their runs, and claim both again, which starts no other run."""
        runs = []
        for key, kind in (("retried", "job"), ("torn again", BY_HAND)):
            enqueue(connection, run, key, kind=kind)
            claim = self._claim_lapsed(connection, run, key)
            runs.append(start_run(connection, claim, now_ns=run.clock()))
        requeue_expired_jobs(connection, now_ns=run.clock())
        complete_run(connection, runs[0], return_code=9, now_ns=run.clock())
        self._claim_lapsed(connection, run, "retried")
        torn = self._claim_lapsed(connection, run, "torn again")
        update_job_state(connection, torn.job_id, "running", now_ns=run.clock())

    def _claim_lapsed(self, connection: apsw.Connection, run: Run, key: str) -> Job:
        """Claim, which must be *key*, under a lease that has lapsed."""
        claim = claim_next_job(connection, owner=f"dead {key}", lease_ns=-1, now_ns=run.clock())
        assert claim is not None
        assert claim.idempotency_key == key
        return claim


class Requeueing(_Lapsed):
    """Give back once, which is three jobs, and again, which is none."""

    def _work(self, connection: apsw.Connection, root: Path, run: Run) -> None:
        for label, count, then in (("give back", 3, OBSERVED), ("again", 0, UNCHANGED)):
            found = run.step(
                label, lambda: requeue_expired_jobs(connection, now_ns=run.clock()), then=then
            )
            if found != count:
                raise AssertionError(f"{found} jobs were given back, expected {count}")


class Unopened(_Lapsed):
    """
    An operator looks at what the dead left before anybody opens it, its WAL included.

    Nothing recovers, so what is judged are the very files of the crash.
    """

    def execute(self, root: Path, run: Run) -> None:
        run.step("open and give back", lambda: self._give_back(root, run))

    def _give_back(self, root: Path, run: Run) -> None:
        with self.opened(root) as connection:
            requeue_expired_jobs(connection, now_ns=run.clock())

    def recover(self, root: Path, run: Run) -> None:
        """Leave everything as it is."""

    def observe(self, root: Path) -> JSON:
        # A copy: closing the only connection moves the WAL into the file.
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "root"
            shutil.copytree(root, copy)
            return super().observe(copy)

    def check(self, root: Path, evidence: Evidence) -> Iterator[Check]:
        # First: whatever opens the database after this may move its WAL into the file.
        yield from invariants.read_only(root, evidence.now_ns)
        yield from super().check(root, evidence)


class RequeueingAtStart(_Lapsed):
    """
    Every start gives back what has lapsed before anything else.

    When that was is not observed: it is the moment of the restart.
    """

    def _work(self, connection: apsw.Connection, root: Path, run: Run) -> None:
        run.step("give back", lambda: requeue_expired_jobs(connection, now_ns=run.clock()))
        run.step("enqueue", lambda: enqueue(connection, run, "one more"))

    def recover(self, root: Path, run: Run) -> None:
        with self.opened(root) as connection:
            requeue_expired_jobs(connection, now_ns=run.clock())

    def observe(self, root: Path) -> JSON:
        tables: Any = super().observe(root)
        for job in tables["jobs"]:
            del job["updated_at_ns"]
        return tables  # type: ignore[no-any-return]

    def after_recovery(self, expected: Any) -> JSON:
        """Whoever is dead and clean waits again."""
        freed = {
            "state": "recoverable",
            "claim_owner": None,
            "claim_expires_at_ns": None,
            "last_error": "the lease lapsed",
        }
        owners = ("dead claimed", "dead retried", "dead running")
        jobs = [
            {**job, **freed} if job["claim_owner"] in owners else job for job in expected["jobs"]
        ]
        return {**expected, "jobs": jobs}
