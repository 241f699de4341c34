"""
The representative subset: the boundaries of a trace that say most, for every-day runs.

Method: in each step the first, middle and last boundary; every "after" of a commit, a rename, a
named point, a promise and an effect; and ``end``. A statement that changes data outside a
transaction commits by itself.

Source: measured on planted bugs: "first and last of each kind" missed a split commit, and without
promises two that acknowledge too early inside a step went unseen.

Covered: transactions of one connection per database at a time.
Not covered: which of two connections to one database a BEGIN belongs to; the exhaustive run is
there for what a subset leaves out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.trace import Boundary, Recording

_TELLING = ("rename", "point", "promise", "effect")
_COMMENT = re.compile(r"^(?:/\*.*?\*/\s*)+")
_BEGINS = re.compile(r"(?:BEGIN|SAVEPOINT)\b", re.IGNORECASE)
_COMMITS = re.compile(r"(?:COMMIT|END)\b", re.IGNORECASE)
_ABANDONS = re.compile(r"ROLLBACK\b(?!(?:\s+TRANSACTION)?\s+TO\b)", re.IGNORECASE)
_CHANGES = re.compile(
    r"(?:WITH|INSERT|UPDATE|DELETE|REPLACE|CREATE|ALTER|DROP|RELEASE)\b", re.IGNORECASE
)


def representative(recording: Recording) -> list[int]:
    """Return the boundaries of the subset, ascending."""
    chosen = {len(recording.lines), *commits(recording)}
    for step in recording.steps:
        first, last = step.begin + 1, step.end
        chosen |= {first, (first + last) // 2, last}
    for boundary in recording.boundaries:
        if boundary.phase == "after" and boundary.kind in _TELLING:
            chosen.add(boundary.number)
    return sorted(chosen)


def commits(recording: Recording) -> Iterator[int]:
    """Yield the number of each boundary right after a statement that committed something."""
    open_transactions: set[str] = set()
    for boundary in recording.boundaries:
        is_finished = boundary.kind == "sql" and boundary.phase == "after"
        if is_finished and _commits(boundary, open_transactions):
            yield boundary.number


def _commits(boundary: Boundary, open_transactions: set[str]) -> bool:
    """Say whether a finished statement committed, and keep track of who is in a transaction."""
    database, _, statement = boundary.text.partition(": ")
    statement = _COMMENT.sub("", statement)
    if _BEGINS.match(statement):
        open_transactions.add(database)
        return False
    if _COMMITS.match(statement):
        open_transactions.discard(database)
        return True
    if _ABANDONS.match(statement):
        open_transactions.discard(database)
        return False
    return database not in open_transactions and bool(_CHANGES.match(statement))
