"""
A runtime's database for the tests of its operations: what is in it, and that refusals leave it so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest

from store.metabolism import Job, Run, claim_next_job, connect, enqueue_job, start_run
from store.metabolism.storage import TABLES
from store.sqlite import rows

S = 10**9
NOW = 1_800_000_000 * S

_Error = TypeVar("_Error", bound=Exception)

NOT_INTEGERS: tuple[Any, ...] = (True, "1", 1.0, None, b"1", 2**63, -(2**63), 10**5_000)
"""What no integer of 64 bits is, bool included."""

NOT_TEXTS: tuple[Any, ...] = ("", "a\0b", "\ud800", "a\udfffb", b"a", 1, True, [], object())
"""What no text is that SQLite and JSON can hold."""


def _nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def _endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = value
    return value


NOT_OBJECTS: tuple[Any, ...] = (
    [],
    "{}",
    1,
    {"a": {1}},
    {"a": float("nan")},
    {"a": float("inf")},
    {1: "a"},
    {None: "a"},
    {"a": 2**53},
    {"a": b"x"},
    {"a": "\ud800"},
    {"\udfff": 1},
    {"a": object()},
    _nested(129),
    _endless(),
)
"""What JSON cannot hold as an object."""

DEEPEST = _nested(128)


def dump(connection: apsw.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of all tables, in the order of insertion."""
    return {table: rows(connection, f"SELECT * FROM {table} ORDER BY rowid") for table in TABLES}


@contextmanager
def refused(
    connection: apsw.Connection, kind: type[_Error]
) -> Iterator[pytest.ExceptionInfo[_Error]]:
    """Run the block, which must raise exactly *kind*, hold no transaction and change nothing."""
    before = dump(connection)
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.type is kind
    assert not connection.in_transaction
    assert dump(connection) == before


def enqueue(connection: apsw.Connection, key: str = "key", **changed: Any) -> Job:
    """Insert one job, which must be new."""
    given: dict[str, Any] = {"kind": "mail", "idempotency_key": key, "now_ns": NOW, **changed}
    job, is_new = enqueue_job(connection, **given)
    assert is_new
    return job


def claimed(connection: apsw.Connection, key: str = "key", **changed: Any) -> Job:
    """Insert one job and claim it, as the only one that waits."""
    enqueue(connection, key)
    given: dict[str, Any] = {"owner": "worker", "now_ns": NOW, **changed}
    claim = claim_next_job(connection, **given)
    assert claim is not None
    assert claim.idempotency_key == key
    return claim


def running(connection: apsw.Connection, key: str = "key", **changed: Any) -> tuple[Job, Run]:
    """Insert, claim and start one job."""
    claim = claimed(connection, key, **changed)
    return claim, start_run(connection, claim, now_ns=NOW)


@contextmanager
def every_connection(traced: Callable[[apsw.Connection, str], None]) -> Iterator[None]:
    """Call *traced* before each statement of each connection that is opened inside the block."""

    def hook(connection: apsw.Connection) -> None:
        def before(event: dict[str, Any]) -> None:
            traced(connection, str(event["sql"]))

        connection.trace_v2(apsw.SQLITE_TRACE_STMT, before, id=hook)

    apsw.connection_hooks.append(hook)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(hook)


def opened(path: Path) -> Iterator[apsw.Connection]:
    """Yield a connection of the runtime and close it."""
    connection = connect(path)
    yield connection
    connection.close()
