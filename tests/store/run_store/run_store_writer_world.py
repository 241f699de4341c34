"""
Planned records for the writer's tests, and rows that only later operations will write.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from store.run_store import (
    AttemptSlot,
    Candidate,
    FirstAttempt,
    LeaseRequest,
    ObservationSlot,
    OwnedAttempt,
    Phase,
    ResolvedRun,
    Role,
    RunStore,
    WriterRefusal,
)
from store.run_store.guard import issue
from store.sqlite import immediate, rows

TABLES_SQL = (
    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
)

OWNER = "owner-secret"

PATH_TO_EVALUATING = (
    Phase.MATERIALIZING,
    Phase.STARTING,
    Phase.PREPARING,
    Phase.EXECUTING,
    Phase.VALIDATING,
    Phase.EVALUATING,
)


@dataclass(frozen=True)
class Plan:
    """
    One one-shot run as a planner resolves it.
    """

    candidate: Candidate
    run: ResolvedRun
    attempt_slot: AttemptSlot
    observation_slot: ObservationSlot | None

    @property
    def slot_id(self) -> str:
        return self.attempt_slot.slot_id

    def register(self, store: RunStore) -> None:
        store.register_one_shot(self.candidate, self.run, self.attempt_slot, self.observation_slot)


def plan(name: str = "first", role: Role = Role.MEASUREMENT) -> Plan:
    """Return a plan whose ids follow from *name* and *role* alone."""
    candidate = Candidate.of(candidate={"name": name}, evidence={"rule": "always"})
    run = ResolvedRun.of(candidate=candidate, logical={"seed": 1}, resolution={"cores": 2})
    return Plan(
        candidate=candidate,
        run=run,
        attempt_slot=AttemptSlot.of(
            run=run, logical={"execution": 1}, control={"timing": "wall"}, role=role
        ),
        observation_slot=None
        if role is Role.WARM_UP
        else ObservationSlot.of(run=run, logical={"observation": 1}, control={}),
    )


def lease(lease_id: str = "l0", expires_at_ns: int = 1_000, owner: str = OWNER) -> LeaseRequest:
    return LeaseRequest(lease_id=lease_id, owner_token=owner, expires_at_ns=expires_at_ns)


def query(store: RunStore, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Run a statement on the store's private connection, as only a test may."""
    return rows(store._open(), sql, parameters)


