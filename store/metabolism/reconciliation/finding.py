"""
What reconciliation found: one row that a person must look at, with everything known about it.

A finding is told apart by its rule and its object alone. So its identifier stays the same from
one reconciliation to the next, whatever the time and whatever else is in the database.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from store import canonical
from store.canonical import SAFE_INTEGER_MAX
from store.metabolism.reconciliation.log_evidence import LogSeen
from store.metabolism.reconciliation.moments import duration_text, moment_text

__all__ = ["OPERATOR_REVIEW_REQUIRED", "Facts", "Finding", "Lease", "Rule", "finding_id"]

OPERATOR_REVIEW_REQUIRED: Final = "operator_review_required"
"""The action of every finding."""


class Rule(StrEnum):
    """
    The four rules, worst first: the less is known of what happened, the earlier.
    """

    NO_RUN_ROW = "running_job_no_run_row"
    FINALIZED = "run_finalized_but_job_running"
    MISSING_LOG = "running_job_missing_launch_log"
    STALE_LOG = "running_job_stale_launch_log"

    @property
    def why(self) -> str:
        """Why a person must look, and what each wrong guess would do."""
        return _WHY[self]


class Lease(StrEnum):
    """
    How a job is held at the moment of the reconciliation.
    """

    HELD = "held"
    LAPSED = "lapsed"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """
    What the database and the file system say of one job, as plain values.

    Attributes:
        job_state: ``running`` or ``claimed``.
        attempts: How often the job was claimed.
        lease_expires_at_ns: None without a lease.
        run_id: The newest run; it and what follows are None where there is none.
        log_path: The launch log as it was recorded; None where none was.
        log_seen: What stands there; None where it does not matter.
        log_detail: The same in words; empty for a file.
        log_modified_at_ns: When it was last written; None unless it is a file.
        unattended_ns: The time since the newest sign of life: a change of the job's row, the run's
            start or end, a line in its log.
    """

    job_id: int
    job_state: str
    job_kind: str
    idempotency_key: str
    claim_owner: str | None
    lease: Lease
    lease_expires_at_ns: int | None
    attempts: int
    updated_at_ns: int
    run_id: int | None
    run_attempt: int | None
    run_started_at_ns: int | None
    run_completed_at_ns: int | None
    return_code: int | None
    log_path: str | None
    log_seen: LogSeen | None
    log_detail: str
    log_modified_at_ns: int | None
    unattended_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """
    One row that is inconsistent, and why nobody but a person can say what is right.

    Attributes:
        rule: Which of the four rules it breaks.
        facts: What is known of the job.
        now_ns: The moment of the reconciliation, for durations; no part of the JSON.
        stale_after_ns: How old a log's last line may be.
    """

    rule: Rule
    facts: Facts
    now_ns: int
    stale_after_ns: int

    @property
    def object_kind(self) -> str:
        """Whether the inconsistent row is a ``job`` or a ``run``."""
        return "run" if self.rule in (Rule.MISSING_LOG, Rule.STALE_LOG) else "job"

    @property
    def object_id(self) -> int:
        """The identifier of the inconsistent row."""
        is_run = self.object_kind == "run" and self.facts.run_id is not None
        return self.facts.run_id if is_run and self.facts.run_id is not None else self.job_id

    @property
    def job_id(self) -> int:
        """The job, whatever the object is."""
        return self.facts.job_id

    @property
    def finding_id(self) -> str:
        """The name of this finding, see `finding_id`."""
        return finding_id(self.rule, self.object_kind, self.object_id)

    @property
    def action(self) -> str:
        """What is to be done: always that a person decides."""
        return OPERATOR_REVIEW_REQUIRED

    @property
    def expected(self) -> str:
        """What a consistent database would show, in words."""
        return _expected(self)

    @property
    def observed(self) -> str:
        """What it shows instead, in words."""
        return _observed(self)

    @property
    def why(self) -> str:
        """Why a person must look, and what each wrong guess would do."""
        if self.facts.log_seen == LogSeen.UNREADABLE:
            return f"Whether anything writes to the log could not be seen. {self.rule.why}"
        return self.rule.why

    def to_json(self) -> dict[str, object]:
        """
        Return the finding as a plain JSON value; times are integers of nanoseconds.
        """
        return {
            **{name: _plain(getattr(self.facts, name)) for name in _FACTS},
            "action": self.action,
            "expected": self.expected,
            "finding_id": self.finding_id,
            "object_id": self.object_id,
            "object_kind": self.object_kind,
            "observed": self.observed,
            "rule": self.rule.value,
            "why": self.why,
        }


def finding_id(rule: Rule, object_kind: str, object_id: int) -> str:
    """
    Return the name of a finding: 16 hexadecimal digits of the SHA-256 of its rule and object.

    No time is in it, so that the same state gives the same names again. An identifier beyond
    what JSON keeps exactly goes in as text.
    """
    is_safe = -SAFE_INTEGER_MAX <= object_id <= SAFE_INTEGER_MAX
    named = [rule.value, object_kind, object_id if is_safe else str(object_id)]
    return hashlib.sha256(canonical.encode(named)).hexdigest()[:16]


_FACTS: Final = tuple(field.name for field in fields(Facts))

_WHY: Final = {
    Rule.NO_RUN_ROW: (
        "Nothing shows whether the work began. Giving the job back may do the work twice; calling "
        "it done may leave it undone for ever."
    ),
    Rule.FINALIZED: (
        "How the run ended is known; only its job was left behind. Giving the job back does the "
        "work again; ending the job unseen skips whatever was still to happen after the run."
    ),
    Rule.MISSING_LOG: (
        "A log is made before its run is recorded, so this one was removed, or is looked for in "
        "the wrong folder. Giving the job back may start it beside a worker that is still at it; "
        "calling it failed may throw away work that goes on."
    ),
    Rule.STALE_LOG: (
        "A worker that died and one that is slow or silent look the same from here. Giving the "
        "job back while the worker lives runs it twice; waiting for a dead one never ends."
    ),
}


def _expected(finding: Finding) -> str:
    facts, rule = finding.facts, finding.rule
    if rule == Rule.NO_RUN_ROW:
        return f"job {facts.job_id} is running, so it has a run of its present claim"
    if rule == Rule.FINALIZED:
        return f"run {facts.run_id} has ended, so job {facts.job_id} has ended too"
    if rule == Rule.MISSING_LOG:
        return f"run {facts.run_id} is open, so its launch log {facts.log_path} exists"
    return (
        f"run {facts.run_id} is open, so its launch log {facts.log_path} was written in the last "
        f"{duration_text(finding.stale_after_ns)}"
    )


def _observed(finding: Finding) -> str:
    facts, rule = finding.facts, finding.rule
    if rule == Rule.NO_RUN_ROW:
        claims = f"claimed {_times(facts.attempts)}" if facts.attempts else "never claimed"
        seen = "no run at all"
        if facts.run_id is not None:
            seen = f"no run of it; the newest, run {facts.run_id}, is of claim {facts.run_attempt}"
        return f"{seen}; {claims}, last changed {_ago(finding, facts.updated_at_ns)}"
    if rule == Rule.FINALIZED:
        end = facts.run_completed_at_ns if facts.run_completed_at_ns is not None else 0
        return (
            f"job {facts.job_id} is {facts.job_state}; run {facts.run_id} ended "
            f"{_ago(finding, end)} with return code {facts.return_code}"
        )
    if facts.log_modified_at_ns is None:
        return facts.log_detail
    return f"last written {_ago(finding, facts.log_modified_at_ns)}"


def _ago(finding: Finding, moment_ns: int) -> str:
    passed = finding.now_ns - moment_ns
    words = f"{duration_text(passed)} ago" if passed >= 0 else f"{duration_text(-passed)} ahead"
    return f"{words} ({moment_text(moment_ns)})"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _plain(value: object) -> object:
    return value.value if isinstance(value, StrEnum) else value
