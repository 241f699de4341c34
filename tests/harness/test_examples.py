"""The worked campaigns of the interface get the verdicts that the interface names."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import REPOSITORY, found_in, only_finding, run_found

EXAMPLES = REPOSITORY / "campaigns" / "examples"
WRONG = Path(__file__).parent / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "boundaries", "subjects"),
    [
        ("settings", 17, {"step_atomicity": 17}),
        ("queue", 25, {"sqlite_integrity": 25, "delivery handled": 160, "step_atomicity": 13}),
        ("outbox", 11, {"sqlite_integrity": 11, "delivery sent": 88, "step_atomicity": 11}),
        ("leases", 49, {"sqlite_integrity": 49, "promise leased": 54, "step_atomicity": 49}),
        ("cache", 19, {"step_atomicity": 19}),
        ("worker", 15, {"sqlite_integrity": 15, "delivery ran": 43, "step_atomicity": 15}),
    ],
)
def test_a_right_store_survives_at_every_boundary(
    name: str, boundaries: int, subjects: dict[str, int]
) -> None:
    """Each surviving example survives all its boundaries, and its invariants had subjects."""
    result = run_found(found_in(EXAMPLES / f"{name}.py"), jobs=2)
    assert result.inconclusive is None
    assert result.findings == []
    assert [verdict.boundary for verdict in result.verdicts] == list(range(1, boundaries + 1))
    assert result.counts["survived"] == boundaries
    assert +result.subjects == subjects
    assert result.exit_code == 0


@pytest.mark.slow
def test_a_torn_log_is_found_by_the_next_record() -> None:
    """Log: the torn record swallows the one written after resume, at the two boundaries inside."""
    result = run_found(found_in(WRONG / "torn_log.py"))
    lines = result.recording.lines if result.recording else []
    first, second = result.findings
    assert [finding.violation.invariant for finding in (first, second)] == ["promise appended"] * 2
    assert [finding.violation.stage for finding in (first, second)] == ["after resume"] * 2
    assert [finding.step for finding in (first, second)] == ["append 1", "append 2"]
    broken = [lines[n - 1] for n in first.boundaries]
    assert broken == ["after write log", "before write log"]
    assert [lines[n - 1] for n in second.boundaries] == broken
    assert result.counts == {
        "survived": 13,
        "violated": 4,
        "diverged": 0,
        "hung": 0,
        "errored": 0,
    }
    assert result.exit_code == 1


@pytest.mark.slow
def test_a_migration_in_two_commits_is_found_between_them() -> None:
    """Migration: recovery raises at the two boundaries between the statements."""
    result = run_found(found_in(WRONG / "migration.py"))
    finding = only_finding(result)
    lines = result.recording.lines if result.recording else []
    assert finding.violation.invariant == "recovers"
    assert "duplicate column name: note" in finding.violation.message
    assert [lines[n - 1] for n in finding.boundaries] == [
        "after sql data.db: alter table item add column note",
        "before sql data.db: update version set number = 2",
    ]
    assert result.count("survived") == 7
    assert result.exit_code == 1


def test_a_backup_without_its_wal_is_found_without_a_crash() -> None:
    """Backup: the copy is not what `then` says, both values are shown, nothing is explored."""
    result = run_found(found_in(WRONG / "backup.py"))
    finding = only_finding(result)
    assert finding.kind == "violated"
    assert finding.boundaries == ()
    assert finding.violation.invariant == "acknowledged_step_is_stored"
    assert "step 'copy'" in finding.violation.message
    assert "$[1][0]: expected [1], observed nothing" in finding.violation.message
    assert result.verdicts == []
    assert result.exit_code == 1


def test_a_store_without_a_boundary_is_inconclusive() -> None:
    """Nothing: there is nothing to crash, and the message says what would have counted."""
    result = run_found(found_in(WRONG / "nothing.py"))
    assert result.inconclusive is not None
    assert "no boundary of the store was seen" in result.inconclusive
    assert result.verdicts == []
    assert result.exit_code == 5


def test_a_trace_that_differs_is_inconclusive() -> None:
    """Random: two processes take two paths, and the message says where they part."""
    result = run_found(found_in(WRONG / "random_trace.py"))
    assert result.inconclusive is not None
    assert "differs from run to run" in result.inconclusive
    assert result.verdicts == []
    assert result.exit_code == 5
