"""Reconciliation: each rule finds its states and no other, writes nothing and trusts nothing."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from metabolism_held_world import (
    FINALIZED,
    MISSING,
    NO_RUN,
    NOW,
    STALE,
    STALE_LOG,
    STATES,
    HeldWorld,
    S,
)

from store.metabolism import requeue_expired_jobs
from store.metabolism.errors import NotAnInteger, OutOfRange
from store.metabolism.reconciliation import held_jobs, reconcile, survey, walk
from store.metabolism.reconciliation.finding import Rule, finding_id
from store.metabolism.reconciliation.held_jobs import MalformedRow
from store.metabolism.reconciliation.log_evidence import LogSeen, look_at_log
from store.metabolism.reconciliation.moments import (
    duration_text,
    moment_text,
    parse_moment,
    parse_seconds,
)
from store.metabolism.schema import SCHEMA_SQL
from store.metabolism.scope import CLAIM_CEILING, SCOPE_BOUNDARIES
from store.sqlite import rows

Build = Callable[[HeldWorld], None]
build_each = pytest.mark.parametrize("build", STATES, ids=lambda build: build.__name__.strip("_"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HeldWorld]:
    made = HeldWorld(tmp_path / "runtime")
    yield made
    made.connection.close()


@build_each
def test_each_state_breaks_its_rule_and_no_other(build: Build, world: HeldWorld) -> None:
    """MR-026, MR-027, MR-031: a state breaks the rule that is written beside it, and only that."""
    build(world)
    assert world.rules() == STATES[build]


@pytest.mark.parametrize("rule", Rule)
def test_each_rule_alone_finds_its_states(
    rule: Rule, world: HeldWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MR-027: with one rule off, every state that it is for goes unseen: no other covers it."""
    monkeypatch.delitem(walk._RULES, rule)
    built = [build for build, rules in STATES.items() if rules == [rule.value]]
    assert built != []
    for at, build in enumerate(built):
        alone = HeldWorld(world.folder / str(at))
        build(alone)
        assert alone.rules() == []
        alone.connection.close()


def _one_of_each(world: HeldWorld) -> None:
    world.job(1)
    world.run(1, run_id=11, log_path="old.log")
    world.log("old.log", age_ns=1_200 * S)
    world.job(2)
    world.run(2, run_id=12, log_path="gone.log")
    world.job(3)
    world.run(3, run_id=13, completed_at_ns=NOW - 60 * S, return_code=3)
    world.job(4)
    world.job(5, updated_at_ns=NOW - 9_000 * S)
    world.job(6)
    world.job(7, "claimed", claim_expires_at_ns=NOW - 1)


def test_the_worst_and_the_longest_unattended_come_first(world: HeldWorld) -> None:
    """Findings are ordered by rule, then by the time without a sign of life, then by object."""
    _one_of_each(world)
    found = [(one.rule, one.object_kind, one.object_id) for one in world.reconcile().findings]
    assert found == [
        (NO_RUN, "job", 5),
        (NO_RUN, "job", 4),
        (NO_RUN, "job", 6),
        (FINALIZED, "job", 3),
        (MISSING, "run", 12),
        (STALE_LOG, "run", 11),
    ]


def test_a_finding_says_everything_that_an_operator_needs(world: HeldWorld) -> None:
    """MR-028, MR-029: expected, observed, why, the action, the identifier and the job's facts."""
    _one_of_each(world)
    found = {one.rule: one for one in world.reconcile().findings}
    assert {one.action for one in found.values()} == {"operator_review_required"}
    ended = found[Rule.FINALIZED].to_json()
    assert ended["expected"] == "run 13 has ended, so job 3 has ended too"
    assert ended["observed"] == (
        "job 3 is running; run 13 ended 1 min ago (2027-01-15T07:59:00Z) with return code 3"
    )
    assert "does the work again" in str(ended["why"])
    assert (ended["return_code"], ended["unattended_ns"], ended["lease"]) == (3, 60 * S, "held")
    assert (ended["job_kind"], ended["idempotency_key"]) == ("mail", "key-3")
    assert (ended["claim_owner"], ended["run_id"], ended["log_path"]) == ("worker-1", 13, None)
    stale = found[Rule.STALE_LOG]
    assert stale.expected == (
        "run 11 is open, so its launch log old.log was written in the last 10 min"
    )
    assert stale.observed == "last written 20 min ago (2027-01-15T07:40:00Z)"
    assert stale.facts.unattended_ns == 1_200 * S
    assert found[Rule.MISSING_LOG].observed == "nothing is there"
    assert "claimed once" in found[Rule.NO_RUN_ROW].observed


