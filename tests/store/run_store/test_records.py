"""
Planned records, requests and guards: what they hold, show and refuse.
"""

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest
from run_store_writer_world import Plan, plan

from store import canonical
from store.run_store import (
    AttemptSlot,
    Candidate,
    Disposition,
    ExecutionKind,
    FirstAttempt,
    LeaseRequest,
    Next,
    ObservationKind,
    ObservationSlot,
    OwnedAttempt,
    Phase,
    ResolvedRun,
    Retry,
    Role,
    refusals,
    typed_id,
)
from store.run_store.errors import RunStoreError
from store.run_store.guard import credentials, issue
from store.run_store.records import _Record
from store.run_store.refusals import IdentityMismatch, MalformedId, MalformedRecord

RECORDS = ("candidate", "run", "attempt_slot", "observation_slot")

ID_FIELDS = {
    "candidate": "decision_id",
    "run": "run_id",
    "attempt_slot": "slot_id",
    "observation_slot": "slot_id",
}


def record_of(name: str, planned: Plan | None = None) -> Any:
    return getattr(planned or plan(), name)


def rewritten(record: Any, **members: object) -> Any:
    """Return *record* with other members in its text, and the id of that text."""
    document = {**json.loads(record.record_json), **members}
    kept = {key: value for key, value in document.items() if value is not ...}
    return dataclasses.replace(record, record_json=canonical.encode(kept).decode("utf-8"))


@pytest.mark.parametrize("name", RECORDS)
def test_built_record_verifies(name: str) -> None:
    """RS-013: a record built from its parts is whole."""
    record = record_of(name)
    record.verify()
    assert record == record_of(name)


@pytest.mark.parametrize("name", RECORDS)
def test_text_is_the_whole_canonical_record(name: str) -> None:
    """RS-059: the text is canonical, versioned, and the id is the id of that text."""
    record = record_of(name)
    document = canonical.decode(record.record_json.encode("utf-8"), canonical_only=True)
    assert isinstance(document, dict)
    assert document["version"] == 1
    assert typed_id(record.KIND, document) == getattr(record, ID_FIELDS[name])


def test_texts_are_pinned() -> None:
    """RS-059: the four records of one plan have exactly these members."""
    planned = plan()
    found = {name: json.loads(record_of(name, planned).record_json) for name in RECORDS}
    run = planned.run
    assert {
        "candidate": {
            "candidate": {"name": "first"},
            "candidate_id": typed_id("candidate", {"name": "first"}),
            "disposition": "applicable",
            "evidence": {"rule": "always"},
            "version": 1,
        },
        "run": {
            "candidate_id": planned.candidate.candidate_id,
            "decision_id": planned.candidate.decision_id,
            "logical": {"seed": 1},
            "logical_run_id": typed_id("logical-run", {"seed": 1}),
            "resolution": {"cores": 2},
            "version": 1,
        },
        "attempt_slot": {
            "control": {"timing": "wall"},
            "execution_kind": "one_shot",
            "logical": {"execution": 1},
            "logical_slot_id": typed_id("logical-attempt-slot", {"execution": 1}),
            "role": "measurement",
            "run_id": run.run_id,
            "version": 1,
        },
        "observation_slot": {
            "control": {},
            "kind": "one_shot",
            "logical": {"observation": 1},
            "logical_slot_id": typed_id("logical-observation-slot", {"observation": 1}),
            "run_id": run.run_id,
            "version": 1,
        },
    } == found


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_is_checked_against_the_text(name: str) -> None:
    """RS-013 RS-058: a record whose field disagrees with its text is refused, field by field."""
    record, other = record_of(name), record_of(name, plan("second"))
    fields = [field.name for field in dataclasses.fields(record) if field.name != "record_json"]
    assert len(fields) >= 3
    for field in fields:
        value = getattr(record, field)
        lie = {
            Disposition.APPLICABLE: Disposition.EXCLUDED,
            ExecutionKind.ONE_SHOT: ExecutionKind.STREAM,
            ObservationKind.ONE_SHOT: ObservationKind.CHECKPOINT,
            Role.MEASUREMENT: Role.WARM_UP,
        }.get(value, getattr(other, field))
        if lie == value:
            lie = value[:-1] + ("0" if value[-1] != "0" else "1")
        with pytest.raises(IdentityMismatch) as caught:
            dataclasses.replace(record, **{field: lie}).verify()
        assert (field, lie, value) == (
            caught.value.field,
            caught.value.found,
            caught.value.expected,
        )


