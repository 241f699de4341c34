"""
What a person and a machine are told of a run: pure functions from results to text and JSON.

Covered: one line per campaign, every finding with its evidence, a table, and a verdict that always
names its fault model.
Not covered: colours and progress, which are the front end's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.explain import (
    FAULT,
    INDENT,
    SEED,
    block,
    command,
    finding_lines,
    printable,
    printed_lines,
)
from harness.verdict import KINDS, Finding, Verdict, boundaries, counted

if TYPE_CHECKING:
    from harness.runner import Result

SCHEMA_VERSION = 1
ENGINE = "replay"
SILENT = "this says nothing about power loss"
"""What must follow every claim that a process death was survived."""

NOT_RUN = {
    "ConfigurationError": "configuration error",
    "WorkspaceError": "work folder failed",
    "ZygoteDied": "worker died",
}
"""What ended a campaign that is neither right nor wrong: the error, and the verdict's words."""

EMPTY_SHARD = "none in this shard"
"""Verdict of a campaign that has fewer boundaries than there are shards."""

EVIDENCE_MAX = 10
"""Findings of one campaign whose evidence is printed in full."""


def reason(result: Result) -> str | None:
    """Return why a campaign proves nothing, an interruption included, or None."""
    if result.is_interrupted:
        if not result.chosen:
            return "interrupted before any boundary was explored"
        return f"interrupted after {len(result.verdicts)} of {boundaries(len(result.chosen))}"
    return result.inconclusive


# JSON.


def report_json(
    results: Sequence[Result], *, exit_code: int, replay_options: str = ""
) -> dict[str, Any]:
    """
    Return the whole report as JSON, schema 1.

    Args:
        replay_options: Follows every replay command, such as ``--timeout 5``.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "seed": SEED,
        "campaigns": [campaign_json(one, replay_options=replay_options) for one in results],
        "exit": exit_code,
    }


def campaign_json(result: Result, *, replay_options: str = "") -> dict[str, Any]:
    """Return one campaign as JSON; the five verdicts add up to its boundaries."""
    recording = result.recording
    return {
        "name": result.found.name,
        "engine": ENGINE,
        "fault": FAULT,
        "boundaries": len(result.verdicts),
        "states_distinct": None,
        **result.counts,
        "inconclusive": reason(result),
        "sqlite": recording.sqlite if recording else None,
        "journal_mode": recording.journal_mode if recording else None,
        "synchronous": recording.synchronous if recording else None,
        "seconds": round(result.seconds, 3),
        "findings": [_finding_json(one, replay_options) for one in result.findings],
    }


def _finding_json(finding: Finding, replay_options: str) -> dict[str, Any]:
    return {
        "verdict": finding.kind,
        "boundaries": list(finding.boundaries),
        "line": finding.line,
        "invariant": finding.violation.invariant,
        "message": finding.violation.message,
        "replay": command(finding, replay_options),
    }


# One campaign.


def campaign_lines(result: Result, *, replay_options: str = "") -> list[str]:
    """Return everything about one finished campaign: findings, then the summary."""
    lines: list[str] = []
    findings = result.findings
    for number, finding in enumerate(findings):
        is_full = number < EVIDENCE_MAX
        lines += finding_lines(finding, result, is_full=is_full, replay_options=replay_options)
    if len(findings) > EVIDENCE_MAX:
        more = counted(len(findings) - EVIDENCE_MAX, "more finding")
        lines.append(
            f"{INDENT}evidence_max={EVIDENCE_MAX} reached: the evidence of {more} is shown by "
            "the replay commands"
        )
    why = reason(result)
    if why is not None:
        lines += _inconclusive_lines(result, why)
    return lines + summary_lines(result)


def summary_lines(result: Result) -> list[str]:
    """Return the one line of a campaign, and below it what the claim rests on."""
    explored = len(result.verdicts)
    counts = ", ".join(f"{count} {kind}" for kind, count in result.counts.items())
    rate = explored / result.seconds if result.seconds > 0 else 0.0
    lines = [
        f"{result.found.name}: {_explored(result)}, {counts}, "
        f"{rate:.1f} boundaries/s, {result.seconds:.1f} s"
    ]
    if explored:
        lines.append(f"{INDENT}{_proof(result.verdicts)}")
        lines.append(f"{INDENT}subjects judged: {_subjects(result)}")
    recording = result.recording
    if recording is not None:
        lines.append(f"{INDENT}{_in_force(recording)}")
    notes = dict.fromkeys(note for verdict in result.verdicts for note in verdict.notes)
    return lines + [f"{INDENT}note: {printable(note)}" for note in notes]


def _explored(result: Result) -> str:
    explored = len(result.verdicts)
    if result.recording is None or explored == len(result.recording.lines):
        return boundaries(explored)
    return f"{boundaries(explored)} of {len(result.recording.lines)} in the trace"


def _proof(verdicts: Sequence[Verdict]) -> str:
    """Say how many deaths happened exactly where and how they were meant to."""
    proved = [v for v in verdicts if v.died_at == v.boundary and v.kind != "diverged"]
    statuses = sorted({v.exit_status for v in proved if v.exit_status is not None})
    shown = ", ".join(str(status) for status in statuses) or "unknown"
    text = f"{counted(len(proved), 'death')} proved: exit status {shown}, boundary, trace prefix"
    missing = len(verdicts) - len(proved)
    return f"{text}; {missing} did not die where they should" if missing else text


def _subjects(result: Result) -> str:
    subjects = result.subjects
    named = [
        f"{name} {count}" if count else f"{name} not exercised"
        for name, count in sorted(subjects.items())
    ]
    return printable(", ".join(named)) or "none"


def _in_force(recording: Any) -> str:
    if recording.sqlite is None:
        return "no SQLite was seen"
    mode = recording.journal_mode or "unknown"
    synchronous = recording.synchronous or "unknown"
    return f"SQLite in force: {recording.sqlite}, journal_mode {mode}, synchronous {synchronous}"


def _inconclusive_lines(result: Result, why: str) -> list[str]:
    problem = result.problem
    ended_by = NOT_RUN.get(problem.invariant) if problem is not None else None
    word = "INTERRUPTED" if result.is_interrupted else "INCONCLUSIVE"
    if ended_by is not None:  # told in full on standard error, when it happened
        word, problem = "ERROR", None
        why = f"{ended_by} after {len(result.verdicts)} of {boundaries(len(result.chosen))}"
    first, *rest = printable(why).splitlines() or [""]
    lines = [f"{word} {result.found.name}  {first}  fault {FAULT}  seed {SEED}"]
    lines += [INDENT + line for line in rest]
    if problem is not None and problem.verdict == "inconclusive":
        lines += block("", problem.difference)
        lines += printed_lines(problem.printed)
    return lines


# All campaigns.


def table_lines(results: Sequence[Result]) -> list[str]:
    """Return a table with a row for each campaign, aligned, as wide as it needs to be."""
    rows = [["campaign", "boundaries", *KINDS, "seconds", "verdict"]]
    for result in results:
        counts = [str(count) for count in result.counts.values()]
        rows.append(
            [
                printable(result.found.name),
                str(len(result.verdicts)),
                *counts,
                f"{result.seconds:.1f}",
                campaign_verdict(result),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def campaign_verdict(result: Result) -> str:
    """Return a campaign's verdict in a word or two."""
    problem = result.problem
    if result.exit_code == 1:
        is_hung = not result.count("violated") and (problem is None or problem.verdict == "hung")
        return "hung" if is_hung else "violated"
    if result.is_interrupted:
        return "interrupted"
    if problem is not None and problem.invariant in NOT_RUN:
        return NOT_RUN[problem.invariant]
    if result.exit_code == 3:
        return "errored"
    if result.exit_code:
        return "inconclusive"
    return f"survived {FAULT}" if result.verdicts else EMPTY_SHARD


