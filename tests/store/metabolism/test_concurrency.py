"""
Processes at once: bursts that start together, pauses under the lock, deaths there, first opens.

Covered: what the kernel's scheduler makes of operations that are released at the same moment.
Not covered: every order of their statements; test_interleavings has that for a few of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metabolism_actors import Actor, Message, actor, actors, gate
from metabolism_histories import Op, is_explained, op, outcome, reset, state
from metabolism_model import Model
from metabolism_world import dump

from store.metabolism import (
    Job,
    Run,
    claim_next_job,
    connect,
    enqueue_job,
    requeue_expired_jobs,
)
from store.metabolism.errors import RunIsCompleted, StaleClaim
from store.metabolism.storage import schema_problem
from store.sqlite import rows

pytestmark = pytest.mark.slow

ACTORS = 4
OPENERS = 8


@pytest.fixture(scope="module")
def pool() -> Iterator[list[Actor]]:
    with actors(OPENERS) as started:
        yield started


@pytest.fixture
def path(tmp_path: Path, pool: list[Actor]) -> Iterator[Path]:
    yield tmp_path / "a.sqlite3"
    for each in pool:
        each.do("close")


@pytest.fixture
def c(path: Path) -> Iterator[apsw.Connection]:
    connection = connect(path)
    yield connection
    connection.close()


def at_once(pool: list[Actor], operations: list[Op], folder: Path) -> list[Message]:
    """Release one operation of each actor at the same moment, and return the answers."""
    path = folder / "gate"
    with gate(path):
        for each, operation in zip(pool, operations, strict=False):
            each.send(operation.name, **operation.arguments, gate=path)
    return [each.receive() for each, _ in zip(pool, operations, strict=False)]


NUMBERS = st.integers(0, 7)
DRAWN = st.one_of(
    st.tuples(st.just("enqueue"), st.sampled_from("kl"), st.integers(0, 1)),
    st.tuples(st.just("enqueue"), st.sampled_from("mnopqr"), st.integers(0, 1)),
    st.tuples(st.just("claim"), st.integers(-3, 9)),
    st.tuples(st.just("claim"), st.integers(-3, 9)),
    st.tuples(st.just("requeue")),
    st.tuples(st.just("renew"), NUMBERS, st.integers(-3, 9)),
    st.tuples(st.just("start"), NUMBERS),
    st.tuples(st.just("complete"), NUMBERS, st.booleans(), st.integers(0, 1)),
)
BURSTS = st.lists(st.lists(DRAWN, min_size=2, max_size=ACTORS), min_size=2, max_size=9)


class Bursts:
    """Plays bursts, each after the answers of the one before, at a time of its own for each op."""

    def __init__(self, pool: list[Actor], c: apsw.Connection) -> None:
        self.pool = pool
        self.c = c
        self.now_ns = 0
        self.claims: list[Job] = []
        self.runs: list[Run] = []
        self.outcomes: Counter[str] = Counter()

    def play(self, drawn: list[tuple[Any, ...]]) -> bool:
        """Return whether some order of the burst's operations explains it."""
        before = state(self.c)
        operations = [self.operation(*each) for each in drawn]
        messages = at_once(self.pool, operations, Path(self.c.db_filename("main")).parent)
        answers = [outcome(message) for message in messages]
        for operation, answer in zip(operations, answers, strict=True):
            self.keep(operation.name, answer)
        scripts, single = [[each] for each in operations], [[each] for each in answers]
        return is_explained(before, scripts, single, state(self.c))

    def operation(self, name: str, *given: Any) -> Op:
        self.now_ns += 1
        now_ns = self.now_ns
        if name == "enqueue":
            return op("enqueue", key=given[0], priority=given[1], not_before_ns=0, now_ns=now_ns)
        if name == "requeue":
            return op("requeue", now_ns=now_ns)
        if name in ("renew", "start") and self.claims:
            claim = self.claims[-1 - given[0] % len(self.claims)]
            lease = {"lease_ns": given[1]} if name == "renew" else {}
            return op(name, claim=claim, now_ns=now_ns, **lease)
        if name == "complete" and self.runs:
            run = self.runs[-1 - given[0] % len(self.runs)]
            return op("complete", run=run, finalize_job=given[1], code=given[2], now_ns=now_ns)
        return op("claim", owner="w", lease_ns=given[0] if name == "claim" else 2, now_ns=now_ns)

    def keep(self, name: str, answer: object) -> None:
        shown = answer.__name__ if isinstance(answer, type) else type(answer).__name__
        self.outcomes[f"{name} {shown}"] += 1
        if name in ("claim", "renew") and isinstance(answer, Job):
            self.claims.append(answer)
        if name == "start" and isinstance(answer, Run):
            self.runs.append(answer)


