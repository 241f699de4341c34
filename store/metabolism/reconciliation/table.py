"""
A reconciliation for an operator who sees this store for the first time.

Everything that comes from the database is escaped and shortened before it is printed: a key may
hold terminal escape sequences, or be a megabyte long. Where the output is no terminal it has no
colour and a width of its own, so that the same state gives the same bytes.
"""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from store.metabolism.plain_text import printable
from store.metabolism.reconciliation.finding import Facts, Finding, Lease, Rule
from store.metabolism.reconciliation.log_evidence import LogSeen
from store.metabolism.reconciliation.moments import duration_text
from store.metabolism.reconciliation.walk import Summary

__all__ = ["open_console", "print_reconciliation"]

REDIRECTED_WIDTH: Final = 120
"""How wide the table is where no terminal says otherwise, in columns."""

_TABLE_WIDTH_MIN: Final = 100
_NAME_SIZE_MAX: Final = 60
_TEXT_SIZE_MAX: Final = 300

PLAIN: Final = {
    Rule.NO_RUN_ROW: "it is running, and no run was ever recorded",
    Rule.FINALIZED: "its run has ended, and the job goes on",
    Rule.MISSING_LOG: "its launch log is gone",
    Rule.STALE_LOG: "its launch log shows no life",
}
"""Each rule in plain words, said of a job."""

_LABELS: Final = ("look first at", "what is wrong", "expected", "seen")

_LEASES: Final = {
    Lease.HELD: "whose lease still runs",
    Lease.LAPSED: "whose lease has lapsed",
    Lease.NONE: "without a lease",
}

_LOOK: Final = {
    Rule.NO_RUN_ROW: (
        "See on the owner's host whether a process still works on the job, and whether what the "
        "job makes is there."
    ),
    Rule.FINALIZED: "See whether what was to follow the run was done, and what its log ends with.",
    Rule.MISSING_LOG: (
        "See whether the log was moved; if only the database was copied here, name the folder "
        "that it came from with --logs. Then look for the worker on the owner's host."
    ),
    Rule.STALE_LOG: (
        "Read the log's last lines and look for the worker on the owner's host; where the log "
        "could not be looked at, try again as a user who may."
    ),
}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command to end quietly; rich would exit with status 1."""
        raise


def open_console(stream: TextIO) -> Console:
    """Return a console on *stream*, with colour and the terminal's width on a terminal only."""
    is_terminal = stream.isatty()
    return _Console(
        file=stream,
        force_terminal=is_terminal,
        color_system="auto" if is_terminal else None,
        width=None if is_terminal else REDIRECTED_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_reconciliation(
    console: Console,
    summary: Summary,
    findings: Iterable[Finding],
    *,
    database: Path,
    folder: Path,
) -> None:
    """
    Print what to look at first, why, what may be done, and the counts; one line if healthy.

    Args:
        findings: Those to show, worst first; the rest is counted.
        database: Absolute, for the commands that are shown.
        folder: Where relative log paths begin.
    """
    if not summary.finding_count:
        console.print(Text(_healthy(summary), style="green"), soft_wrap=True)
        return
    shown = list(findings)
    console.print(Text(_headline(summary), style="bold"))
    _print_findings(console, shown)
    if more := summary.finding_count - len(shown):
        _print(console, f"{more} more; --limit {summary.finding_count} or --json shows all.")
    broken = [rule for rule in Rule if summary.rule_counts[rule.value]]
    _print_reasons(console, broken)
    _print_steps(console, broken, shown, database, folder)
    _print_counts(console, summary)


def _healthy(summary: Summary) -> str:
    line = (
        f"healthy: {_counted(summary.active_count, 'claimed or running job')}, and none "
        "contradicts its runs and launch logs"
    )
    if summary.requeueable_count:
        line += f"; {summary.requeueable_count} with a lapsed lease, for requeue_expired_jobs"
    return f"{line}."


def _headline(summary: Summary) -> str:
    return (
        f"needs review: {_counted(summary.finding_count, 'finding')} in "
        f"{_counted(summary.active_count, 'claimed or running job')}; what to look at first comes "
        "first."
    )


def _print_findings(console: Console, findings: Sequence[Finding]) -> None:
    if findings and console.width >= _TABLE_WIDTH_MIN:
        console.print(_table(findings))
        return
    for finding in findings:
        console.print()
        block = Table.grid(padding=(0, 2, 0, 0))
        block.add_column(no_wrap=True)
        block.add_column(overflow="fold")
        for label, words in zip(_LABELS, _cells(finding), strict=True):
            block.add_row(Text(label, style="bold"), Text(words, overflow="fold"))
        console.print(block)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=box.ASCII, show_lines=True)
    for label in _LABELS:
        table.add_column(Text(label), overflow="fold")
    for finding in findings:
        table.add_row(*(Text(words, overflow="fold") for words in _cells(finding)))
    return table


