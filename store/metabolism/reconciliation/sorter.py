"""
Contradictions on their way to a person: kept outside of Python, handed out worst first.

Method: rows of a temporary database of SQLite's, in memory until its cache is full and in a
nameless file of the system's temporary folder from then on; SQLite's own sorter orders them. A
finding with its texts is made only when it is fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

import apsw

from store.metabolism.reconciliation.finding import Facts, Finding, Lease, Rule
from store.metabolism.reconciliation.held_jobs import HeldJob
from store.metabolism.reconciliation.log_evidence import LogEvidence, LogSeen
from store.metabolism.reconciliation.moments import NS_MAX
from store.sqlite import rows

__all__ = ["Contradiction", "FindingSorter"]

Contradiction: TypeAlias = tuple[Rule, HeldJob, LogEvidence | None]
"""The rule that is broken, the job that breaks it, and what was seen of its launch log."""

_ORDER: Final = tuple(Rule)


class FindingSorter:
    """
    The contradictions of one reconciliation, in a database of their own.

    Attributes:
        now_ns: The moment of the reconciliation.
        stale_after_ns: How old a launch log's last line may be.
    """

    _COLUMNS: Final = (*HeldJob._fields, "seen", "modified_at_ns", "detail")

    def __init__(self, encoding: str, now_ns: int, stale_after_ns: int) -> None:
        self.now_ns = now_ns
        self.stale_after_ns = stale_after_ns
        self._encoding = encoding
        self._database = apsw.Connection("")
        for setting in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-32768"):
            rows(self._database, f"PRAGMA {setting}")
        columns = ", ".join(("rank", "unattended_ns", "object_id", *self._COLUMNS))
        rows(self._database, f"CREATE TABLE found ({columns})")

    def take(self, contradictions: Iterator[Contradiction]) -> None:
        """Keep all of them, fetching one at a time."""
        marks = ", ".join("?" * (3 + len(self._COLUMNS)))
        # No savepoint: without a journal there is no way back, and trying it would hide the error.
        rows(self._database, "BEGIN")
        self._database.executemany(
            f"INSERT INTO found VALUES ({marks})", map(self._row, contradictions)
        )
        rows(self._database, "COMMIT")

    def in_order(self, limit: int | None) -> Iterator[Finding]:
        """Yield them as findings, worst first."""
        cursor = self._database.execute(
            "SELECT * FROM found ORDER BY rank, unattended_ns DESC, object_id LIMIT ?",
            (-1 if limit is None else limit,),
        )
        try:
            for rank, unattended_ns, _, *kept in cursor:
                size = len(HeldJob._fields)
                job = HeldJob._make(kept[:size])
                seen, modified_at_ns, detail = kept[size:]
                log = LogEvidence(LogSeen(seen), modified_at_ns, detail) if seen else None
                yield self._finding(_ORDER[rank], job, log, unattended_ns)
        finally:
            cursor.close(True)

    def close(self) -> None:
        """Forget them all."""
        self._database.close(True)

    def text(self, raw: bytes) -> str:
        """Decode a text of the database; what is none becomes escapes."""
        return raw.decode(self._encoding, "backslashreplace")

    def path(self, raw: bytes) -> str:
        """Decode a recorded path so that the file system gets the same bytes."""
        is_utf8 = self._encoding == "utf-8"
        return raw.decode("utf-8", "surrogateescape") if is_utf8 else self.text(raw)

    def _row(self, contradiction: Contradiction) -> tuple[object, ...]:
        rule, job, log = contradiction
        about = (None, None, "") if log is None else (str(log.seen), *log[1:])
        is_run = rule in (Rule.MISSING_LOG, Rule.STALE_LOG)
        unattended_ns = _unattended_ns(job, log, self.now_ns)
        object_id = job.run_id if is_run else job.job_id
        return (_ORDER.index(rule), unattended_ns, object_id, *job, *about)

    def _finding(
        self, rule: Rule, job: HeldJob, log: LogEvidence | None, unattended_ns: int
    ) -> Finding:
        facts = Facts(
            job_id=job.job_id,
            job_state=job.state,
            job_kind=self.text(job.kind),
            idempotency_key=self.text(job.idempotency_key),
            claim_owner=None if job.claim_owner is None else self.text(job.claim_owner),
            lease=_lease(job, self.now_ns),
            lease_expires_at_ns=job.claim_expires_at_ns,
            attempts=job.attempts,
            updated_at_ns=job.updated_at_ns,
            run_id=job.run_id,
            run_attempt=job.run_attempt,
            run_started_at_ns=job.started_at_ns,
            run_completed_at_ns=job.completed_at_ns,
            return_code=job.return_code,
            log_path=None if job.log_path is None else self.text(job.log_path),
            log_seen=None if log is None else log.seen,
            log_detail="" if log is None else log.detail,
            log_modified_at_ns=None if log is None else log.modified_at_ns,
            unattended_ns=unattended_ns,
        )
        return Finding(
            rule=rule, facts=facts, now_ns=self.now_ns, stale_after_ns=self.stale_after_ns
        )


def _lease(job: HeldJob, now_ns: int) -> Lease:
    if job.claim_expires_at_ns is None:
        return Lease.NONE
    return Lease.LAPSED if job.claim_expires_at_ns < now_ns else Lease.HELD


def _unattended_ns(job: HeldJob, log: LogEvidence | None, now_ns: int) -> int:
    """Return the time since the newest sign of life; 0 where that lies ahead of now."""
    signs = [job.updated_at_ns, job.started_at_ns, job.completed_at_ns]
    if log is not None:
        signs.append(log.modified_at_ns)
    newest = max(sign for sign in signs if sign is not None)
    return max(0, min(now_ns - newest, NS_MAX))
