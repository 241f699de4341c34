"""Each invariant of the metabolism runtime can fail: one defect breaks exactly it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from campaigns.metabolism import invariants
from campaigns.metabolism.invariants import BY_HAND, DATABASE, LEFT_RUNNING
from campaigns.metabolism.storage import FirstOpen
from harness import Check, Evidence
from harness.trace import Promise
from store.metabolism import (
    Job,
    append_claim_event,
    claim_next_job,
    complete_run,
    connect,
    create_log,
    enqueue_job,
    requeue_expired_jobs,
    schema,
    start_run,
    update_job_state,
)

NOW = 10**18
LEASE = 10**10
RUNNING_LOG = "logs/running.log"


@dataclass
class World:
    """
    A runtime after a crash, and what is known of it.

    Attributes:
        root: Its folder.
        observed: What its campaigns observe of it.
        promises: The events that were acknowledged.
        now_ns: The campaign's clock.
    """

    root: Path
    observed: Any
    promises: list[Promise]
    now_ns: int = NOW

    def checks(self) -> list[Check]:
        """Return every check, of which some act on the root."""
        evidence = Evidence(
            phase="recovered",
            boundary=1,
            acknowledged=[],
            in_flight=None,
            promises=self.promises,
            effects=[],
            expected=None,
            observed=self.observed,
            now_ns=self.now_ns,
        )
        return list(invariants.all_of(self.root, evidence))

    def broken(self) -> set[str]:
        """Return the names of the invariants that do not hold."""
        return {check.invariant for check in self.checks() if not check.holds}

    def job(self, key: str) -> dict[str, Any]:
        """Return the observed job of a key."""
        found: list[dict[str, Any]] = self.observed["jobs"]
        [job] = [job for job in found if job["idempotency_key"] == key]
        return job

    def runs(self, key: str) -> list[dict[str, Any]]:
        """Return the observed runs of a job, oldest first."""
        job_id = self.job(key)["job_id"]
        return [run for run in self.observed["runs"] if run["job_id"] == job_id]


Defect = Callable[[World], object]


def claimed(connection: apsw.Connection, key: str, *, kind: str = "job", lease: int = LEASE) -> Job:
    """Enqueue a job, and claim it."""
    enqueue_job(connection, kind=kind, idempotency_key=key, now_ns=NOW)
    claim = claim_next_job(connection, owner="worker", lease_ns=lease, now_ns=NOW)
    assert claim is not None
    assert claim.idempotency_key == key
    return claim


def fill(connection: apsw.Connection, root: Path) -> list[Promise]:
    """Make a job of every sort, and a log of claims, of which the promised events are returned."""
    slow = claimed(connection, "slow", lease=-1)
    late = start_run(connection, slow, now_ns=NOW)
    requeue_expired_jobs(connection, now_ns=NOW)
    for key, code in (("slow", 0), ("good", 0), ("bad", 7)):
        begun = start_run(connection, claimed(connection, key), now_ns=NOW)
        if key == "slow":
            complete_run(connection, late, return_code=9, now_ns=NOW)
        complete_run(connection, begun, return_code=code, finalize_job=True, now_ns=NOW)
    left = start_run(connection, claimed(connection, "left", kind=LEFT_RUNNING), now_ns=NOW)
    complete_run(connection, left, return_code=0, now_ns=NOW)
    for key, state in (("hand", "running"), ("hand ended", "failed")):
        by_hand = claimed(connection, key, kind=BY_HAND)
        update_job_state(connection, by_hand.job_id, state, now_ns=NOW)
    create_log(root, RUNNING_LOG)
    start_run(connection, claimed(connection, "running"), log_path=RUNNING_LOG, now_ns=NOW)
    claimed(connection, "waits again", lease=-1)
    requeue_expired_jobs(connection, now_ns=NOW)
    claim_next_job(connection, owner="worker", lease_ns=LEASE, now_ns=NOW)
    for key, kind in (("waits", "job"), ("waits too", "job"), ("waits by hand", BY_HAND)):
        enqueue_job(connection, kind=kind, idempotency_key=key, now_ns=NOW)
    return append(connection)


def append(connection: apsw.Connection) -> list[Promise]:
    """Append two assertions and what contradicts the second."""
    events = [
        append_claim_event(
            connection,
            kind=kind,
            claim_id="c",
            subject="s",
            predicate="p",
            object="o",
            assertion_id=points_at,
            now_ns=NOW,
        )
        for kind, points_at in (
            ("claim_asserted", None),
            ("claim_asserted", None),
            ("claim_contradicted", 2),
        )
    ]
    return [Promise("appended", {"event": event._asdict()}) for event in events]


@pytest.fixture(scope="module")
def good_root(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Promise]]:
    """A runtime with everything in it, and the events that were acknowledged."""
    root = tmp_path_factory.mktemp("good")
    with closing(connect(root / DATABASE)) as connection:
        return root, fill(connection, root)


@pytest.fixture
def world(good_root: tuple[Path, list[Promise]], tmp_path: Path) -> World:
    """A copy of that runtime, as it is observed."""
    root, promises = good_root
    place = tmp_path / "root"
    shutil.copytree(root, place)
    return World(place, FirstOpen().observe(place), list(promises))


def change(table: str, key: str, **facts: Any) -> Defect:
    """Return a defect of the observation: other columns of a job, or of its oldest run."""

    def defect(world: World) -> None:
        row = world.job(key) if table == "jobs" else world.runs(key)[0]
        row.update(facts)

    return defect


def event(number: int, **facts: Any) -> Defect:
    """Return a defect of the observation: an event's columns, or an event that is not there."""

    def defect(world: World) -> None:
        log = world.observed["blackboard_claim_events"]
        if number == len(log):
            log.append({**log[0], "event_id": number + 1})
        log[number].update(facts)

    return defect