def _cells(finding: Finding) -> tuple[str, str, str, str]:
    return (
        _job(finding.facts),
        f"{PLAIN[finding.rule]}\nfinding {finding.finding_id}",
        printable(finding.expected, size_max=_TEXT_SIZE_MAX),
        printable(finding.observed, size_max=_TEXT_SIZE_MAX),
    )


def _job(facts: Facts) -> str:
    kind = printable(facts.job_kind, size_max=_NAME_SIZE_MAX)
    key = printable(facts.idempotency_key, size_max=_NAME_SIZE_MAX)
    owner = "nobody"
    if facts.claim_owner is not None:
        owner = printable(facts.claim_owner, size_max=_NAME_SIZE_MAX)
    lease = _LEASES[facts.lease]
    unattended = duration_text(facts.unattended_ns)
    return (
        f"job {facts.job_id}, {facts.job_state}\n{kind}, key {key}\n"
        f"held by {owner}, {lease}; no sign of life for {unattended}"
    )


def _print_reasons(console: Console, broken: Sequence[Rule]) -> None:
    _title(console, "Why a person must look")
    for rule in broken:
        _print(console, f"Where {PLAIN[rule]}: {rule.why}")


def _print_steps(
    console: Console, broken: Sequence[Rule], shown: Sequence[Finding], database: Path, folder: Path
) -> None:
    _title(console, "What may be done next (nothing was changed, and nothing is done for you)")
    _print(console, "Look into a copy; another tool may write to what it opens:")
    _command(console, f"mkdir look && cp {_quoted(str(database))}* look/")
    ids = ", ".join(str(job_id) for job_id in sorted({finding.job_id for finding in shown}))
    for table, order in (("jobs", "job_id"), ("runs", "run_id")):
        sql = f"SELECT * FROM {table} WHERE job_id IN ({ids or 'JOB'}) ORDER BY {order}"
        _command(console, f'sqlite3 {_quoted(f"look/{database.name}")} "{sql}"')
    for rule in broken:
        _print(console, f"Where {PLAIN[rule]}: {_LOOK[rule]}")
        logs = [one.facts.log_path for one in shown if one.rule is rule and _has_log(one.facts)]
        if logs:
            _command(console, f"tail {_quoted(str(folder / str(logs[0])))}")
    _print(
        console,
        "When you know what happened, say so, job by job: 'completed' and 'failed' end a job, "
        "'recoverable' lets a worker claim it again:",
    )
    path = json.dumps(str(database), ensure_ascii=False)
    code = (
        "import time; from pathlib import Path; from store.metabolism import *; "
        f"update_job_state(connect(Path({path})), {shown[0].job_id if shown else 'JOB'}, "
        '"recoverable", now_ns=time.time_ns())'
    )
    _command(console, f"python -c {_quoted(code)}")


def _has_log(facts: Facts) -> bool:
    return facts.log_seen in (LogSeen.FILE, LogSeen.UNREADABLE)


def _print_counts(console: Console, summary: Summary) -> None:
    _title(console, "Counts")
    size = max(len(str(count)) for count in summary.rule_counts.values())
    for rule, count in summary.rule_counts.items():
        _print(console, f"{count:>{size}}  {rule}: {PLAIN[Rule(rule)]}")
    _print(console, _requeueable(summary))
    _title(console, "What this is worth")
    _print(console, summary.claim_ceiling)


def _requeueable(summary: Summary) -> str:
    count, found = summary.requeueable_count, summary.requeueable_finding_count
    if not count:
        return "requeue_expired_jobs would give back no job: no lease has lapsed that it may end."
    line = f"requeue_expired_jobs would give back {_counted(count, 'job')}: the lease has lapsed"
    if found:
        return f"{line}. {found} of them have a finding: look before the runtime starts again."
    return f"{line}, and nobody has to look."


def _title(console: Console, words: str) -> None:
    console.print()
    console.print(Text(words, style="bold"))


def _print(console: Console, words: str) -> None:
    """Print our own words, wrapped without spaces at the end of a line."""
    for line in textwrap.wrap(
        words, max(20, console.width), initial_indent="  ", subsequent_indent="  "
    ):
        console.print(Text(line), soft_wrap=True)


def _command(console: Console, words: str) -> None:
    """Print unwrapped, to be copied."""
    console.print(Text(f"    {words}"), soft_wrap=True)


def _quoted(words: str) -> str:
    return printable(shlex.quote(words))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