@pytest.mark.parametrize("name", RECORDS)
def test_untyped_field_is_refused(name: str) -> None:
    """RS-013: a field that only equals the right one, of another type, is refused."""
    record = record_of(name)
    enums = [
        field.name
        for field in dataclasses.fields(record)
        if type(getattr(record, field.name)) is not str
    ]
    field = enums[0] if enums else "record_json"
    lie = str(getattr(record, field).value) if enums else record.record_json.encode()
    with pytest.raises((IdentityMismatch, MalformedRecord)):
        dataclasses.replace(record, **{field: lie}).verify()


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", '{"a": 1}', '{"version":1}', "\ud800", '{"a":1,"a":1}']
)
def test_text_of_another_shape_is_refused(name: str, text: str) -> None:
    """RS-013: a text that is no canonical object with the kind's members is refused."""
    with pytest.raises(MalformedRecord) as caught:
        dataclasses.replace(record_of(name), record_json=text).verify()
    assert caught.value.kind == record_of(name).KIND


@pytest.mark.parametrize("name", RECORDS)
def test_spaced_text_is_refused(name: str) -> None:
    """RS-013: the same document in another spelling is refused."""
    record = record_of(name)
    spaced = json.dumps(json.loads(record.record_json), sort_keys=True)
    with pytest.raises(MalformedRecord, match="not the canonical form"):
        dataclasses.replace(record, record_json=spaced).verify()


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("members", [{"extra": 1}, {"version": ...}])
def test_other_members_are_refused(name: str, members: dict[str, object]) -> None:
    """RS-013: one member more or less is refused."""
    with pytest.raises(MalformedRecord, match="expected the members"):
        rewritten(record_of(name), **members).verify()


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_refused(name: str, version: object) -> None:
    """RS-003: the records' version is their own, and is 1."""
    with pytest.raises(IdentityMismatch):
        rewritten(record_of(name), version=version).verify()


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("candidate", "candidate"),
        ("candidate", "evidence"),
        ("candidate", "disposition"),
        ("run", "logical"),
        ("run", "resolution"),
        ("attempt_slot", "logical"),
        ("attempt_slot", "control"),
        ("attempt_slot", "role"),
        ("attempt_slot", "execution_kind"),
        ("observation_slot", "logical"),
        ("observation_slot", "control"),
        ("observation_slot", "kind"),
    ],
)
@pytest.mark.parametrize("value", [None, [], "perhaps", 1])
def test_member_of_another_type_is_refused(name: str, member: str, value: object) -> None:
    """RS-013: planner's parts are objects, and choices are among those that exist."""
    with pytest.raises(MalformedRecord, match=member):
        rewritten(record_of(name), **{member: value}).verify()


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("run", "candidate_id"),
        ("run", "decision_id"),
        ("attempt_slot", "run_id"),
        ("observation_slot", "run_id"),
    ],
)
def test_reference_that_is_no_id_is_refused(name: str, member: str) -> None:
    """RS-058: a record refers to others by typed ids only."""
    with pytest.raises(MalformedId):
        rewritten(record_of(name), **{member: "elsewhere"}).verify()


@pytest.mark.parametrize("kind", [Candidate, ResolvedRun, AttemptSlot, ObservationSlot])
def test_records_are_frozen(kind: type[_Record]) -> None:
    """RS-074: a record cannot change after it was built."""
    names = {Candidate: 0, ResolvedRun: 1, AttemptSlot: 2, ObservationSlot: 3}
    record = record_of(RECORDS[names[kind]])
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.record_json = "{}"


def test_part_that_is_no_object_is_refused_when_building() -> None:
    """RS-013: a planner's part that is no JSON object makes no record."""
    with pytest.raises(MalformedRecord, match="evidence"):
        Candidate.of(candidate={}, evidence=[])  # type: ignore[arg-type]
    with pytest.raises(MalformedRecord):
        Candidate.of(candidate={"a": 2**60}, evidence={})


def test_requests_are_values() -> None:
    """RS-082 RS-083 RS-084: authorizations compare by what they allow, and survive pickling."""
    forms = [FirstAttempt(), Next(retry=True), Next(retry=False), Retry(next_index=1, max_index=2)]
    assert forms == pickle.loads(pickle.dumps(forms))
    assert len(set(forms)) == 4


def test_lease_request_hides_its_owner_token() -> None:
    """RS-087: the private owner token is not in the text of a request."""
    request = LeaseRequest(lease_id="l0", owner_token="secret", expires_at_ns=5)
    assert repr(request) == "LeaseRequest(lease_id='l0', expires_at_ns=5)"


