"""
Reconciliation: which rows contradict each other, which to look at first, and no repair.

`walk` goes through the jobs and applies the rules, `finding` says what a rule found, `held_jobs`
and `log_evidence` read what it looks at, `sorter` puts the worst first. For the command line:
`soundness` judges the database before, `table` shows the findings, `moments` reads and writes
times.
"""

from store.metabolism.reconciliation.finding import Finding, Rule, finding_id
from store.metabolism.reconciliation.walk import (
    HEALTHY,
    NEEDS_REVIEW,
    STALE_AFTER_NS,
    Reconciliation,
    Summary,
    Survey,
    reconcile,
    survey,
)

__all__ = [
    "HEALTHY",
    "NEEDS_REVIEW",
    "STALE_AFTER_NS",
    "Finding",
    "Reconciliation",
    "Rule",
    "Summary",
    "Survey",
    "finding_id",
    "reconcile",
    "survey",
]
