"""
Canonical JSON: one byte string for one value (RFC 8785, over a restricted domain).

The domain: ``None``, ``bool``, ``str`` without lone surrogates, ``int`` within
+-`SAFE_INTEGER_MAX`, finite ``float``, ``list`` and ``tuple`` (both arrays) and ``dict`` with
string keys, nested at most `DEPTH_MAX` deep. A float with an integral value is written as that
integer, so it must lie in the same range; minus zero is written as ``0``. Types are exact:
an ``Enum`` that is also a ``str`` is refused, because its text is a choice of its writer.

Covered: values and bytes outside the domain, duplicate keys, bytes that are not canonical.
Not covered: what a document means; its writer checks names, ranges and references.
"""

from __future__ import annotations

import json
import math
from typing import NoReturn, TypeAlias

import rfc8785

__all__ = [
    "DEPTH_MAX",
    "SAFE_INTEGER_MAX",
    "CanonicalError",
    "JsonValue",
    "NotCanonical",
    "NotJson",
    "OutsideDomain",
    "decode",
    "encode",
]

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

SAFE_INTEGER_MAX = 2**53 - 1
"""Largest integer that every JSON reader keeps exactly."""

DEPTH_MAX = 128
"""Most containers around one value; also what ends a value that contains itself."""

_encode_plain = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":")
).encode

_DIGITS_MAX = len(str(SAFE_INTEGER_MAX)) + 1


class CanonicalError(ValueError):
    """
    Root of what this module raises.

    Attributes:
        place: Where, as in ``$.runs[3].id``; ``$`` is the whole document.
        problem: What was found, what was expected, what to do.
    """

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(place, problem)
        self.place = place
        self.problem = problem

    def __str__(self) -> str:
        return f"at {self.place}: {self.problem}"

    def __reduce__(self) -> tuple[type[CanonicalError], tuple[str, str]]:
        return type(self), (self.place, self.problem)


class OutsideDomain(CanonicalError):
    """
    A value, or a value read from bytes, lies outside the restricted domain.
    """


class NotJson(CanonicalError):
    """
    The bytes are not one JSON document in UTF-8.
    """


class NotCanonical(CanonicalError):
    """
    The bytes are a JSON document of the domain, but not its canonical form.
    """


class _Refused:
    """Stands in the parsed tree for text that has no value, until its place is known."""

    def __init__(self, problem: str) -> None:
        self.problem = problem


def encode(value: object) -> bytes:
    """
    Return the canonical bytes of *value*: equal values of the domain give equal bytes.

    Raises: OutsideDomain: something in *value* is outside the domain; names the place.
    """
    if _is_plain(value, 0):
        return _encode_plain(value).encode()
    return rfc8785.dumps(_restricted(value, "$", 0))


def decode(data: bytes, *, canonical_only: bool = False) -> JsonValue:
    """
    Return the value that *data* denotes, refusing what another reader could read differently.

    Args:
        data: One JSON document in UTF-8, without a byte order mark.
        canonical_only: Also refuse bytes that `encode` would not have written.
    Raises:
        NotJson: not UTF-8, not JSON, or something follows the document.
        OutsideDomain: a duplicate key, or a value outside the domain.
        NotCanonical: asked for, and the bytes differ from the canonical ones.
    """
    try:
        parsed = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise NotJson(
            "$", f"byte {error.start} is not UTF-8; expected one JSON document in UTF-8."
        ) from error
    except json.JSONDecodeError as error:
        raise NotJson(
            "$", f"{error.msg} at character {error.pos}; expected one JSON document."
        ) from error
    except RecursionError as error:
        raise OutsideDomain("$", f"nested deeper than {DEPTH_MAX} containers.") from error
    value = _restricted(parsed, "$", 0)
    if canonical_only and rfc8785.dumps(value) != data:
        raise NotCanonical(
            "$",
            f"the {len(data)} bytes are not the canonical form of their value; "
            "write them with store.canonical.encode.",
        )
    return value


def _is_plain(value: object, depth: int) -> bool:
    """
    Say whether *value* is of the domain, and the standard library's encoder, in C, writes it alike.

    It does where all text is ASCII, which sorts the same in UTF-16, and no number is a float. Most
    values are so, and then this takes about a third of the time.
    """
    kind = type(value)
    if isinstance(value, str):
        return kind is str and value.isascii()
    if isinstance(value, int):
        return kind is bool or (kind is int and -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX)
    if isinstance(value, dict) and kind is dict and depth < DEPTH_MAX:
        for key, item in value.items():
            if type(key) is not str or not key.isascii() or not _is_plain(item, depth + 1):
                return False
        return True
    if isinstance(value, (list, tuple)) and kind in (list, tuple) and depth < DEPTH_MAX:
        return all(_is_plain(item, depth + 1) for item in value)
    return value is None


def _restricted(value: object, place: str, depth: int) -> JsonValue:
    """Return a plain copy of *value*, or raise for the first thing outside the domain."""
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if isinstance(value, str) and kind is str:
        return _text(value, place)
    if isinstance(value, int) and kind is int:
        return _safe(value, place)
    if isinstance(value, float) and kind is float:
        return _finite(value, place)
    if depth >= DEPTH_MAX:
        _refuse(place, f"nested deeper than {DEPTH_MAX} containers; does it contain itself?")
    if isinstance(value, (list, tuple)) and (kind is list or kind is tuple):
        return [_restricted(item, f"{place}[{at}]", depth + 1) for at, item in enumerate(value)]
    if isinstance(value, dict) and kind is dict:
        return {
            _key(key, place): _restricted(item, f"{place}.{key}", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, _Refused):
        _refuse(place, value.problem)
    raise OutsideDomain(
        place,
        f"type={kind.__qualname__!r} has no canonical form; expected exactly None, bool, int, "
        "float, str, list, tuple or dict. Convert it first.",
    )


def _key(key: object, place: str) -> str:
    if type(key) is not str:
        _refuse(place, f"key={key!r} must be a str; convert the keys first.")
    return _text(key, place)


def _text(text: str, place: str) -> str:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            _refuse(place, f"text={text!r} holds a lone surrogate, which UTF-8 cannot carry.")
    return text


def _safe(number: int, place: str) -> int:
    if not -SAFE_INTEGER_MAX <= number <= SAFE_INTEGER_MAX:
        _refuse(
            place,
            f"a {number.bit_length()} bit integer must lie in [-(2**53-1), 2**53-1]; "
            "write larger numbers as strings.",
        )
    return number


def _finite(number: float, place: str) -> float | int:
    if not math.isfinite(number):
        _refuse(place, f"number={number!r} must be finite; JSON has no such number.")
    if number.is_integer():
        return _safe(int(number), place)
    return number


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, item in pairs:
        repeated = key in members
        members[key] = _Refused("the key stands twice in its object.") if repeated else item
    return members


def _integer(digits: str) -> int | _Refused:
    if len(digits) > _DIGITS_MAX:
        return _Refused(
            f"an integer of {len(digits)} characters must lie in [-(2**53-1), 2**53-1]."
        )
    return int(digits)


def _constant(name: str) -> _Refused:
    return _Refused(f"{name} is not a JSON number.")


def _refuse(place: str, problem: str) -> NoReturn:
    raise OutsideDomain(place, problem)