def test_the_whole_says_status_counts_and_scope(world: HeldWorld) -> None:
    """MR-030: healthy without findings, else needs_review; all four counts, ceiling and scope."""
    healthy = world.reconcile()
    assert (healthy.status, healthy.active_count, healthy.findings) == ("healthy", 0, ())
    assert healthy.rule_counts == {NO_RUN: 0, FINALIZED: 0, MISSING: 0, STALE_LOG: 0}
    _one_of_each(world)
    found = world.reconcile()
    assert (found.status, found.active_count) == ("needs_review", 7)
    assert found.rule_counts == {NO_RUN: 3, FINALIZED: 1, MISSING: 1, STALE_LOG: 1}
    assert (found.claim_ceiling, found.scope_boundaries) == (CLAIM_CEILING, SCOPE_BOUNDARIES)
    assert (found.requeueable_count, found.requeueable_finding_count) == (1, 0)


def test_the_json_is_plain_and_the_same_again(world: HeldWorld) -> None:
    """The same state and moment give the same bytes, and no moment of the reader is in them."""
    _one_of_each(world)
    first, second = (json.dumps(world.reconcile().to_json(), sort_keys=True) for _ in range(2))
    assert first == second
    assert str(NOW) not in first
    assert json.loads(first) == world.reconcile().to_json()


def test_identifiers_depend_on_rule_and_object_only(tmp_path: Path) -> None:
    """MR-032: any order of insertion, another moment and other findings leave the names as is."""
    names = []
    for seed in range(4):
        world = HeldWorld(tmp_path / str(seed))
        ids = list(range(1, 21))
        random.Random(seed).shuffle(ids)
        for job_id in ids:
            world.job(job_id)
            if job_id % 2:
                world.run(job_id, run_id=100 - job_id, log_path=f"{job_id}.log")
        found = world.reconcile(now_ns=NOW + seed * S).findings
        assert found == world.reconcile(now_ns=NOW + seed * S).findings
        names.append([one.finding_id for one in found])
        world.connection.close()
    assert len(set(names[0])) == 20
    assert names == [names[0]] * 4
    assert names[0][0] == finding_id(Rule.NO_RUN_ROW, "job", 2) == "0d1675aa033a2826"


def test_an_identifier_of_any_size_has_a_name() -> None:
    """Names exist and differ beyond what JSON keeps exactly."""
    ids = (2**53 - 1, 2**53, 2**63 - 1, -(2**63), 0)
    assert finding_id(Rule.STALE_LOG, "run", 2) == "1aa3e39ca89f1dc4"
    names = {finding_id(Rule.NO_RUN_ROW, "job", one) for one in ids}
    assert len(names) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in names)


@build_each
def test_nothing_is_written_and_nothing_is_repaired(build: Build, world: HeldWorld) -> None:
    """MR-026, MR-029: no byte of the folder changes, and what is ambiguous outlives a requeue."""
    build(world)
    rows(world.connection, "UPDATE jobs SET claim_expires_at_ns = 0 WHERE claim_owner IS NOT NULL")
    before = _bytes(world.folder)
    first = world.reconcile()
    assert _bytes(world.folder) == before
    assert not world.connection.in_transaction
    assert requeue_expired_jobs(world.connection, now_ns=NOW) == first.requeueable_count
    ambiguous = {rule: first.rule_counts[rule] for rule in (NO_RUN, FINALIZED)}
    again = world.reconcile()
    assert {rule: again.rule_counts[rule] for rule in (NO_RUN, FINALIZED)} == ambiguous
    assert again.requeueable_count == 0


def test_what_a_requeue_would_take_is_counted(world: HeldWorld) -> None:
    """MR-029: a lease that ends now is not lapsed; findings that a requeue would take are told."""
    for job_id, expires_at_ns in enumerate((NOW - 1, NOW, NOW + 1), start=1):
        world.job(job_id, "claimed", claim_expires_at_ns=expires_at_ns)
        world.job(job_id + 3, claim_expires_at_ns=expires_at_ns)
        world.run(job_id + 3, log_path="gone.log")
    found = world.reconcile()
    assert (found.requeueable_count, found.requeueable_finding_count) == (2, 1)
    assert [one.facts.lease for one in found.findings] == ["lapsed", "held", "held"]
    assert requeue_expired_jobs(world.connection, now_ns=NOW) == 2


def _bytes(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): path.read_bytes() for path in files if not path.name.endswith("-shm")}


def test_the_jobs_are_read_in_one_statement(world: HeldWorld) -> None:
    """MR-026: one SELECT is one snapshot; nothing else than it and a PRAGMA is executed."""
    _one_of_each(world)
    seen: list[str] = []

    def trace(cursor: object, sql: str, bindings: object) -> bool:
        seen.append(sql.split()[0])
        return True

    world.connection.exec_trace = trace
    world.reconcile()
    assert seen == ["PRAGMA", "SELECT"]


