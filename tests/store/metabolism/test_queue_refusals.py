"""What an operation is handed is checked before it begins, and its transaction is its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import apsw
import pytest
from metabolism_world import (
    DEEPEST,
    NOT_INTEGERS,
    NOT_OBJECTS,
    NOT_TEXTS,
    NOW,
    S,
    claimed,
    enqueue,
    opened,
    refused,
    running,
)

from store.metabolism import (
    Job,
    claim_next_job,
    complete_run,
    connect,
    enqueue_job,
    job_by_id,
    renew_claim,
    requeue_expired_jobs,
    start_run,
    update_job_state,
)
from store.metabolism.errors import (
    DatabaseBusy,
    MalformedJson,
    NotAnInteger,
    NotText,
    OutOfRange,
    TransactionOpen,
)
from store.sqlite import immediate, rows


@pytest.fixture
def c(tmp_path: Path) -> Iterator[apsw.Connection]:
    yield from opened(tmp_path / "a.sqlite3")


def claim(c: apsw.Connection, **changed: Any) -> Job | None:
    given: dict[str, Any] = {"owner": "worker", "now_ns": NOW, **changed}
    return claim_next_job(c, **given)


Call = Callable[[apsw.Connection, dict[str, Any]], object]


def _enqueue(c: apsw.Connection, changed: dict[str, Any]) -> object:
    return enqueue_job(c, **{"kind": "k", "idempotency_key": "new", "now_ns": NOW, **changed})


def _claim(c: apsw.Connection, changed: dict[str, Any]) -> object:
    return claim_next_job(c, **{"owner": "w", "now_ns": NOW, **changed})


def _renew(c: apsw.Connection, changed: dict[str, Any]) -> object:
    given = {name: changed.pop(name) for name in ("job_id", "attempts") if name in changed}
    held = Job._make(rows(c, "SELECT * FROM jobs WHERE state = 'claimed'")[0])
    return renew_claim(c, held._replace(**given), **{"now_ns": NOW, **changed})


def _requeue(c: apsw.Connection, changed: dict[str, Any]) -> object:
    return requeue_expired_jobs(c, **{"now_ns": NOW + 10**6 * S, **changed})


def _update(c: apsw.Connection, changed: dict[str, Any]) -> object:
    given = {"job_id": 1, "state": "failed", "now_ns": NOW, **changed}
    return update_job_state(c, **given)


def _by_id(c: apsw.Connection, changed: dict[str, Any]) -> object:
    return job_by_id(c, **changed)


TEXTS = [
    (_enqueue, "kind"),
    (_enqueue, "idempotency_key"),
    (_enqueue, "provider"),
    (_claim, "owner"),
    (_update, "last_error"),
]

INTEGERS = [
    (_enqueue, "priority"),
    (_enqueue, "not_before_ns"),
    (_enqueue, "now_ns"),
    (_claim, "lease_ns"),
    (_claim, "now_ns"),
    (_renew, "lease_ns"),
    (_renew, "now_ns"),
    (_renew, "job_id"),
    (_renew, "attempts"),
    (_requeue, "now_ns"),
    (_update, "job_id"),
    (_update, "now_ns"),
    (_by_id, "job_id"),
]

NEVER_NEGATIVE = [
    (call, name) for call, name in INTEGERS if name in ("now_ns", "priority", "not_before_ns")
]


def named(value: object) -> str | None:
    return f"{value.__name__.strip('_')}" if callable(value) else None


@pytest.fixture
def held(c: apsw.Connection) -> apsw.Connection:
    """A database in which every operation would have something to do."""
    claimed(c, "held")
    enqueue(c, "waits")
    return c


@pytest.mark.parametrize(("call", "name"), TEXTS, ids=named)
def test_what_is_no_text_is_refused(held: apsw.Connection, call: Call, name: str) -> None:
    """MR-009, MR-011, MR-015: a name that is no storable text is refused before anything."""
    for value in NOT_TEXTS:
        with refused(held, NotText) as caught:
            call(held, {name: value})
        assert caught.value.name == name
        assert str(caught.value).startswith(f"{name}=")


@pytest.mark.parametrize(("call", "name"), INTEGERS, ids=named)
def test_what_is_no_integer_is_refused(held: apsw.Connection, call: Call, name: str) -> None:
    """MR-009, MR-011, MR-013: bools, floats, texts and more than 64 bits are no numbers here."""
    for value in NOT_INTEGERS:
        with refused(held, NotAnInteger) as caught:
            call(held, {name: value})
        assert caught.value.name == name


@pytest.mark.parametrize(("call", "name"), NEVER_NEGATIVE, ids=named)
def test_what_is_negative_is_refused(held: apsw.Connection, call: Call, name: str) -> None:
    """MR-009: times and priorities begin at zero, and zero is one of them."""
    with refused(held, OutOfRange) as caught:
        call(held, {name: -1})
    assert (caught.value.name, caught.value.value, caught.value.least) == (name, -1, 0)
    call(held, {name: 0})


@pytest.mark.parametrize("call", [_claim, _renew], ids=named)
def test_a_lapse_beyond_64_bits_is_refused(held: apsw.Connection, call: Call) -> None:
    """MR-012: the sum must fit too; the greatest and the smallest that fit are taken."""
    most = 2**63 - 1
    with refused(held, NotAnInteger) as caught:
        call(held, {"lease_ns": most, "now_ns": 1})
    assert caught.value.name == "now_ns + lease_ns"
    call(held, {"lease_ns": most - 1, "now_ns": 1})


@pytest.mark.parametrize("number", range(len(NOT_OBJECTS)))
def test_what_json_cannot_hold_is_refused(held: apsw.Connection, number: int) -> None:
    """MR-009: sets, NaN, keys that are no text, depth without end and huge numbers are refused."""
    with refused(held, MalformedJson) as caught:
        _enqueue(held, {"params": NOT_OBJECTS[number]})
    assert caught.value.name == "params"
    assert str(caught.value).startswith("params must be a mapping that JSON can hold: ")


@pytest.mark.parametrize(
    "params",
    [{}, {"": None}, {"a\0": "\0"}, DEEPEST, {"a": 2**53 - 1}, MappingProxyType({"a": (1, 2.5)})],
    ids=range(6),
)
def test_what_json_can_hold_is_kept(c: apsw.Connection, params: Mapping[str, Any]) -> None:
    """MR-009: the deepest, the largest and the emptiest object come back as they were."""
    job = enqueue(c, params=params)
    assert json.loads(job.params_json) == json.loads(json.dumps(dict(params)))


def _operations(c: apsw.Connection) -> list[Callable[[], object]]:
    """Return every operation that writes, each with something to do."""
    job, run = running(c, "runs", lease_ns=-1)
    held = claimed(c, "held")
    enqueue(c, "waits")
    return [
        lambda: _enqueue(c, {}),
        lambda: claim(c),
        lambda: renew_claim(c, job, now_ns=NOW),
        lambda: requeue_expired_jobs(c, now_ns=NOW),
        lambda: update_job_state(c, job.job_id, "failed", now_ns=NOW),
        lambda: start_run(c, held, now_ns=NOW),
        lambda: complete_run(c, run, return_code=0, now_ns=NOW),
    ]


def test_an_operation_inside_a_transaction_is_refused(c: apsw.Connection, tmp_path: Path) -> None:
    """AMB-2: it would commit with the caller's rows, so it does nothing, and theirs stay open."""
    for operation in _operations(c):
        with immediate(c):
            rows(c, "UPDATE jobs SET last_error = 'mine' WHERE job_id = 1")
            with pytest.raises(TransactionOpen) as caught:
                operation()
            assert caught.value.path == str(tmp_path / "a.sqlite3")
            assert c.in_transaction
    assert job_by_id(c, 1).last_error == "mine"


