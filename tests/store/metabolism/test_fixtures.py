"""Playing fixtures: what holds, what does not, and a record that depends on nothing else."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from store.metabolism.errors import MetabolismError
from store.metabolism.fixtures import (
    CaseResult,
    FixtureError,
    ScratchUnusable,
    evaluate_case,
    evaluate_fixture_dir,
)
from store.metabolism.fixtures.cases import OPERATIONS, parse_case

STALE = "running_job_stale_launch_log"

STEPS: list[dict[str, Any]] = [
    {"do": "enqueue_job", "as": "job", "kind": "k", "idempotency_key": "1", "priority": 7},
    {"do": "claim_next_job", "as": "claim", "owner": "one", "lease_seconds": 600},
    {"do": "create_log", "log_path": "a.log"},
    {"do": "start_run", "as": "run", "claim": "claim", "log_path": "a.log"},
    {"do": "enqueue_job", "as": "other", "kind": "k", "idempotency_key": "2"},
    {"do": "claim_next_job", "as": "lapsed", "owner": "two", "lease_seconds": -1},
    {"do": "requeue_expired_jobs"},
    {
        "do": "append_claim_event",
        "as": "event",
        "kind": "claim_asserted",
        "claim_id": "c",
        "subject": "s",
        "predicate": "p",
        "object": "o",
    },
    {
        "do": "append_claim_event",
        "as": "contradicting",
        "kind": "claim_contradicted",
        "claim_id": "c",
        "subject": "s",
        "predicate": "p",
        "object": "q",
    },
    {"do": "advance", "seconds": 601},
]
"""Leaves one running job with a stale log, one recoverable job, and one active claim."""


def play(
    folder: Path,
    *more: dict[str, Any],
    expect: dict[str, Any] | None = None,
    expected_status: str = "pass",
) -> CaseResult:
    """Play `STEPS` and *more* of them; what nothing is said of is expected to be WAL."""
    case = parse_case(
        {
            "case": "played",
            "about": "A case of the tests.",
            "expected_status": expected_status,
            "steps": [*STEPS, *more],
            "expect": expect or {"journal_mode": "wal"},
        },
        file="played.json",
    )
    return evaluate_case(case, scratch=folder)


def missed(result: CaseResult) -> dict[str, tuple[Any, Any]]:
    """Return what was expected and observed at each place that did not match."""
    assert ("fail" if result.mismatches else "pass") == result.observed_status
    return {wrong.place: (wrong.expected, wrong.observed) for wrong in result.mismatches}


def known_keys(said: dict[str, Any], place: str) -> set[str]:
    """Return the keys that a fixture may have at a place, as the refusal of another one lists."""
    with pytest.raises(FixtureError) as caught:
        parse_case(said, file="")
    assert place == caught.value.place
    return set(caught.value.problem.partition("expected ")[2].rstrip(".").split(", "))


# What each key must say to hold, what it may not say, and where the record shows the difference.
END: dict[str, tuple[Any, Any, str]] = {
    "jobs": ({"job": "running", "other": "recoverable"}, {"job": "completed"}, "jobs.job"),
    "status": ("needs_review", "healthy", "status"),
    "rule_counts": ({STALE: 1}, {}, f"rule_counts.{STALE}"),
    "findings": ([{"rule": STALE, "run": "run"}], [], "findings"),
    "projection": ({"active_count": 1}, {"active_count": 0}, "projection.active_count"),
    "requeued_count": (1, 0, "requeued_count"),
    "journal_mode": ("wal", "delete", "journal_mode"),
}


@pytest.mark.parametrize("kind", sorted(END))
def test_each_expectation_of_the_end_can_fail(tmp_path: Path, kind: str) -> None:
    """Each kind of expectation holds where it is true, and is a mismatch at its place where not."""
    right, wrong, place = END[kind]
    assert missed(play(tmp_path, expect={kind: right})) == {}
    assert set(missed(play(tmp_path, expect={kind: wrong}))) == {f"expect.{place}"}


def test_no_expectation_of_the_end_is_left_out() -> None:
    """Whatever can be expected of the end is in the table above."""
    said = {"case": "a", "about": "b", "expected_status": "pass", "steps": []}
    assert set(END) == known_keys({**said, "expect": {"?": 0}}, 'expect."?"')


def test_rule_counts_are_exact(tmp_path: Path) -> None:
    """A rule that is not named must have found nothing, and a wrong count is shown with its own."""
    assert missed(play(tmp_path, expect={"rule_counts": {STALE: 1, _NO_RUN: 0}})) == {}
    result = play(tmp_path, expect={"rule_counts": {_NO_RUN: 2}})
    assert missed(result) == {
        f"expect.rule_counts.{_NO_RUN}": (2, 0),
        f"expect.rule_counts.{STALE}": (0, 1),
    }


_NO_RUN = "running_job_no_run_row"

_RECONCILED: dict[str, tuple[Any, Any]] = {
    "status": ("needs_review", "healthy"),
    "rule_counts": ({STALE: 1}, {STALE: 2}),
    "findings": ([{"rule": STALE, "run": "run"}], [{"rule": STALE, "job": "job"}]),
}
_PROJECTED: dict[str, tuple[Any, Any]] = {
    "active_count": (1, 2),
    "event_count": (2, 1),
    "contradiction_count": (1, 0),
    "active": (["event"], ["contradicting"]),
}
_CLAIMED: dict[str, tuple[Any, Any]] = {
    "job": ("other", "job"),
    "state": ("claimed", "running"),
    "attempts": (2, 1),
    "claim_owner": ("three", "two"),
    "last_error": ("the lease lapsed", None),
    "priority": (100, 7),
}
_EVENT = {"kind": "claim_expired", "claim_id": "c", "subject": "s", "predicate": "p", "object": "q"}

# For each operation: what it is given, and for each key what it must and may not return.
RETURNS: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, Any]]]] = {
    "enqueue_job": (
        {"kind": "k", "idempotency_key": "1"},
        {"inserted": (False, True), "job": ("job", "other"), "state": ("running", "queued")},
    ),
    "claim_next_job": ({"owner": "three"}, _CLAIMED),
    "renew_claim": (
        {"claim": "claim", "lease_seconds": 5},
        {
            "job": ("claim", "other"),
            "state": ("running", "claimed"),
            "attempts": (1, 2),
            "claim_owner": ("one", "two"),
            "last_error": (None, "x"),
            "priority": (7, 100),
        },
    ),
    "update_job_state": (
        {"job": "job", "state": "queued", "last_error": "by hand"},
        {
            "job": ("job", "other"),
            "state": ("queued", "running"),
            "attempts": (1, 2),
            "claim_owner": (None, "one"),
            "last_error": ("by hand", None),
            "priority": (7, 0),
        },
    ),
    "start_run": (
        {"claim": "again", "log_path": "b.log"},
        {
            "job": ("other", "job"),
            "attempt": (2, 1),
            "return_code": (None, 0),
            "log_path": ("b.log", "a.log"),
        },
    ),
    "complete_run": (
        {"run": "run", "return_code": 3},
        {
            "job": ("job", "other"),
            "attempt": (1, 2),
            "return_code": (3, None),
            "log_path": ("a.log", None),
        },
    ),
    "append_claim_event": (
        {**_EVENT, "assertion": "event"},
        {
            "kind": ("claim_expired", "claim_asserted"),
            "claim_id": ("c", "d"),
            "assertion": ("event", None),
        },
    ),
    "reconcile": ({}, _RECONCILED),
    "build_blackboard_projection": ({}, _PROJECTED),
}
_BEFORE = {"start_run": [{"do": "claim_next_job", "as": "again", "owner": "three"}]}


@pytest.mark.parametrize(
    ("operation", "key"), [(one, key) for one, (_, keys) in RETURNS.items() for key in keys]
)
def test_each_key_that_an_operation_returns_can_fail(
    tmp_path: Path, operation: str, key: str
) -> None:
    """What a step states of its result holds where it is true, and is a mismatch where not."""
    given, keys = RETURNS[operation]
    before = _BEFORE.get(operation, [])
    place = f"steps[{len(STEPS) + len(before)}].returns.{key}"
    right, wrong = (
        {"do": operation, **given, "returns": {key: returned}} for returned in keys[key]
    )
    assert missed(play(tmp_path, *before, right)) == {}
    [found] = missed(play(tmp_path, *before, wrong))
    assert found.startswith(place)


@pytest.mark.parametrize("operation", sorted(RETURNS))
def test_no_key_that_an_operation_returns_is_left_out(operation: str) -> None:
    """Whatever can be stated of a result is in the table above."""
    given, keys = RETURNS[operation]
    before = _BEFORE.get(operation, [])
    step = {"do": operation, **given, "returns": {"?": 0}}
    said = {"case": "a", "about": "b", "expected_status": "pass", "expect": {"status": "healthy"}}
    place = f'steps[{len(STEPS) + len(before)}].returns."?"'
    assert set(keys) == known_keys({**said, "steps": [*STEPS, *before, step]}, place)


def test_what_returns_no_object_can_fail_too(tmp_path: Path) -> None:
    """A count, and a claim that nobody gets, are compared as they are; no operation is left out."""
    place = f"steps[{len(STEPS)}].returns"
    requeue: dict[str, Any] = {"do": "requeue_expired_jobs"}
    assert missed(play(tmp_path, {**requeue, "returns": 1})) == {}
    assert missed(play(tmp_path, {**requeue, "returns": 0})) == {place: (0, 1)}
    claim: dict[str, Any] = {"do": "claim_next_job", "owner": "three"}
    assert set(missed(play(tmp_path, {**claim, "returns": None}))) == {place}
    again = {**claim, "returns": {"state": "claimed"}}
    assert missed(play(tmp_path, claim, {**claim, "returns": None})) == {}
    assert set(missed(play(tmp_path, claim, again))) == {f"steps[{len(STEPS) + 1}].returns"}
    returning = {name for name, operation in OPERATIONS.items() if operation.returns}
    assert returning == set(RETURNS) | {"requeue_expired_jobs"}


def test_an_error_that_must_come_can_fail(tmp_path: Path) -> None:
    """A step that must be refused is a mismatch when it is not, or for another reason."""
    place = f"steps[{len(STEPS)}].raises"
    start: dict[str, Any] = {"do": "start_run", "claim": "claim"}
    assert missed(play(tmp_path, {**start, "raises": "StaleClaim"})) == {}
    [(expected, observed)] = missed(play(tmp_path, {**start, "raises": "NotText"})).values()
    assert expected == "NotText"
    assert observed.startswith("StaleClaim: job_id=1")
    enqueue = {"do": "enqueue_job", "kind": "k", "idempotency_key": "3", "raises": "NotText"}
    assert missed(play(tmp_path, enqueue)) == {place: ("NotText", None)}


def test_an_error_that_nobody_expected_ends_the_case(tmp_path: Path) -> None:
    """The first surprise fails the case, and nothing after it is compared, but all is shown."""
    start = {"do": "start_run", "claim": "claim"}
    count = {"do": "requeue_expired_jobs", "returns": 99}
    result = play(tmp_path, start, count, expect={"requeued_count": 99})
    [(place, (expected, observed))] = missed(result).items()
    assert (place, expected) == (f"steps[{len(STEPS)}].raises", None)
    assert observed.startswith("StaleClaim: ")
    assert (result.requeued_count, result.reconciliation.rule_counts[STALE]) == (1, 1)


def test_a_name_without_a_result_ends_the_case(tmp_path: Path) -> None:
    """Where there was nothing to claim, what was to be named is missing, and the case fails."""
    claim = {"do": "claim_next_job", "owner": "three"}
    start = {"do": "start_run", "claim": "none"}
    result = play(tmp_path, claim, {**claim, "as": "none"}, start)
    assert missed(result) == {f"steps[{len(STEPS) + 1}].as": ("none", None)}


def test_a_message_does_not_name_the_scratch_folder(tmp_path: Path) -> None:
    """What an error says of a file is relative to the case's folder, so that it stays the same."""
    again = {"do": "create_log", "log_path": "a.log"}
    [(_, observed)] = missed(play(tmp_path, again)).values()
    assert observed == "LogRefused: launch log path='a.log': it cannot be made: File exists"