def sql(*statements: str) -> Defect:
    """Return a defect of the database, with no guard on, which is then observed."""

    def defect(world: World) -> None:
        with closing(apsw.Connection(str(world.root / DATABASE))) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON").fetchall()
            for statement in statements:
                connection.execute(statement).fetchall()
        world.observed = FirstOpen().observe(world.root)

    return defect


def trigger(name: str) -> str:
    """Return the statement of the schema that makes a trigger."""
    _, _, rest = schema.SCHEMA_SQL.partition(f"CREATE TRIGGER {name} ")
    return f"CREATE TRIGGER {name} {rest.partition('END;')[0]}END;"


def without_guard(name: str, statement: str) -> Defect:
    """Return a defect that a statement makes while a guard is away, which is put back."""
    return sql(f"DROP TRIGGER {name}", statement, trigger(name))


def own(key: str) -> str:
    """Return what selects the job of a key in SQL."""
    return f"(SELECT job_id FROM jobs WHERE idempotency_key = '{key}')"


def second_job_of_a_key(world: World) -> None:
    """Let two active jobs have one key."""
    world.job("waits too")["idempotency_key"] = "waits"


def run_of_nobody(world: World) -> None:
    """Show a run of a job that there is not."""
    run = {**world.runs("good")[0], "run_id": 99, "job_id": 99}
    world.observed["runs"].append(run)


def changing_file(world: World) -> None:
    """Put a file in the root that is another one each time that it is read."""
    (world.root / "changing").symlink_to("/proc/sys/kernel/random/uuid")


