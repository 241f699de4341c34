"""The findings on their way to a person: what happens where there is no room for them."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest

from store.metabolism.reconciliation import Rule
from store.metabolism.reconciliation.held_jobs import HeldJob
from store.metabolism.reconciliation.sorter import Contradiction, FindingSorter

JOB = HeldJob(1, "running", b"k", b"key", None, None, 1, 0, None, None, None, None, None, None)


def test_an_error_that_ended_the_transaction_is_the_one_that_is_raised() -> None:
    """MR-030: out of memory or disk SQLite rolls back by itself; its reason is what is said."""
    found = FindingSorter("utf-8", 1, 0)
    found._database.execute(
        "CREATE TRIGGER full BEFORE INSERT ON found BEGIN SELECT RAISE(ROLLBACK, 'no room'); END"
    )
    with pytest.raises(apsw.ConstraintError, match="no room"):
        found.take(iter([(Rule.NO_RUN_ROW, JOB, None)]))
    found.close()


def test_no_room_for_the_findings_is_said_so() -> None:
    """MR-030: a full temporary folder is told as such, so that another can be named."""
    found = FindingSorter("utf-8", 1, 0)
    found._database.execute("PRAGMA max_page_count=2")
    with pytest.raises(apsw.FullError):
        found.take((Rule.NO_RUN_ROW, JOB._replace(job_id=n), None) for n in range(1_000))
    found.close()


def test_an_error_of_the_source_comes_through() -> None:
    """MR-030: what the reading of the jobs raises is what the caller sees."""
    found = FindingSorter("utf-8", 1, 0)

    def broken() -> Iterator[Contradiction]:
        yield Rule.NO_RUN_ROW, JOB, None
        raise apsw.CorruptError("injected")

    with pytest.raises(apsw.CorruptError, match="injected"):
        found.take(broken())
    found.close()