def test_the_clock_and_the_logs_are_the_cases_own(tmp_path: Path) -> None:
    """A log is as old as the case says, to the nanosecond, whatever the time is here."""
    fresh = {"do": "append_log", "log_path": "a.log", "line": "alive"}
    for seconds, status in ((10, "healthy"), (11, "needs_review")):
        look = {"do": "reconcile", "stale_after_seconds": 10, "returns": {"status": status}}
        assert missed(play(tmp_path, fresh, {"do": "advance", "seconds": seconds}, look)) == {}
        dated = {"do": "backdate_log", "log_path": "a.log", "seconds": seconds}
        assert missed(play(tmp_path, dated, look)) == {}


def test_a_job_is_not_due_before_its_time(tmp_path: Path) -> None:
    """What not_before_seconds says counts from the case's time at that step."""
    later = {"do": "enqueue_job", "as": "later", "kind": "k", "idempotency_key": "3", "priority": 0}
    claim = {"do": "claim_next_job", "owner": "three"}
    assert (
        missed(
            play(
                tmp_path,
                {**later, "not_before_seconds": 5},
                {**claim, "returns": {"job": "other"}},
                {"do": "advance", "seconds": 4},
                {**claim, "returns": None},
                {"do": "advance", "seconds": 1},
                {**claim, "returns": {"job": "later"}},
            )
        )
        == {}
    )


