"""
What a fixture may say: one case, checked wholly before any of it is played.

Method: each operation is a table of keys with checks, see `fixture_checks`; so is what it may be
expected to return, see `fixture_expectations`.
Names, logs and the clock are followed through the steps, which have no branches, so that what a
step refers to is known to exist before the first one runs.

Covered: operations, keys, types, references and their kinds, logs that no step made, names of
errors, states and rules that do not exist, a clock that leaves its range.
Not covered: values that an operation itself refuses, as an empty owner; a step may state that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from store.metabolism import errors
from store.metabolism.fixture_checks import (
    Check,
    Reader,
    at,
    boolean,
    integer,
    json_object,
    keys,
    list_of,
    log_path,
    name,
    named,
    one_of,
    or_null,
    sentence,
    shown,
    text,
)
from store.metabolism.fixture_expectations import (
    A_JOB,
    A_PROJECTION,
    A_RECONCILIATION,
    A_RUN,
    AN_ENQUEUED_JOB,
    AN_EVENT,
    COUNT,
    THE_END,
)

__all__ = [
    "OPERATIONS",
    "SECONDS_MAX",
    "STALE_AFTER_SECONDS",
    "Case",
    "Operation",
    "Step",
    "parse_case",
]

SECONDS_MAX: Final = 10**8
"""How far a case's clock may move in all, and a log be back-dated; about three years."""

STALE_AFTER_SECONDS: Final = 600
"""How old a log may grow where a case says nothing else."""

_ERRORS = sorted(set(errors.__all__) - {"MetabolismError"})


@dataclass(frozen=True, kw_only=True)
class Step:
    """
    One operation of a case.

    Attributes:
        operation: A key of `OPERATIONS`.
        arguments: Checked; a `Reference` where an earlier result is meant.
        name: What its result is called in later steps.
        outcome: Empty, or one of ``returns`` and ``raises`` with what is expected.
    """

    operation: str
    arguments: Mapping[str, Any]
    name: str | None
    outcome: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """
    One fixture, checked.

    Attributes:
        expected_status: ``pass``, or ``fail`` for a case whose expectations must not all hold.
        stale_after_seconds: The age at which the final reconciliation calls a log stale.
        expect: What must hold at the end, by kind; never empty.
    """

    name: str
    about: str
    expected_status: str
    stale_after_seconds: int
    steps: tuple[Step, ...]
    expect: Mapping[str, Any]


class Operation(NamedTuple):
    """
    What a step with one operation may say.

    Attributes:
        takes: Its arguments, each with its check.
        needs: Those that must be there.
        makes: The kind of the result that ``as`` names, if it has one.
        returns: The check of what ``returns`` states, if anything comes back.
        may_raise: It is an operation of the runtime, and not of the fixture.
    """

    takes: Mapping[str, Check]
    needs: tuple[str, ...]
    makes: str | None = None
    returns: Check | None = None
    may_raise: bool = True


_AGE = integer(least=0, most=SECONDS_MAX)
_SECONDS = integer(least=1, most=SECONDS_MAX)

OPERATIONS: Final[Mapping[str, Operation]] = {
    "enqueue_job": Operation(
        {
            "kind": text,
            "idempotency_key": text,
            "params": json_object,
            "provider": text,
            "priority": integer(),
            "not_before_seconds": integer(),
        },
        ("kind", "idempotency_key"),
        "job",
        AN_ENQUEUED_JOB,
    ),
    "claim_next_job": Operation(
        {"owner": text, "lease_seconds": integer()}, ("owner",), "claim", or_null(A_JOB)
    ),
    "renew_claim": Operation(
        {"claim": named("claim"), "lease_seconds": integer()}, ("claim",), "claim", A_JOB
    ),
    "requeue_expired_jobs": Operation({}, (), None, COUNT),
    "update_job_state": Operation(
        {"job": named("job"), "state": text, "last_error": text}, ("job", "state"), "job", A_JOB
    ),
    "start_run": Operation(
        {"claim": named("claim"), "log_path": log_path}, ("claim",), "run", A_RUN
    ),
    "complete_run": Operation(
        {"run": named("run"), "return_code": integer(), "finalize_job": boolean},
        ("run", "return_code"),
        "run",
        A_RUN,
    ),
    "append_claim_event": Operation(
        {
            "kind": text,
            "claim_id": text,
            "subject": text,
            "predicate": text,
            "object": text,
            "assertion": named("event"),
            "payload": json_object,
        },
        ("kind", "claim_id", "subject", "predicate", "object"),
        "event",
        AN_EVENT,
    ),
    "create_log": Operation({"log_path": log_path}, ("log_path",)),
    "append_log": Operation({"log_path": log_path, "line": text}, ("log_path", "line")),
    "reconcile": Operation(
        {"stale_after_seconds": _AGE},
        (),
        None,
        A_RECONCILIATION,
    ),
    "build_blackboard_projection": Operation({}, (), None, A_PROJECTION),
    "backdate_log": Operation(
        {"log_path": log_path, "seconds": _SECONDS}, ("log_path", "seconds"), may_raise=False
    ),
    "remove_log": Operation({"log_path": log_path}, ("log_path",), may_raise=False),
    "advance": Operation({"seconds": _SECONDS}, ("seconds",), may_raise=False),
}
"""Everything that a step can do."""


