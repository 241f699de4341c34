"""
The queue: jobs that wait, and the leases under which workers hold them.

Method: every operation is one immediate transaction around one guarded UPDATE or INSERT, so two
processes can neither win the same job nor overwrite each other. The claim is fenced by the job's
number of attempts: whoever shows an older one is refused, however long it slept.

Covered: any number of processes on one host.
Not covered: a worker that goes on after its lease lapsed; its job may then run twice. What it
writes through this package afterwards is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import apsw

from store.metabolism.arguments import integer, json_object, text
from store.metabolism.errors import (
    JobIsTerminal,
    JobMissing,
    OnlyByClaim,
    StaleClaim,
    UnknownJobState,
)
from store.metabolism.records import TERMINAL_STATES, Job, JobState
from store.metabolism.transactions import immediate
from store.sqlite import changes, rows

__all__ = [
    "LEASE_NS",
    "PRIORITY",
    "claim_next_job",
    "enqueue_job",
    "job_by_id",
    "renew_claim",
    "requeue_expired_jobs",
    "update_job_state",
]

LEASE_NS: Final = 60 * 10**9
"""How long a lease lives where the worker asks for nothing else, in nanoseconds."""

PRIORITY: Final = 100
"""The priority of a job that asks for none; 0 is most urgent."""

REQUEUED: Final = "the lease lapsed"
"""What a requeued job shows as its last error."""

# No statement returns rows that it has changed: with RETURNING a short cycle costs about twice.
_INSERT = """INSERT INTO jobs (kind, provider, params_json, idempotency_key, state, priority,
 not_before_ns, attempts, created_at_ns, updated_at_ns)
 VALUES (?, ?, ?, ?, 'queued', ?, ?, 0, ?, ?)"""

_ACTIVE = """SELECT * FROM jobs WHERE idempotency_key = ?
 AND state IN ('queued', 'claimed', 'running', 'recoverable')"""

_NEXT = """SELECT * FROM jobs WHERE state IN ('queued', 'recoverable') AND not_before_ns <= ?
 ORDER BY priority, created_at_ns, job_id LIMIT 1"""

_CLAIM = """UPDATE jobs SET state = 'claimed', claim_owner = ?, claim_expires_at_ns = ?,
 attempts = attempts + 1, updated_at_ns = ?
 WHERE job_id = ? AND state IN ('queued', 'recoverable')"""

_RENEW = """UPDATE jobs SET claim_expires_at_ns = ?, updated_at_ns = ?
 WHERE job_id = ? AND state IN ('claimed', 'running') AND claim_owner IS NOT NULL
 AND attempts = ?"""

# What reconcile shows is left alone: a running job without a run of this claim, and a job whose run
# of this claim has ended.
_REQUEUE = """UPDATE jobs SET state = 'recoverable', claim_owner = NULL, claim_expires_at_ns = NULL,
 last_error = ?, updated_at_ns = ?
 WHERE state IN ('claimed', 'running') AND claim_expires_at_ns < ? AND ifnull(
  (SELECT CASE attempt WHEN attempts THEN completed_at_ns IS NULL ELSE state = 'claimed' END
   FROM runs WHERE runs.job_id = jobs.job_id ORDER BY run_id DESC LIMIT 1), state = 'claimed')"""

_MOVE = """UPDATE jobs SET state = ?1, last_error = ?2, updated_at_ns = ?3,
 claim_owner = CASE WHEN ?4 THEN NULL ELSE claim_owner END,
 claim_expires_at_ns = CASE WHEN ?4 THEN NULL ELSE claim_expires_at_ns END
 WHERE job_id = ?5 AND state NOT IN ('completed', 'failed')
 AND (?6 IS NULL OR state = ?6 AND attempts = ?7)"""

_UNCLAIMED: Final = (None, None, 0, None)
"""Owner, expiry, attempts and last error of a job that nobody claimed yet."""

_STATES: Final = frozenset(map(str, JobState))


def enqueue_job(
    connection: apsw.Connection,
    *,
    kind: str,
    idempotency_key: str,
    params: Mapping[str, Any] | None = None,
    provider: str = "local",
    priority: int = PRIORITY,
    not_before_ns: int = 0,
    now_ns: int,
) -> tuple[Job, bool]:
    """
    Insert a job and return it with True, or the active job that holds the key, with False.

    Args:
        params: What the worker needs, as a JSON object.
        priority: 0 is most urgent.
        not_before_ns: The job is not claimed before this time.
    Durable: after success: the job, see `storage`. After an error: nothing.
    Raises: NotText, NotAnInteger, OutOfRange, MalformedJson: an argument, named by the error.
    """
    values = (
        text("kind", kind),
        text("provider", provider),
        json_object("params", {} if params is None else params),
        text("idempotency_key", idempotency_key),
        integer("priority", priority, least=0),
        integer("not_before_ns", not_before_ns, least=0),
        integer("now_ns", now_ns, least=0),
        now_ns,
    )
    with immediate(connection):
        try:
            connection.execute(_INSERT, values)
        except apsw.ConstraintError:
            # The index says that the key is held. Anything else is an error of ours.
            held = rows(connection, _ACTIVE, (idempotency_key,))
            if not held:
                raise
            return Job._make(held[0]), False
        job_id = connection.last_insert_rowid()
    return Job._make((job_id, *values[:4], "queued", *values[4:6], *_UNCLAIMED, *values[6:])), True


def claim_next_job(
    connection: apsw.Connection, *, owner: str, lease_ns: int = LEASE_NS, now_ns: int
) -> Job | None:
    """
    Lease the most urgent job that is due, the oldest of equals; None where none is due.

    Args:
        lease_ns: How long the lease lives from *now_ns*; a negative one has lapsed already.
    Durable: after success: the claim, see `storage`. After an error: nothing.
    Raises: NotText, NotAnInteger, OutOfRange: an argument, named by the error.
    Cost: Waiting jobs that are more urgent and not yet due are passed one by one.
    """
    text("owner", owner)
    until = _lapse(lease_ns, now_ns=now_ns)
    with immediate(connection):
        found = rows(connection, _NEXT, (now_ns,))
        if not found:
            return None
        waiting = Job._make(found[0])
        if not changes(connection, _CLAIM, (owner, until, now_ns, waiting.job_id)):
            return None
    held = (owner, until, waiting.attempts + 1, waiting.last_error, waiting.created_at_ns, now_ns)
    return Job._make((*waiting[:5], "claimed", *waiting[6:8], *held))


def renew_claim(
    connection: apsw.Connection, claim: Job, *, lease_ns: int = LEASE_NS, now_ns: int
) -> Job:
    """
    Let the lease of *claim* live for *lease_ns* from now; a lapsed one too, until it is requeued.

    Raises: StaleClaim: the job is not held under this claim any more.
    """
    until = _lapse(lease_ns, now_ns=now_ns)
    held = (integer("job_id", claim.job_id), integer("attempts", claim.attempts))
    with immediate(connection):
        if not changes(connection, _RENEW, (until, now_ns, *held)):
            raise stale(connection, claim.job_id, claim.attempts)
        return job_by_id(connection, claim.job_id)


def requeue_expired_jobs(connection: apsw.Connection, *, now_ns: int) -> int:
    """
    Give back every claimed or running job whose lease has lapsed, and return how many.

    This is the only automatic repair. A job whose run is missing or has ended without it is left
    as it is, lapsed or not: what happened is not known, see `reconciliation`.

    Durable: after success: all of them, see `storage`. After an error: none.
    """
    integer("now_ns", now_ns, least=0)
    with immediate(connection):
        return changes(connection, _REQUEUE, (REQUEUED, now_ns, now_ns))


def update_job_state(
    connection: apsw.Connection,
    job_id: int,
    state: str,
    *,
    last_error: str | None = None,
    now_ns: int,
) -> Job:
    """
    Move a job that has not ended to *state* by hand, whoever holds it, and return it.

    This is an operator's act. A job that waits again gives up its lease; any other keeps it.

    Raises:
        UnknownJobState: *state* is none.
        OnlyByClaim: *state* is claimed.
        JobMissing: there is no such job.
        JobIsTerminal: the job has ended.
    """
    if not isinstance(state, str) or state not in _STATES:
        raise UnknownJobState(state, JobState)
    if state == JobState.CLAIMED:
        raise OnlyByClaim
    integer("job_id", job_id)
    integer("now_ns", now_ns, least=0)
    if last_error is not None:
        text("last_error", last_error)
    with immediate(connection):
        is_moved = move(connection, job_id, state, last_error=last_error, now_ns=now_ns)
        job = job_by_id(connection, job_id)
        if not is_moved:
            raise JobIsTerminal(job_id, job.state)
    return job


def move(
    connection: apsw.Connection,
    job_id: int,
    state: str,
    *,
    held: tuple[str, int] | None = None,
    last_error: str | None = None,
    now_ns: int,
) -> bool:
    """
    Change a job's state within the caller's transaction: the one place that does, for runs too.

    Args:
        held: The state and the attempts that the job must have.
    Returns: Whether it did; not, and nothing is changed, where there is no such job, it has ended,
        or it is not as *held* says.
    """
    is_freed = state in ("queued", "recoverable")
    held_as, attempts = held or (None, None)
    values = (str(state), last_error, now_ns, is_freed, job_id, held_as, attempts)
    return changes(connection, _MOVE, values) > 0


def job_by_id(connection: apsw.Connection, job_id: int) -> Job:
    """
    Return the job as it is now.

    Raises: JobMissing: there is none.
    """
    found = rows(connection, "SELECT * FROM jobs WHERE job_id = ?", (integer("job_id", job_id),))
    if not found:
        raise JobMissing(job_id)
    return Job._make(found[0])


def stale(connection: apsw.Connection, job_id: int, attempt: int) -> StaleClaim:
    """Return the refusal of a claim, with what the job is now."""
    job = job_by_id(connection, job_id)
    is_held = job.claim_owner is not None and job.state not in TERMINAL_STATES
    under = f" under claim number {job.attempts}, of {job.claim_owner!r}" if is_held else ""
    found = f"it is {job.state}{under}"
    return StaleClaim(job_id, attempt, found)


def _lapse(lease_ns: int, *, now_ns: int) -> int:
    """Return the moment until which a lease lives that is given now."""
    integer("now_ns", now_ns, least=0)
    return integer("now_ns + lease_ns", now_ns + integer("lease_ns", lease_ns))
