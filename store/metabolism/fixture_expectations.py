"""
What a fixture can expect: of what a step returns, and of the end of a case.

An expectation names some of what is known; what it leaves out may be anything. Lists and the counts
of the rules are the exception: they are compared whole. One that names nothing could not fail, and
is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from store.metabolism.finding import Rule
from store.metabolism.fixture_checks import (
    Check,
    Reader,
    at,
    boolean,
    integer,
    json_object,
    keys,
    list_of,
    named,
    one_of,
    or_null,
    text,
)
from store.metabolism.reconciliation import HEALTHY, NEEDS_REVIEW
from store.metabolism.records import ClaimEventKind, JobState

__all__ = [
    "AN_ENQUEUED_JOB",
    "AN_EVENT",
    "A_JOB",
    "A_PROJECTION",
    "A_RECONCILIATION",
    "A_RUN",
    "COUNT",
    "THE_END",
]

_RULES = [rule.value for rule in Rule]
_JOURNAL_MODES = ("delete", "memory", "off", "persist", "truncate", "wal")


def _states_of_jobs(reader: Reader, place: str, value: Any) -> dict[str, str]:
    if not json_object(reader, place, value):
        reader.refuse(place, "it is empty; expected at least one job with its state.")
    for job, state in value.items():
        named("job")(reader, at(place, job), job)
        _STATE(reader, at(place, job), state)
    return dict(value)


def _rule_counts(reader: Reader, place: str, value: Any) -> dict[str, int]:
    counts = keys(dict.fromkeys(_RULES, COUNT))(reader, place, value)
    return {rule: counts.get(rule, 0) for rule in _RULES}


def _finding(reader: Reader, place: str, value: Any) -> dict[str, Any]:
    known = {"rule": one_of(_RULES), "job": named("job"), "run": named("run")}
    found: dict[str, Any] = keys(known, needs=["rule"])(reader, place, value)
    if len(found) != 2:
        reader.refuse(place, "expected rule, and either job or run.")
    return found


COUNT: Final = integer(least=0)
"""How many there are of something."""

_STATE = one_of([str(state) for state in JobState])
_A_THING = "at least one thing to hold"

A_JOB: Final = keys(
    {
        "job": named("job"),
        "state": _STATE,
        "attempts": COUNT,
        "claim_owner": or_null(text),
        "last_error": or_null(text),
        "priority": integer(),
    },
    needs_any=_A_THING,
)
"""Of a job that a step claimed, renewed or moved."""

AN_ENQUEUED_JOB: Final = keys(
    {"inserted": boolean, "job": named("job"), "state": _STATE}, needs_any=_A_THING
)
"""Of a job that was enqueued, or found in the way."""

A_RUN: Final = keys(
    {
        "job": named("job"),
        "attempt": COUNT,
        "return_code": or_null(integer()),
        "log_path": or_null(text),
    },
    needs_any=_A_THING,
)
"""Of a run."""

AN_EVENT: Final = keys(
    {
        "kind": one_of([str(kind) for kind in ClaimEventKind]),
        "claim_id": text,
        "assertion": or_null(named("event")),
    },
    needs_any=_A_THING,
)
"""Of an event of the blackboard."""

_RECONCILIATION: Final[Mapping[str, Check]] = {
    "status": one_of([HEALTHY, NEEDS_REVIEW]),
    "rule_counts": _rule_counts,
    "findings": list_of(_finding),
}
A_RECONCILIATION: Final = keys(_RECONCILIATION, needs_any=_A_THING)
"""Of a reconciliation."""

A_PROJECTION: Final = keys(
    {
        "active_count": COUNT,
        "event_count": COUNT,
        "contradiction_count": COUNT,
        "active": list_of(named("event")),
    },
    needs_any=_A_THING,
)
"""Of the blackboard."""

THE_END: Final = keys(
    {
        "jobs": _states_of_jobs,
        **_RECONCILIATION,
        "projection": A_PROJECTION,
        "requeued_count": COUNT,
        "journal_mode": one_of(_JOURNAL_MODES),
    },
    needs_any=_A_THING,
)
"""Of what a case leaves behind."""
