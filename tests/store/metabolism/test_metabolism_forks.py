"""What a forked child may do with its parent's connection: nothing that writes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import apsw

from store.metabolism import (
    append_claim_event,
    claim_next_job,
    complete_run,
    connect,
    enqueue_job,
    job_by_id,
    renew_claim,
    requeue_expired_jobs,
    start_run,
    update_job_state,
)
from store.metabolism.errors import ForkedConnection


def in_a_fork(act: Callable[[], object]) -> object:
    """Return what *act* returns in a forked child, or the exception that it raises there."""

    def run(end: Connection) -> None:
        try:
            answer = act()
        except Exception as error:
            answer = error
        end.send_bytes(pickle.dumps(answer))

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=run, args=(there,))
    child.start()
    there.close()
    try:
        answer: object = pickle.loads(here.recv_bytes())
    finally:
        child.join()
    return answer


def operations(c: apsw.Connection) -> list[Callable[[], object]]:
    """Return one call of each operation that writes, none of which would be refused here."""
    for key in "abc":
        enqueue_job(c, kind="k", idempotency_key=key, now_ns=0)
    first, second = (claim_next_job(c, owner="w", now_ns=0) for _ in "ab")
    assert first is not None
    assert second is not None
    run = start_run(c, first, now_ns=0)
    words = {"claim_id": "c", "subject": "s", "predicate": "p", "object": "o"}
    return [
        lambda: enqueue_job(c, kind="k", idempotency_key="d", now_ns=1),
        lambda: claim_next_job(c, owner="w", now_ns=1),
        lambda: renew_claim(c, second, now_ns=1),
        lambda: requeue_expired_jobs(c, now_ns=1),
        lambda: update_job_state(c, 3, "failed", now_ns=1),
        lambda: start_run(c, second, now_ns=1),
        lambda: complete_run(c, run, return_code=0, now_ns=1),
        lambda: append_claim_event(c, kind="claim_asserted", now_ns=1, **words),
    ]


def test_a_connection_is_refused_in_a_forked_child(tmp_path: Path) -> None:
    """AMB-2: SQLite's locks stay with the parent, so the child writes nothing, and says why."""
    c = connect(tmp_path / "a.sqlite3")
    acts = operations(c)
    changes = c.total_changes()
    for act in acts:
        refusal = in_a_fork(act)
        assert isinstance(refusal, ForkedConnection)
        assert refusal.opened_by == os.getpid()
        assert refusal.path == str(tmp_path / "a.sqlite3")
    assert c.total_changes() == changes
    for act in acts:
        act()
    c.close()


def test_a_claim_crosses_a_fork_though_its_connection_does_not(tmp_path: Path) -> None:
    """MR-011: a child that connects itself goes on with the claim that its parent handed to it."""
    path = tmp_path / "a.sqlite3"
    c = connect(path)
    enqueue_job(c, kind="k", idempotency_key="a", now_ns=0)
    claim = claim_next_job(c, owner="w", now_ns=0)
    assert claim is not None

    def work() -> object:
        own = connect(path)
        run = start_run(own, claim, now_ns=1)
        complete_run(own, run, return_code=0, finalize_job=True, now_ns=2)
        own.close()
        return run.run_id

    assert in_a_fork(work) == 1
    assert job_by_id(c, claim.job_id).state == "completed"
    c.close()
