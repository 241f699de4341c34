"""
Typed ids: pinned vectors, shapes, and what changes an id.
"""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.run_store.identity import (
    SAFE_INTEGER_MAX,
    canonical_object,
    check_id,
    recompute_id,
    run_attempt_id,
    typed_id,
)
from store.run_store.refusals import (
    IdentityMismatch,
    MalformedId,
    MalformedRecord,
    RetryIndexOutOfRange,
)

SLOT_ID = "mw1-attempt-slot-" + "0123456789abcdef" * 4

LAST = SAFE_INTEGER_MAX

ATTEMPT_VECTORS = {
    0: "mw1-attempt-4de54a24d3a19aa6e1097305394fdb7d45cbe833aa56e852f8af0d02b4af4e05",
    1: "mw1-attempt-c97bd5fc026300809093efa2e3155f69579094c1ad84e2f0e1b3f032f315bdf2",
    LAST: "mw1-attempt-d6c3204dcad4d1d9d452d189133051b588bfa6c6276d62da738bff470b340b52",
}


@pytest.mark.parametrize("retry_index", sorted(ATTEMPT_VECTORS))
def test_attempt_id_is_pinned(retry_index: int) -> None:
    """RS-086: the id of an attempt is the pinned one, for ever."""
    assert ATTEMPT_VECTORS[retry_index] == run_attempt_id(SLOT_ID, retry_index)


@pytest.mark.parametrize("retry_index", sorted(ATTEMPT_VECTORS))
def test_attempt_id_is_that_of_its_record(retry_index: int) -> None:
    """RS-086: the reserved id equals the id recomputed from the record of the finished attempt."""
    record = {"version": 1, "slot_id": SLOT_ID, "retry_index": retry_index}
    expected = run_attempt_id(SLOT_ID, retry_index)
    assert expected == recompute_id("attempt", expected, record)
    text = f'{{"retry_index":{retry_index},"slot_id":"{SLOT_ID}","version":1}}'
    digest = hashlib.sha256(b"attempt\0" + text.encode("ascii")).hexdigest()
    assert f"mw1-attempt-{digest}" == expected


def test_typed_id_is_pinned() -> None:
    """RS-058: a typed id is the kind, and SHA-256 over kind, NUL and canonical JSON."""
    digest = hashlib.sha256(b'decision\0{"a":[1,"\xc3\xa9"],"b":null}').hexdigest()
    assert f"mw1-decision-{digest}" == typed_id("decision", {"b": None, "a": [1, "é"]})


@given(
    st.integers(min_value=0, max_value=SAFE_INTEGER_MAX),
    st.integers(min_value=0, max_value=SAFE_INTEGER_MAX),
)
def test_attempt_ids_differ_exactly_where_the_indices_do(first: int, second: int) -> None:
    """RS-086: two indices of a slot have one id if and only if they are equal."""
    same = run_attempt_id(SLOT_ID, first) == run_attempt_id(SLOT_ID, second)
    assert (first == second) == same


def test_kind_takes_part_in_the_digest() -> None:
    """RS-058: one record under two kinds has two digests."""
    first, second = typed_id("run", {}), typed_id("slot", {})
    assert first.rpartition("-")[2] != second.rpartition("-")[2]


@pytest.mark.parametrize("retry_index", [-1, SAFE_INTEGER_MAX + 1, 2**63, 1.0, True, "0", None])
def test_retry_index_out_of_range_is_refused(retry_index: object) -> None:
    """RS-061: an attempt id exists for canonical nonnegative integers only."""
    with pytest.raises(RetryIndexOutOfRange) as caught:
        run_attempt_id(SLOT_ID, retry_index)  # type: ignore[arg-type]
    assert ("retry_index", retry_index) == (caught.value.name, caught.value.value)


@pytest.mark.parametrize(
    "identifier",
    [
        "",
        "mw1-attempt-slot-",
        SLOT_ID[:-1],
        SLOT_ID + "0",
        SLOT_ID.upper(),
        SLOT_ID.replace("attempt-slot", "attempt"),
        SLOT_ID.replace("mw1", "mw2"),
        SLOT_ID + "\n",
        " " + SLOT_ID,
        SLOT_ID[:-1] + "g",
        SLOT_ID[:-1] + "\u0660",
        None,
        7,
    ],
)
def test_malformed_id_is_refused(identifier: object) -> None:
    """RS-058: an id of another shape, kind or type is refused before it is used."""
    with pytest.raises(MalformedId) as caught:
        check_id("attempt-slot", identifier)
    assert ("attempt-slot", identifier) == (caught.value.kind, caught.value.identifier)


def test_well_formed_id_is_returned() -> None:
    """RS-058: an id of the right kind passes as it is."""
    assert check_id("attempt-slot", SLOT_ID) == SLOT_ID


def test_id_of_another_record_is_refused() -> None:
    """RS-058: an id is recomputed from its record and refused when it differs."""
    other = typed_id("decision", {"a": 2})
    with pytest.raises(IdentityMismatch) as caught:
        recompute_id("decision", other, {"a": 1})
    assert (other, typed_id("decision", {"a": 1})) == (caught.value.found, caught.value.expected)


@pytest.mark.parametrize(
    "record",
    [[], "text", None, {"a": 2**53}, {"a": float("nan")}, {"a": "\ud800"}, {1: "a"}, {"a": b""}],
)
def test_record_without_canonical_form_has_no_id(record: object) -> None:
    """RS-058: only JSON objects in the canonical domain have ids."""
    with pytest.raises(MalformedRecord):
        typed_id("decision", record)


@pytest.mark.parametrize("kind", ["", "Decision", "a--b", "-a", "a-", "a b", "a\0b", "é"])
def test_kind_is_lowercase_words(kind: str) -> None:
    """RS-058: a kind that could be confused with another text is refused."""
    with pytest.raises(ValueError, match="must be lowercase words"):
        typed_id(kind, {})


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-SAFE_INTEGER_MAX, max_value=SAFE_INTEGER_MAX)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _JSON, max_size=4))
def test_order_of_members_does_not_matter(record: dict[str, object]) -> None:
    """RS-058: equal records have one text and one id, however they were put together."""
    reordered = dict(reversed(list(record.items())))
    assert canonical_object("decision", record) == canonical_object("decision", reordered)
    assert typed_id("decision", record) == typed_id("decision", reordered)