def _step(reader: Reader, place: str, value: Any) -> Step:
    if "do" not in json_object(reader, place, value):
        reader.refuse(at(place, "do"), f"this key is missing; expected {', '.join(OPERATIONS)}.")
    done = one_of(tuple(OPERATIONS))(reader, at(place, "do"), value["do"])
    operation = OPERATIONS[done]
    known = {"do": text, **operation.takes}
    if operation.makes:
        known["as"] = name
    if operation.returns:
        known["returns"] = operation.returns
    if operation.may_raise:
        known["raises"] = one_of(_ERRORS)
    said = keys(known, needs=operation.needs)(reader, place, value)
    step = Step(
        operation=done,
        arguments={key: item for key, item in said.items() if key in operation.takes},
        name=said.get("as"),
        outcome={key: said[key] for key in ("returns", "raises") if key in said},
    )
    _must_agree(reader, place, step)
    _follow(reader, place, step, operation)
    return step


def _must_agree(reader: Reader, place: str, step: Step) -> None:
    """Refuse a step whose parts can never hold together."""
    if len(step.outcome) == 2:
        reader.refuse(place, "it states both returns and raises; expected one of them.")
    has_result = "raises" not in step.outcome and step.outcome.get("returns", "") is not None
    if step.name is not None and not has_result:
        reader.refuse(at(place, "as"), "a step that has no result names none; expected no as here.")


def _follow(reader: Reader, place: str, step: Step, operation: Operation) -> None:
    """Take over what later steps may refer to."""
    if step.name is not None and operation.makes is not None:
        if step.name in reader.kinds:
            reader.refuse(
                at(place, "as"),
                f"{shown(step.name)} is the name of an earlier result; expected a new one.",
            )
        reader.kinds[step.name] = operation.makes
    if step.operation == "advance":
        reader.advanced += step.arguments["seconds"]
        if reader.advanced > SECONDS_MAX:
            reader.refuse(
                at(place, "seconds"),
                f"the clock is advanced by {reader.advanced} seconds in all; expected at most "
                f"{SECONDS_MAX}.",
            )
    if "raises" not in step.outcome and step.operation.endswith("_log"):
        _follow_log(reader, at(place, "log_path"), step.operation, step.arguments["log_path"])


def _follow_log(reader: Reader, place: str, operation: str, log: str) -> None:
    if operation == "create_log":
        reader.logs.add(log)
    elif log not in reader.logs:
        known = ", ".join(sorted(reader.logs)) or "there is none"
        reader.refuse(
            place, f"{shown(log)} is no log here; expected one that a step made ({known})."
        )
    elif operation == "remove_log":
        reader.logs.remove(log)


def parse_case(value: object, *, file: str) -> Case:
    """
    Check one fixture and return it as a case.

    Args:
        value: The decoded JSON document.
        file: What an error calls it.
    Raises: FixtureError: something in it is unknown, missing, or of another type; names the place.
    """
    known = {
        "case": name,
        "about": sentence,
        "expected_status": one_of(["pass", "fail"]),
        "stale_after_seconds": _AGE,
        "steps": lambda _, __, value: value,  # after all else, and before expect
        "expect": lambda _, __, value: value,
    }
    needs = ["case", "about", "expected_status", "steps", "expect"]
    reader = Reader(file)
    said = keys(known, needs=needs)(reader, "", value)
    steps = list_of(_step)(reader, "steps", said["steps"])
    return Case(
        name=said["case"],
        about=said["about"],
        expected_status=said["expected_status"],
        stale_after_seconds=said.get("stale_after_seconds", STALE_AFTER_SECONDS),
        steps=tuple(steps),
        expect=THE_END(reader, "expect", said["expect"]),
    )
