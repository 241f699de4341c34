"""
What the command says of one database: a summary, of what, judged when, and how far to trust it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from store.metabolism.reconciliation.caveats import Caveat
from store.metabolism.reconciliation.census import Census
from store.metabolism.reconciliation.walk import HEALTHY, NEEDS_REVIEW, Summary

__all__ = ["Verdict"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """
    A summary with everything that is needed to read it later, without its findings.

    Attributes:
        database: The file that was read, absolute, without links.
        folder: Where relative log paths began.
        judged_at_ns: The moment of the reconciliation.
        stale_after_ns: How old a log's last line may be.
        caveats: Why it may not be the whole truth.
    """

    database: Path
    folder: Path
    judged_at_ns: int
    stale_after_ns: int
    summary: Summary
    census: Census
    caveats: tuple[Caveat, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether there is neither a finding nor a caveat."""
        return not self.summary.finding_count and not self.caveats

    @property
    def status(self) -> str:
        """``healthy`` or ``needs_review``."""
        return HEALTHY if self.is_healthy else NEEDS_REVIEW

    def to_json(self) -> dict[str, object]:
        """
        Return everything but the findings as a plain JSON value.
        """
        return {
            **self.summary.to_json(),
            "database": os.fsencode(self.database).decode("utf-8", "backslashreplace"),
            "job_count": self.census.job_count,
            "job_counts": dict(self.census.job_counts),
            "judged_at_ns": self.judged_at_ns,
            "stale_after_ns": self.stale_after_ns,
            "status": self.status,
            "warnings": [caveat.to_json() for caveat in self.caveats],
        }
