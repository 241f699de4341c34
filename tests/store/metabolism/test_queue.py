"""The queue: one active job a key, the right job to each claimer, leases that lapse or live."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from metabolism_world import (
    NOW,
    S,
    claimed,
    dump,
    enqueue,
    opened,
    refused,
    running,
)

from store.metabolism import (
    Job,
    JobState,
    claim_next_job,
    complete_run,
    enqueue_job,
    job_by_id,
    renew_claim,
    requeue_expired_jobs,
    start_run,
    update_job_state,
)
from store.metabolism.errors import (
    JobIsTerminal,
    JobMissing,
    OnlyByClaim,
    StaleClaim,
    UnknownJobState,
)
from store.metabolism.queue import LEASE_NS, PRIORITY, REQUEUED
from store.sqlite import rows

WAITING = (JobState.QUEUED, JobState.RECOVERABLE)


@pytest.fixture
def c(tmp_path: Path) -> Iterator[apsw.Connection]:
    yield from opened(tmp_path / "a.sqlite3")


def claim(c: apsw.Connection, **changed: Any) -> Job | None:
    given: dict[str, Any] = {"owner": "worker", "now_ns": NOW, **changed}
    return claim_next_job(c, **given)


def test_enqueue_inserts_one_row_and_returns_it(c: apsw.Connection) -> None:
    """MR-009: the job is returned as it stands in its one new row, with True."""
    job, is_new = enqueue_job(
        c,
        kind="mail",
        idempotency_key="k",
        params={"b": [1, None], "a": "ü"},
        provider="smtp",
        priority=0,
        not_before_ns=7,
        now_ns=5,
    )
    assert is_new
    params = '{"a":"ü","b":[1,null]}'
    assert job == (1, "mail", "smtp", params, "k", "queued", 0, 7, None, None, 0, None, 5, 5)
    assert dump(c)["jobs"] == [tuple(job)]


def test_what_a_job_has_unasked(c: apsw.Connection) -> None:
    """MR-009, AMB-1: no parameters, priority 100, due at once, no lease, no attempts."""
    job = enqueue(c)
    assert (job.params_json, job.priority, job.not_before_ns) == ("{}", PRIORITY, 0)
    assert (job.claim_owner, job.claim_expires_at_ns, job.attempts) == (None, None, 0)
    assert PRIORITY == 100


@pytest.mark.parametrize("state", ["queued", "claimed", "running", "recoverable"])
def test_a_held_key_gives_the_job_that_holds_it(c: apsw.Connection, state: str) -> None:
    """MR-010: while the job is active its key inserts nothing and returns that job as it is."""
    if state in ("claimed", "recoverable"):
        claimed(c, "k", lease_ns=-1)
        requeue_expired_jobs(c, now_ns=NOW) if state == "recoverable" else None
    elif state == "running":
        running(c, "k")
    else:
        enqueue(c, "k")
    before = dump(c)
    job, is_new = enqueue_job(
        c, kind="other", idempotency_key="k", params={"x": 1}, priority=1, now_ns=NOW + 9
    )
    assert (is_new, job.state, job.kind) == (False, state, "mail")
    assert dump(c) == before == {**before, "jobs": [tuple(job)]}


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_an_ended_job_frees_its_key(c: apsw.Connection, state: str) -> None:
    """MR-008: once the job has ended, its key makes another job, and the ended one stays."""
    for number in range(1, 4):
        job = enqueue(c, "k")
        assert job.job_id == number
        update_job_state(c, job.job_id, state, now_ns=NOW)
    assert [row[5] for row in dump(c)["jobs"]] == [state] * 3
    assert enqueue_job(c, kind="k", idempotency_key="k", now_ns=NOW)[0].job_id == 4


def test_keys_are_compared_by_their_bytes(c: apsw.Connection) -> None:
    """MR-010: case, accents in two spellings, and spaces make different keys."""
    for key in ("k", "K", " k", "\u00e9", "e\u0301"):
        enqueue(c, key)
    assert len(dump(c)["jobs"]) == 5


def test_an_error_that_is_not_about_the_key_is_not_a_duplicate(c: apsw.Connection) -> None:
    """MR-010: a constraint that fails while the key is free is raised; it is no duplicate."""
    rows(
        c,
        "CREATE TRIGGER t BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'an operator''s'); END",
    )
    with refused(c, apsw.ConstraintError):
        enqueue(c)


def test_claim_takes_priority_then_age_then_number(c: apsw.Connection) -> None:
    """MR-011, AMB-1: the smallest priority first, then the oldest, then the lower job id."""
    order = [(0, 9), (1, 5), (1, 5), (1, 6), (100, 1), (100, 2), (2**63 - 1, 0)]
    for at in (5, 3, 1, 6, 2, 0, 4):
        enqueue(c, str(at), priority=order[at][0], now_ns=order[at][1])
    taken = [claim(c, now_ns=NOW + at) for at in range(8)]
    keys = [int(job.idempotency_key) for job in taken if job is not None]
    assert taken[7] is None
    assert [order[key] for key in keys] == sorted(order)
    ids = [job.job_id for job in taken if job is not None and order[1][1] == job.created_at_ns]
    assert ids == sorted(ids)
    assert len(ids) == 2


def test_claim_stamps_the_lease(c: apsw.Connection) -> None:
    """MR-011: the claimed job has its owner, its lapse, one more attempt, and its time."""
    job = enqueue(c)
    taken = claim(c, owner="w", lease_ns=7 * S, now_ns=NOW + 3)
    assert taken == job._replace(
        state="claimed",
        claim_owner="w",
        claim_expires_at_ns=NOW + 3 + 7 * S,
        attempts=1,
        updated_at_ns=NOW + 3,
    )
    assert dump(c)["jobs"] == [tuple(taken)]
    assert LEASE_NS == 60 * S


@pytest.mark.parametrize("state", [state for state in JobState if state not in WAITING])
def test_claim_takes_no_job_in_another_state(c: apsw.Connection, state: JobState) -> None:
    """MR-011, AMB-3: only queued and recoverable jobs can be claimed."""
    job = claimed(c)
    if state is not JobState.CLAIMED:
        update_job_state(c, job.job_id, state, now_ns=NOW)
    before = dump(c)
    assert claim(c, now_ns=NOW + 10**6 * S) is None
    assert dump(c) == before


@pytest.mark.parametrize(("early_ns", "is_due"), [(0, True), (1, False), (-1, True)])
def test_a_job_is_due_exactly_at_its_time(c: apsw.Connection, early_ns: int, is_due: bool) -> None:
    """MR-011: not_before_ns itself is due, a nanosecond before it is not."""
    enqueue(c, not_before_ns=NOW + 5)
    assert (claim(c, now_ns=NOW + 5 - early_ns) is not None) is is_due


def test_a_job_that_is_not_due_hides_no_other(c: apsw.Connection) -> None:
    """MR-011: the most urgent that is due is taken, past more urgent ones that are not."""
    for at in range(50):
        enqueue(c, f"later-{at}", priority=0, not_before_ns=NOW + 1)
    due = enqueue(c, "due", priority=9)
    taken = claim(c)
    assert taken is not None
    assert taken.job_id == due.job_id


def test_a_negative_lease_has_lapsed_already(c: apsw.Connection) -> None:
    """MR-012: a lease of minus one second is legal, and the next requeue takes the job back."""
    job = claimed(c, lease_ns=-S)
    assert (job.state, job.claim_expires_at_ns) == ("claimed", NOW - S)
    assert requeue_expired_jobs(c, now_ns=NOW) == 1


@pytest.mark.parametrize(("later_ns", "has_lapsed"), [(-1, False), (0, False), (1, True)])
@pytest.mark.parametrize("state", ["claimed", "running"])
def test_a_lease_lapses_strictly_after_its_time(
    c: apsw.Connection, state: str, later_ns: int, has_lapsed: bool
) -> None:
    """MR-013, AMB-4: a lease that ends exactly now lives; one nanosecond later it has lapsed."""
    job = claimed(c, lease_ns=5) if state == "claimed" else running(c, lease_ns=5)[0]
    assert requeue_expired_jobs(c, now_ns=NOW + 5 + later_ns) == int(has_lapsed)
    found = job_by_id(c, job.job_id)
    assert found.state == ("recoverable" if has_lapsed else state)


def test_requeue_frees_the_job_and_keeps_its_attempts(c: apsw.Connection) -> None:
    """MR-013: owner and lapse are cleared, the state is recoverable, the count is returned."""
    job = claimed(c, "a", lease_ns=-1)
    run = running(c, "b", lease_ns=-1)[0]
    claimed(c, "c", lease_ns=0)
    enqueue(c, "d")
    assert requeue_expired_jobs(c, now_ns=NOW) == 2
    for held in (job, run):
        assert job_by_id(c, held.job_id) == held._replace(
            state="recoverable", claim_owner=None, claim_expires_at_ns=None, last_error=REQUEUED
        )
    assert requeue_expired_jobs(c, now_ns=NOW) == 0


def test_requeue_leaves_every_other_job_alone(c: apsw.Connection) -> None:
    """MR-014: waiting, ended and living jobs are as they were, and so are the runs."""
    claimed(c, "lives", lease_ns=0)
    running(c, "runs", lease_ns=0)
    for state in ("completed", "failed"):
        update_job_state(c, claimed(c, state, lease_ns=-1).job_id, state, now_ns=NOW)
    enqueue(c, "waits")
    before = dump(c)
    assert requeue_expired_jobs(c, now_ns=NOW) == 0
    assert dump(c) == before


def test_requeue_leaves_what_is_ambiguous(c: apsw.Connection) -> None:
    """MR-014: a lapsed job without a run, or over an ended one, is not guessed about."""
    by_hand = claimed(c, "by hand", lease_ns=-1)
    update_job_state(c, by_hand.job_id, "running", now_ns=NOW)
    _, run = running(c, "ended", lease_ns=-1)
    complete_run(c, run, return_code=0, now_ns=NOW)
    torn = claimed(c, "torn", lease_ns=-1)
    rows(c, "INSERT INTO runs VALUES (9, ?, 1, 1, 2, 0, NULL)", (torn.job_id,))
    started_twice = claimed(c, "started twice", lease_ns=-1)
    rows(c, "UPDATE jobs SET attempts = 2, state = 'running' WHERE job_id = ?", started_twice[:1])
    rows(c, "INSERT INTO runs VALUES (10, ?, 1, 1, NULL, NULL, NULL)", started_twice[:1])
    before = dump(c)
    assert requeue_expired_jobs(c, now_ns=NOW + 10**9 * S) == 0
    assert dump(c) == before


def test_requeue_looks_at_the_newest_run_only(c: apsw.Connection) -> None:
    """MR-014: an older run that has ended does not keep a job whose newest run is open."""
    _, run = running(c, "k")
    complete_run(c, run, return_code=1, now_ns=NOW)
    update_job_state(c, run.job_id, "recoverable", now_ns=NOW)
    again = claim(c, lease_ns=-1)
    assert again is not None
    assert requeue_expired_jobs(c, now_ns=NOW) == 1
    third = claim(c, lease_ns=-1)
    assert third is not None
    start_run(c, third, now_ns=NOW)
    assert requeue_expired_jobs(c, now_ns=NOW) == 1
    assert job_by_id(c, run.job_id).attempts == 3


def test_renew_lets_the_lease_live_from_now(c: apsw.Connection) -> None:
    """MR-011: a renewal writes the lapse and the time, nothing else, and may shorten too."""
    job = claimed(c)
    renewed = renew_claim(c, job, lease_ns=5, now_ns=NOW + 2)
    assert renewed == job._replace(claim_expires_at_ns=NOW + 7, updated_at_ns=NOW + 2)
    start_run(c, renewed, now_ns=NOW + 2)
    assert renew_claim(c, job, lease_ns=9, now_ns=NOW + 3).claim_expires_at_ns == NOW + 12


def test_renew_saves_a_lapsed_claim_until_it_is_requeued(c: apsw.Connection) -> None:
    """MR-013, AMB-4: lapsed and not requeued is still held; requeued is not."""
    job = claimed(c, lease_ns=-1)
    renew_claim(c, job, lease_ns=0, now_ns=NOW)
    assert requeue_expired_jobs(c, now_ns=NOW) == 0
    assert requeue_expired_jobs(c, now_ns=NOW + 1) == 1
    with refused(c, StaleClaim) as caught:
        renew_claim(c, job, now_ns=NOW + 1)
    assert (caught.value.job_id, caught.value.attempt) == (job.job_id, 1)
    assert caught.value.found == "it is recoverable"


def test_renew_of_another_claim_is_refused(c: apsw.Connection) -> None:
    """AMB-3: an older claim, also one of the same owner, renews nothing and says who holds it."""
    old = claimed(c, lease_ns=-1)
    requeue_expired_jobs(c, now_ns=NOW)
    assert claim(c) is not None
    with refused(c, StaleClaim) as caught:
        renew_claim(c, old, now_ns=NOW)
    assert "it is claimed under claim number 2, of 'worker'" in str(caught.value)


@pytest.mark.parametrize("state", ["completed", "failed", "queued", "recoverable"])
def test_renew_of_a_job_that_is_not_held_is_refused(c: apsw.Connection, state: str) -> None:
    """AMB-3: ended and waiting jobs have no lease that could be renewed."""
    job = claimed(c)
    update_job_state(c, job.job_id, state, now_ns=NOW)
    with refused(c, StaleClaim) as caught:
        renew_claim(c, job, now_ns=NOW)
    assert caught.value.found == f"it is {state}"


def test_renew_of_a_job_that_runs_without_a_lease_is_refused(c: apsw.Connection) -> None:
    """AMB-3: an operator took the lease away and set the job running; the old claim stays void."""
    job = claimed(c)
    for state in ("recoverable", "running"):
        update_job_state(c, job.job_id, state, now_ns=NOW)
    for shown in (job, job_by_id(c, job.job_id)):
        with refused(c, StaleClaim) as caught:
            renew_claim(c, shown, now_ns=NOW)
        assert caught.value.found == "it is running"


@pytest.mark.parametrize("state", [state for state in JobState if state != "claimed"])
def test_update_job_state_moves_a_job_by_hand(c: apsw.Connection, state: JobState) -> None:
    """MR-015: any state but claimed; a job that waits again gives up its lease, others keep it."""
    job = claimed(c)
    moved = update_job_state(c, job.job_id, state, last_error="by hand", now_ns=NOW + 1)
    freed = {"claim_owner": None, "claim_expires_at_ns": None} if state in WAITING else {}
    assert moved == job._replace(
        state=str(state), last_error="by hand", updated_at_ns=NOW + 1, **freed
    )
    assert type(moved.state) is str
    assert job_by_id(c, job.job_id) == moved


def test_update_job_state_moves_only_the_job_named(c: apsw.Connection) -> None:
    """MR-015: no other job changes."""
    jobs = [enqueue(c, key) for key in "abc"]
    update_job_state(c, jobs[1].job_id, "failed", now_ns=NOW)
    assert [job_by_id(c, job.job_id).state for job in jobs] == ["queued", "failed", "queued"]


@pytest.mark.parametrize("ended", ["completed", "failed"])
@pytest.mark.parametrize("state", [state for state in JobState if state != "claimed"])
def test_an_ended_job_never_moves(c: apsw.Connection, ended: str, state: JobState) -> None:
    """MR-015, AMB-6: completed and failed are left by no state, not even by themselves."""
    job = enqueue(c)
    update_job_state(c, job.job_id, ended, now_ns=NOW)
    with refused(c, JobIsTerminal) as caught:
        update_job_state(c, job.job_id, state, now_ns=NOW + 1)
    assert (caught.value.job_id, caught.value.state) == (job.job_id, ended)


@pytest.mark.parametrize("state", ["done", "", "QUEUED", None, 1, [], {}, 10**5_000], ids=range(8))
def test_an_unknown_state_is_refused(c: apsw.Connection, state: Any) -> None:
    """MR-015: what names no state is refused with the six that do."""
    job = enqueue(c)
    with refused(c, UnknownJobState) as caught:
        update_job_state(c, job.job_id, state, now_ns=NOW)
    assert str(caught.value).endswith(f"must be one of {', '.join(JobState)}.")


@pytest.mark.parametrize("state", ["claimed", JobState.CLAIMED])
def test_a_claim_is_never_made_by_hand(c: apsw.Connection, state: str) -> None:
    """MR-015: claimed without a holder would be a lease that nobody can renew."""
    job = enqueue(c)
    with refused(c, OnlyByClaim) as caught:
        update_job_state(c, job.job_id, state, now_ns=NOW)
    assert "claim_next_job" in str(caught.value)


def test_a_missing_job_is_named(c: apsw.Connection) -> None:
    """MR-015: every operation on a job that is not there says its number."""
    ghost = claimed(c)._replace(job_id=77)
    operations: list[Callable[[], object]] = [
        lambda: job_by_id(c, 77),
        lambda: update_job_state(c, 77, "failed", now_ns=NOW),
        lambda: renew_claim(c, ghost, now_ns=NOW),
        lambda: start_run(c, ghost, now_ns=NOW),
    ]
    for operation in operations:
        with refused(c, JobMissing) as caught:
            operation()
        assert caught.value.job_id == 77
