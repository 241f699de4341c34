"""
Reconciliation: which rows of the runtime contradict each other, and which to look at first.

Method: every claimed or running job is put beside its newest run and, where that run is open and
recorded one, beside its launch log. Four rules say what cannot be: `Rule`. The jobs are read as one
snapshot, row by row; what breaks a rule goes into a sorter outside of Python, so that neither the
number of jobs nor the number of findings is bounded by memory. Nothing is written and nothing is
repaired: what each finding means is for an operator to decide.

Covered: running jobs without a run; ended runs of jobs that go on; launch logs that are gone or
have not been written for too long. Only a run of the present claim counts.
Not covered: whether a worker lives; what a log says; jobs in other states; damaged files, which
``PRAGMA integrity_check`` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import apsw

from store.metabolism.arguments import integer
from store.metabolism.reconciliation.finding import Finding, Rule
from store.metabolism.reconciliation.held_jobs import HeldJob, encoding, held_jobs
from store.metabolism.reconciliation.log_evidence import LogEvidence, LogSeen, look_at_log
from store.metabolism.reconciliation.sorter import Contradiction, FindingSorter
from store.metabolism.scope import CLAIM_CEILING, SCOPE_BOUNDARIES

__all__ = [
    "HEALTHY",
    "NEEDS_REVIEW",
    "STALE_AFTER_NS",
    "Reconciliation",
    "Summary",
    "Survey",
    "reconcile",
    "survey",
]

STALE_AFTER_NS: Final = 600 * 10**9
"""How old a launch log's last line may be where nothing else is asked for, in nanoseconds."""

HEALTHY: Final = "healthy"
"""The status without a finding."""

NEEDS_REVIEW: Final = "needs_review"
"""The status with one or more."""


@dataclass(kw_only=True)
class Summary:
    """
    What a reconciliation says as a whole.

    Attributes:
        active_count: The claimed and running jobs that were looked at.
        rule_counts: The findings of each rule, worst rule first, zeros included.
        requeueable_count: The jobs that `requeue_expired_jobs` would give back by itself.
        requeueable_finding_count: Those of them that have a finding: to be looked at before.
        unleased_count: The running jobs under no lease at all, which `requeue_expired_jobs` never
            gives back.
        newest_log_ns: When the newest launch log that was looked at was last written; None without
            one. No part of the JSON.
    """

    active_count: int = 0
    rule_counts: dict[str, int] = field(default_factory=lambda: {rule.value: 0 for rule in Rule})
    requeueable_count: int = 0
    requeueable_finding_count: int = 0
    unleased_count: int = 0
    newest_log_ns: int | None = None

    @property
    def finding_count(self) -> int:
        """How many findings there are."""
        return sum(self.rule_counts.values())

    @property
    def status(self) -> str:
        """``healthy`` without a finding, else ``needs_review``."""
        return NEEDS_REVIEW if self.finding_count else HEALTHY

    @property
    def claim_ceiling(self) -> str:
        """The most that may be concluded."""
        return CLAIM_CEILING

    @property
    def scope_boundaries(self) -> tuple[str, ...]:
        """What was left out, a sentence each."""
        return SCOPE_BOUNDARIES

    def to_json(self) -> dict[str, object]:
        """
        Return the summary as a plain JSON value.
        """
        return {
            "active_count": self.active_count,
            "claim_ceiling": self.claim_ceiling,
            "finding_count": self.finding_count,
            "requeueable_count": self.requeueable_count,
            "requeueable_finding_count": self.requeueable_finding_count,
            "rule_counts": dict(self.rule_counts),
            "scope_boundaries": list(self.scope_boundaries),
            "status": self.status,
            "unleased_count": self.unleased_count,
        }


@dataclass(kw_only=True)
class Reconciliation(Summary):
    """
    A summary with all its findings, worst first.

    Attributes:
        findings: By rule, worst first; within a rule the longest unattended first; then by object.
    """

    findings: tuple[Finding, ...] = ()

    def to_json(self) -> dict[str, object]:
        """
        Return the whole as a plain JSON value, the same for the same state and moment.
        """
        findings = [finding.to_json() for finding in self.findings]
        return {**Summary.to_json(self), "findings": findings}


class Survey:
    """
    A reconciliation whose findings are fetched as they are wanted. Made by `survey`.

    Attributes:
        summary: What it says as a whole; complete from the start.
    """

    def __init__(self, summary: Summary, found: FindingSorter) -> None:
        self.summary = summary
        self._found = found

    def findings(self, *, limit: int | None = None) -> Iterator[Finding]:
        """
        Yield the findings, worst first, or the first *limit* of them; may be called again.
        """
        return self._found.in_order(limit)