@pytest.mark.parametrize(("expect", "observed"), [("wal", "pass"), ("delete", "fail")])
def test_a_case_may_expect_to_fail(tmp_path: Path, expect: str, observed: str) -> None:
    """MR-033: the observed status is compared with the expected one, be that fail or pass."""
    for expected in ("pass", "fail"):
        result = play(tmp_path, expect={"journal_mode": expect}, expected_status=expected)
        assert (result.observed_status, result.is_met) == (observed, observed == expected)


def test_cases_know_nothing_of_each_other(tmp_path: Path) -> None:
    """MR-033: each case has a folder of its own within scratch, and nothing is left of it."""
    (tmp_path / "kept").write_text("as it was")
    first, second = play(tmp_path), play(tmp_path)
    assert first == second
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_scratch_folder_that_is_none_is_named(tmp_path: Path) -> None:
    """A scratch folder in which nothing can be made is an error of its own, not a failed case."""
    with pytest.raises(ScratchUnusable, match=r"case 'played' .* TMPDIR") as caught:
        play(tmp_path / "missing")
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), MetabolismError)


def fixture_folder(folder: Path, *cases: dict[str, Any]) -> Path:
    """Write these changes of one small case, a file each, and return their folder."""
    folder.mkdir()
    for at, changed in enumerate(cases):
        case = {
            "case": f"case_{at}",
            "about": "A case of the tests.",
            "expected_status": "pass",
            "steps": [],
            "expect": {"status": "healthy"},
        }
        (folder / f"{9 - at}.json").write_text(json.dumps({**case, **changed}))
    return folder


