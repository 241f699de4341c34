"""
The run store: leased, fenced attempts at the slots of resolved runs.

`RunStore.open` is the way in. `records` has the shapes of what is registered, `requests` what an
owner asks for, `errors`, `refusals` and `ownership_refusals` everything that is raised on
purpose, all under `RunStoreError`.
"""

from store.run_store.errors import RunStoreError
from store.run_store.guard import OwnedAttempt
from store.run_store.identity import run_attempt_id, typed_id
from store.run_store.phases import LEGAL_EDGES, TERMINAL_PHASES, Phase
from store.run_store.records import (
    AttemptSlot,
    Candidate,
    Disposition,
    ExecutionKind,
    ObservationKind,
    ObservationSlot,
    ResolvedRun,
    Role,
)
from store.run_store.refusals import WriterRefusal
from store.run_store.requests import Authorization, FirstAttempt, LeaseRequest, Next, Retry
from store.run_store.run_store import RunStore
from store.run_store.schema import RUN_STORE_SCHEMA_SQL, RUN_STORE_SCHEMA_VERSION

__all__ = [
    "LEGAL_EDGES",
    "RUN_STORE_SCHEMA_SQL",
    "RUN_STORE_SCHEMA_VERSION",
    "TERMINAL_PHASES",
    "AttemptSlot",
    "Authorization",
    "Candidate",
    "Disposition",
    "ExecutionKind",
    "FirstAttempt",
    "LeaseRequest",
    "Next",
    "ObservationKind",
    "ObservationSlot",
    "OwnedAttempt",
    "Phase",
    "ResolvedRun",
    "Retry",
    "Role",
    "RunStore",
    "RunStoreError",
    "WriterRefusal",
    "run_attempt_id",
    "typed_id",
]