def reconcile(
    connection: apsw.Connection,
    *,
    folder: Path,
    now_ns: int,
    stale_after_ns: int = STALE_AFTER_NS,
) -> Reconciliation:
    """
    Compare the jobs with their runs and launch logs and return every contradiction, worst first.

    Args:
        folder: Where relative log paths begin: the database's folder.
        now_ns: The moment to judge at. Leases that expired before it have lapsed.
        stale_after_ns: A log is stale when its last line is older than this.
    Durable: Nothing; reads only, in one snapshot.
    Raises:
        NotAnInteger, OutOfRange: an argument, named by the error.
        held_jobs.MalformedRow: a row is not as the schema says.
        apsw.Error: the database could not be read.
    Cost: Linear in the claimed and running jobs; one ``stat`` for each open run with a log.
    """
    with survey(connection, folder=folder, now_ns=now_ns, stale_after_ns=stale_after_ns) as found:
        return Reconciliation(**vars(found.summary), findings=tuple(found.findings()))


@contextmanager
def survey(
    connection: apsw.Connection,
    *,
    folder: Path,
    now_ns: int,
    stale_after_ns: int = STALE_AFTER_NS,
) -> Iterator[Survey]:
    """
    Do what `reconcile` does, without holding the findings in memory.

    The database is read before the block begins. Within the block the findings wait in a temporary
    database of SQLite's, which goes to a nameless temporary file when it grows.

    Raises: what `reconcile` does.
    """
    integer("now_ns", now_ns, least=0)
    integer("stale_after_ns", stale_after_ns, least=0)
    found = FindingSorter(encoding(connection), now_ns, stale_after_ns)
    try:
        summary = Summary()
        with closing(_contradictions(connection, folder, found, summary)) as contradictions:
            found.take(contradictions)
        yield Survey(summary, found)
    finally:
        found.close()


_Predicate: TypeAlias = Callable[[HeldJob, LogEvidence | None, int], bool]


def _contradictions(
    connection: apsw.Connection, folder: Path, found: FindingSorter, summary: Summary
) -> Generator[Contradiction, None, None]:
    """Yield what breaks a rule, and count in *summary* everything that passes by."""
    oldest_ns = found.now_ns - found.stale_after_ns
    with closing(held_jobs(connection)) as jobs:
        for job in jobs:
            summary.active_count += 1
            log = None
            if _is_open(job) and job.log_path is not None:
                log = look_at_log(folder, found.path(job.log_path))
                _note_newest(summary, log)
            summary.unleased_count += job.claim_expires_at_ns is None
            rule = _broken_rule(job, log, oldest_ns)
            is_requeueable = _is_requeueable(job, found.now_ns)
            summary.requeueable_count += is_requeueable
            if rule is not None:
                summary.rule_counts[rule.value] += 1
                summary.requeueable_finding_count += is_requeueable
                yield rule, job, log


def _note_newest(summary: Summary, log: LogEvidence) -> None:
    known = (summary.newest_log_ns, log.modified_at_ns)
    summary.newest_log_ns = max((at for at in known if at is not None), default=None)


def _broken_rule(job: HeldJob, log: LogEvidence | None, oldest_ns: int) -> Rule | None:
    """Return the rule that *job* breaks; no two can be broken by one job."""
    for rule, is_broken in _RULES.items():
        if is_broken(job, log, oldest_ns):
            return rule
    return None


def _has_no_run(job: HeldJob, log: LogEvidence | None, oldest_ns: int) -> bool:
    return job.state == "running" and not _is_own(job)


def _has_ended(job: HeldJob, log: LogEvidence | None, oldest_ns: int) -> bool:
    return job.completed_at_ns is not None and _is_own(job)


def _has_lost_its_log(job: HeldJob, log: LogEvidence | None, oldest_ns: int) -> bool:
    return log is not None and log.seen in (LogSeen.NOTHING, LogSeen.NOT_A_FILE)


def _shows_no_life(job: HeldJob, log: LogEvidence | None, oldest_ns: int) -> bool:
    if log is None:
        return False
    if log.modified_at_ns is None:
        # Not "missing": nobody saw that. But nobody saw that it is written either.
        return log.seen == LogSeen.UNREADABLE
    return log.modified_at_ns < oldest_ns


_RULES: Final[dict[Rule, _Predicate]] = {
    Rule.NO_RUN_ROW: _has_no_run,
    Rule.FINALIZED: _has_ended,
    Rule.MISSING_LOG: _has_lost_its_log,
    Rule.STALE_LOG: _shows_no_life,
}


def _is_own(job: HeldJob) -> bool:
    """Say whether the newest run is of the present claim; one of an earlier claim tells nothing."""
    return job.run_attempt == job.attempts


def _is_open(job: HeldJob) -> bool:
    return job.run_id is not None and job.completed_at_ns is None and _is_own(job)


def _is_requeueable(job: HeldJob, now_ns: int) -> bool:
    """Say whether `requeue_expired_jobs` would take it: lapsed, and not one of the ambiguous."""
    if job.claim_expires_at_ns is None or job.claim_expires_at_ns >= now_ns:
        return False
    return not (_has_no_run(job, None, 0) or _has_ended(job, None, 0))
