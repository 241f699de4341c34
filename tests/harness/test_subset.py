"""The representative subset takes every commit, however it is spelt or left out."""

from __future__ import annotations

import pytest

from harness.subset import commits, representative
from harness.trace import Recording, Step


def recorded(*lines: str) -> Recording:
    """Return a recording of one step around the lines."""
    trace = ["before step work", *lines, "after step work", "end"]
    step = Step("work", 1, len(lines) + 2, "observed", None, [], "unless_present", None, False)
    return Recording("/r", "".join(f"{line}\n" for line in trace), "", "", [step])


def statements(*texts: str) -> Recording:
    """Return a recording of statements on one database."""
    return recorded(*(f"{phase} sql a.db: {t}" for t in texts for phase in ("before", "after")))


@pytest.mark.parametrize(
    "statement", ["COMMIT", "commit;", "END", "end transaction", "/* x */ END", "COMMIT /* y */"]
)
def test_a_commit_is_recognised(statement: str) -> None:
    """Every spelling of the statement that commits counts as one, a read or BEGIN does not."""
    recording = statements("BEGIN IMMEDIATE", "insert into t values(1)", "select 1", statement)
    assert list(commits(recording)) == [9]


@pytest.mark.parametrize(
    "statement",
    [
        "insert into t values(1)",
        "UPDATE t SET a = 1",
        "delete from t",
        "REPLACE INTO t VALUES(1)",
        "create table t(a)",
        "with x as (select 1) insert into t select * from x",
    ],
)
def test_a_change_outside_a_transaction_commits(statement: str) -> None:
    """A statement that changes data by itself is a commit, inside a transaction it is not."""
    assert list(commits(statements(statement))) == [3]
    assert list(commits(statements("BEGIN", statement, "ROLLBACK"))) == []
    assert list(commits(statements("BEGIN", "ROLLBACK", statement))) == [7]


def test_rolling_back_to_a_savepoint_stays_in_the_transaction() -> None:
    """ROLLBACK TO ends no transaction, so what follows commits nothing by itself."""
    recording = statements("BEGIN", "ROLLBACK TO one", "insert into t values(1)", "COMMIT")
    assert list(commits(recording)) == [9]


def test_transactions_of_two_databases_are_told_apart() -> None:
    """A transaction on one database does not hide a commit on another."""
    recording = recorded("after sql a.db: BEGIN", "after sql b.db: insert into t values(1)")
    assert list(commits(recording)) == [3]


def test_the_subset_takes_steps_commits_renames_points_and_the_end() -> None:
    """First, middle and last boundary of the step, each "after" that matters, and the end."""
    reads = [f"{phase} write x" for _ in range(10) for phase in ("before", "after")]
    recording = recorded(
        *reads, "before rename a b", "after rename a b", "before point p", "after point p", *reads
    )
    assert representative(recording) == [2, 23, 24, 25, 46, 47]
