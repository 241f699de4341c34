"""
A database in memory with the embedded schema, and short ways to put rows into it.

Ids are short here, since SQL never looks into them. `World.populate` leaves at least one row in
each of the sixteen tables.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw
import pytest

from store.run_store.schema import RUN_STORE_SCHEMA_SQL
from store.sqlite import immediate, rows

TABLES = (
    "applicability_decisions",
    "artifacts",
    "attempt_artifacts",
    "attempt_observation_slots",
    "attempt_slots",
    "attempt_transitions",
    "attempts",
    "events",
    "finalization_claims",
    "leased_artifacts",
    "leases",
    "observation_artifacts",
    "observation_slots",
    "observations",
    "resolved_runs",
    "selected_observations",
)

INSERT_ONLY_TABLES = tuple(sorted(set(TABLES) - {"attempts", "finalization_claims", "leases"}))

TERMINAL = ("accepted", "censored", "superseded", "failed")

PATH_TO = {
    "reserved": (),
    "materializing": ("materializing",),
    "starting": ("materializing", "starting"),
    "preparing": ("materializing", "starting", "preparing"),
    "executing": ("materializing", "starting", "preparing", "executing"),
    "checkpointing": ("materializing", "starting", "preparing", "executing", "checkpointing"),
    "validating": ("materializing", "starting", "preparing", "executing", "validating"),
    "evaluating": (
        "materializing",
        "starting",
        "preparing",
        "executing",
        "validating",
        "evaluating",
    ),
    "finalizing": ("finalizing",),
    "accepted": ("finalizing", "accepted"),
    "censored": ("finalizing", "censored"),
    "superseded": ("finalizing", "superseded"),
    "failed": ("finalizing", "failed"),
}

_DIGEST = "0123456789abcdef" * 4

_DEFAULTS: dict[str, dict[str, Any]] = {
    "applicability_decisions": {
        "decision_id": "d",
        "candidate_id": "c",
        "disposition": "applicable",
        "record_json": "{}",
    },
    "resolved_runs": {
        "run_id": "r",
        "logical_run_id": "lr",
        "candidate_id": "c",
        "decision_id": "d",
        "record_json": "{}",
    },
    "attempt_slots": {
        "slot_id": "s",
        "run_id": "r",
        "logical_slot_id": "ls",
        "execution_kind": "one_shot",
        "role": "measurement",
        "record_json": "{}",
    },
    "observation_slots": {
        "slot_id": "o",
        "run_id": "r",
        "logical_slot_id": "lo",
        "kind": "one_shot",
        "record_json": "{}",
    },
    "attempt_observation_slots": {
        "observation_slot_id": "o",
        "attempt_slot_id": "s",
        "run_id": "r",
    },
    "artifacts": {
        "artifact_id": "x",
        "kind": "dataset",
        "entry": "directory",
        "content_sha256": _DIGEST,
        "path": "artifacts/x",
        "manifest_sha256": _DIGEST,
        "verified_at_ns": 1,
    },
    "attempts": {
        "attempt_id": "a",
        "slot_id": "s",
        "retry_index": 0,
        "state": "reserved",
        "revision": 0,
        "started_at_ns": 10,
        "changed_at_ns": 10,
    },
    "events": {"attempt_id": None, "kind": "note", "at_ns": 10, "payload_json": "{}"},
    "attempt_transitions": {
        "attempt_id": "a",
        "revision": 0,
        "from_state": None,
        "to_state": "reserved",
        "at_ns": 10,
        "previous_at_ns": None,
        "event_sequence": 1,
        "event_kind": "attempt_reserved",
    },
    "leases": {
        "lease_id": "l",
        "owner_token": "owner",
        "attempt_id": "a",
        "purpose": "reservation",
        "acquired_at_ns": 10,
        "expires_at_ns": 100,
    },
    "finalization_claims": {"slot_id": "s", "attempt_id": "a", "lease_id": "f"},
    "observations": {
        "observation_id": "ob",
        "slot_id": "o",
        "attempt_id": "a",
        "attempt_slot_id": "s",
        "valid": 1,
        "completion": "reached",
        "artifact_id": "xo",
        "registered_at_ns": 10,
        "record_json": "{}",
    },
    "selected_observations": {"slot_id": "o", "observation_id": "ob"},
    "attempt_artifacts": {"attempt_id": "a", "role": "dataset", "artifact_id": "x"},
    "observation_artifacts": {"observation_id": "ob", "role": "result", "artifact_id": "x"},
    "leased_artifacts": {"lease_id": "l", "artifact_id": "x"},
}


class World:
    """
    The schema with rows in it; each test makes one of its own.
    """

    def __init__(self) -> None:
        self.connection = apsw.Connection(":memory:")
        self.connection.pragma("foreign_keys", True)
        self.connection.pragma("recursive_triggers", True)
        with immediate(self.connection):
            rows(self.connection, RUN_STORE_SCHEMA_SQL)

    def run(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return rows(self.connection, sql, parameters)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        return {table: self.run(f"SELECT * FROM {table} ORDER BY rowid") for table in TABLES}

    @contextmanager
    def committed(self) -> Iterator[None]:
        """Run the block in one transaction that must change something and commit."""
        before = self.dump()
        with immediate(self.connection):
            yield
        assert before != self.dump()

    @contextmanager
    def refused(self, reason: str) -> Iterator[None]:
        """Run the block in one transaction that must fail with *reason* and change nothing."""
        before = self.dump()
        with pytest.raises(apsw.ConstraintError) as caught, immediate(self.connection):
            yield
        assert reason == str(caught.value)
        assert before == self.dump()

    def insert(self, table: str, verb: str = "INSERT", **values: Any) -> None:
        row = {**_DEFAULTS[table], **values}
        places = ", ".join("?" for _ in row)
        self.run(f"{verb} INTO {table} ({', '.join(row)}) VALUES ({places})", *row.values())

    def plan(self) -> None:
        """Register one run with a measuring slot, its observation slot, and a warm-up slot."""
        with self.committed():
            self.insert("applicability_decisions")
            self.insert("resolved_runs")
            self.insert("attempt_slots")
            self.insert("attempt_slots", slot_id="w", logical_slot_id="lw", role="warm_up")
            self.insert("observation_slots")
            self.insert("attempt_observation_slots")

    def store_artifacts(self) -> None:
        """Insert a dataset `x`, an attempt's directory `xa` and an observation's, `xo`."""
        with self.committed():
            self.insert("artifacts")
            self.insert("artifacts", artifact_id="xa", kind="attempt", path="artifacts/xa")
            self.insert("artifacts", artifact_id="xo", kind="observation", path="artifacts/xo")

    def event(self, attempt_id: str | None, kind: str, at_ns: int) -> int:
        self.insert("events", attempt_id=attempt_id, kind=kind, at_ns=at_ns)
        return self.connection.last_insert_rowid()

    def reserve(self, attempt_id: str = "a", retry_index: int = 0, slot_id: str = "s") -> None:
        """Insert a reservation with its history and a lease named after the attempt."""
        with self.committed():
            self.insert("attempts", attempt_id=attempt_id, retry_index=retry_index, slot_id=slot_id)
            sequence = self.event(attempt_id, "attempt_reserved", 10)
            self.insert("attempt_transitions", attempt_id=attempt_id, event_sequence=sequence)
            self.insert("leases", lease_id=f"l{attempt_id}", attempt_id=attempt_id)

    def move(self, state: str, attempt_id: str = "a", at_ns: int = 20, **values: Any) -> None:
        """Write projection, event and transition, inside the caller's transaction."""
        [(before, revision, changed)] = self.run(
            "SELECT state, revision, changed_at_ns FROM attempts WHERE attempt_id = ?", attempt_id
        )
        kind = "attempt_finished" if state in TERMINAL else "attempt_transition"
        if state in TERMINAL:
            values = {"finished_at_ns": at_ns, "final_artifact_id": "xa", **values}
        if state == "failed":
            values = {"failure_code": "broken", **values}
        self.project(state, revision + 1, at_ns, attempt_id=attempt_id, **values)
        self.insert(
            "attempt_transitions",
            attempt_id=attempt_id,
            revision=revision + 1,
            from_state=before,
            to_state=state,
            at_ns=at_ns,
            previous_at_ns=changed,
            event_sequence=self.event(attempt_id, kind, at_ns),
            event_kind=kind,
        )

    def project(
        self, state: str, revision: int, at_ns: int, attempt_id: str = "a", **values: Any
    ) -> None:
        """Write the projection only, inside the caller's transaction."""
        row = {"state": state, "revision": revision, "changed_at_ns": at_ns, **values}
        setting = ", ".join(f"{column} = ?" for column in row)
        self.run(f"UPDATE attempts SET {setting} WHERE attempt_id = ?", *row.values(), attempt_id)

    def reach(self, state: str, attempt_id: str = "a") -> None:
        """Walk a reserved attempt to *state*, one transaction for each edge."""
        for step in PATH_TO[state]:
            if step == "accepted":
                self.claim(attempt_id)
            with self.committed():
                self.move(step, attempt_id)
                if step == "accepted":
                    self.run("DELETE FROM finalization_claims WHERE attempt_id = ?", attempt_id)

    def claim(self, attempt_id: str = "a") -> None:
        """Give a finalizing attempt the slot's claim, under a lease named after it."""
        with self.committed():
            self.insert(
                "leases", lease_id=f"f{attempt_id}", attempt_id=attempt_id, purpose="finalization"
            )
            self.insert("finalization_claims", attempt_id=attempt_id, lease_id=f"f{attempt_id}")

    def populate(self) -> None:
        """Leave at least one row in each table: a failed attempt `a`, a claiming one `b`."""
        self.plan()
        self.store_artifacts()
        self.reserve("a")
        self.reserve("b", 1)
        with self.committed():
            self.insert("leased_artifacts", lease_id="la")
            self.insert("observations")
            self.insert("selected_observations")
            self.insert("observation_artifacts")
            self.insert("attempt_artifacts")
        self.reach("failed", "a")
        self.reach("finalizing", "b")
        self.claim("b")
