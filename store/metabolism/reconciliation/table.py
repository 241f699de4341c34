"""
A reconciliation for an operator who sees this store for the first time.

Everything that comes from the database is escaped and shortened before it is printed: a key may
hold terminal escape sequences, or be a megabyte long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from store.metabolism.plain_text import counted, printable
from store.metabolism.reconciliation.advice import print_steps
from store.metabolism.reconciliation.census import Census
from store.metabolism.reconciliation.finding import Facts, Finding, Lease, Rule
from store.metabolism.reconciliation.moments import duration_text
from store.metabolism.reconciliation.printing import open_console, paragraph, title
from store.metabolism.reconciliation.verdict import Verdict
from store.metabolism.reconciliation.walk import Summary
from store.metabolism.scope import UNSEEN_LOSS

__all__ = ["open_console", "print_reconciliation"]

_TABLE_WIDTH_MIN: Final = 100
_NAME_SIZE_MAX: Final = 60
_TEXT_SIZE_MAX: Final = 300

PLAIN: Final = {
    Rule.NO_RUN_ROW: "it is running, and no run of its claim is recorded",
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


def print_reconciliation(console: Console, verdict: Verdict, findings: Iterable[Finding]) -> None:
    """
    Print the warnings, what to look at first, why, what may be done, and the counts.

    A database without findings takes a line or two.

    Args:
        findings: Those to show, worst first; the rest is counted.
    """
    summary = verdict.summary
    for caveat in verdict.caveats:
        words = printable(f"warning ({caveat.kind}): {caveat.text}")
        paragraph(console, words, indent="", style="bold")
    if not summary.finding_count:
        _print_nothing_found(console, verdict)
        return
    shown = list(findings)
    console.print(Text(_headline(summary), style="bold"))
    _print_findings(console, shown)
    if more := summary.finding_count - len(shown):
        paragraph(console, f"{more} more; --limit {summary.finding_count} or --json shows all.")
    _print_reasons(console, [rule for rule in Rule if any(one.rule is rule for one in shown)])
    print_steps(console, PLAIN, shown, database=verdict.database, folder=verdict.folder)
    _print_counts(console, verdict)
    _print_worth(console, summary)


def _print_nothing_found(console: Console, verdict: Verdict) -> None:
    """Print one line on the held jobs, one on all, and the limits where there is a doubt."""
    summary = verdict.summary
    is_sure = not verdict.caveats
    verb = "contradicts" if is_sure else "is seen to contradict"
    line = (
        f"{'healthy' if is_sure else 'nothing found in what can be read'}: "
        f"{counted(summary.active_count, 'claimed or running job')}, and none {verb} its runs and "
        "launch logs"
    )
    if summary.requeueable_count:
        line += f"; {summary.requeueable_count} with a lapsed lease, for requeue_expired_jobs"
    console.print(Text(f"{line}.", style="green" if is_sure else "bold"), soft_wrap=True)
    paragraph(console, _jobs_in_all(verdict.census), indent="")
    if summary.unleased_count:
        paragraph(console, _unleased(summary), indent="")
    if not is_sure:
        _print_worth(console, summary)


def _headline(summary: Summary) -> str:
    return (
        f"needs review: {counted(summary.finding_count, 'finding')} in "
        f"{counted(summary.active_count, 'claimed or running job')}; what to look at first comes "
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
        _seen(finding),
    )


def _seen(finding: Finding) -> str:
    seen = printable(finding.observed, size_max=_TEXT_SIZE_MAX)
    if finding.rule is not Rule.FINALIZED or finding.facts.log_path is None:
        return seen
    return f"{seen}\nits launch log: {printable(finding.facts.log_path, size_max=_TEXT_SIZE_MAX)}"


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
    if not broken:
        return
    title(console, "Why a person must look")
    for rule in broken:
        paragraph(console, f"Where {PLAIN[rule]}: {rule.why}")


def _print_counts(console: Console, verdict: Verdict) -> None:
    summary = verdict.summary
    title(console, "Counts")
    size = max(len(str(count)) for count in summary.rule_counts.values())
    for rule, count in summary.rule_counts.items():
        paragraph(console, f"{count:>{size}}  {rule}: {PLAIN[Rule(rule)]}")
    paragraph(console, _jobs_in_all(verdict.census))
    if summary.unleased_count:
        paragraph(console, _unleased(summary))
    paragraph(console, _requeueable(summary))


def _print_worth(console: Console, summary: Summary) -> None:
    title(console, "What this is worth")
    paragraph(console, summary.claim_ceiling)
    paragraph(console, UNSEEN_LOSS)


def _jobs_in_all(census: Census) -> str:
    if not census.job_count:
        return "It holds no job at all: was its -wal file copied too?"
    states = [f"{count} {state}" for state, count in census.job_counts.items() if count]
    return f"{counted(census.job_count, 'job')} in all: {', '.join(states)}."


def _unleased(summary: Summary) -> str:
    count = summary.unleased_count
    verb = "is" if count == 1 else "are"
    return (
        f"{counted(count, 'running job')} {verb} under no lease at all: requeue_expired_jobs "
        f"never gives {'it' if count == 1 else 'them'} back."
    )


def _requeueable(summary: Summary) -> str:
    count, found = summary.requeueable_count, summary.requeueable_finding_count
    if not count:
        return "requeue_expired_jobs would give back no job: no lease has lapsed that it may end."
    line = f"requeue_expired_jobs would give back {counted(count, 'job')}: the lease has lapsed"
    if found:
        verb = "has" if found == 1 else "have"
        return f"{line}. {found} of them {verb} a finding: look before the runtime starts again."
    return f"{line}, and nobody has to look."
