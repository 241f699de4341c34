"""
Registering one-shot records: immutable, idempotent, and never two things under one identity.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_store_writer_world import Plan, dump, plan, query, refused

from store.run_store import (
    AttemptSlot,
    Candidate,
    Disposition,
    ExecutionKind,
    ObservationKind,
    ObservationSlot,
    ResolvedRun,
    Role,
    RunStore,
)
from store.run_store.refusals import (
    ConflictingIdentity,
    IdentityMismatch,
    InapplicableCandidate,
    MembershipRefused,
    NotOneShot,
    UnrelatedRecords,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore.open(tmp_path) as opened:
        yield opened


def test_registers_records_and_membership(store: RunStore) -> None:
    """RS-074 RS-059: five rows hold the four records whole, and which slot owes what."""
    planned = plan()
    planned.register(store)
    candidate, run, slot = planned.candidate, planned.run, planned.attempt_slot
    observation = planned.observation_slot
    assert observation is not None
    filled = {table: found for table, found in dump(store).items() if found}
    assert {
        "applicability_decisions": [
            (candidate.decision_id, candidate.candidate_id, "applicable", candidate.record_json)
        ],
        "resolved_runs": [
            (
                run.run_id,
                run.logical_run_id,
                candidate.candidate_id,
                candidate.decision_id,
                "applicable",
                run.record_json,
            )
        ],
        "attempt_slots": [
            (
                slot.slot_id,
                run.run_id,
                slot.logical_slot_id,
                "one_shot",
                "measurement",
                slot.record_json,
            )
        ],
        "observation_slots": [
            (
                observation.slot_id,
                run.run_id,
                observation.logical_slot_id,
                "one_shot",
                observation.record_json,
            )
        ],
        "attempt_observation_slots": [
            (observation.slot_id, slot.slot_id, run.run_id, "measurement")
        ],
    } == filled


def test_registering_again_changes_nothing(store: RunStore, tmp_path: Path) -> None:
    """RS-074: equal records may be registered again, also through another connection."""
    plan().register(store)
    before = dump(store)
    plan().register(store)
    with RunStore.open(tmp_path) as other:
        plan().register(other)
    assert before == dump(store)


def test_registration_appends_no_event(store: RunStore) -> None:
    """RS-074: registering plans records no event and no attempt."""
    plan().register(store)
    assert query(store, "SELECT * FROM events") == []
    assert query(store, "SELECT * FROM attempts") == []


def test_two_plans_share_what_is_equal(store: RunStore) -> None:
    """RS-074: two slots of one run share its candidate and run."""
    planned = plan()
    planned.register(store)
    second = AttemptSlot.of(run=planned.run, logical={"execution": 2}, control={})
    owed = ObservationSlot.of(run=planned.run, logical={"observation": 2}, control={})
    store.register_one_shot(planned.candidate, planned.run, second, owed)
    counts = {table: len(found) for table, found in dump(store).items() if found}
    assert counts == {
        "applicability_decisions": 1,
        "attempt_observation_slots": 2,
        "attempt_slots": 2,
        "observation_slots": 2,
        "resolved_runs": 1,
    }


def test_warm_up_has_no_observation_slot(store: RunStore) -> None:
    """RS-074: a warm-up is registered without membership."""
    plan(role=Role.WARM_UP).register(store)
    assert query(store, "SELECT role FROM attempt_slots") == [("warm_up",)]
    assert query(store, "SELECT * FROM attempt_observation_slots") == []


@pytest.mark.parametrize("role", sorted(Role))
def test_membership_follows_the_role(store: RunStore, role: Role) -> None:
    """RS-074: a measurement without an observation slot is refused, and a warm-up with one."""
    planned = plan(role=role)
    observation = plan().observation_slot if role is Role.WARM_UP else None
    with refused(store, MembershipRefused) as caught:
        store.register_one_shot(planned.candidate, planned.run, planned.attempt_slot, observation)
    assert {"slot_id": planned.slot_id, "role": role.value} == vars(caught.value)


def test_excluded_candidate_is_refused(store: RunStore) -> None:
    """RS-042 RS-074: no run is registered under a decision that excludes its candidate."""
    candidate = Candidate.of(
        candidate={"name": "out"}, evidence={}, disposition=Disposition.EXCLUDED
    )
    run = ResolvedRun.of(candidate=candidate, logical={}, resolution={})
    slot = AttemptSlot.of(run=run, logical={}, control={})
    owed = ObservationSlot.of(run=run, logical={}, control={})
    with refused(store, InapplicableCandidate) as caught:
        store.register_one_shot(candidate, run, slot, owed)
    assert {
        "candidate_id": candidate.candidate_id,
        "decision_id": candidate.decision_id,
    } == vars(caught.value)


@pytest.mark.parametrize("kind", sorted(set(ExecutionKind) - {ExecutionKind.ONE_SHOT}))
def test_reserved_execution_kind_is_refused(store: RunStore, kind: ExecutionKind) -> None:
    """RS-004: the one-shot API registers no slot of a kind that the layout only reserves."""
    planned = plan()
    slot = AttemptSlot.of(run=planned.run, logical={}, control={}, execution_kind=kind)
    with refused(store, NotOneShot) as caught:
        store.register_one_shot(planned.candidate, planned.run, slot, planned.observation_slot)
    assert {"slot_id": slot.slot_id, "kind": kind.value} == vars(caught.value)


@pytest.mark.parametrize("kind", sorted(set(ObservationKind) - {ObservationKind.ONE_SHOT}))
def test_reserved_observation_kind_is_refused(store: RunStore, kind: ObservationKind) -> None:
    """RS-004: the one-shot API registers no observation slot of a reserved kind."""
    planned = plan()
    owed = ObservationSlot.of(run=planned.run, logical={}, control={}, kind=kind)
    with refused(store, NotOneShot) as caught:
        store.register_one_shot(planned.candidate, planned.run, planned.attempt_slot, owed)
    assert {"slot_id": owed.slot_id, "kind": kind.value} == vars(caught.value)


@pytest.mark.parametrize("part", ["candidate", "run", "attempt_slot", "observation_slot"])
def test_unrelated_records_are_refused(store: RunStore, part: str) -> None:
    """RS-074: records of two plans are not registered together."""
    mixed = dataclasses.replace(plan(), **{part: getattr(plan("second"), part)})
    with refused(store, UnrelatedRecords):
        mixed.register(store)


def test_run_under_another_decision_is_refused(store: RunStore) -> None:
    """RS-042 RS-074: a run resolved under one decision is not registered under another."""
    planned = plan()
    other = Candidate.of(candidate={"name": "first"}, evidence={"rule": "other"})
    with refused(store, UnrelatedRecords) as caught:
        dataclasses.replace(planned, candidate=other).register(store)
    assert caught.value.field == "decision_id"


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ("candidate", "decision_id"),
        ("candidate", "candidate_id"),
        ("run", "run_id"),
        ("attempt_slot", "slot_id"),
        ("observation_slot", "slot_id"),
    ],
)
def test_id_of_another_record_is_refused(store: RunStore, part: str, field: str) -> None:
    """RS-058 RS-074: an id that is not the record's own is refused at the writer."""
    planned = plan()
    stolen = getattr(getattr(plan("second"), part), field)
    lie = dataclasses.replace(getattr(planned, part), **{field: stolen})
    with refused(store, IdentityMismatch) as caught:
        dataclasses.replace(planned, **{part: lie}).register(store)
    assert (field, stolen) == (caught.value.field, caught.value.found)