def test_indexes_make_it_linear(world: HeldWorld) -> None:
    """No table is scanned for each job: the plan goes through the schema's indexes."""
    plan = rows(world.connection, f"EXPLAIN QUERY PLAN {held_jobs._SQL}")
    steps = " ".join(str(row[3]) for row in plan)
    assert "idx_jobs_held" in steps
    assert "idx_runs_job" in steps
    assert "SCAN runs" not in steps


def test_a_survey_hands_out_the_same_findings_piece_by_piece(world: HeldWorld) -> None:
    """Streamed findings are those of reconcile, in the same order, as many as are wanted."""
    with world.connection:
        for job_id in range(1, 1_001):
            world.job(job_id, updated_at_ns=NOW - job_id % 17 * S)
    whole = world.reconcile().findings
    with survey(world.connection, folder=world.folder, now_ns=NOW, stale_after_ns=STALE) as found:
        assert found.summary.finding_count == len(whole) == 1_000
        assert tuple(found.findings()) == whole
        assert tuple(found.findings(limit=3)) == whole[:3]
        assert tuple(found.findings(limit=0)) == ()
    unattended = [one.facts.unattended_ns for one in whole]
    assert unattended == sorted(unattended, reverse=True)


@pytest.mark.parametrize(
    ("name", "value", "refusal"),
    [("now_ns", -1, OutOfRange), ("stale_after_ns", -1, OutOfRange), ("now_ns", 1.5, NotAnInteger)],
)
def test_times_that_are_none_are_refused(
    name: str, value: object, refusal: type[Exception], world: HeldWorld
) -> None:
    """A time is a non-negative integer of 64 bits."""
    arguments: dict[str, object] = {"now_ns": NOW, "stale_after_ns": STALE, name: value}
    with pytest.raises(refusal, match=name):
        reconcile(world.connection, folder=world.folder, **arguments)  # type: ignore[arg-type]


def test_any_moment_has_words(world: HeldWorld) -> None:
    """Times at the ends of 64 bits, and ahead of now, are told like any other."""
    for at, moment in enumerate((-(2**63), -1, 0, NOW + 3_600 * S, 2**63 - 1), start=1):
        world.job(at, updated_at_ns=moment, claim_expires_at_ns=moment)
    for now_ns in (0, NOW, 2**63 - 1):
        found = world.reconcile(now_ns=now_ns)
        assert found.active_count == len(json.loads(json.dumps(found.to_json()))["findings"]) == 5
    ahead = next(one for one in world.reconcile().findings if one.job_id == 4)
    assert "1 h ahead (2027-01-15T09:00:00Z)" in ahead.observed
    assert ahead.facts.unattended_ns == 0


def test_texts_of_any_bytes_are_told(world: HeldWorld) -> None:
    """What is no UTF-8, holds NUL or terminal sequences reaches the finding with escapes."""
    rows(world.connection, "PRAGMA ignore_check_constraints = ON")
    world.job(1, idempotency_key="\x1b[2J\0 東京")
    world.job(2)
    rows(world.connection, "UPDATE jobs SET claim_owner = CAST(x'ff61' AS TEXT) WHERE job_id = 2")
    first, second = world.reconcile().findings
    assert first.facts.idempotency_key == "\x1b[2J\0 東京"
    assert second.facts.claim_owner == "\\xffa"
    assert json.loads(json.dumps(second.to_json()))["claim_owner"] == "\\xffa"


def test_a_log_is_found_under_a_name_that_is_no_utf_8(world: HeldWorld) -> None:
    """A recorded path reaches the file system with the bytes that were recorded."""
    world.job()
    world.run()
    rows(world.connection, "UPDATE runs SET log_path = CAST(x'ff2e6c6f67' AS TEXT)")
    assert world.rules() == [MISSING]
    assert world.reconcile().findings[0].facts.log_path == "\\xff.log"
    world.log(os.fsdecode(b"\xff.log"), age_ns=0)
    assert world.rules() == []


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_databases_in_utf_16_are_read(encoding: str, tmp_path: Path) -> None:
    """Texts are decoded in the database's own encoding, and paths reach the same file."""
    world = HeldWorld(tmp_path, encoding=encoding)
    world.job(idempotency_key="東京")
    world.run(log_path="東京.log")
    assert world.reconcile().findings[0].facts.idempotency_key == "東京"
    world.log("東京.log", age_ns=0)
    assert world.rules() == []
    world.connection.close()


LOOSE_SQL = re.sub(
    r"(?m)^(    \w+) (?:INTEGER|TEXT)(?: NOT NULL)?(?=,$| REFERENCES)",
    r"\1",
    SCHEMA_SQL.replace(") STRICT", ")"),
)
JUNK = ("text", b"\xff", 1.5, None, -(2**63), 2**63 - 1, "")