def test_each_burst_is_as_one_after_the_other(pool: list[Actor], c: apsw.Connection) -> None:
    """
    MR-010, MR-011, MR-013, MR-016, MR-018, AMB-2, AMB-3: whatever four processes do at the same
    moment, some order of it explains every answer and every row.
    """
    for each in pool[:ACTORS]:
        each.do("open", path=Path(c.db_filename("main")))
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(BURSTS)
    def play(bursts: list[list[tuple[Any, ...]]]) -> None:
        reset(c, Model())
        played = Bursts(pool, c)
        for burst in bursts:
            assert played.play(burst)
        outcomes.update(played.outcomes)

    play()
    assert set(outcomes) >= {
        "enqueue tuple",
        "claim Job",
        "claim NoneType",
        "requeue int",
        "renew Job",
        "renew StaleClaim",
        "start Run",
        "start StaleClaim",
        "complete Run",
        "complete RunIsCompleted",
    }


def test_a_burst_of_a_broken_twin_is_not_explained(pool: list[Actor], c: apsw.Connection) -> None:
    """AMB-3: an old claim that renews another's lease is told in a burst, whatever its order."""
    for each in pool[:ACTORS]:
        each.do("open", path=Path(c.db_filename("main")), twin="renew forgets the attempts")
    played = Bursts(pool, c)
    assert played.play([("enqueue", "k", 0)])
    assert played.play([("claim", -3)])
    assert played.play([("requeue",)])
    assert played.play([("claim", 9)])
    assert not played.play([("renew", 1, 9), ("enqueue", "l", 0)])


def test_one_of_many_enqueues_wins_a_key(pool: list[Actor], c: apsw.Connection) -> None:
    """MR-006, MR-010: of eight at the same moment one inserts, and the others are shown its job."""
    for each in pool:
        each.do("open", path=Path(c.db_filename("main")))
    for turn in range(20):
        operations = [
            op("enqueue", key=f"k{turn}", priority=at, not_before_ns=0, now_ns=turn * 10 + at)
            for at in range(OPENERS)
        ]
        answers = at_once(pool, operations, Path(c.db_filename("main")).parent)
        jobs = {message.value[0] for message in answers}
        assert [message.value[1] for message in answers].count(True) == 1
        assert len(jobs) == 1
    assert len(dump(c)["jobs"]) == 20


def test_a_queue_is_drained_once_and_in_order(pool: list[Actor], c: apsw.Connection) -> None:
    """MR-011, AMB-1, AMB-3: four processes take 400 jobs: each once, each worker's in order."""
    for at in range(400):
        key, priority = f"k{at}", at * 7 % 5
        enqueue_job(c, kind="k", idempotency_key=key, priority=priority, now_ns=at * 3 % 50)
    drains = [
        op("drain", owner=f"w{at}", first_ns=100 + at, step_ns=ACTORS) for at in range(ACTORS)
    ]
    for each in pool[:ACTORS]:
        each.do("open", path=Path(c.db_filename("main")))
    taken = [message.value for message in at_once(pool, drains, Path(c.db_filename("main")).parent)]
    everything = [job for jobs in taken for job in jobs]
    assert sorted(job.job_id for job in everything) == list(range(1, 401))
    assert {job.attempts for job in everything} == {1}
    for at, jobs in enumerate(taken):
        order = [(job.priority, job.created_at_ns, job.job_id) for job in jobs]
        assert order == sorted(order)
        assert {job.claim_owner for job in jobs} <= {f"w{at}"}
    assert sorted(map(tuple, everything)) == sorted(dump(c)["jobs"])


def test_a_claim_waits_for_the_lock_and_gets_the_next_job(
    pool: list[Actor], c: apsw.Connection
) -> None:
    """MR-011, AMB-2: the second claimer is seen waiting, and then takes what the first left."""
    jobs = [enqueue_job(c, kind="k", idempotency_key=key, now_ns=1)[0] for key in "ab"]
    first, second = pool[:2]
    for each in (first, second):
        each.do("open", path=Path(c.db_filename("main")), is_stepped=True)
    first.send("claim", owner="first", now_ns=5)
    before = ["BEGIN IMMEDIATE", "SELECT *", "UPDATE jobs", "COMMIT"]
    assert stopped_before(first, "COMMIT") == before
    second.send("claim", owner="second", now_ns=6)
    assert stopped_before(second, "BEGIN IMMEDIATE") == ["BEGIN IMMEDIATE"]
    for count in range(3):
        assert second.go() == Message("locked", count)
    assert {row[5] for row in dump(c)["jobs"]} == {"queued"}
    assert first.go().value.job_id == jobs[0].job_id
    assert [second.go().kind for _ in before] == ["before", "before", "before", "done"]
    assert [(row[0], row[8]) for row in dump(c)["jobs"]] == [(1, "first"), (2, "second")]


