"""
The metabolism runtime: jobs under leases, their runs, an append-only blackboard of claims, and a
reconciliation that shows what is inconsistent and repairs nothing.

`connect` is the way in; every operation takes the connection and the time, ``now_ns``, in
nanoseconds since 1970. `records` has the shapes of the rows, `errors` everything that is raised
on purpose, under `MetabolismError`.
"""

from store.metabolism.blackboard import (
    Projection,
    append_claim_event,
    build_blackboard_projection,
)
from store.metabolism.errors import MetabolismError
from store.metabolism.launch_log import append_log, create_log
from store.metabolism.queue import (
    claim_next_job,
    enqueue_job,
    job_by_id,
    renew_claim,
    requeue_expired_jobs,
    update_job_state,
)
from store.metabolism.records import (
    ACTIVE_STATES,
    TERMINAL_STATES,
    ClaimEvent,
    ClaimEventKind,
    Job,
    JobState,
    Run,
)
from store.metabolism.runs import complete_run, latest_run_for_job, start_run
from store.metabolism.storage import connect, ensure_schema

__all__ = [
    "ACTIVE_STATES",
    "TERMINAL_STATES",
    "ClaimEvent",
    "ClaimEventKind",
    "Job",
    "JobState",
    "MetabolismError",
    "Projection",
    "Run",
    "append_claim_event",
    "append_log",
    "build_blackboard_projection",
    "claim_next_job",
    "complete_run",
    "connect",
    "create_log",
    "enqueue_job",
    "ensure_schema",
    "job_by_id",
    "latest_run_for_job",
    "renew_claim",
    "requeue_expired_jobs",
    "start_run",
    "update_job_state",
]
