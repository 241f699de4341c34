"""Runs: their start and end, with the job and without it, and a worker that comes too late."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import apsw

from campaigns.metabolism.base import (
    LEASE_NS,
    _MetabolismCampaign,
    enqueue,
    promise_claimed,
    promise_completed,
    promise_started,
)
from campaigns.metabolism.invariants import LEFT_RUNNING
from harness import Run
from store.metabolism import Job, claim_next_job, complete_run, requeue_expired_jobs, start_run
from store.metabolism import Run as JobRun
from store.metabolism.errors import RunIsCompleted, StaleClaim


class _Runs(_MetabolismCampaign):
    """Jobs that wait, and what a worker does with them."""

    _keys: ClassVar[dict[str, str]]
    """Key -> kind, in the order in which they are claimed."""

    def prepare(self, root: Path, run: Run) -> None:
        super().prepare(root, run)
        with self.opened(root) as connection:
            for key, kind in self._keys.items():
                enqueue(connection, run, key, kind=kind)

    def _start(
        self, connection: apsw.Connection, run: Run, key: str, worker: str = "first"
    ) -> JobRun:
        """Claim, which must be *key*, and start."""
        claim = run.step(f"{worker} claims {key}", lambda: self._claim(connection, run, worker))
        if claim is None or claim.idempotency_key != key:
            raise AssertionError(f"{key!r} was to be claimed, and it was {claim}")
        promise_claimed(run, claim)
        begun = run.step(
            f"{worker} starts {key}", lambda: start_run(connection, claim, now_ns=run.clock())
        )
        promise_started(run, begun)
        return begun

    def _claim(self, connection: apsw.Connection, run: Run, worker: str) -> Job | None:
        return claim_next_job(connection, owner=worker, lease_ns=LEASE_NS, now_ns=run.clock())

    def _complete(
        self,
        connection: apsw.Connection,
        run: Run,
        key: str,
        begun: JobRun,
        return_code: int,
        *,
        finalize: bool,
    ) -> JobRun:
        return run.step(
            f"complete {key}",
            lambda: complete_run(
                connection,
                begun,
                return_code=return_code,
                finalize_job=finalize,
                now_ns=run.clock(),
            ),
        )


class Running(_Runs):
    """A run that succeeds, one that fails, one whose job is left running."""

    _keys = {"good": "job", "bad": "job", "left": LEFT_RUNNING}

    def _work(self, connection: apsw.Connection, root: Path, run: Run) -> None:
        good = self._start(connection, run, "good")
        ended = self._complete(connection, run, "good", good, 0, finalize=True)
        promise_completed(run, ended, state="completed")
        run.step(
            "it is not completed twice",
            lambda: complete_run(connection, good, return_code=1, now_ns=run.clock()),
            raises=RunIsCompleted,
        )
        bad = self._start(connection, run, "bad")
        killed = -9  # negative, as of a process that a signal ended
        ended = self._complete(connection, run, "bad", bad, killed, finalize=True)
        promise_completed(run, ended, return_code=killed, state="failed")
        left = self._start(connection, run, "left")
        ended = self._complete(connection, run, "left", left, 0, finalize=False)
        promise_completed(run, ended, state="running")


class TooLate(_Runs):
    """A run outlives its lease; its worker may still say what it did, and may not end the job."""

    _keys = {"slow": "job"}

    def _work(self, connection: apsw.Connection, root: Path, run: Run) -> None:
        slow = self._start(connection, run, "slow")
        run.sleep(LEASE_NS / 1e9 + 1)
        run.step("the lease lapses", lambda: requeue_expired_jobs(connection, now_ns=run.clock()))
        again = self._start(connection, run, "slow", worker="second")
        run.step(
            "the first worker is too late",
            lambda: complete_run(
                connection, slow, return_code=0, finalize_job=True, now_ns=run.clock()
            ),
            raises=StaleClaim,
        )
        self._complete(connection, run, "slow for the record", slow, 9, finalize=False)
        ended = self._complete(connection, run, "slow at last", again, 0, finalize=True)
        promise_completed(run, ended, state="completed")