@pytest.mark.parametrize("table", ["jobs", "runs"])
def test_values_of_a_wrong_type_are_refused_by_row(table: str, tmp_path: Path) -> None:
    """Whatever stands in a column, reconcile answers, or names the row that is malformed."""
    world = HeldWorld(tmp_path, sql=LOOSE_SQL)
    rows(world.connection, "PRAGMA ignore_check_constraints = ON")
    world.job()
    world.run(log_path="1.log")
    columns = [row[1] for row in rows(world.connection, f"PRAGMA table_info({table})")]
    answered, refused, unwritable = 0, [], set()
    for column in columns:
        for value in JUNK:
            rows(world.connection, "SAVEPOINT before")
            try:
                rows(world.connection, f"UPDATE {table} SET {column} = ?", (value,))
                json.dumps(world.reconcile().to_json())
                answered += 1
            except MalformedRow as error:
                refused.append((error.table, error.row_id, "is damaged" in str(error)))
            except (apsw.MismatchError, apsw.ConstraintError):
                unwritable.add(column)
            rows(world.connection, "ROLLBACK TO before")
    assert unwritable <= {"job_id", "run_id"}
    assert len(refused) > 10
    assert set(refused) == {(table, 1, True)}
    assert answered > 10
    world.connection.close()


@contextmanager
def _somebody_else(folder: Path) -> Iterator[None]:
    """Take the right to look into *folder* away from this process for a moment."""
    is_root = os.geteuid() == 0
    folder.chmod(0)
    if is_root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


def test_a_log_behind_a_closed_door_is_not_called_missing(tmp_path: Path) -> None:
    """MR-031: without permission to look, the log is unreadable, and what was seen is said."""
    (tmp_path / "logs").mkdir()
    with _somebody_else(tmp_path / "logs"):
        evidence = look_at_log(tmp_path, "logs/1.log")
    assert evidence.seen is LogSeen.UNREADABLE
    assert evidence.detail == "it could not be looked at; the system says: Permission denied"


def test_what_stands_in_a_logs_place_is_named(tmp_path: Path) -> None:
    """A pipe or a folder is no log, and a link that leads nowhere is told as one."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    assert look_at_log(tmp_path, "pipe").detail == "a pipe is there, which is no log"
    assert look_at_log(tmp_path, ".").detail == "a folder is there, which is no log"
    assert look_at_log(tmp_path, "link").detail == "a symbolic link is there that leads nowhere"
    assert look_at_log(tmp_path, "/dev/null").detail == "a device is there, which is no log"


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (0, "0 s"),
        (999, "999 ns"),
        (1_500, "1 us"),
        (61 * S, "1 min 1 s"),
        (3_601 * S, "1 h"),
        (2**63 - 1, "106751 d 23 h"),
        (-S, "-1 s"),
    ],
)
def test_durations_have_at_most_two_units(ns: int, words: str) -> None:
    """A duration is told in its largest unit and the next, rounded down."""
    assert duration_text(ns) == words


def test_moments_are_read_as_they_are_told() -> None:
    """Nanoseconds and ISO 8601 name the same moment; a zone counts, and none means UTC."""
    wanted = 1_700_000_000 * S
    for text in (str(wanted), "2023-11-14T22:13:20", "2023-11-14T23:13:20+01:00"):
        assert parse_moment(text) == wanted
    assert moment_text(wanted) == "2023-11-14T22:13:20Z"
    assert parse_seconds("0.5") == S // 2


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("1700000000", "seconds"),
        ("1700000000000", "milliseconds"),
        ("1700000000000000", "microseconds"),
    ],
)
def test_another_unit_is_refused_by_its_name(text: str, unit: str) -> None:
    """What `date +%s` and its like print is no moment of 1970, and the error says what it is."""
    meant = 1_700_000_000 * S
    told = f"looks like {unit}, which would be {meant}, that is 2023-11-14T22:13:20Z"
    with pytest.raises(ValueError, match=told):
        parse_moment(text)
    assert parse_moment(str(10**17)) == 10**17
    for least, before in ((10**11, "seconds"), (10**14, "milliseconds"), (10**17, "microseconds")):
        with pytest.raises(ValueError, match=f" {before}, "):
            parse_moment(str(least - 1))


@pytest.mark.parametrize("text", ["", "soon", "0", "1969-12-31", "2263-01-01", "9" * 5_000, "-1"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    """Anything else than a moment from 1970 to 2262 is an error that says what was expected."""
    with pytest.raises(ValueError, match="expected nanoseconds"):
        parse_moment(text)


@pytest.mark.parametrize("text", ["", "ten", "-1", "nan", "inf", "1e400"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """A duration is a number of seconds, finite and not negative."""
    with pytest.raises(ValueError, match="number of seconds"):
        parse_seconds(text)
