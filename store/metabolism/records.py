"""
The rows of the runtime, as named tuples in the order of their columns.

A record is what one operation saw; it does not follow the database. The record of a claimed job
is also the claim itself: its owner and its number of attempts are what later operations are
guarded by.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

__all__ = [
    "ACTIVE_STATES",
    "TERMINAL_STATES",
    "ClaimEvent",
    "ClaimEventKind",
    "Job",
    "JobState",
    "Run",
]


class JobState(StrEnum):
    """
    Where a job stands.
    """

    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    RECOVERABLE = "recoverable"
    COMPLETED = "completed"
    FAILED = "failed"


ACTIVE_STATES: Final = (
    JobState.QUEUED,
    JobState.CLAIMED,
    JobState.RUNNING,
    JobState.RECOVERABLE,
)
"""The states in which a job holds its idempotency key."""

TERMINAL_STATES: Final = (JobState.COMPLETED, JobState.FAILED)
"""The states that a job never leaves."""


class ClaimEventKind(StrEnum):
    """
    What an event of the blackboard says about a claim; all but the first invalidate one.
    """

    ASSERTED = "claim_asserted"
    CONTRADICTED = "claim_contradicted"
    EXPIRED = "claim_expired"
    SUPERSEDED = "claim_superseded"


class Job(NamedTuple):
    """
    One row of ``jobs``.

    Attributes:
        job_id: Grows with each job; breaks ties of age.
        params_json: A JSON object, in canonical form where this package wrote it.
        idempotency_key: At most one active job has it.
        state: A value of `JobState`, as plain text.
        priority: 0 is most urgent.
        not_before_ns: Not claimed before this time.
        claim_owner: Who holds the lease, or held it when the job ended.
        claim_expires_at_ns: The lease has lapsed when this is before now.
        attempts: How often the job was claimed.
    """

    job_id: int
    kind: str
    provider: str
    params_json: str
    idempotency_key: str
    state: str
    priority: int
    not_before_ns: int
    claim_owner: str | None
    claim_expires_at_ns: int | None
    attempts: int
    last_error: str | None
    created_at_ns: int
    updated_at_ns: int


class Run(NamedTuple):
    """
    One row of ``runs``.

    Attributes:
        run_id: Grows with each run; the newest run of a job has its greatest.
        attempt: The job's ``attempts`` when the run started.
        completed_at_ns: None while the run is open, as is ``return_code``.
        log_path: The launch log, relative to the database's folder or absolute; None without one.
    """

    run_id: int
    job_id: int
    attempt: int
    started_at_ns: int
    completed_at_ns: int | None
    return_code: int | None
    log_path: str | None


class ClaimEvent(NamedTuple):
    """
    One row of ``blackboard_claim_events``.

    Attributes:
        event_id: Its place in the log.
        kind: A value of `ClaimEventKind`, as plain text.
        assertion_id: The ``event_id`` of the assertion that this event invalidates, if any.
        payload_json: A JSON object, in canonical form where this package wrote it.
    """

    event_id: int
    kind: str
    claim_id: str
    subject: str
    predicate: str
    object: str
    assertion_id: int | None
    payload_json: str
    created_at_ns: int
