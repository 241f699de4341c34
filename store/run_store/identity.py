"""
Typed ids: what a record's id is, and when an id is an id.

Method: an id is `mw1-<kind>-<digest>`, the digest being SHA-256 over the kind's ASCII, one NUL
byte and the record's canonical JSON. The NUL keeps kind and record apart, so no two kinds share
a digest for the same record. Times are never part of a record that an id is made of.

Covered: deriving, checking the shape, recomputing.
Not covered: whether a record means anything; `records` checks its fields.
"""

import hashlib
import re
from typing import Final

from store import canonical
from store.run_store.refusals import (
    IdentityMismatch,
    MalformedId,
    MalformedRecord,
    RetryIndexOutOfRange,
)

__all__ = [
    "SAFE_INTEGER_MAX",
    "canonical_object",
    "check_id",
    "check_retry_index",
    "recompute_id",
    "run_attempt_id",
    "typed_id",
]

SAFE_INTEGER_MAX: Final = canonical.SAFE_INTEGER_MAX
"""Largest retry index and revision: what canonical JSON carries, narrower than SQLite's range."""

_KIND = re.compile(r"[a-z]+(?:-[a-z]+)*", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def canonical_object(kind: str, record: object) -> bytes:
    """
    Return the canonical bytes of *record*, which must be a JSON object.

    Raises: MalformedRecord: not an object, or something in it has no canonical form.
    """
    if type(record) is not dict:
        raise MalformedRecord(kind, f"type={type(record).__name__!r} must be 'dict'.")
    try:
        return canonical.encode(record)
    except canonical.CanonicalError as error:
        raise MalformedRecord(kind, f"{error}") from error


def typed_id(kind: str, record: object) -> str:
    """
    Return the id of *record* as a record of *kind*.

    Args:
        kind: Lowercase ASCII words joined by hyphens.
        record: A JSON object in the domain of `store.canonical`.
    Raises:
        ValueError: *kind* is no kind.
        MalformedRecord: *record* has no canonical form.
    """
    if _KIND.fullmatch(kind) is None:
        raise ValueError(f"kind={kind!r} must be lowercase words joined by hyphens.")
    digest = hashlib.sha256(kind.encode("ascii") + b"\0" + canonical_object(kind, record))
    return f"mw1-{kind}-{digest.hexdigest()}"


def check_id(kind: str, identifier: object) -> str:
    """
    Return *identifier* if it has the shape of an id of *kind*.

    Raises: MalformedId: it has not.
    """
    prefix = f"mw1-{kind}-"
    if (
        type(identifier) is not str
        or not identifier.startswith(prefix)
        or _DIGEST.fullmatch(identifier, len(prefix)) is None
    ):
        raise MalformedId(kind, identifier)
    return identifier


def recompute_id(kind: str, identifier: object, record: object) -> str:
    """
    Return *identifier* if it is the id of *record*.

    Raises:
        MalformedId: it is no id of *kind*.
        MalformedRecord: *record* has no canonical form.
        IdentityMismatch: it is the id of another record.
    """
    found = check_id(kind, identifier)
    expected = typed_id(kind, record)
    if found != expected:
        raise IdentityMismatch(kind, "id", found, expected)
    return found


def check_retry_index(name: str, value: object) -> int:
    """
    Return *value* if it is a retry index.

    Raises: RetryIndexOutOfRange: not an int in [0, 2**53-1].
    """
    if type(value) is not int or not 0 <= value <= SAFE_INTEGER_MAX:
        raise RetryIndexOutOfRange(name, value)
    return value


def run_attempt_id(slot_id: str, retry_index: int) -> str:
    """
    Return the id of the attempt number *retry_index* of an execution slot.

    It is known at reservation and equals the id of the finished attempt's record, since neither
    an outcome nor a time takes part in it.

    Raises:
        MalformedId: *slot_id* is no id of an execution slot.
        RetryIndexOutOfRange: *retry_index* does not fit canonical JSON.
    """
    record = {
        "retry_index": check_retry_index("retry_index", retry_index),
        "slot_id": check_id("attempt-slot", slot_id),
        "version": 1,
    }
    return typed_id("attempt", record)
