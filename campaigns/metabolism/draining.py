"""A worker's loop as one step, with what it was told acknowledged inside."""

from __future__ import annotations

from pathlib import Path

import apsw

from campaigns.metabolism.base import (
    LEASE_NS,
    _MetabolismCampaign,
    enqueue,
    promise_claimed,
    promise_completed,
)
from harness import ANYTHING, Run
from store.metabolism import claim_next_job, complete_run, start_run


class Draining(_MetabolismCampaign):
    """
    Enqueue, claim, start and complete in one step.

    So the moment between an answer and the next operation lies inside a step, and what only the
    next operation would write is missed by the promise alone.
    """

    def _work(self, connection: apsw.Connection, root: Path, run: Run) -> None:
        run.step("work", lambda: self._loop(connection, run), between=ANYTHING)

    def _loop(self, connection: apsw.Connection, run: Run) -> None:
        """Enqueue a job, and work until none is left."""
        enqueue(connection, run, "first")
        while claim := claim_next_job(
            connection, owner="worker", lease_ns=LEASE_NS, now_ns=run.clock()
        ):
            promise_claimed(run, claim)
            begun = start_run(connection, claim, now_ns=run.clock())
            ended = complete_run(
                connection, begun, return_code=0, finalize_job=True, now_ns=run.clock()
            )
            promise_completed(run, ended, state="completed")
