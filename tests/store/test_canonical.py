"""Canonical JSON: one value, one byte string, and nothing outside the domain."""

from __future__ import annotations

import enum
import json
import math
import pickle
import struct
from random import Random

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from store.canonical import (
    DEPTH_MAX,
    SAFE_INTEGER_MAX,
    CanonicalError,
    JsonValue,
    NotCanonical,
    NotJson,
    OutsideDomain,
    decode,
    encode,
)


def _in_domain(number: float) -> bool:
    return not number.is_integer() or abs(number) <= SAFE_INTEGER_MAX


UNHURRIED = settings(deadline=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-SAFE_INTEGER_MAX, SAFE_INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False).filter(_in_domain)
    | TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20
)


@UNHURRIED
@given(VALUES)
def test_the_fast_way_writes_what_rfc8785_asks(value: JsonValue) -> None:
    """Whichever encoder is taken, the bytes are those of the library made for the standard."""
    assert encode(value) == rfc8785.dumps(value)  # type: ignore[arg-type]


@given(VALUES)
def test_a_value_survives_its_bytes(value: JsonValue) -> None:
    """Decoding gives an equal value back, and its bytes are again the same."""
    data = encode(value)
    assert decode(data, canonical_only=True) == value
    assert encode(decode(data)) == data


@UNHURRIED
@given(VALUES)
def test_another_reader_sees_the_same_value(value: JsonValue) -> None:
    """The bytes are plain JSON: the standard library reads an equal value from them."""
    assert json.loads(encode(value)) == value


@UNHURRIED
@given(VALUES, st.randoms(use_true_random=False))
def test_the_order_of_insertion_does_not_show(value: JsonValue, random: Random) -> None:
    """Two dictionaries that are equal have the same bytes, however they were filled."""
    assert encode(_shuffled(value, random)) == encode(value)


def _shuffled(value: JsonValue, random: Random) -> JsonValue:
    if isinstance(value, dict):
        members = list(value.items())
        random.shuffle(members)
        return {key: _shuffled(item, random) for key, item in members}
    if isinstance(value, list):
        return [_shuffled(item, random) for item in value]
    return value


@UNHURRIED
@given(VALUES)
def test_pretty_bytes_are_read_and_are_not_canonical(value: JsonValue) -> None:
    """Bytes with spaces give the same value, and are refused when canonical ones are asked for."""
    data = b" " + json.dumps(value, indent=1).encode()
    assert decode(data) == value
    with pytest.raises(NotCanonical):
        decode(data, canonical_only=True)


@UNHURRIED
@given(
    st.binary()
    | TEXT.map(str.encode)
    | st.lists(st.sampled_from('[]{}",:019.-eE+ u\\')).map(lambda parts: "".join(parts).encode())
)
def test_any_bytes_give_a_value_of_the_domain_or_a_typed_error(data: bytes) -> None:
    """Nothing but a CanonicalError leaves the decoder, and what it returns can be encoded."""
    try:
        value = decode(data)
    except CanonicalError:
        return
    assert decode(encode(value), canonical_only=True) == value


# RFC 8785 appendix B, the rows inside the domain: bits of the double, and its only text.
NUMBERS = {
    0x0000000000000000: "0",
    0x8000000000000000: "0",
    0x0000000000000001: "5e-324",
    0x8000000000000001: "-5e-324",
    0x4340000000000000 - 1: "9007199254740991",
    0xC340000000000000 - 1: "-9007199254740991",
    0x3EB0C6F7A0B5ED8D: "0.000001",
    0x3EB0C6F7A0B5ED8C: "9.999999999999997e-7",
    0x41B3DE4355555553: "333333333.3333332",
    0x41B3DE4355555554: "333333333.33333325",
    0x41B3DE4355555555: "333333333.3333333",
    0x41B3DE4355555556: "333333333.3333334",
    0x41B3DE4355555557: "333333333.33333343",
    0xBECBF647612F3696: "-0.0000033333333333333333",
}


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_numbers_are_written_as_the_rfc_writes_them(bits: int, text: str) -> None:
    """Each double of the RFC's table has exactly the text that the table gives."""
    (number,) = struct.unpack(">d", struct.pack(">Q", bits))
    assert encode(number) == text.encode()


