"""
What callers may hand to the runtime, checked before a transaction begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from store import canonical
from store.metabolism.errors import MalformedJson, NotAnInteger, NotText, OutOfRange

__all__ = ["integer", "json_object", "text"]

_INTEGER_MAX = 2**63 - 1


def text(name: str, value: object) -> str:
    """
    Return *value*, a non-empty text that SQLite and JSON can hold.

    Raises: NotText: it is something else.
    """
    if type(value) is str and value and "\0" not in value and (value.isascii() or _is_sound(value)):
        return value
    raise NotText(name, value)


def integer(name: str, value: object, *, least: int = -_INTEGER_MAX) -> int:
    """
    Return *value*, an integer of 64 bits that is at least *least*.

    Raises:
        NotAnInteger: it is something else; a bool is.
        OutOfRange: it is smaller.
    """
    if type(value) is not int or value > _INTEGER_MAX or value < -_INTEGER_MAX:
        raise NotAnInteger(name, value)
    if value < least:
        raise OutOfRange(name, value, least)
    return value


def json_object(name: str, value: Mapping[str, Any]) -> str:
    """
    Return the canonical JSON of *value*, one text for one value.

    Raises: MalformedJson: it is no mapping, or holds what JSON cannot.
    """
    if not isinstance(value, Mapping):
        raise MalformedJson(name, f"found {type(value).__name__}")
    try:
        return canonical.encode(dict(value)).decode()
    except canonical.CanonicalError as error:
        raise MalformedJson(name, str(error)) from error


def _is_sound(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)