def test_a_folder_without_cases_fails(tmp_path: Path) -> None:
    """MR-034: without a case the record fails, and says why."""
    record = evaluate_fixture_dir(fixture_folder(tmp_path / "input"))
    assert (record["status"], record["cases"]) == ("fail", [])
    assert record["counts"] == {"cases": 0, "met": 0, "missed": 0}
    assert "no *.json file" in record["reasons"][0]


_HOLDS: dict[str, Any] = {}
_DOES_NOT: dict[str, Any] = {"expect": {"status": "needs_review"}}
_TO_FAIL: dict[str, Any] = {"expected_status": "fail"}


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        (_HOLDS, "pass"),
        (_DOES_NOT, "fail"),
        ({**_DOES_NOT, **_TO_FAIL}, "pass"),
        ({**_HOLDS, **_TO_FAIL}, "fail"),
    ],
)
def test_one_case_that_differs_fails_the_record(
    tmp_path: Path, changed: dict[str, Any], status: str
) -> None:
    """MR-042: one case whose status is not the expected one fails the record, also where it
    passes and should not."""
    record = evaluate_fixture_dir(fixture_folder(tmp_path / "input", {}, changed, {}))
    assert record["status"] == status
    assert [case["case"] for case in record["cases"]] == ["case_0", "case_1", "case_2"]
    assert [case["met"] for case in record["cases"]] == [True, status == "pass", True]
    assert record["counts"]["missed"] == len(record["reasons"]) == (status == "fail")
    assert all(reason.startswith("case_1: expected ") for reason in record["reasons"])


def test_nothing_is_played_before_all_is_read(tmp_path: Path) -> None:
    """MR-034: one fixture that cannot be used is an error, whatever the others would show."""
    folder = fixture_folder(tmp_path / "input", {}, {"case": "Not a name"})
    with pytest.raises(FixtureError, match=r"8\.json: case: "):
        evaluate_fixture_dir(folder)