def dump(store: RunStore) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of all tables, in the order of insertion."""
    return {
        table: query(store, f"SELECT * FROM {table} ORDER BY rowid")
        for (table,) in query(store, TABLES_SQL)
    }


@contextmanager
def refused(
    store: RunStore, kind: type[WriterRefusal]
) -> Iterator[pytest.ExceptionInfo[WriterRefusal]]:
    """Run the block, which must raise exactly *kind*, hold no transaction and change nothing."""
    before = dump(store)
    with pytest.raises(kind) as caught:
        yield caught
    assert kind is caught.type
    assert not store._open().in_transaction
    assert before == dump(store)


def open_planned(root: Path, *plans: Plan) -> RunStore:
    """Return an open store with *plans* registered, or with the first one."""
    store = RunStore.open(root)
    for registered in plans or (plan(),):
        registered.register(store)
    return store


def reserve(store: RunStore, now_ns: int = 10, expires_at_ns: int = 1_000) -> OwnedAttempt:
    """Reserve the first attempt of the first plan."""
    return store.reserve(plan().slot_id, FirstAttempt(), lease(expires_at_ns=expires_at_ns), now_ns)


def walk(store: RunStore, attempt: OwnedAttempt, *phases: Phase, now_ns: int = 20) -> OwnedAttempt:
    """Advance through *phases*, all at one time."""
    for phase in phases:
        attempt = store.advance(attempt, phase, now_ns)
    return attempt


def forged(attempt: OwnedAttempt, **changed: Any) -> OwnedAttempt:
    """Return a guard with other facts than the store issued, as only a liar would have it."""
    facts = {
        "attempt_id": attempt.attempt_id,
        "slot_id": attempt.slot_id,
        "retry_index": attempt.retry_index,
        "phase": attempt.phase,
        "revision": attempt.revision,
        "changed_at_ns": attempt.changed_at_ns,
        "expires_at_ns": attempt.expires_at_ns,
        "lease_id": attempt._lease_id,
        "owner_token": attempt._owner_token,
    }
    return issue(**{**facts, **changed})


def insert_claim(
    store: RunStore, attempt: OwnedAttempt, *, lease_id: str = "f0", expires_at_ns: int = 1_000
) -> None:
    """Give a finalizing attempt the claim of its slot."""
    with immediate(store._open()):
        query(
            store,
            "INSERT INTO leases (lease_id, owner_token, attempt_id, purpose, acquired_at_ns,"
            " expires_at_ns) VALUES (?, ?, ?, 'finalization', ?, ?)",
            lease_id,
            attempt._owner_token,
            attempt.attempt_id,
            attempt.changed_at_ns,
            expires_at_ns,
        )
        query(
            store,
            "INSERT INTO finalization_claims (slot_id, attempt_id, lease_id) VALUES (?, ?, ?)",
            attempt.slot_id,
            attempt.attempt_id,
            lease_id,
        )


def insert_stage(
    store: RunStore,
    attempt: OwnedAttempt,
    *,
    lease_id: str,
    expires_at_ns: int,
    released_at_ns: int | None = None,
    owner: str = OWNER,
) -> None:
    """Give an attempt a staging lease."""
    query(
        store,
        "INSERT INTO leases (lease_id, owner_token, attempt_id, purpose, acquired_at_ns,"
        " expires_at_ns, released_at_ns, staging_path) VALUES (?, ?, ?, 'staging', ?, ?, ?, ?)",
        lease_id,
        owner,
        attempt.attempt_id,
        attempt.changed_at_ns,
        expires_at_ns,
        released_at_ns,
        f"artifacts/.staging-{lease_id}",
    )


def finish(store: RunStore, attempt: OwnedAttempt, state: Phase) -> None:
    """End a finalizing attempt, accepted under a claim of its own, and release its leases."""
    if state is Phase.ACCEPTED:
        insert_claim(store, attempt, lease_id=f"f-{attempt.attempt_id}")
    at_ns, revision, artifact = attempt.changed_at_ns, attempt.revision + 1, attempt.attempt_id
    code = "broken" if state is Phase.FAILED else None
    with immediate(store._open()):
        query(
            store,
            "INSERT INTO artifacts (artifact_id, kind, entry, content_sha256, path,"
            " manifest_sha256, verified_at_ns) VALUES (?, 'attempt', 'directory', ?, ?, ?, ?)",
            *(artifact, "0" * 64, f"artifacts/{artifact}", "1" * 64, at_ns),
        )
        query(
            store,
            "UPDATE attempts SET state = ?, revision = ?, changed_at_ns = ?, finished_at_ns = ?,"
            " final_artifact_id = ?, failure_code = ? WHERE attempt_id = ?",
            *(state.value, revision, at_ns, at_ns, artifact, code, attempt.attempt_id),
        )
        query(
            store,
            "INSERT INTO events (attempt_id, kind, at_ns, payload_json)"
            " VALUES (?, 'attempt_finished', ?, '{}')",
            *(attempt.attempt_id, at_ns),
        )
        query(
            store,
            "INSERT INTO attempt_transitions (attempt_id, revision, from_state, to_state, at_ns,"
            " previous_at_ns, event_sequence, event_kind)"
            " VALUES (?, ?, 'finalizing', ?, ?, ?, last_insert_rowid(), 'attempt_finished')",
            *(attempt.attempt_id, revision, state.value, at_ns, at_ns),
        )
        query(store, "DELETE FROM finalization_claims WHERE attempt_id = ?", attempt.attempt_id)
        query(
            store,
            "UPDATE leases SET released_at_ns = ? WHERE attempt_id = ?",
            *(at_ns, attempt.attempt_id),
        )