def guard() -> OwnedAttempt:
    return issue(
        attempt_id="attempt",
        slot_id="slot",
        retry_index=0,
        phase=Phase.EXECUTING,
        revision=4,
        changed_at_ns=7,
        expires_at_ns=9,
        lease_id="lease-secret",
        owner_token="owner-secret",
    )


def test_guard_cannot_be_made_by_hand() -> None:
    """RS-088: the class makes no guard for whoever lacks the writer's seal."""
    for seal in (None, object(), "seal"):
        with pytest.raises(TypeError, match="cannot be made by hand"):
            OwnedAttempt(seal, attempt_id="attempt", revision=4)
    with pytest.raises(TypeError):
        OwnedAttempt()  # type: ignore[call-arg]


def test_guard_cannot_be_changed() -> None:
    """RS-088: no fact of a guard can be set, added or removed."""
    owned = guard()
    for name in ("revision", "_owner_token", "novel"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(owned, name, 5)
    with pytest.raises(AttributeError, match="cannot be changed"):
        del owned.revision
    assert owned.revision == 4


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_guard_cannot_leave_its_process(duplicate: Any) -> None:
    """RS-088: a guard is neither copied nor pickled; it dies with its process."""
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        duplicate(guard())


def test_guard_hides_its_tokens() -> None:
    """RS-088: the text of a guard shows neither lease nor owner."""
    expected = "<OwnedAttempt attempt_id='attempt' retry_index=0 phase='executing' revision=4>"
    assert expected == repr(guard()) == str(guard())
    assert not hasattr(guard(), "__dict__")


def test_only_a_guard_has_credentials() -> None:
    """RS-088: whatever merely looks like a guard is refused by the writer."""
    assert credentials(guard()) == ("lease-secret", "owner-secret")
    with pytest.raises(TypeError, match="must be the guard"):
        credentials(plan())  # type: ignore[arg-type]


def test_every_refusal_keeps_its_facts_through_pickling() -> None:
    """RS-100: a refusal reaches a parent process with type, message and facts."""
    from store.run_store import ownership_refusals

    examples: list[RunStoreError] = [
        refusals.TimestampOutOfRange("now_ns", -1),
        refusals.RetryIndexOutOfRange("next_index", "x"),
        refusals.RevisionOutOfRange(2**53),
        refusals.MalformedId("attempt", "x"),
        refusals.MalformedRecord("decision", "it is not canonical."),
        refusals.MalformedToken("owner_token"),
        refusals.MalformedAuthorization(None),
        refusals.IdentityMismatch("decision", "id", "a", "b"),
        refusals.UnrelatedRecords("run_id", "a", "b"),
        refusals.ConflictingIdentity("attempt_slots", {"slot_id": "a"}, found={}, expected={}),
        refusals.InapplicableCandidate("c", "d"),
        refusals.NotOneShot("s", "stream"),
        refusals.MembershipRefused("s", "warm_up"),
        ownership_refusals.UnknownSlot("s"),
        ownership_refusals.SatisfiedSlot("s", "a"),
        ownership_refusals.RetryNotAuthorized("s", 1),
        ownership_refusals.RetryIndexMismatch("s", next_index=1, authorized_index=2),
        ownership_refusals.RetryBoundExceeded("s", next_index=2, max_index=1),
        ownership_refusals.DuplicateLease("l"),
        ownership_refusals.LeaseNeverLive("l", expires_at_ns=1, now_ns=1),
        ownership_refusals.UnknownAttempt("a"),
        ownership_refusals.WrongOwner("a", "l"),
        ownership_refusals.WrongLease("a", "l"),
        ownership_refusals.LeaseReleased("a", "l", 5),
        ownership_refusals.LeaseExpired("a", "l", expires_at_ns=5, now_ns=5),
        ownership_refusals.StaleRevision("a", held=1, current=2),
        ownership_refusals.IllegalTransition("a", current="x", requested="y", legal=("z",)),
        ownership_refusals.ShortenedLease("a", "l", expires_at_ns=5, requested_ns=4),
        ownership_refusals.LostUpdate("attempts", "a", 0),
        ownership_refusals.StoreBusy("reserve"),
        ownership_refusals.StoreClosed("/db"),
    ]
    exported = {*refusals.__all__, *ownership_refusals.__all__} - {"WriterRefusal"}
    assert exported == {type(example).__name__ for example in examples}
    for example in examples:
        found = pickle.loads(pickle.dumps(example))
        assert type(example) is type(found)
        assert (str(example), vars(example)) == (str(found), vars(found))
        assert isinstance(found, refusals.WriterRefusal)
        assert "expected" in str(found) or "must" in str(found) or "not " in str(found)
        assert str(found).endswith(".")