def verdict_sentence(results: Sequence[Result], *, exit_code: int) -> str:
    """Say in one sentence what was shown, under which fault model, and what was not."""
    explored = sum(len(result.verdicts) for result in results)
    survived = sum(result.count("survived") for result in results)
    in_traces = sum(len(result.recording.lines) for result in results if result.recording)
    if not explored:
        parts = ["no boundary was explored under process death"]
    else:
        parts = [f"survived process death at {survived} of {boundaries(explored)}"]
        if in_traces > explored:
            parts[0] += f" explored ({in_traces} are in the traces)"
    for kind in KINDS[1:]:
        count = sum(result.count(kind) for result in results)
        if count:
            parts.append(f"{count} {kind}")
    unaided = sum(1 for r in results if any(not f.boundaries for f in r.findings))
    if unaided:
        parts.append(f"{_campaigns(unaided)} wrong without any crash")
    words = Counter(campaign_verdict(result) for result in results)
    parts += [f"{_campaigns(words[w])} {w}" for w in ("inconclusive", "interrupted") if words[w]]
    parts += [f"{_campaigns(words[w])}: {w}" for w in NOT_RUN.values() if words[w]]
    return f"{_word(results, exit_code)}: {'; '.join([*parts, SILENT])}"


def _campaigns(count: int) -> str:
    return counted(count, "campaign")


def _word(results: Sequence[Result], exit_code: int) -> str:
    if exit_code == 3 and any(result.is_interrupted for result in results):
        return "INTERRUPTED"
    return {0: "PASS", 1: "FAIL", 5: "INCONCLUSIVE"}.get(exit_code, "ERROR")
