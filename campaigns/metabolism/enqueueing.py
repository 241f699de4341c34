"""Enqueueing: new keys, keys that are held, keys that are free again, and refused jobs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import apsw

from campaigns.metabolism.base import LEASE_NS, _MetabolismCampaign, enqueue
from campaigns.metabolism.invariants import BY_HAND
from harness import UNCHANGED, Evidence, Run
from store.metabolism import Job, enqueue_job, update_job_state
from store.metabolism.errors import JobIsTerminal, MalformedJson, OutOfRange


class Enqueueing(_MetabolismCampaign):
    """One job of each sort, the same key while it is held and after its job has ended."""

    def _work(self, connection: apsw.Connection, root: Path, run: Run) -> None:
        put = partial(self._put, connection, run)
        first = put("plain")
        run.step("the key is held", lambda: enqueue_again(connection, run, "plain"), then=UNCHANGED)
        put("urgent", priority=0, params={"size": 3, "names": ["a", "\u00e9"]}, provider="remote")
        put("later", not_before_ns=run.now_ns + LEASE_NS)
        for label, refused, reason in (
            ("negative priority", {"priority": -1}, OutOfRange),
            ("parameters that are no JSON", {"params": {"at": b"x"}}, MalformedJson),
        ):
            run.step(
                f"{label} is refused",
                partial(enqueue_again, connection, run, "refused", **refused),
                raises=reason,
            )
        ended = put("by hand", kind=BY_HAND)
        move = partial(self._move, connection, run, ended.job_id)
        run.step("it ends", partial(move, "failed", last_error="given up"))
        run.promise("ended", job_id=ended.job_id, state="failed", last_error="given up")
        for state in ("queued", "completed"):
            run.step(f"it does not become {state}", partial(move, state), raises=JobIsTerminal)
        put("by hand", label="the key is free again", kind=BY_HAND)
        assert first.job_id == 1

    def promised_ended(
        self, root: Path, evidence: Evidence, *, job_id: int, state: str, last_error: str
    ) -> bool:
        """A job that was ended by hand stays so, and so does the reason."""
        [job] = [job for job in evidence.observed["jobs"] if job["job_id"] == job_id]
        return (job["state"], job["last_error"]) == (state, last_error)

    def _move(
        self, connection: apsw.Connection, run: Run, job_id: int, state: str, **more: Any
    ) -> Job:
        return update_job_state(connection, job_id, state, now_ns=run.clock(), **more)

    def _put(
        self, connection: apsw.Connection, run: Run, key: str, label: str = "", **more: Any
    ) -> Job:
        return run.step(label or f"enqueue {key}", lambda: enqueue(connection, run, key, **more))


def enqueue_again(connection: apsw.Connection, run: Run, key: str, **more: Any) -> bool:
    """Enqueue a key and return whether that inserted a job."""
    arguments = {"kind": "job", **more}
    _, inserted = enqueue_job(connection, idempotency_key=key, now_ns=run.clock(), **arguments)
    return inserted