def conflicting(planned: Plan) -> dict[str, Plan]:
    """Return plans that each contradict *planned* once it is registered."""
    slot = AttemptSlot.of(run=planned.run, logical={"execution": 1}, control={"timing": "cpu"})
    other_slot = AttemptSlot.of(run=planned.run, logical={"execution": 2}, control={})
    owed = ObservationSlot.of(run=planned.run, logical={"observation": 1}, control={"a": 1})
    other_owed = ObservationSlot.of(run=planned.run, logical={"observation": 2}, control={})
    return {
        "attempt_slots": dataclasses.replace(planned, attempt_slot=slot),
        "observation_slots": dataclasses.replace(planned, observation_slot=owed),
        "membership of the observation slot": dataclasses.replace(planned, attempt_slot=other_slot),
        "membership of the execution slot": dataclasses.replace(
            planned, observation_slot=other_owed
        ),
    }


@pytest.mark.parametrize("name", sorted(conflicting(plan())))
def test_conflicting_identity_is_refused(store: RunStore, name: str) -> None:
    """RS-043 RS-044 RS-045 RS-074: a logical slot and a membership mean one thing for ever."""
    planned = plan()
    planned.register(store)
    with refused(store, ConflictingIdentity) as caught:
        conflicting(planned)[name].register(store)
    table = "attempt_observation_slots" if name.startswith("membership") else name
    assert table == caught.value.table
    assert caught.value.found != caught.value.expected


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("applicability_decisions", "record_json"),
        ("resolved_runs", "record_json"),
        ("attempt_slots", "record_json"),
        ("observation_slots", "record_json"),
    ],
)
def test_row_that_was_altered_is_a_conflict(store: RunStore, table: str, column: str) -> None:
    """RS-074: a stored row that is not the id's record is reported, not overwritten."""
    planned = plan()
    planned.register(store)
    query(store, f"DROP TRIGGER {table}_update_guard")
    query(store, f"UPDATE {table} SET {column} = '{{}}'")
    with refused(store, ConflictingIdentity) as caught:
        planned.register(store)
    assert table == caught.value.table
    assert isinstance(caught.value.found, dict)
    assert caught.value.found[column] == "{}"


def test_failure_in_the_middle_leaves_nothing(store: RunStore) -> None:
    """RS-100: an error after the first rows were inserted rolls all of them back."""
    query(
        store,
        "CREATE TEMP TRIGGER broken BEFORE INSERT ON main.attempt_observation_slots"
        " BEGIN SELECT RAISE(ABORT, 'broken'); END",
    )
    before = dump(store)
    with pytest.raises(Exception, match="broken"):
        plan().register(store)
    assert before == dump(store)
    query(store, "DROP TRIGGER broken")
    plan().register(store)
    assert before != dump(store)
