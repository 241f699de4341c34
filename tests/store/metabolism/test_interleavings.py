"""
Every way in which the statements of a few processes can follow each other, not a sample of them.

Covered: operations that race for one job, one key or one lease, each in a process of its own.
Not covered: more than three at once, and the opening of a database; see test_concurrency.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from metabolism_actors import Actor, actors
from metabolism_histories import (
    SKIPPED,
    Answer,
    Interleaving,
    Op,
    Script,
    every_interleaving,
    is_explained,
    op,
    state,
)
from metabolism_model import Model
from metabolism_twins import TWINS

from store.metabolism import Job, Run, connect
from store.metabolism.errors import MetabolismError, StaleClaim

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[list[Actor]]:
    with actors(3) as started:
        yield started


@pytest.fixture
def c(tmp_path: Path, pool: list[Actor]) -> Iterator[apsw.Connection]:
    connection = connect(tmp_path / "a.sqlite3")
    yield connection
    for each in pool:
        each.do("close")
    connection.close()


def waiting(*keys: str) -> Model:
    model = Model()
    for at, key in enumerate(keys):
        model.enqueue(key, 1, 0, at)
    return model


def lapsed() -> tuple[Model, Job]:
    model = waiting("a")
    claim = model.claim("one", -5, 10)
    assert claim is not None
    return model, claim


def lapsed_run() -> tuple[Model, Run]:
    model, claim = lapsed()
    run = model.start(claim, 11)
    assert isinstance(run, Run)
    return model, run


def claim(owner: str, now_ns: int) -> Op:
    return op("claim", owner=owner, lease_ns=50, now_ns=now_ns)


def enqueue(key: str, priority: int, now_ns: int) -> Op:
    return op("enqueue", key=key, priority=priority, not_before_ns=0, now_ns=now_ns)


LAPSED, CLAIM = lapsed()
LAPSED_RUN, RUN = lapsed_run()
TAKE_OVER = (
    op("requeue", now_ns=20),
    claim("two", 21),
    op("start", claim=Answer(1), now_ns=22),
)

RENEW = op("renew", claim=CLAIM, lease_ns=50, now_ns=30)
START = op("start", claim=CLAIM, now_ns=30)
COMPLETE = op("complete", run=RUN, code=0, finalize_job=True, now_ns=30)

RACES: dict[str, tuple[Model, list[Script]]] = {
    "two claim two": (waiting("a", "b"), [[claim("one", 5)], [claim("two", 6)]]),
    "two claim one": (waiting("a"), [[claim("one", 5)], [claim("two", 6)]]),
    "three claim two": (waiting("a", "b"), [[claim(name, 5)] for name in ("one", "two", "three")]),
    "two claim on": (waiting("a", "b", "c"), [[claim("one", 5)] * 2, [claim("two", 6)] * 2]),
    "two enqueue one key": (Model(), [[enqueue("k", 1, 5)], [enqueue("k", 2, 6)]]),
    "three enqueue one key": (Model(), [[enqueue("k", at, at)] for at in (1, 2, 3)]),
    "enqueue and claim": (Model(), [[enqueue("k", 1, 5)], [claim("two", 6)]]),
    "a key comes free": (LAPSED_RUN, [[enqueue("a", 1, 5)], [COMPLETE]]),
    "two requeue": (LAPSED, [[op("requeue", now_ns=20)], [op("requeue", now_ns=21)]]),
    "requeue and renew": (LAPSED, [[op("requeue", now_ns=20)], [RENEW]]),
    "requeue and start": (LAPSED, [[op("requeue", now_ns=20)], [START]]),
    "requeue and complete": (LAPSED_RUN, [[op("requeue", now_ns=20)], [COMPLETE]]),
    "two start": (LAPSED, [[START], [op("start", claim=CLAIM, now_ns=31)]]),
    "two complete": (
        LAPSED_RUN,
        [[COMPLETE], [op("complete", run=RUN, code=1, finalize_job=True, now_ns=31)]],
    ),
    "an operator and a worker": (
        LAPSED_RUN,
        [[op("update", job_id=1, state="failed", now_ns=20)], [COMPLETE]],
    ),
    "take over and renew": (LAPSED, [TAKE_OVER, [RENEW]]),
    "take over and start": (LAPSED, [TAKE_OVER, [START]]),
    "take over and complete": (LAPSED_RUN, [TAKE_OVER, [COMPLETE]]),
    "take over and work on": (
        LAPSED,
        [
            TAKE_OVER,
            [START, op("complete", run=Answer(0), code=0, finalize_job=True, now_ns=31)],
        ],
    ),
}


def played(
    pool: list[Actor], c: apsw.Connection, race: str, twin: str | None = None
) -> Iterator[tuple[Interleaving, bool]]:
    """Yield every interleaving of a race, and whether one order explains it."""
    before, scripts = RACES[race]
    for each in pool[: len(scripts)]:
        each.do("open", path=Path(c.db_filename("main")), is_stepped=True, twin=twin)
    for run in every_interleaving(pool, scripts, before, c):
        yield run, is_explained(before, scripts, run.answers, state(c))


@pytest.mark.parametrize("race", RACES)
def test_every_interleaving_is_as_one_after_the_other(
    race: str, pool: list[Actor], c: apsw.Connection
) -> None:
    """
    AMB-2, AMB-3, MR-010, MR-011, MR-013, MR-016, MR-018: whatever statement of whichever process
    comes next, the answers and rows are those of some order; each waits for the lock of the other.
    """
    runs, locked, ends = 0, 0, set()
    for run, explained in played(pool, c, race):
        assert explained, "\n".join([*run.steps, str(run.answers), str(state(c).jobs)])
        runs += 1
        locked += run.locked_count
        ends.add(str(run.answers))
    assert runs > 5
    assert locked > 0
    assert len(ends) > 1


@pytest.mark.parametrize("race", ["take over and renew", "take over and complete"])
def test_a_lapsed_job_is_had_by_one(race: str, pool: list[Actor], c: apsw.Connection) -> None:
    """MR-013, MR-014, AMB-3: the old owner goes on, or another took the job; never both."""
    winners = set()
    for run, _ in played(pool, c, race):
        [old] = run.answers[1]
        new = run.answers[0][2]
        assert (old is StaleClaim) == isinstance(new, Run)
        assert new == SKIPPED or isinstance(new, Run)
        winners.add(old is StaleClaim)
    assert winners == {True, False}


CAUGHT = {
    "claim looks before it takes": "two claim two",
    "claim locks too late": "two claim two",
    "enqueue looks before it inserts": "two enqueue one key",
    "renew forgets the attempts": "take over and renew",
    "requeue looks before it frees": "requeue and renew",
    "start is torn": "requeue and start",
    "complete ends any job": "take over and complete",
}


@pytest.mark.parametrize("twin", TWINS)
def test_a_broken_twin_is_told_by_an_interleaving(
    twin: str, pool: list[Actor], c: apsw.Connection
) -> None:
    """AMB-2, AMB-3: of each broken operation some interleaving is explained by no order."""
    found = [explained for _, explained in played(pool, c, CAUGHT[twin], twin)]
    assert False in found
    assert True in found


def test_a_history_that_no_order_gives_is_not_explained() -> None:
    """AMB-3: one job claimed by both, a lost job, and an answer out of order are told apart."""
    before, scripts = RACES["two claim one"]
    first, second = before.copy(), before.copy()
    one, two = first.claim("one", 50, 5), second.claim("two", 50, 6)
    assert is_explained(before, scripts, [[one], [None]], first)
    assert is_explained(before, scripts, [[None], [two]], second)
    for answers, after in (
        ([[one], [two]], first),
        ([[None], [None]], before),
        ([[one], [None]], second),
        ([[one], [None]], before),
        ([[MetabolismError], [two]], second),
    ):
        assert not is_explained(before, scripts, answers, after)