def test_another_thread_cannot_join_a_transaction(c: apsw.Connection) -> None:
    """AMB-2: a thread that shares a connection is refused; the first one's block is whole."""
    errors: list[Exception] = []

    def attempt(operation: Callable[[], object]) -> None:
        try:
            operation()
        except Exception as error:
            errors.append(error)

    operations = _operations(c)
    for operation in operations:
        with immediate(c):
            rows(c, "UPDATE jobs SET last_error = 'mine' WHERE job_id = 1")
            thread = threading.Thread(target=attempt, args=(operation,))
            thread.start()
            thread.join()
    assert [type(error) for error in errors] == [TransactionOpen] * len(operations)
    assert job_by_id(c, 1).last_error == "mine"


def test_a_busy_database_is_named_and_nothing_is_written(
    c: apsw.Connection, tmp_path: Path
) -> None:
    """AMB-2: when the busy timeout runs out every operation says so, and works when it is free."""
    operations = _operations(c)
    other = connect(tmp_path / "a.sqlite3")
    c.set_busy_timeout(1)
    for operation in operations:
        with immediate(other), refused(c, DatabaseBusy) as caught:
            operation()
        assert isinstance(caught.value, apsw.BusyError)
        assert caught.value.path == str(tmp_path / "a.sqlite3")
    other.close()
    for operation in operations[:3]:
        operation()
