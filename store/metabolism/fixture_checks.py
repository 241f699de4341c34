"""
The checks that a fixture's format is made of.

A check gets the place and the value, and returns the value as the player wants it, or refuses it
with the place. What the fixture said before that place stands in the `Reader`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, NoReturn, TypeAlias

from store.metabolism.errors import MetabolismError

__all__ = [
    "DATABASE",
    "Check",
    "FixtureError",
    "Reader",
    "Reference",
    "at",
    "boolean",
    "integer",
    "json_object",
    "keys",
    "list_of",
    "log_path",
    "name",
    "named",
    "one_of",
    "or_null",
    "sentence",
    "shown",
    "text",
]

DATABASE: Final = "metabolism.sqlite3"
"""The name of the database in a case's folder, which no log may take."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SHOWN_MAX = 60


class FixtureError(MetabolismError):
    """
    A fixture cannot be used. No case was run.

    Attributes:
        file: The file or folder.
        place: Where in it, as in ``steps[3].owner``; empty for the whole.
        problem: What was found, and what was expected.
    """

    def __init__(self, file: str, place: str, problem: str) -> None:
        super().__init__(": ".join(part for part in (file, place, problem) if part))
        self.file = file
        self.place = place
        self.problem = problem


@dataclass(frozen=True)
class Reference:
    """
    The name of an earlier result, where a fixture uses one.

    Attributes:
        kind: ``job`` (a claim is one too), ``run`` or ``event``.
    """

    kind: str
    name: str


@dataclass
class Reader:
    """
    What is known of a case up to the place that is being read.

    Attributes:
        file: What an error calls the fixture.
        kinds: The kind of each named result: ``job``, ``claim``, ``run`` or ``event``.
        logs: The logs that are there.
        advanced: How many seconds the clock was moved.
    """

    file: str
    kinds: dict[str, str] = field(default_factory=dict)
    logs: set[str] = field(default_factory=set)
    advanced: int = 0

    def refuse(self, place: str, problem: str) -> NoReturn:
        """
        Raise the FixtureError of *place*.
        """
        raise FixtureError(self.file, place, problem)

    def expected(self, place: str, value: object, what: str) -> NoReturn:
        """
        Raise the FixtureError of *place*, where *value* stands instead of *what*.
        """
        self.refuse(place, f"found {shown(value)}; expected {what}.")


Check: TypeAlias = Callable[[Reader, str, Any], Any]
"""Takes the reader, the place and the value; returns the value, perhaps converted."""


def shown(value: object) -> str:
    """
    Return *value* as JSON, cut where it is long.
    """
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def at(place: str, key: str) -> str:
    """
    Return the place of *key* within *place*.
    """
    shown = key if key.isidentifier() else json.dumps(key)
    return f"{place}.{shown}" if place else shown


def text(reader: Reader, place: str, value: Any) -> str:
    """
    Check for a text, which may be empty.
    """
    if type(value) is not str:
        reader.expected(place, value, "a text")
    return value


def sentence(reader: Reader, place: str, value: Any) -> str:
    """
    Check for a text with something in it.
    """
    if not text(reader, place, value).strip():
        reader.expected(place, value, "one sentence that says what the case shows")
    return str(value)


def boolean(reader: Reader, place: str, value: Any) -> bool:
    """
    Check for true or false.
    """
    if type(value) is not bool:
        reader.expected(place, value, "true or false")
    return value


def json_object(reader: Reader, place: str, value: Any) -> dict[str, Any]:
    """
    Check for an object, whatever is in it.
    """
    if type(value) is not dict:
        reader.expected(place, value, "an object")
    return value


def name(reader: Reader, place: str, value: Any) -> str:
    """
    Check for a name that a case or a result can have.
    """
    if type(value) is not str or not _NAME.fullmatch(value):
        reader.expected(place, value, "a name of small letters, digits and _, at most 64")
    return value


def log_path(reader: Reader, place: str, value: Any) -> str:
    """
    Check for a path within the case's folder, apart from the database.
    """
    path = PurePosixPath(text(reader, place, value))
    is_plain = str(path) == value and not path.is_absolute() and ".." not in path.parts
    if not is_plain or not path.parts or "\0" in value or path.parts[0].startswith(DATABASE):
        reader.expected(
            place, value, f"a relative path without . and .. that does not begin with {DATABASE}"
        )
    return str(value)


def integer(*, least: int | None = None, most: int | None = None) -> Check:
    """
    Return a check for an integer within bounds, both included.
    """
    bounds = [f"at least {least}"] * (least is not None) + [f"at most {most}"] * (most is not None)
    what = " ".join(["an integer", " and ".join(bounds)]).strip()

    def check(reader: Reader, place: str, value: Any) -> int:
        if type(value) is not int:
            reader.expected(place, value, what)
        if (least is not None and value < least) or (most is not None and value > most):
            reader.expected(place, value, what)
        return value

    return check


def one_of(known: Sequence[str]) -> Check:
    """
    Return a check for one of some texts.
    """

    def check(reader: Reader, place: str, value: Any) -> str:
        if type(value) is not str or value not in known:
            reader.expected(place, value, f"one of {', '.join(known)}")
        return str(value)

    return check


def or_null(inner: Check) -> Check:
    """
    Return a check that also takes null.
    """
    return lambda reader, place, value: None if value is None else inner(reader, place, value)


def list_of(inner: Check) -> Check:
    """
    Return a check for an array, each item checked by *inner*.
    """

    def check(reader: Reader, place: str, value: Any) -> list[Any]:
        if type(value) is not list:
            reader.expected(place, value, "an array")
        return [inner(reader, f"{place}[{at}]", item) for at, item in enumerate(value)]

    return check


def named(kind: str) -> Check:
    """
    Return a check for the name of an earlier result of *kind*; a claim is a job as well.
    """
    kinds = {"job": ("job", "claim")}.get(kind, (kind,))

    def check(reader: Reader, place: str, value: Any) -> Reference:
        text(reader, place, value)
        found = reader.kinds.get(value)
        if found not in kinds:
            is_now = f"names the {found} of" if found else "is the name of no result of"
            known = [name for name in sorted(reader.kinds) if reader.kinds[name] in kinds]
            reader.refuse(
                place,
                f"{shown(value)} {is_now} an earlier step; expected the name of a {kind} "
                f"({', '.join(known) or 'there is none'}).",
            )
        return Reference("job" if found == "claim" else str(found), value)

    return check


def keys(known: Mapping[str, Check], *, needs: Sequence[str] = (), needs_any: str = "") -> Check:
    """
    Return a check for an object, key by key.

    Args:
        known: Each key that may stand there, with its check.
        needs: Those that must.
        needs_any: What an empty object fails to state; empty where it may be empty.
    """

    def check(reader: Reader, place: str, value: Any) -> dict[str, Any]:
        found = json_object(reader, place, value)
        for key in found:
            if key not in known:
                reader.refuse(
                    at(place, key), f"this key is unknown; expected {', '.join(known) or 'none'}."
                )
        for key in needs:
            if key not in found:
                reader.refuse(at(place, key), "this key is missing; expected it here.")
        if needs_any and not found:
            reader.refuse(place, f"it is empty; expected {needs_any} ({', '.join(known)}).")
        return {key: known[key](reader, at(place, key), item) for key, item in found.items()}

    return check
