"""The schema by itself: each rule refuses by its name, each index serves the query it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from metabolism_world import NOW, S, claimed, enqueue, opened, refused, running

from store.metabolism import (
    append_claim_event,
    claim_next_job,
    complete_run,
    enqueue_job,
    job_by_id,
    latest_run_for_job,
    renew_claim,
    requeue_expired_jobs,
    start_run,
)
from store.metabolism.schema import SCHEMA_SQL
from store.metabolism.storage import TABLES
from store.sqlite import rows

HELD = {"claim_owner": "w", "claim_expires_at_ns": NOW}
MOST = 2**63 - 1

BROKEN: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "jobs_kind": [("jobs", {"kind": ""})],
    "jobs_params": [
        ("jobs", {"params_json": text}) for text in ("", "{", "[]", "1", "null", "{a:1}", "NaN")
    ],
    "jobs_key": [("jobs", {"idempotency_key": ""})],
    "jobs_state": [("jobs", {"state": text}) for text in ("", "done", "QUEUED", "queued ")],
    "jobs_priority": [("jobs", {"priority": -1})],
    "jobs_attempts": [("jobs", {"attempts": -1})],
    "jobs_lease_is_whole": [
        ("jobs", {"state": "running", "claim_owner": "w"}),
        ("jobs", {"state": "running", "claim_expires_at_ns": NOW}),
        ("jobs", {"state": "completed", "claim_expires_at_ns": NOW}),
    ],
    "jobs_claimed_is_leased": [("jobs", {"state": "claimed"})],
    "jobs_waiting_is_free": [
        ("jobs", {"state": state, **HELD}) for state in ("queued", "recoverable")
    ],
    "runs_attempt": [("runs", {"attempt": 0}), ("runs", {"attempt": -1})],
    "runs_completion_is_whole": [
        ("runs", {"completed_at_ns": NOW}),
        ("runs", {"return_code": 0}),
    ],
    "runs_log_path": [("runs", {"log_path": ""})],
    "blackboard_kind": [
        ("blackboard_claim_events", {"kind": text}) for text in ("", "asserted", "CLAIM_EXPIRED")
    ],
    "blackboard_claim": [("blackboard_claim_events", {"claim_id": ""})],
    "blackboard_assertion_invalidates_nothing": [("blackboard_claim_events", {"assertion_id": 1})],
    "blackboard_payload": [
        ("blackboard_claim_events", {"payload_json": text}) for text in ("", "[]", "1", "{")
    ],
}
"""Each rule of the schema, and rows that break it and no other."""

WHOLE: dict[str, dict[str, Any]] = {
    "jobs": {
        "kind": "k",
        "provider": "p",
        "params_json": "{}",
        "idempotency_key": "new",
        "state": "queued",
        "priority": 0,
        "not_before_ns": 0,
        "claim_owner": None,
        "claim_expires_at_ns": None,
        "attempts": 0,
        "last_error": None,
        "created_at_ns": NOW,
        "updated_at_ns": NOW,
    },
    "runs": {
        "job_id": 1,
        "attempt": 1,
        "started_at_ns": NOW,
        "completed_at_ns": None,
        "return_code": None,
        "log_path": None,
    },
    "blackboard_claim_events": {
        "kind": "claim_asserted",
        "claim_id": "c",
        "subject": "s",
        "predicate": "p",
        "object": "o",
        "assertion_id": None,
        "payload_json": "{}",
        "created_at_ns": NOW,
    },
}
"""A row of each table that breaks nothing."""


@pytest.fixture
def c(tmp_path: Path) -> Iterator[apsw.Connection]:
    for connection in opened(tmp_path / "a.sqlite3"):
        running(connection, "held")
        append_claim_event(
            connection,
            kind="claim_asserted",
            claim_id="c",
            subject="s",
            predicate="p",
            object="o",
            now_ns=NOW,
        )
        yield connection


def insert(c: apsw.Connection, table: str, **changed: Any) -> None:
    row = {**WHOLE[table], **changed}
    marks = ", ".join("?" for _ in row)
    rows(c, f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def test_every_rule_of_the_schema_is_attacked() -> None:
    """MR-005: no rule stands in the schema without a row that breaks it."""
    assert sorted(BROKEN) == sorted(re.findall(r"CONSTRAINT (\w+) CHECK", SCHEMA_SQL))


@pytest.mark.parametrize("rule", BROKEN)
def test_each_rule_refuses_by_its_name(c: apsw.Connection, rule: str) -> None:
    """MR-005: a row that breaks the rule is refused by that rule, inserted or updated."""
    for table, changed in BROKEN[rule]:
        with refused(c, apsw.ConstraintError) as caught:
            insert(c, table, **changed)
        assert str(caught.value) == f"CHECK constraint failed: {rule}"
        if table != "blackboard_claim_events":
            whole = {**WHOLE[table], **changed}
            setting = ", ".join(f"{name} = ?" for name in whole)
            with refused(c, apsw.ConstraintError) as caught:
                rows(c, f"UPDATE {table} SET {setting}", tuple(whole.values()))
            assert str(caught.value) == f"CHECK constraint failed: {rule}"


@pytest.mark.parametrize("table", TABLES)
def test_a_whole_row_is_taken(c: apsw.Connection, table: str) -> None:
    """MR-005: what the attacks start from breaks nothing, so each breaks what it changes."""
    insert(c, table)
    assert c.changes() == 1


@pytest.mark.parametrize("table", TABLES)
def test_each_column_has_its_type(c: apsw.Connection, table: str) -> None:
    """MR-005: the tables are strict: no text where a number belongs, nothing where it must not."""
    optional = ("claim_owner", "claim_expires_at_ns", "last_error", "completed_at_ns")
    optional += ("return_code", "log_path", "assertion_id")
    for name, value in WHOLE[table].items():
        wrong: list[Any] = [b"x"] if isinstance(value, str) else [b"x", "x", 1.5]
        wrong += [] if name in optional else [None]
        if name in ("claim_owner", "last_error", "log_path"):
            wrong = [b"x"]
        for each in wrong:
            with refused(c, apsw.ConstraintError):
                insert(c, table, **{name: each})


@pytest.mark.parametrize(("table", "name"), [("runs", "job_id"), (TABLES[0], "assertion_id")])
def test_a_row_points_at_a_row(c: apsw.Connection, table: str, name: str) -> None:
    """MR-004, MR-016, MR-022: no run without its job, no invalidation without its assertion."""
    kind = {} if table == "runs" else {"kind": "claim_expired"}
    with refused(c, apsw.ConstraintError) as caught:
        insert(c, table, **{name: 77}, **kind)
    assert str(caught.value) == "FOREIGN KEY constraint failed"
    insert(c, table, **{name: 1}, **kind)


@pytest.mark.parametrize(
    "changed",
    [
        {"state": "claimed", **HELD},
        {"state": "running"},
        {"state": "completed", **HELD},
        {"state": "failed"},
        {"priority": MOST, "not_before_ns": MOST, "attempts": MOST},
    ],
    ids=range(5),
)
def test_torn_and_extreme_rows_are_admitted(c: apsw.Connection, changed: dict[str, Any]) -> None:
    """MR-018: reconciliation must be able to read what a broken runtime has left."""
    insert(c, "jobs", **changed)


def planned(c: apsw.Connection, operation: str) -> list[str]:
    """Return the plans of the statements of one operation."""
    job, run = running(c, "k")
    held = claimed(c, "held too")
    enqueue(c, "waits")
    found: list[str] = []

    def before(event: dict[str, Any]) -> None:
        sql = str(event["sql"])
        if sql.startswith(("SELECT", "UPDATE", "INSERT")):
            statements.append(sql)

    statements: list[str] = []
    c.trace_v2(apsw.SQLITE_TRACE_STMT, before, id="plans")
    {
        "claim": lambda: claim_next_job(c, owner="w", now_ns=NOW),
        "requeue": lambda: requeue_expired_jobs(c, now_ns=NOW + 10**6 * S),
        "newest run": lambda: latest_run_for_job(c, job.job_id),
        "renew": lambda: renew_claim(c, job, now_ns=NOW),
        "start": lambda: start_run(c, held, now_ns=NOW),
        "complete": lambda: complete_run(c, run, return_code=0, finalize_job=True, now_ns=NOW),
        "by id": lambda: job_by_id(c, job.job_id),
        "duplicate": lambda: enqueue_job(c, kind="k", idempotency_key="waits", now_ns=NOW),
    }[operation]()
    c.trace_v2(0, None, id="plans")
    for sql in statements:
        last = max([int(number) for number in re.findall(r"\?(\d)", sql)] or [sql.count("?")])
        found += [str(row[3]) for row in rows(c, f"EXPLAIN QUERY PLAN {sql}", (1,) * last)]
    return found


BY_ROWID = "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"

PLANS = {
    "claim": ["SCAN jobs USING INDEX idx_jobs_waiting", BY_ROWID],
    "requeue": [
        "SEARCH jobs USING INDEX idx_jobs_held (claim_expires_at_ns<?)",
        "CORRELATED SCALAR SUBQUERY",
        "SEARCH runs USING INDEX idx_runs_job (job_id=?)",
    ],
    "newest run": [BY_ROWID, "SEARCH runs USING INDEX idx_runs_job (job_id=?)"],
    "renew": [BY_ROWID],
    "start": [BY_ROWID, "SEARCH runs USING INTEGER PRIMARY KEY (rowid=?)"],
    "complete": ["SEARCH runs USING INTEGER PRIMARY KEY (rowid=?)", BY_ROWID],
    "by id": [BY_ROWID],
    "duplicate": ["SEARCH jobs USING INDEX idx_jobs_active_idempotency (idempotency_key=?)"],
}


@pytest.mark.parametrize("operation", PLANS)
def test_each_operation_uses_its_index(c: apsw.Connection, operation: str) -> None:
    """MR-006, MR-011, MR-013, MR-019: no statement reads a whole table, and none sorts."""
    found = [re.sub(r"COVERING | \d$", "", step) for step in planned(c, operation)]
    assert list(dict.fromkeys(found)) == PLANS[operation]


def test_a_job_that_is_not_due_is_passed_within_the_index(c: apsw.Connection) -> None:
    """MR-011: the index holds the due time, so no row is read of a job that is passed over."""
    found = rows(c, "SELECT name FROM pragma_index_info('idx_jobs_waiting') ORDER BY seqno")
    assert [name for (name,) in found] == ["priority", "created_at_ns", "job_id", "not_before_ns"]