@pytest.mark.parametrize("place", ["UPDATE jobs", "COMMIT"])
def test_who_dies_under_the_lock_leaves_the_job(
    place: str, pool: list[Actor], c: apsw.Connection
) -> None:
    """MR-011, AMB-2: a claimer that is killed before its commit has claimed nothing."""
    job, _ = enqueue_job(c, kind="k", idempotency_key="a", now_ns=1)
    path, second = Path(c.db_filename("main")), pool[0]
    second.do("open", path=path, is_stepped=True)
    with actor() as first:
        first.do("open", path=path, is_stepped=True)
        first.send("claim", owner="first", now_ns=5)
        stopped_before(first, place)
        second.send("claim", owner="second", now_ns=6)
        stopped_before(second, "BEGIN IMMEDIATE")
        assert second.go() == Message("locked", 0)
        first.kill()
    stopped_before(second, "COMMIT", goes_on=True)
    claim = second.go().value
    assert (claim.job_id, claim.claim_owner, claim.attempts) == (job.job_id, "second", 1)
    assert dump(c)["jobs"] == [tuple(claim)]
    assert rows(c, "PRAGMA integrity_check") == [("ok",)]


def test_who_dies_after_the_commit_keeps_the_job(c: apsw.Connection) -> None:
    """MR-011, AMB-8, I1-11: an acknowledged claim outlives its process, and lapses like any."""
    enqueue_job(c, kind="k", idempotency_key="a", now_ns=1)
    with actor() as first:
        first.do("open", path=Path(c.db_filename("main")))
        claim = first.do("claim", owner="first", lease_ns=10, now_ns=5)
        first.kill()
    assert dump(c)["jobs"] == [tuple(claim)]
    assert claim_next_job(c, owner="second", now_ns=15) is None
    assert requeue_expired_jobs(c, now_ns=16) == 1


def stopped_before(each: Actor, statement: str, *, goes_on: bool = False) -> list[str]:
    """Let a stepped actor go on until it stops before *statement*; return where it stopped."""
    found: list[str] = []
    while True:
        message = each.go() if goes_on else each.receive()
        assert message.kind == "before", message
        found.append(" ".join(str(message.value).split()[:2]))
        if found[-1] == statement:
            return found
        goes_on = True


@pytest.mark.parametrize("count", [4, OPENERS])
def test_many_first_opens_make_one_schema(count: int, pool: list[Actor], tmp_path: Path) -> None:
    """MR-004, MR-005: whoever opens a missing database at the same moment has the same one."""
    for turn in range(15):
        path = tmp_path / f"{turn}.sqlite3"
        opens = [op("open", path=path) for _ in range(count)]
        answers = at_once(pool, opens, tmp_path)
        assert [message.kind for message in answers] == ["done"] * count
        enqueues = [
            op("enqueue", key=f"k{at}", priority=1, not_before_ns=0, now_ns=at)
            for at in range(count)
        ]
        assert {message.kind for message in at_once(pool, enqueues, tmp_path)} == {"done"}
        connection = connect(path)
        assert schema_problem(connection) is None
        assert len(dump(connection)["jobs"]) == count
        assert rows(connection, "PRAGMA journal_mode") == [("wal",)]
        connection.close()
        closes = at_once(pool, [op("close")] * count, tmp_path)
        assert {message.kind for message in closes} == {"done"}


RACERS = {
    "renew": {"lease_ns": 500},
    "start": {},
    "complete": {"code": 0, "finalize_job": True},
}


@pytest.mark.parametrize("name", RACERS)
def test_a_lapsed_job_has_one_future(name: str, pool: list[Actor], c: apsw.Connection) -> None:
    """MR-013, MR-014, AMB-3: whoever comes first at the lapse, the other is refused or had none."""
    path = Path(c.db_filename("main"))
    for each in pool[:2]:
        each.do("open", path=path)
    for _ in range(60):
        model = Model()
        model.enqueue("k", 1, 0, 1)
        claim = model.claim("old", -1, 2)
        assert claim is not None
        run = model.start(claim, 3) if name == "complete" else None
        reset(c, model)
        shown = {"run": run} if name == "complete" else {"claim": claim}
        race = [op("requeue", now_ns=10), op(name, now_ns=11, **shown, **RACERS[name])]
        answers = [outcome(message) for message in at_once(pool, race, path.parent)]
        assert is_explained(model, [[each] for each in race], [[a] for a in answers], state(c))
        assert answers[0] == 1 or answers[1] is not StaleClaim
        assert answers[0] == 0 or answers[1] is StaleClaim or name == "start"
        taken = claim_next_job(c, owner="new", now_ns=12)
        assert (taken is not None) == (answers[0] == 1)


def test_two_ends_of_one_run_are_one(pool: list[Actor], c: apsw.Connection) -> None:
    """MR-017, MR-018: of two completions at the same moment one is written, whole."""
    path = Path(c.db_filename("main"))
    for each in pool[:2]:
        each.do("open", path=path)
    for _ in range(30):
        model = Model()
        model.enqueue("k", 1, 0, 1)
        claim = model.claim("w", 100, 2)
        assert claim is not None
        run = model.start(claim, 3)
        reset(c, model)
        ends = [
            op("complete", run=run, code=code, finalize_job=True, now_ns=10 + code)
            for code in (0, 1)
        ]
        answers = [outcome(message) for message in at_once(pool, ends, path.parent)]
        assert answers.count(RunIsCompleted) == 1
        [winner] = [answer for answer in answers if isinstance(answer, Run)]
        assert dump(c)["jobs"][0][5] == ("failed" if winner.return_code else "completed")