def test_keys_are_sorted_as_utf_16_and_escapes_are_minimal() -> None:
    """The RFC's sorting example, and its escapes, come out byte for byte."""
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    text = encode(dict.fromkeys(keys, 0)).decode()
    assert list(json.loads(text)) == [
        "\r",
        "1",
        "\u0080",
        "\u00f6",
        "\u20ac",
        "\U0001f600",
        "\ufb33",
    ]
    assert encode("\u20ac$\u000f\nA'B\"\\/") == '"\u20ac$\\u000f\\nA\'B\\"\\\\/"'.encode()


class Colour(enum.StrEnum):
    RED = "red"


CYCLE: list[object] = []
CYCLE.append(CYCLE)

OUTSIDE = {
    "too large": ({"a": [0, 2**53]}, "$.a[1]"),
    "too small": ([-(2**53)], "$[0]"),
    "integral float": ({"x": 1e300}, "$.x"),
    "nan": ([math.nan], "$[0]"),
    "infinity": ({"a": {"b": -math.inf}}, "$.a.b"),
    "bytes": ({"a": b""}, "$.a"),
    "set": ([[], {1}], "$[1]"),
    "enum": ([Colour.RED], "$[0]"),
    "key is no string": ({"a": {1: 2}}, "$.a"),
    "lone surrogate": (["\ud800"], "$[0]"),
    "lone surrogate in a key": ({"\udfff": 1}, "$"),
    "contains itself": (CYCLE, "$" + "[0]" * DEPTH_MAX),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_what_lies_outside_the_domain_is_refused_with_its_place(case: str) -> None:
    """A value that JSON readers could disagree on is refused, and the error says where it is."""
    value, place = OUTSIDE[case]
    with pytest.raises(OutsideDomain) as caught:
        encode(value)
    assert caught.value.place == place


REFUSED = {
    "duplicate key": (b'{"a":[{"k":1,"k":1}]}', OutsideDomain, "$.a[0].k"),
    "nan": (b'{"a":NaN}', OutsideDomain, "$.a"),
    "infinity": (b"[0,-Infinity]", OutsideDomain, "$[1]"),
    "overflow": (b"[1e999]", OutsideDomain, "$[0]"),
    "too large": (b"9007199254740992", OutsideDomain, "$"),
    "thousands of digits": (b"[" + b"9" * 10_000 + b"]", OutsideDomain, "$[0]"),
    "lone surrogate": (b'["\\udc00"]', OutsideDomain, "$[0]"),
    "too deep": (b"[" * 129 + b"]" * 129, OutsideDomain, "$" + "[0]" * DEPTH_MAX),
    "far too deep": (b"[" * 100_000, OutsideDomain, "$"),
    "not utf-8": (b'"\xff"', NotJson, "$"),
    "byte order mark": (b"\xef\xbb\xbf{}", NotJson, "$"),
    "empty": (b"", NotJson, "$"),
    "trailing": (b"{}{}", NotJson, "$"),
    "cut short": (b'{"a":', NotJson, "$"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bytes_outside_the_domain_are_refused_with_their_place(case: str) -> None:
    """Bytes that are no JSON, or say something twice, are refused with type and place."""
    data, kind, place = REFUSED[case]
    with pytest.raises(kind) as caught:
        decode(data)
    assert (type(caught.value), caught.value.place) == (kind, place)


@pytest.mark.parametrize(
    "data", [b'{"b":1,"a":2}', b"1.0", b"-0", b"1e3", b'"\\u0041"', b"[1, 2]", b"{}\n"]
)
def test_other_spellings_are_refused_only_when_asked(data: bytes) -> None:
    """A document that is valid but spelt otherwise decodes, except under canonical_only."""
    decode(data)
    with pytest.raises(NotCanonical):
        decode(data, canonical_only=True)


def test_the_deepest_allowed_value_is_allowed() -> None:
    """A value with exactly DEPTH_MAX containers passes both ways; arrays may be tuples."""
    data = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
    assert encode(decode(data)) == data
    assert encode((1, (2,))) == b"[1,[2]]"


def test_errors_keep_their_facts_across_processes() -> None:
    """Pickling keeps type, place, problem and message."""
    error = OutsideDomain("$.a", "problem")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.place, copy.problem) == (OutsideDomain, "$.a", "problem")
    assert str(copy) == "at $.a: problem"
