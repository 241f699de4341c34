"""The blackboard: events are only ever appended, and what holds now follows from all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metabolism_world import (
    DEEPEST,
    NOT_INTEGERS,
    NOT_OBJECTS,
    NOT_TEXTS,
    NOW,
    dump,
    opened,
    refused,
)

from store.metabolism import (
    ClaimEvent,
    ClaimEventKind,
    append_claim_event,
    build_blackboard_projection,
)
from store.metabolism.errors import (
    DatabaseBusy,
    MalformedJson,
    NotAnAssertion,
    NotAnInteger,
    NotText,
    OutOfRange,
    TransactionOpen,
    UnknownClaimEventKind,
)
from store.metabolism.storage import connect, ensure_schema
from store.sqlite import immediate, rows

INVALIDATING = [kind for kind in ClaimEventKind if kind is not ClaimEventKind.ASSERTED]
TABLE = "blackboard_claim_events"


@pytest.fixture
def c(tmp_path: Path) -> Iterator[apsw.Connection]:
    yield from opened(tmp_path / "a.sqlite3")


def append(
    c: apsw.Connection, kind: str = "claim_asserted", points_at: int | None = None, **changed: Any
) -> ClaimEvent:
    given: dict[str, Any] = {
        "kind": kind,
        "claim_id": "c",
        "subject": "s",
        "predicate": "p",
        "object": "o",
        "assertion_id": points_at,
        "now_ns": NOW,
        **changed,
    }
    return append_claim_event(c, **given)


def test_an_event_is_appended_and_returned(c: apsw.Connection) -> None:
    """MR-020: one row more, with everything that was said, and nothing else changes."""
    first = append(c, claim_id="a")
    before = dump(c)[TABLE]
    event = append(c, "claim_expired", first.event_id, payload={"b": 1, "a": [None]}, now_ns=3)
    payload = '{"a":[null],"b":1}'
    assert event == (2, "claim_expired", "c", "s", "p", "o", first.event_id, payload, 3)
    assert dump(c)[TABLE] == [*before, tuple(event)]


def test_the_kinds_are_four() -> None:
    """MR-021: asserted, contradicted, expired, superseded."""
    assert list(ClaimEventKind) == [
        "claim_asserted",
        "claim_contradicted",
        "claim_expired",
        "claim_superseded",
    ]


@pytest.mark.parametrize("kind", INVALIDATING)
def test_an_invalidation_is_an_event_that_points(c: apsw.Connection, kind: str) -> None:
    """MR-022, MR-025: the assertion is inactive afterwards; both rows stay, unchanged."""
    asserted = append(c)
    invalidating = append(c, kind, asserted.event_id)
    assert build_blackboard_projection(c).active == ()
    assert dump(c)[TABLE] == [tuple(asserted), tuple(invalidating)]
    assert invalidating.assertion_id == asserted.event_id


@pytest.mark.parametrize("kind", INVALIDATING)
def test_an_event_that_points_at_nothing_invalidates_nothing(c: apsw.Connection, kind: str) -> None:
    """AMB-5: the event is kept and counted, and every assertion stays active."""
    asserted = append(c)
    append(c, kind)
    found = build_blackboard_projection(c)
    assert (found.active, found.event_count) == ((asserted,), 2)
    assert found.contradiction_count == int(kind == "claim_contradicted")


def test_the_same_claim_may_be_asserted_again(c: apsw.Connection) -> None:
    """MR-022, MR-023: an event invalidates the assertion that it names, not its claim."""
    first, second = append(c), append(c)
    append(c, "claim_superseded", first.event_id)
    assert build_blackboard_projection(c).active == (second,)
    third = append(c)
    assert build_blackboard_projection(c).active == (second, third)


def test_an_empty_log_says_nothing(c: apsw.Connection) -> None:
    """MR-024: no events, nothing active, no contradictions."""
    assert build_blackboard_projection(c) == ((), 0, 0, 0)


def test_two_contradictions_of_one_assertion_count_twice(c: apsw.Connection) -> None:
    """MR-024: contradictions are events, active claims are assertions."""
    asserted, kept = append(c), append(c)
    for _ in range(2):
        append(c, "claim_contradicted", asserted.event_id)
    assert build_blackboard_projection(c) == ((kept,), 1, 4, 2)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(list(ClaimEventKind)), st.none() | st.integers(0, 7)),
        max_size=12,
    )
)
def test_the_projection_follows_from_the_whole_log(
    log: list[tuple[ClaimEventKind, int | None]],
) -> None:
    """MR-023, MR-024, MR-020: for any log it is what a plain replay of its rows says."""
    c = apsw.Connection(":memory:")
    rows(c, "PRAGMA foreign_keys = ON")
    ensure_schema(c)
    assertions: list[ClaimEvent] = []
    gone: set[int] = set()
    counts = dict.fromkeys(ClaimEventKind, 0)
    for kind, back in log:
        before = dump(c)[TABLE]
        if kind is ClaimEventKind.ASSERTED:
            assertions.append(append(c, kind))
        elif back is not None and back < len(assertions):
            append(c, kind, assertions[-1 - back].event_id)
            gone.add(assertions[-1 - back].event_id)
        else:
            append(c, kind)
        counts[kind] += 1
        assert dump(c)[TABLE][:-1] == before
    found = build_blackboard_projection(c)
    c.close()
    active = tuple(event for event in assertions if event.event_id not in gone)
    contradictions = counts[ClaimEventKind.CONTRADICTED]
    assert found == (active, len(active), len(log), contradictions)


def test_pointing_at_no_event_is_refused(c: apsw.Connection) -> None:
    """MR-022: an event that does not exist yet cannot be invalidated, not even by itself."""
    append(c)
    for nobody in (0, -1, 2, 77):
        with refused(c, NotAnAssertion) as caught:
            append(c, "claim_expired", nobody)
        assert (caught.value.assertion_id, caught.value.found) == (nobody, None)


@pytest.mark.parametrize("kind", INVALIDATING)
def test_pointing_at_an_invalidation_is_refused(c: apsw.Connection, kind: str) -> None:
    """MR-022: only assertions are invalidated; an invalidation is never taken back."""
    pointed = append(c, kind, append(c).event_id)
    with refused(c, NotAnAssertion) as caught:
        append(c, "claim_contradicted", pointed.event_id)
    assert caught.value.found == f"a {kind}"


def test_an_assertion_points_at_nothing(c: apsw.Connection) -> None:
    """MR-022: an assertion that names another is refused, be that one there or not."""
    asserted = append(c)
    for pointed in (asserted.event_id, 77):
        with refused(c, NotAnAssertion):
            append(c, "claim_asserted", pointed)


@pytest.mark.parametrize("number", range(8))
def test_an_unknown_kind_is_refused(c: apsw.Connection, number: int) -> None:
    """MR-021: what names no kind is refused with the four that do."""
    kind: Any = ("asserted", "", "CLAIM_ASSERTED", None, 1, [], {}, 10**5_000)[number]
    with refused(c, UnknownClaimEventKind) as caught:
        append(c, kind)
    assert str(caught.value).endswith(f"must be one of {', '.join(ClaimEventKind)}.")


@pytest.mark.parametrize("name", ["claim_id", "subject", "predicate", "object"])
def test_what_is_no_text_is_no_part_of_a_claim(c: apsw.Connection, name: str) -> None:
    """MR-020: each part of a claim is a text that can be stored."""
    for value in NOT_TEXTS:
        with refused(c, NotText) as caught:
            append(c, **{name: value})
        assert caught.value.name == name


def test_what_is_no_integer_is_no_event(c: apsw.Connection) -> None:
    """MR-020: times and identifiers are integers of 64 bits; a time is never negative."""
    for value in NOT_INTEGERS:
        with refused(c, NotAnInteger):
            append(c, now_ns=value)
        if value is not None:
            with refused(c, NotAnInteger) as caught:
                append(c, "claim_expired", value)
            assert caught.value.name == "assertion_id"
    with refused(c, OutOfRange):
        append(c, now_ns=-1)


@pytest.mark.parametrize("number", range(len(NOT_OBJECTS)))
def test_what_json_cannot_hold_is_no_payload(c: apsw.Connection, number: int) -> None:
    """MR-020: a payload is a JSON object."""
    with refused(c, MalformedJson) as caught:
        append(c, payload=NOT_OBJECTS[number])
    assert caught.value.name == "payload"


def test_the_deepest_payload_is_kept(c: apsw.Connection) -> None:
    """MR-020: what JSON can hold comes back as it was."""
    assert json.loads(append(c, payload=DEEPEST).payload_json) == DEEPEST


@pytest.mark.parametrize(
    "statement",
    [
        *(f"UPDATE {TABLE} SET {name} = {name}" for name in [*ClaimEvent._fields, "rowid"]),
        f"UPDATE OR IGNORE {TABLE} SET kind = 'claim_expired'",
        f"DELETE FROM {TABLE}",
        f"DELETE FROM {TABLE} WHERE event_id = 2",
        f"INSERT OR REPLACE INTO {TABLE} SELECT * FROM {TABLE} WHERE event_id = 2",
        f"REPLACE INTO {TABLE} SELECT * FROM {TABLE}",
        f"INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE true"
        " ON CONFLICT DO UPDATE SET object = 'other'",
    ],
)
def test_the_log_is_append_only(c: apsw.Connection, statement: str) -> None:
    """MR-020, AMB-9: no verb of SQL changes or removes an event, whoever says it."""
    append(c, "claim_contradicted", append(c).event_id)
    with refused(c, apsw.ConstraintError) as caught:
        rows(c, statement)
    assert "an event is never" in str(caught.value)


@pytest.mark.parametrize("verb", ["update", "delete"])
def test_the_triggers_are_what_keeps_the_log(c: apsw.Connection, verb: str) -> None:
    """AMB-9: without its trigger the same statement succeeds, so the test above can fail."""
    append(c)
    rows(c, f"DROP TRIGGER {TABLE}_no_{verb}")
    rows(c, f"UPDATE {TABLE} SET object = 'x'" if verb == "update" else f"DELETE FROM {TABLE}")
    assert c.changes() == 1


def test_appending_has_a_transaction_of_its_own(c: apsw.Connection, tmp_path: Path) -> None:
    """MR-020, AMB-2: refused inside another transaction, and where the lock is never free."""
    other = connect(tmp_path / "a.sqlite3")
    with immediate(c), pytest.raises(TransactionOpen):
        append(c)
    c.set_busy_timeout(1)
    with immediate(other), refused(c, DatabaseBusy):
        append(c)
    other.close()
    assert append(c).event_id == 1
