"""What the report says of results, whatever made them: text, JSON, numbers that add up."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from harness import report
from harness.discovery import Found
from harness.explain import printable, ranges
from harness.runner import Result, exit_code
from harness.selftest import Problem
from harness.trace import Recording, Step
from harness.verdict import Kind, Verdict, Violation

TRACE = "before step a\n" + "".join(f"before write f{n}\n" for n in range(2, 60)) + "end\n"
STEP = Step("a", 1, 59, "observed", None, [], "unless_present", None, False)
WRONG = Violation(
    "promise kept",
    "kept(n=1) was acknowledged and does not hold any more",
    "after recovery",
    ("$.n: expected 1, observed 0",),
    ("step_atomicity",),
    ("before write log",),
)


def verdict(boundary: int, kind: Kind = "survived", **more: Any) -> Verdict:
    """Return a verdict over one boundary, with a proved death."""
    violation = None if kind == "survived" else WRONG
    facts = {"exit_status": 86, "died_at": boundary, "subjects": {"x": 2, "idle": 0}, **more}
    return Verdict(kind, boundary, violation, **facts)


def result(*verdicts: Verdict, name: str = "store/campaign", **more: Any) -> Result:
    """Return a result with a recording of 60 boundaries."""
    recording = Recording("<root>", TRACE, "", "", [STEP], sqlite="apsw 3.54.1")
    found = Found(name, "module", "Class", "/module.py")
    chosen = [v.boundary for v in verdicts]
    return Result(found, recording, chosen, list(verdicts), seconds=2.0, **more)


def test_one_thing_is_told_in_the_singular() -> None:
    """A number and its noun agree."""
    one = dataclasses.replace(verdict(60, "violated"), violation=WRONG)
    lines = report.campaign_lines(result(one))
    assert "     at 1 boundary: 60" in lines
    assert lines[-4].startswith("store/campaign: 1 boundary of 60 in the trace, 0 survived")
    assert lines[-3].startswith("     1 death proved: exit status 86")


def test_a_long_statement_is_cut_in_the_head_and_whole_in_the_trace() -> None:
    """A heading ends after a word, or inside of one that has no end; the trace has it all."""
    long = "after sql a.db: insert into t values " + ", ".join(f"({n})" for n in range(100))
    for line in (long, "before write " + "x" * 200):
        trace = TRACE.replace("before write f40", line)
        given = result(verdict(40, "violated"))
        given.recording = Recording("<root>", trace, "", "", [STEP])
        lines = report.campaign_lines(given)
        head, where, step = lines[0].split("  ")[:1], lines[0].split("  ")[2], 'step "a"'
        assert head == ["FAIL store/campaign"]
        assert where.removeprefix("boundary 40/60 ").endswith(" ...")
        assert len(where) <= len("boundary 40/60 ") + 100
        assert line.startswith(where.removeprefix("boundary 40/60 ").removesuffix(" ..."))
        assert step in lines[0]
        assert f"         40  {line}" in lines


def test_a_campaign_that_an_error_ended_keeps_what_was_covered() -> None:
    """The error is told elsewhere, once; here stand one word for it, and what came before it."""
    wrong = Problem("inconclusive", "ConfigurationError", "the result of x is lost")
    given = result(verdict(1), verdict(2), problem=wrong)
    given.chosen = [1, 2, 3]
    lines = report.campaign_lines(given)
    assert lines[0] == (
        "ERROR store/campaign  configuration error after 2 of 3 boundaries  "
        "fault process-death  seed 0"
    )
    assert lines[1].startswith("store/campaign: 2 boundaries of 60 in the trace, 2 survived")
    assert "is lost" not in "".join(lines)
    assert report.campaign_verdict(given) == "configuration error"
    assert "; 1 campaign: configuration error; " in report.verdict_sentence([given], exit_code=2)


def test_a_finding_that_needs_no_crash_says_so_once() -> None:
    """The head says it, with the step; the message says when it showed."""
    problem = Problem("violated", "acknowledged_step_is_stored", "step 'a' was lost", step="a")
    lines = report.campaign_lines(result(problem=problem))
    assert lines[:3] == [
        'FAIL store/campaign  broke invariant `acknowledged_step_is_stored`  step "a"  '
        "no crash needed  seed 0",
        "     in the recording: step 'a' was lost",
        "     replay crashconform run store/campaign",
    ]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([], ""), ([7], "7"), ([57, 58, 59, 60, 61, 70], "57-61, 70"), ([1, 3, 4], "1, 3-4")],
)
def test_boundaries_are_drawn_together_to_ranges(numbers: list[int], expected: str) -> None:
    """Neighbours become one range, others stay apart."""
    assert ranges(numbers) == expected


def test_control_characters_never_reach_the_terminal() -> None:
    """What a store printed cannot move the cursor or colour the report."""
    assert printable("a\x1b[2Jb\r\tc\udc80\n") == "a\\x1b[2Jb\\r\tc\\udc80\n"


def test_a_finding_tells_everything_in_order() -> None:
    """Head, message, difference, what else broke, where, traces, output, command."""
    wrong = result(
        *(verdict(n, "violated", printed="said\x07 this") for n in (40, 41, 44)), verdict(50)
    )
    lines = report.campaign_lines(wrong, replay_options="--timeout 5")
    assert lines[0] == (
        "FAIL store/campaign  broke promise `kept`  boundary 40/60 before write f40  "
        'step "a"  fault process-death  seed 0'
    )
    assert lines[1:5] == [
        "     after recovery: kept(n=1) was acknowledged and does not hold any more",
        "     $.n: expected 1, observed 0",
        "     also broken: step_atomicity",
        "     at 3 boundaries: 40-41, 44",
    ]
    assert lines[5] == "     trace, last 30 lines up to boundary 40:"
    assert lines[6] == "         11  before write f11"
    assert lines[35] == "         40  before write f40"
    assert lines[36] == "     trace of what failed (after recovery), last 1 line:"
    assert lines[38:41] == [
        "     printed:",
        "       said\\x07 this",
        "     replay crashconform replay store/campaign@40 --timeout 5",
    ]


def test_summary_counts_every_verdict_and_proves_the_deaths() -> None:
    """The one line has all five counts; what was never exercised is said."""
    mixed = result(verdict(1), verdict(2, "violated"), verdict(3, "diverged", died_at=0))
    lines = report.summary_lines(mixed)
    assert lines == [
        "store/campaign: 3 boundaries of 60 in the trace, 1 survived, 1 violated, 1 diverged, "
        "0 hung, 0 errored, 1.5 boundaries/s, 2.0 s",
        "     2 deaths proved: exit status 86, boundary, trace prefix; 1 did not die where they "
        "should",
        "     subjects judged: idle not exercised, x 6",
        "     SQLite in force: apsw 3.54.1, journal_mode unknown, synchronous unknown",
    ]


def test_json_adds_up_and_is_json() -> None:
    """Verdicts add up to the boundaries; findings carry the command with its options."""
    mixed = result(verdict(1), verdict(2, "hung"), verdict(3, "errored"))
    data = report.report_json([mixed], exit_code=1, replay_options="--timeout 5")
    (campaign,) = json.loads(json.dumps(data))["campaigns"]
    kinds = ("survived", "violated", "diverged", "hung", "errored")
    assert [campaign[kind] for kind in kinds] == [1, 0, 0, 1, 1]
    assert campaign["boundaries"] == 3
    assert campaign["findings"][0] == {
        "verdict": "hung",
        "boundaries": [2],
        "line": "before write f2",
        "invariant": "promise kept",
        "message": "kept(n=1) was acknowledged and does not hold any more",
        "replay": "crashconform replay store/campaign@2 --timeout 5",
    }


def test_findings_beyond_the_limit_lose_evidence_not_their_command() -> None:
    """A very broken store does not bury its report, and the limit is said."""
    many = result(
        *(
            dataclasses.replace(
                verdict(n, "violated"), violation=dataclasses.replace(WRONG, invariant=f"i{n}")
            )
            for n in range(2, 15)
        )
    )
    lines = report.campaign_lines(many)
    assert sum(line.startswith("     replay ") for line in lines) == 13
    assert sum("lines up to boundary" in line for line in lines) == report.EVIDENCE_MAX
    assert any(line.startswith("     evidence_max=10 reached") for line in lines)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            result(*(verdict(n) for n in range(1, 61))),
            "PASS: survived process death at 60 of 60 boundaries; this says nothing about power "
            "loss",
        ),
        (
            result(verdict(1), verdict(2)),
            "PASS: survived process death at 2 of 2 boundaries explored (60 are in the traces); "
            "this says nothing about power loss",
        ),
        (
            result(verdict(1), verdict(2, "violated")),
            "FAIL: survived process death at 1 of 2 boundaries explored (60 are in the traces); "
            "1 violated; this says nothing about power loss",
        ),
        (
            result(verdict(1), verdict(2, "diverged")),
            "INCONCLUSIVE: survived process death at 1 of 2 boundaries explored (60 are in the "
            "traces); 1 diverged; 1 campaign inconclusive; this says nothing about power loss",
        ),
        (
            result(problem=Problem("violated", "x", "wrong")),
            "FAIL: no boundary was explored under process death; 1 campaign wrong without any "
            "crash; this says nothing about power loss",
        ),
        (
            result(verdict(1), is_interrupted=True),
            "INTERRUPTED: survived process death at 1 of 1 boundary explored (60 are in the "
            "traces); 1 campaign interrupted; this says nothing about power loss",
        ),
    ],
)
def test_verdict_names_its_fault_model_in_the_same_breath(given: Result, expected: str) -> None:
    """No sentence claims more than process death, and none leaves out what went wrong."""
    sentence = report.verdict_sentence([given], exit_code=exit_code([given]))
    assert sentence == expected
    assert "durable" not in sentence


def test_interrupted_campaign_never_looks_like_a_pass() -> None:
    """All that was explored survived, and still the JSON says why that proves nothing."""
    stopped = result(verdict(1), is_interrupted=True)
    stopped.chosen = [1, 2, 3]
    assert report.campaign_json(stopped)["inconclusive"] == "interrupted after 1 of 3 boundaries"
    assert report.campaign_verdict(stopped) == "interrupted"


def test_table_is_aligned_and_has_every_campaign() -> None:
    """One row each, whatever the length of its name."""
    lines = report.table_lines([result(verdict(1), name="a"), result(name="long/name:Class")])
    assert len(lines) == 3
    assert lines[0].startswith("campaign         boundaries  survived")
    assert lines[1].startswith("a                         1         1")
    assert lines[1].endswith("survived process-death")
    assert lines[2].endswith("none in this shard")