DEFECTS: dict[str, tuple[str, Defect]] = {
    "table missing": (invariants.SOUND_DATABASE, lambda world: world.observed.pop("runs")),
    "nothing there": (
        invariants.SOUND_DATABASE,
        lambda world: setattr(world, "observed", None),
    ),
    "index changed": (
        invariants.SOUND_DATABASE,
        sql("DROP INDEX idx_runs_job", "CREATE INDEX idx_runs_job ON runs (attempt)"),
    ),
    "index added": (invariants.SOUND_DATABASE, sql("CREATE INDEX strange ON runs (attempt)")),
    "another journal": (invariants.SOUND_DATABASE, sql("PRAGMA journal_mode = DELETE")),
    "broken constraint": (
        invariants.SOUND_DATABASE,
        sql("UPDATE jobs SET priority = -1 WHERE idempotency_key = 'waits'"),
    ),
    "dangling reference": (
        invariants.SOUND_DATABASE,
        sql(
            "INSERT INTO blackboard_claim_events VALUES"
            " (NULL, 'claim_expired', 'c', 's', 'p', 'o', 99, '{}', 1)"
        ),
    ),
    "key held twice": (invariants.ONE_ACTIVE_KEY, second_job_of_a_key),
    "owner without expiry": (
        invariants.WHOLE_LEASE,
        change("jobs", "waits", claim_owner="thief"),
    ),
    "lease of a waiting job": (
        invariants.WHOLE_LEASE,
        change("jobs", "waits", claim_owner="thief", claim_expires_at_ns=1),
    ),
    "expiry of an ended job alone": (
        invariants.WHOLE_LEASE,
        change("jobs", "good", claim_owner=None),
    ),
    "claimed by nobody": (
        invariants.WHOLE_LEASE,
        change("jobs", "waits again", claim_owner=None, claim_expires_at_ns=None),
    ),
    "claimed for the zeroth time": (
        invariants.WHOLE_LEASE,
        change("jobs", "waits again", attempts=0),
    ),
    "state that is none": (invariants.WHOLE_LEASE, change("jobs", "hand ended", state="lost")),
    "run lost": (
        invariants.RUN_AND_JOB,
        sql(f"DELETE FROM runs WHERE job_id = {own('running')}"),
    ),
    "run of nobody": (invariants.RUN_AND_JOB, run_of_nobody),
    "run of an attempt to come": (invariants.RUN_AND_JOB, change("runs", "slow", attempt=3)),
    "claimed and begun": (
        invariants.RUN_AND_JOB,
        sql(
            f"INSERT INTO runs (job_id, attempt, started_at_ns) VALUES ({own('waits again')}, 2, 1)"
        ),
    ),
    "running under a former run": (
        invariants.RUN_AND_JOB,
        sql("UPDATE jobs SET attempts = 2 WHERE idempotency_key = 'running'"),
    ),
    "run ended alone": (
        invariants.ENDED_TOGETHER,
        sql(
            f"UPDATE runs SET completed_at_ns = {NOW + 1}, return_code = 0"
            f" WHERE job_id = {own('running')}"
        ),
    ),
    "job ended alone": (
        invariants.ENDED_TOGETHER,
        sql("UPDATE jobs SET state = 'failed' WHERE idempotency_key = 'running'"),
    ),
    "failed with success": (invariants.ENDED_TOGETHER, change("jobs", "good", state="failed")),
    "completed with an error": (invariants.ENDED_TOGETHER, change("runs", "good", return_code=1)),
    "end without code": (invariants.WHOLE_END, change("runs", "slow", return_code=None)),
    "code without end": (invariants.WHOLE_END, change("runs", "slow", completed_at_ns=None)),
    "ended before it began": (invariants.WHOLE_END, change("runs", "slow", completed_at_ns=1)),
    "event edited in place": (
        invariants.KEPT_LOG,
        without_guard(
            "blackboard_claim_events_no_update",
            "UPDATE blackboard_claim_events SET object = 'other' WHERE event_id = 1",
        ),
    ),
    "event removed": (
        invariants.KEPT_LOG,
        without_guard(
            "blackboard_claim_events_no_delete",
            "DELETE FROM blackboard_claim_events WHERE event_id = 3",
        ),
    ),
    "event inserted before another": (
        invariants.KEPT_LOG,
        lambda world: world.promises.reverse(),
    ),
    "assertion not shown": (invariants.TRUE_PROJECTION, event(3)),
    "contradiction not counted": (
        invariants.TRUE_PROJECTION,
        event(3, kind="claim_contradicted", assertion_id=None),
    ),
    "assertion shown that has expired": (
        invariants.TRUE_PROJECTION,
        event(3, kind="claim_expired", assertion_id=1),
    ),
    "file that changes meanwhile": (invariants.READ_ONLY, changing_file),
    "key held by nobody": (
        invariants.KEY_HELD,
        change("jobs", "waits by hand", state="completed"),
    ),
    "key free and held": (
        invariants.KEY_HELD,
        change("jobs", "hand ended", state="queued", claim_owner=None, claim_expires_at_ns=None),
    ),
    "key held by another job": (invariants.KEY_HELD, change("jobs", "waits", job_id=999)),
    "reported without cause": (
        invariants.REPORTED,
        change("jobs", "hand", state="queued", claim_owner=None, claim_expires_at_ns=None),
    ),
    "cause without report": (
        invariants.REPORTED,
        change("jobs", "waits by hand", state="running"),
    ),
    "reported under another rule": (
        invariants.REPORTED,
        lambda world: setattr(world, "now_ns", 2**62),
    ),
    "log gone": (invariants.NAMED_LOG, lambda world: world.observed["logs"].pop(RUNNING_LOG)),
    "log without its first line": (
        invariants.NAMED_LOG,
        lambda world: world.observed["logs"].update({RUNNING_LOG: "start"}),
    ),
}

