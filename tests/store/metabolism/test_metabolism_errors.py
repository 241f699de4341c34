"""What the runtime raises keeps its facts wherever it is carried, and says what to do."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import apsw
import pytest

from store.errors import StoreError
from store.metabolism import ClaimEventKind, JobState, errors
from store.metabolism.errors import MetabolismError

EXAMPLES: dict[MetabolismError, str] = {
    errors.DatabaseBusy("/a/b"): "path='/a/b' was locked by another connection",
    errors.TransactionOpen("/a/b"): "path='/a/b' has a transaction open on this connection",
    errors.ForkedConnection("/a/b", 7): "path='/a/b' was opened by process 7, of which this one is",
    errors.UnknownSchema("it holds theirs"): "a known version: it holds theirs; expected an empty",
    errors.NotText("kind", ""): "kind='' must be a non-empty text without NUL and lone surrogates.",
    errors.NotAnInteger("now_ns", True): "now_ns=True must be an integer of 64 bits.",
    errors.OutOfRange("priority", -1, 0): "priority=-1 must be at least 0.",
    errors.MalformedJson("params", "at $: no"): "params must be a mapping that JSON can hold: at $",
    errors.UnknownJobState("done", JobState): (
        "state='done' must be one of queued, claimed, running, recoverable, completed, failed."
    ),
    errors.UnknownClaimEventKind("said", ClaimEventKind): (
        "kind='said' must be one of claim_asserted, claim_contradicted, claim_expired,"
        " claim_superseded."
    ),
    errors.OnlyByClaim(): "state='claimed' is reached through claim_next_job only, with a lease.",
    errors.JobMissing(7): "job_id=7 names no job; expected one that enqueue_job returned.",
    errors.RunMissing(7): "run_id=7 names no run; expected one that start_run returned.",
    errors.JobIsTerminal(7, "failed"): "job_id=7 is failed and stays so; enqueue its key again",
    errors.StaleClaim(7, 2, "it is queued"): (
        "job_id=7 cannot be taken further under claim number 2: it is queued. Do no more for"
    ),
    errors.RunIsCompleted(7, 3): "run_id=7 was completed with return code 3 and is not completed",
    errors.NotAnAssertion(7, None): "assertion_id=7 names no event; expected the event_id of",
    errors.NotAnAssertion(7, "a claim_expired"): "assertion_id=7 names a claim_expired; expected",
    errors.LogRefused("/a", "it is gone"): "launch log path='/a': it is gone",
}
"""One error of each type, and a part of its message."""


def carried(error: MetabolismError) -> MetabolismError:
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, MetabolismError)
    return copy


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_facts(error: MetabolismError) -> None:
    """MR-015: type, message, every attribute and notes come back from another process."""
    error.add_note("seen in a test")
    copy = carried(error)
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))
    assert EXAMPLES[error] in str(error)
    assert carried(copy).args == error.args


def test_every_error_of_the_module_has_an_example() -> None:
    """MR-015: a new error cannot be added without being tested; the root is tested by the rest."""
    assert {type(error).__name__ for error in EXAMPLES} | {"MetabolismError"} == set(errors.__all__)
    assert all(issubclass(getattr(errors, name), StoreError) for name in errors.__all__)


def test_a_busy_database_is_still_sqlites_error() -> None:
    """AMB-2: who waits for apsw.BusyError, to try again, catches it too."""
    assert issubclass(errors.DatabaseBusy, apsw.BusyError)


class Unspeakable:
    """An object without a text."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (10**5_000, "<int without a text>"),
        (Unspeakable(), "<Unspeakable without a text>"),
        ("x" * 10**6, f"'{'x' * 199}..."),
        ("\ud800", "'\\ud800'"),
    ],
    ids=range(4),
)
def test_any_value_can_be_shown(value: Any, shown: str) -> None:
    """MR-009: a refusal is never itself an error, nor megabytes long, whatever it is about."""
    for error in (
        errors.NotText("name", value),
        errors.NotAnInteger("name", value),
        errors.UnknownJobState(value, JobState),
        errors.UnknownClaimEventKind(value, ClaimEventKind),
    ):
        assert f"={shown} must be" in str(error)
        assert str(carried(error)) == str(error)


@pytest.mark.parametrize("value", [threading.Lock(), lambda: None, (i for i in ())], ids=range(3))
def test_what_cannot_be_pickled_is_kept_as_its_text(value: Any) -> None:
    """MR-009: the error of a worker that was handed anything still reaches its parent."""
    error = errors.NotText("name", value)
    copy = carried(error)
    assert isinstance(copy, errors.NotText)
    assert copy.value == error.value == repr(value)


@pytest.mark.parametrize("value", [None, True, 5, 1.5, "x", b"x"])
def test_a_plain_value_is_kept_as_it_is(value: Any) -> None:
    """MR-009: what was given can be compared with what the caller has."""
    assert errors.NotText("name", value).value is value
