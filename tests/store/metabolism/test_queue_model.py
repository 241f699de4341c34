"""
The queue and its runs against a model of plain Python: every answer, and every row after it.

Covered: any order of operations by any number of owners, with old claims and clocks that go back,
through two connections of one process. Not covered: processes at once; see test_concurrency.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import apsw
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from metabolism_histories import reset
from metabolism_model import ENDED, HELD, WAITING, Model
from metabolism_world import dump

from store.metabolism import (
    Job,
    Run,
    claim_next_job,
    complete_run,
    connect,
    enqueue_job,
    latest_run_for_job,
    queue,
    renew_claim,
    requeue_expired_jobs,
    start_run,
    update_job_state,
)
from store.metabolism.errors import (
    MetabolismError,
)

CLOCKS = st.integers(0, 12)
LEASES = st.integers(-2, 6)
SIDES = st.sampled_from([0, 1])


class QueueMachine(RuleBasedStateMachine):
    """Drives two connections on one database, and the model beside them."""

    keeper: ClassVar[apsw.Connection]
    """Stays open, so that no other connection is the last, which would sync the database."""

    outcomes: ClassVar[Counter[str]] = Counter()

    @initialize()
    def open(self) -> None:
        self.path = Path(self.keeper.db_filename("main"))
        reset(self.keeper, Model())
        self.sides = [connect(self.path), connect(self.path)]
        self.model = Model()
        self.claims: list[Job] = []
        self.runs: list[Run] = []
        for at, key in enumerate("abc"):
            self.enqueue(at % 2, key, 1, 0, at // 2)

    def teardown(self) -> None:
        for side in getattr(self, "sides", []):
            side.close()

    def answered(self, name: str, expected: object, operation: Callable[[], object]) -> Any:
        """Run *operation*, which must answer, or be refused, as *expected*."""
        self.outcomes[f"{name} {getattr(expected, '__name__', type(expected).__name__)}"] += 1
        if isinstance(expected, type):
            with pytest.raises(MetabolismError) as caught:
                operation()
            assert caught.type is expected
            return None
        found = operation()
        assert found == expected
        return found

    @rule(
        side=SIDES,
        key=st.sampled_from("abcde"),
        priority=st.sampled_from([0, 1, 1, 100]),
        not_before_ns=st.sampled_from([0, 0, 0, 3, 9]),
        now_ns=CLOCKS,
    )
    def enqueue(self, side: int, key: str, priority: int, not_before_ns: int, now_ns: int) -> None:
        expected = self.model.enqueue(key, priority, not_before_ns, now_ns)
        self.answered(
            "enqueue",
            expected,
            lambda: enqueue_job(
                self.sides[side],
                kind="mail",
                idempotency_key=key,
                priority=priority,
                not_before_ns=not_before_ns,
                now_ns=now_ns,
            ),
        )
        self.outcomes[f"enqueue {expected[1]}"] += 1

    @rule(
        side=SIDES,
        owner=st.sampled_from(["one", "two"]),
        lease_ns=LEASES,
        now_ns=st.just(12) | CLOCKS,
    )
    def claim(self, side: int, owner: str, lease_ns: int, now_ns: int) -> None:
        claim = self.answered(
            "claim",
            self.model.claim(owner, lease_ns, now_ns),
            lambda: claim_next_job(self.sides[side], owner=owner, lease_ns=lease_ns, now_ns=now_ns),
        )
        self.claims += [] if claim is None else [claim]

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), side=SIDES, lease_ns=LEASES, now_ns=CLOCKS)
    def renew(self, data: st.DataObject, side: int, lease_ns: int, now_ns: int) -> None:
        claim = self.drawn(data, self.claims)
        self.answered(
            "renew",
            self.model.renew(claim, lease_ns, now_ns),
            lambda: renew_claim(self.sides[side], claim, lease_ns=lease_ns, now_ns=now_ns),
        )

    @rule(side=SIDES, now_ns=CLOCKS)
    def requeue(self, side: int, now_ns: int) -> None:
        count = self.model.requeue(now_ns)
        c = self.sides[side]
        self.answered("requeue", count, lambda: requeue_expired_jobs(c, now_ns=now_ns))
        self.outcomes[f"requeue {min(count, 2)}"] += 1
        assert requeue_expired_jobs(c, now_ns=now_ns) == 0

    @precondition(lambda self: len(self.active()) > 1)
    @rule(
        data=st.data(),
        side=SIDES,
        state=st.sampled_from([*WAITING, *WAITING, *WAITING, *ENDED, *HELD]),
        now_ns=CLOCKS,
    )
    def update(self, data: st.DataObject, side: int, state: str, now_ns: int) -> None:
        ids = [job.job_id for job in self.active()]
        job_id = data.draw(st.sampled_from(ids) | st.integers(1, len(self.model.jobs)))
        self.answered(
            "update",
            self.model.update(job_id, state, now_ns),
            lambda: update_job_state(self.sides[side], job_id, state, now_ns=now_ns),
        )

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), side=SIDES, now_ns=CLOCKS)
    def start(self, data: st.DataObject, side: int, now_ns: int) -> None:
        claim = self.drawn(data, self.claims)
        run = self.answered(
            "start",
            self.model.start(claim, now_ns),
            lambda: start_run(self.sides[side], claim, now_ns=now_ns),
        )
        self.runs += [] if run is None else [run]

    @precondition(lambda self: self.runs)
    @rule(
        data=st.data(),
        side=SIDES,
        code=st.integers(-1, 1),
        finalize_job=st.booleans(),
        now_ns=CLOCKS,
    )
    def complete(
        self, data: st.DataObject, side: int, code: int, finalize_job: bool, now_ns: int
    ) -> None:
        self.end(side, self.drawn(data, self.runs), code, finalize_job, now_ns)

    def end(self, side: int, run: Run, code: int, finalize_job: bool, now_ns: int) -> None:
        self.answered(
            "complete",
            self.model.complete(run, code, finalize_job, now_ns),
            lambda: complete_run(
                self.sides[side], run, return_code=code, finalize_job=finalize_job, now_ns=now_ns
            ),
        )

    @precondition(lambda self: self.claims)
    @rule(side=SIDES, lease_ns=LEASES)
    def pass_on(self, side: int, lease_ns: int) -> None:
        """Let every lease lapse and another worker take the first job, so that claims grow old."""
        self.requeue(side, 30)
        self.claim(1 - side, "three", lease_ns, 12)

    @rule(side=SIDES, lease_ns=LEASES, then=st.sampled_from(["", "lapse", "end"]))
    def work(self, side: int, lease_ns: int, then: str) -> None:
        """Take the first job to an open run, and from there to its end or to another worker."""
        claims = len(self.claims)
        self.claim(side, "four", lease_ns, 12)
        if len(self.claims) == claims:
            return
        claim = self.claims[-1]
        run = self.answered(
            "start",
            self.model.start(claim, 12),
            lambda: start_run(self.sides[side], claim, now_ns=12),
        )
        self.runs.append(run)
        if then == "lapse":
            self.pass_on(side, lease_ns)
        if then:
            self.end(side, run, 0, True, 12)

    @rule(side=SIDES)
    def reopen(self, side: int) -> None:
        self.sides[side].close()
        self.sides[side] = connect(self.path)

    def active(self) -> list[Job]:
        return [job for job in self.model.jobs if job.state not in ENDED]

    def drawn(self, data: st.DataObject, records: list[Any]) -> Any:
        """Draw a record, the latest more often than an old one."""
        return records[-data.draw(st.just(1) | st.integers(1, len(records)))]

    @invariant()
    def both_connections_show_the_model(self) -> None:
        for side in self.sides[: 1 + len(self.runs) % 2]:
            found = dump(side)
            assert [Job._make(row) for row in found["jobs"]] == self.model.jobs
            assert [Run._make(row) for row in found["runs"]] == self.model.runs

    @invariant()
    def the_newest_run_is_the_models(self) -> None:
        for job in self.model.jobs:
            assert latest_run_for_job(self.sides[0], job.job_id) == self.model.newest(job.job_id)

    @invariant()
    def a_key_is_held_once(self) -> None:
        held = Counter(job.idempotency_key for job in self.model.jobs if job.state not in ENDED)
        assert max(held.values(), default=1) == 1


OUTCOMES = {
    "enqueue True",
    "enqueue False",
    "claim Job",
    "claim NoneType",
    "renew Job",
    "renew StaleClaim",
    "requeue 0",
    "requeue 1",
    "requeue 2",
    "update Job",
    "update JobIsTerminal",
    "update OnlyByClaim",
    "start Run",
    "start StaleClaim",
    "complete Run",
    "complete RunIsCompleted",
    "complete StaleClaim",
}


@pytest.fixture(autouse=True)
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    connection = connect(tmp_path / "a.sqlite3")
    monkeypatch.setattr(QueueMachine, "keeper", connection, raising=False)
    yield
    connection.close()


def played(examples_max: int, *, is_broken: bool = False) -> None:
    phases = [Phase.generate] if is_broken else list(Phase)
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=examples_max,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            print_blob=False,
            phases=phases,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


@pytest.mark.slow
def test_the_queue_is_the_model_step_by_step() -> None:
    """
    MR-008 MR-010 MR-011 MR-013 MR-014 MR-015 MR-016 MR-017 MR-018 MR-019 AMB-1 AMB-3 AMB-4: any
    order of operations is answered as the model says, and every answer occurs.
    """
    QueueMachine.outcomes.clear()
    played(80)
    assert set(QueueMachine.outcomes) >= OUTCOMES


BROKEN = {
    "age decides nothing": ("_NEXT", "priority, created_at_ns, job_id", "priority, job_id"),
    "the newer of equals is taken": ("_NEXT", "created_at_ns, job_id", "created_at_ns, -job_id"),
    "the priority is turned round": ("_NEXT", "ORDER BY priority", "ORDER BY -priority"),
    "a job is due too late": ("_NEXT", "not_before_ns <= ", "not_before_ns < "),
    "only new jobs are claimed": ("_NEXT", r"'recoverable'\) AND not", "'x') AND not"),
    "a lease lapses too early": ("_REQUEUE", "claim_expires_at_ns < ", "claim_expires_at_ns <= "),
    "ambiguous jobs are requeued": ("_REQUEUE", r"(claim_expires_at_ns < \?).*", r"\1"),
    "requeued jobs keep their owner": ("_REQUEUE", "claim_owner = NULL, ", "claim_owner = 'x', "),
    "the attempts guard nothing": ("_RENEW", r"AND attempts = \?", "AND ?"),
    "a claim renews a free job": ("_RENEW", r"state IN \('claimed', 'running'\)", "state <> ''"),
    "an ended job moves": ("_MOVE", r"state NOT IN \('completed', 'failed'\)", "state <> ''"),
    "any claim starts and ends": ("_MOVE", r"AND attempts = \?7", "AND ?7"),
}
"""A defect of a word, as the statement, what it says, and what it says then."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_the_model_tells_a_broken_queue(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MR-011, MR-013, MR-014, MR-015: each planted defect of one word is found."""
    statement, right, wrong = BROKEN[name]
    text = str(getattr(queue, statement))
    broken, count = re.subn(right, wrong, text, flags=re.DOTALL)
    assert count == 1
    monkeypatch.setattr(queue, statement, broken)
    with pytest.raises(
        (AssertionError, apsw.ConstraintError, MetabolismError, pytest.fail.Exception)
    ):
        played(200, is_broken=True)