SABOTAGE: dict[str, tuple[str, str]] = {
    # Triggers that make the operation do what a broken one would.
    "given back to its owner": (
        invariants.REQUEUED,
        "UPDATE jobs SET state = 'claimed', claim_owner = 'ghost', claim_expires_at_ns = 1"
        " WHERE job_id = NEW.job_id",
    ),
    "ambiguous one given back too": (
        invariants.READ_ONLY,
        "UPDATE jobs SET last_error = 'repaired' WHERE idempotency_key IN ('hand', 'left')",
    ),
}

REFUSED_BY_THE_STORE = {
    "another version": sql("PRAGMA user_version = 2"),
    "guard dropped": sql("DROP TRIGGER blackboard_claim_events_no_update"),
    "index dropped": sql("DROP INDEX idx_jobs_active_idempotency"),
}


def test_good_runtime_exercises_and_holds_every_invariant(world: World) -> None:
    """The runtime that the defects start from is right, and each invariant has a subject in it."""
    made = world.checks()
    assert set(invariants.NAMES) == {check.invariant for check in made}
    assert [check for check in made if not check.holds] == []


def test_empty_runtime_holds_every_invariant(tmp_path: Path) -> None:
    """A runtime that was opened once, and never used, is right."""
    connect(tmp_path / DATABASE).close()
    assert World(tmp_path, FirstOpen().observe(tmp_path), []).broken() == set()


@pytest.mark.parametrize(("invariant", "defect"), DEFECTS.values(), ids=DEFECTS)
def test_defect_breaks_its_invariant_alone(invariant: str, defect: Defect, world: World) -> None:
    """One thing wrong breaks the invariant that is about it, and no other."""
    defect(world)
    assert world.broken() == {invariant}


@pytest.mark.parametrize(("invariant", "statement"), SABOTAGE.values(), ids=SABOTAGE)
def test_operation_that_does_wrong_breaks_its_invariant(
    invariant: str, statement: str, world: World
) -> None:
    """A requeue that a trigger turns into a wrong one is named, and so is the trigger."""
    sql(
        "CREATE TRIGGER sabotage AFTER UPDATE OF state ON jobs"
        f" WHEN NEW.state = 'recoverable' BEGIN {statement}; END"
    )(world)
    assert world.broken() == {invariants.SOUND_DATABASE, invariant}


def test_answer_that_is_not_what_was_stored_is_told(world: World) -> None:
    """A job that a trigger changes once it is inserted is not the one that was answered."""
    sql(
        "CREATE TRIGGER sabotage AFTER INSERT ON jobs BEGIN"
        " UPDATE jobs SET priority = 7 WHERE job_id = NEW.job_id; END"
    )(world)
    assert world.broken() == {invariants.SOUND_DATABASE, invariants.KEY_HELD}


@pytest.mark.parametrize("defect", REFUSED_BY_THE_STORE.values(), ids=REFUSED_BY_THE_STORE)
def test_what_the_store_refuses_is_unsound(defect: Defect, world: World) -> None:
    """A schema that the store does not open is unsound by the predicate too."""
    defect(world)
    made = invariants.sound_database(world.root)
    assert {check.invariant for check in made if not check.holds} == {invariants.SOUND_DATABASE}


def test_every_invariant_has_a_defect() -> None:
    """No invariant is there that nothing shows to be able to fail."""
    broken = {name for name, _ in [*DEFECTS.values(), *SABOTAGE.values()]}
    assert set(invariants.NAMES) == broken


def test_guard_that_lets_changes_through_is_told_by_both(world: World) -> None:
    """A trigger that was made inert is another schema, and a log that can be changed."""
    sql(
        "DROP TRIGGER blackboard_claim_events_no_delete",
        "CREATE TRIGGER blackboard_claim_events_no_delete BEFORE DELETE ON"
        " blackboard_claim_events BEGIN SELECT 1; END",
    )(world)
    assert world.broken() == {invariants.SOUND_DATABASE, invariants.KEPT_LOG}
