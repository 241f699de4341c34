"""
Registering what the planner resolved: immutable rows, inserted once or found equal.
"""

from typing import Any, Final

import apsw

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
from store.run_store.refusals import (
    ConflictingIdentity,
    InapplicableCandidate,
    MembershipRefused,
    NotOneShot,
    UnrelatedRecords,
)
from store.sqlite import rows

__all__ = ["check_one_shot", "insert_one_shot"]

_Row = dict[str, Any]

_SLOT_IDENTITIES: Final = (("slot_id",), ("run_id", "logical_slot_id"))


def check_one_shot(
    candidate: Candidate,
    run: ResolvedRun,
    attempt_slot: AttemptSlot,
    observation_slot: ObservationSlot | None,
) -> None:
    """
    Check that four records are whole, belong together and are one-shot.

    Raises:
        MalformedRecord, MalformedId, IdentityMismatch: a record is not what its text says.
        InapplicableCandidate: the decision excludes the candidate.
        NotOneShot: a slot is of a kind that the layout only reserves.
        MembershipRefused: a warm-up with an observation slot, or a measurement without.
        UnrelatedRecords: one record refers to another one than was passed.
    """
    for record in (candidate, run, attempt_slot, observation_slot):
        if record is not None:
            record.verify()
    if candidate.disposition is not Disposition.APPLICABLE:
        raise InapplicableCandidate(candidate.candidate_id, candidate.decision_id)
    if attempt_slot.execution_kind is not ExecutionKind.ONE_SHOT:
        raise NotOneShot(attempt_slot.slot_id, attempt_slot.execution_kind.value)
    if (attempt_slot.role is Role.MEASUREMENT) != (observation_slot is not None):
        raise MembershipRefused(attempt_slot.slot_id, attempt_slot.role.value)
    _check_reference("candidate_id", run.candidate_id, candidate.candidate_id)
    _check_reference("decision_id", run.decision_id, candidate.decision_id)
    _check_reference("attempt_slot.run_id", attempt_slot.run_id, run.run_id)
    if observation_slot is not None:
        if observation_slot.kind is not ObservationKind.ONE_SHOT:
            raise NotOneShot(observation_slot.slot_id, observation_slot.kind.value)
        _check_reference("observation_slot.run_id", observation_slot.run_id, run.run_id)


def insert_one_shot(
    connection: apsw.Connection,
    candidate: Candidate,
    run: ResolvedRun,
    attempt_slot: AttemptSlot,
    observation_slot: ObservationSlot | None,
) -> None:
    """
    Insert checked records and the membership, or find them there unchanged.

    To be called under the write lock.

    Raises: ConflictingIdentity: the store holds something else under one of the identities.
    """
    _insert_or_match(
        connection,
        "applicability_decisions",
        (("decision_id",),),
        {
            "decision_id": candidate.decision_id,
            "candidate_id": candidate.candidate_id,
            "disposition": candidate.disposition.value,
            "record_json": candidate.record_json,
        },
    )
    _insert_or_match(
        connection,
        "resolved_runs",
        (("run_id",),),
        {
            "run_id": run.run_id,
            "logical_run_id": run.logical_run_id,
            "candidate_id": run.candidate_id,
            "decision_id": run.decision_id,
            "record_json": run.record_json,
        },
    )
    _insert_or_match(connection, "attempt_slots", _SLOT_IDENTITIES, _attempt_slot_row(attempt_slot))
    if observation_slot is not None:
        row = _observation_slot_row(observation_slot)
        _insert_or_match(connection, "observation_slots", _SLOT_IDENTITIES, row)
        _insert_or_match(
            connection,
            "attempt_observation_slots",
            (("observation_slot_id",), ("attempt_slot_id",)),
            {
                "observation_slot_id": observation_slot.slot_id,
                "attempt_slot_id": attempt_slot.slot_id,
                "run_id": attempt_slot.run_id,
            },
        )


def _attempt_slot_row(slot: AttemptSlot) -> _Row:
    return {
        "slot_id": slot.slot_id,
        "run_id": slot.run_id,
        "logical_slot_id": slot.logical_slot_id,
        "execution_kind": slot.execution_kind.value,
        "role": slot.role.value,
        "record_json": slot.record_json,
    }


def _observation_slot_row(slot: ObservationSlot) -> _Row:
    return {
        "slot_id": slot.slot_id,
        "run_id": slot.run_id,
        "logical_slot_id": slot.logical_slot_id,
        "kind": slot.kind.value,
        "record_json": slot.record_json,
    }


def _check_reference(field: str, found: str, expected: str) -> None:
    if found != expected:
        raise UnrelatedRecords(field, found, expected)


def _insert_or_match(
    connection: apsw.Connection, table: str, identities: tuple[tuple[str, ...], ...], row: _Row
) -> None:
    """
    Insert *row*, unless an equal one is there; *identities* are the keys that mean one row.
    """
    columns = list(row)
    known = False
    for key in identities:
        where = " AND ".join(f"{column} = ?" for column in key)
        query = f"SELECT {', '.join(columns)} FROM {table} WHERE {where} ORDER BY rowid"
        for values in rows(connection, query, [row[column] for column in key]):
            found = dict(zip(columns, values, strict=True))
            if found != row:
                identity = {column: row[column] for column in key}
                raise ConflictingIdentity(table, identity, found=found, expected=row)
            known = True
    if not known:
        places = ", ".join("?" for _ in columns)
        rows(
            connection,
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})",
            list(row.values()),
        )
