"""
Operations that are broken in one way each, as they might have been written.
"""

from __future__ import annotations

from collections.abc import Callable

import apsw

from store.metabolism import Job, Run, job_by_id, queue, runs
from store.metabolism.errors import StaleClaim
from store.sqlite import rows

__all__ = ["TWINS"]


def _claim(c: apsw.Connection, owner: str, lease_ns: int, now_ns: int) -> Job | None:
    """Looks for a job, and then takes it whatever it has become."""
    found = rows(
        c,
        "SELECT job_id FROM jobs WHERE state IN ('queued', 'recoverable') AND not_before_ns <= ?"
        " ORDER BY priority, created_at_ns, job_id LIMIT 1",
        (now_ns,),
    )
    if not found:
        return None
    rows(
        c,
        "UPDATE jobs SET state = 'claimed', claim_owner = ?, claim_expires_at_ns = ?,"
        " attempts = attempts + 1, updated_at_ns = ? WHERE job_id = ?",
        (owner, now_ns + lease_ns, now_ns, found[0][0]),
    )
    return job_by_id(c, found[0][0])


def _claim_deferred(c: apsw.Connection, owner: str, lease_ns: int, now_ns: int) -> Job | None:
    """Does the same in a transaction that takes the write lock too late."""
    rows(c, "BEGIN")
    try:
        taken = _claim(c, owner, lease_ns, now_ns)
        rows(c, "COMMIT")
    except BaseException:
        rows(c, "ROLLBACK")
        raise
    return taken


def _enqueue(
    c: apsw.Connection, key: str, priority: int, not_before_ns: int, now_ns: int
) -> tuple[Job, bool]:
    """Looks whether the key is held, and then inserts."""
    held = rows(c, queue._ACTIVE, (key,))
    if held:
        return Job._make(held[0]), False
    values = ("mail", "local", "{}", key, priority, not_before_ns, now_ns, now_ns)
    return Job._make(rows(c, f"{queue._INSERT} RETURNING *", values)[0]), True


def _renew(c: apsw.Connection, claim: Job, lease_ns: int, now_ns: int) -> Job:
    """Asks whether the job is held, and not by whom."""
    renewed = rows(
        c,
        "UPDATE jobs SET claim_expires_at_ns = ?, updated_at_ns = ?"
        " WHERE job_id = ? AND state IN ('claimed', 'running') RETURNING *",
        (now_ns + lease_ns, now_ns, claim.job_id),
    )
    if not renewed:
        raise StaleClaim(claim.job_id, claim.attempts, "")
    return Job._make(renewed[0])


def _requeue(c: apsw.Connection, now_ns: int) -> int:
    """Looks for lapsed jobs, and then frees each, renewed meanwhile or not."""
    found = rows(
        c,
        "SELECT job_id FROM jobs WHERE state = 'claimed' AND claim_expires_at_ns < ?",
        (now_ns,),
    )
    for (job_id,) in found:
        rows(
            c,
            "UPDATE jobs SET state = 'recoverable', claim_owner = NULL, last_error = ?,"
            " claim_expires_at_ns = NULL, updated_at_ns = ? WHERE job_id = ?",
            (queue.REQUEUED, now_ns, job_id),
        )
    return len(found)


def _start(c: apsw.Connection, claim: Job, now_ns: int) -> Run:
    """Moves the job and inserts the run, each in a transaction of its own."""
    held = (queue.JobState.CLAIMED, claim.attempts)
    if not queue.move(c, claim.job_id, queue.JobState.RUNNING, held=held, now_ns=now_ns):
        raise StaleClaim(claim.job_id, claim.attempts, "")
    values = (claim.job_id, claim.attempts, now_ns, None)
    return Run._make(rows(c, f"{runs._INSERT} RETURNING *", values)[0])


def _complete(c: apsw.Connection, run: Run, code: int, finalize_job: bool, now_ns: int) -> Run:
    """Ends the run, and then its job whoever runs it by now."""
    ended = Run._make(rows(c, f"{runs._COMPLETE} RETURNING *", (now_ns, code, run.run_id))[0])
    if finalize_job:
        state = queue.JobState.FAILED if code else queue.JobState.COMPLETED
        queue.move(c, run.job_id, state, now_ns=now_ns)
    return ended


TWINS: dict[str, dict[str, Callable[..., object]]] = {
    "claim looks before it takes": {"claim": _claim},
    "claim locks too late": {"claim": _claim_deferred},
    "enqueue looks before it inserts": {"enqueue": _enqueue},
    "renew forgets the attempts": {"renew": _renew},
    "requeue looks before it frees": {"requeue": _requeue},
    "start is torn": {"start": _start},
    "complete ends any job": {"complete": _complete},
}
"""Each broken operation, under a name that says how."""
