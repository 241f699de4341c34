"""Runs: a run and its job change together or not at all, and an old claim changes neither."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from metabolism_world import (
    NOT_INTEGERS,
    NOT_TEXTS,
    NOW,
    claimed,
    dump,
    enqueue,
    opened,
    refused,
    running,
)

from store.metabolism import (
    Job,
    Run,
    claim_next_job,
    complete_run,
    job_by_id,
    latest_run_for_job,
    requeue_expired_jobs,
    start_run,
    update_job_state,
)
from store.metabolism.errors import (
    JobMissing,
    NotAnInteger,
    NotText,
    OutOfRange,
    RunIsCompleted,
    RunMissing,
    StaleClaim,
)
from store.sqlite import rows


@pytest.fixture
def c(tmp_path: Path) -> Iterator[apsw.Connection]:
    yield from opened(tmp_path / "a.sqlite3")


def claimed_again(c: apsw.Connection, job: Job) -> Job:
    """Give a lapsed job to another worker."""
    assert requeue_expired_jobs(c, now_ns=NOW + 1) == 1
    claim = claim_next_job(c, owner="other", now_ns=NOW + 1)
    assert claim is not None
    assert claim.job_id == job.job_id
    return claim


def test_start_run_inserts_the_run_and_moves_the_job(c: apsw.Connection) -> None:
    """MR-016: one open run of this claim, and the job is running under its lease."""
    claim = claimed(c)
    run = start_run(c, claim, log_path="logs/1.log", now_ns=NOW + 4)
    assert run == Run(1, claim.job_id, 1, NOW + 4, None, None, "logs/1.log")
    assert dump(c)["runs"] == [tuple(run)]
    assert job_by_id(c, claim.job_id) == claim._replace(state="running", updated_at_ns=NOW + 4)


def test_start_run_moves_the_job_through_the_one_place(c: apsw.Connection) -> None:
    """MR-015, MR-016: where the job cannot be moved no run is inserted."""
    claim = claimed(c)
    rows(
        c,
        "CREATE TRIGGER t BEFORE UPDATE OF state ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END",
    )
    with refused(c, apsw.ConstraintError):
        start_run(c, claim, now_ns=NOW)


def test_start_run_is_one_transaction(c: apsw.Connection) -> None:
    """AMB-2: where the run cannot be inserted the job stays claimed."""
    claim = claimed(c)
    rows(c, "CREATE TRIGGER t BEFORE INSERT ON runs BEGIN SELECT RAISE(ABORT, 'no'); END")
    with refused(c, apsw.ConstraintError):
        start_run(c, claim, now_ns=NOW)
    assert job_by_id(c, claim.job_id).state == "claimed"


def test_start_run_twice_is_refused(c: apsw.Connection) -> None:
    """MR-016: one claim starts one run."""
    claim, _ = running(c)
    with refused(c, StaleClaim) as caught:
        start_run(c, claim, now_ns=NOW)
    assert "it is running under claim number 1, of 'worker'" in str(caught.value)


def test_start_run_under_an_old_claim_is_refused(c: apsw.Connection) -> None:
    """MR-016, AMB-3: who was requeued starts nothing, be the job free or held by another."""
    old = claimed(c, lease_ns=-1)
    requeue_expired_jobs(c, now_ns=NOW)
    with refused(c, StaleClaim):
        start_run(c, old, now_ns=NOW)
    assert claim_next_job(c, owner="other", now_ns=NOW) is not None
    with refused(c, StaleClaim) as caught:
        start_run(c, old, now_ns=NOW)
    assert (caught.value.attempt, caught.value.job_id) == (1, old.job_id)


def test_start_run_under_a_lapsed_claim_that_nobody_took(c: apsw.Connection) -> None:
    """MR-016: a lapse takes the job away only when it is requeued."""
    claim = claimed(c, lease_ns=-1)
    assert start_run(c, claim, now_ns=NOW).attempt == 1


@pytest.mark.parametrize("state", ["queued", "recoverable", "completed", "failed", "running"])
def test_start_run_needs_a_claimed_job(c: apsw.Connection, state: str) -> None:
    """MR-016: a job that an operator moved meanwhile is not started."""
    claim = claimed(c)
    update_job_state(c, claim.job_id, state, now_ns=NOW)
    with refused(c, StaleClaim):
        start_run(c, claim, now_ns=NOW)


@pytest.mark.parametrize("return_code", [0, 1, -9, 2**63 - 1, -(2**63) + 1])
@pytest.mark.parametrize("finalize_job", [False, True])
def test_complete_run_writes_the_end(
    c: apsw.Connection, return_code: int, finalize_job: bool
) -> None:
    """MR-017: the run has its time of completion and its return code, and is returned so."""
    _, run = running(c)
    ended = complete_run(c, run, return_code=return_code, finalize_job=finalize_job, now_ns=NOW + 8)
    assert ended == run._replace(completed_at_ns=NOW + 8, return_code=return_code)
    assert dump(c)["runs"] == [tuple(ended)]


@pytest.mark.parametrize(
    ("return_code", "state"), [(0, "completed"), (1, "failed"), (-9, "failed"), (256, "failed")]
)
def test_finalizing_ends_the_job(c: apsw.Connection, return_code: int, state: str) -> None:
    """MR-018, AMB-6: return code 0 completes the job, any other fails it; its lease is kept."""
    claim, run = running(c)
    complete_run(c, run, return_code=return_code, finalize_job=True, now_ns=NOW + 8)
    assert job_by_id(c, claim.job_id) == claim._replace(state=state, updated_at_ns=NOW + 8)


def test_without_finalizing_the_job_stays_as_it_is(c: apsw.Connection) -> None:
    """MR-018: a finished run over a job that still runs is reached on purpose."""
    claim, run = running(c)
    before = job_by_id(c, claim.job_id)
    complete_run(c, run, return_code=0, now_ns=NOW + 8)
    assert job_by_id(c, claim.job_id) == before
    assert before.state == "running"


def test_complete_run_is_one_transaction(c: apsw.Connection) -> None:
    """AMB-2: where the job cannot be ended, the run stays open too."""
    _, run = running(c)
    rows(
        c,
        "CREATE TRIGGER t BEFORE UPDATE OF state ON jobs BEGIN SELECT RAISE(ABORT, 'no'); END",
    )
    with refused(c, apsw.ConstraintError):
        complete_run(c, run, return_code=0, finalize_job=True, now_ns=NOW)
    complete_run(c, run, return_code=0, now_ns=NOW)


@pytest.mark.parametrize("finalize_job", [False, True])
def test_an_end_is_never_rewritten(c: apsw.Connection, finalize_job: bool) -> None:
    """MR-017: a second completion is refused and names the first return code."""
    _, run = running(c)
    complete_run(c, run, return_code=3, finalize_job=finalize_job, now_ns=NOW)
    for again in (False, True):
        with refused(c, RunIsCompleted) as caught:
            complete_run(c, run, return_code=0, finalize_job=again, now_ns=NOW + 1)
        assert (caught.value.run_id, caught.value.return_code) == (run.run_id, 3)


def test_a_missing_run_is_named(c: apsw.Connection) -> None:
    """MR-017: a run that is not there is not completed."""
    _, run = running(c)
    with refused(c, RunMissing) as caught:
        complete_run(c, run._replace(run_id=77), return_code=0, now_ns=NOW)
    assert caught.value.run_id == 77


def test_a_run_of_an_old_claim_ends_no_job(c: apsw.Connection) -> None:
    """MR-018, AMB-3: the old worker's run can be recorded, but the job is another's by now."""
    job, old = running(c, lease_ns=-1)
    claim = claimed_again(c, job)
    for started in (False, True):
        if started:
            start_run(c, claim, now_ns=NOW)
        with refused(c, StaleClaim) as caught:
            complete_run(c, old, return_code=0, finalize_job=True, now_ns=NOW + 2)
        assert (caught.value.job_id, caught.value.attempt) == (job.job_id, 1)
    held = job_by_id(c, job.job_id)
    complete_run(c, old, return_code=0, now_ns=NOW + 2)
    assert job_by_id(c, job.job_id) == held
    newest = latest_run_for_job(c, job.job_id)
    assert newest is not None
    complete_run(c, newest, return_code=1, finalize_job=True, now_ns=NOW + 3)
    assert job_by_id(c, job.job_id).state == "failed"


@pytest.mark.parametrize("state", ["queued", "recoverable", "completed", "failed"])
def test_finalizing_needs_a_running_job(c: apsw.Connection, state: str) -> None:
    """MR-018: what an operator decided about the job stays, and the run stays open."""
    job, run = running(c)
    update_job_state(c, job.job_id, state, now_ns=NOW)
    with refused(c, StaleClaim) as caught:
        complete_run(c, run, return_code=0, finalize_job=True, now_ns=NOW)
    assert caught.value.found == f"it is {state}"


def test_facts_of_the_database_win_over_the_record(c: apsw.Connection) -> None:
    """MR-018: a record that names another job or claim ends the job that its run belongs to."""
    job, run = running(c, "a")
    other, _ = running(c, "b")
    forged = run._replace(job_id=other.job_id, attempt=9)
    assert complete_run(c, forged, return_code=0, finalize_job=True, now_ns=NOW).attempt == 1
    assert job_by_id(c, job.job_id).state == "completed"
    assert job_by_id(c, other.job_id).state == "running"


def test_the_newest_run_is_the_last_inserted(c: apsw.Connection) -> None:
    """MR-019: whatever times the clocks showed, the greatest run number is the newest."""
    job, first = running(c, lease_ns=-1)
    other, only = running(c, "other")
    claim = claimed_again(c, job)
    second = start_run(c, claim, now_ns=0)
    assert second.started_at_ns < first.started_at_ns
    assert latest_run_for_job(c, job.job_id) == second
    assert latest_run_for_job(c, other.job_id) == only
    assert (first.attempt, second.attempt) == (1, 2)


def test_a_job_without_a_run_has_no_newest(c: apsw.Connection) -> None:
    """MR-019: None for a job that never ran, an error for a job that is not there."""
    assert latest_run_for_job(c, enqueue(c).job_id) is None
    with refused(c, JobMissing):
        latest_run_for_job(c, 77)


def test_deleting_a_job_with_runs_is_refused(c: apsw.Connection) -> None:
    """MR-004, MR-016: foreign keys hold, so no run is ever without its job."""
    job, _ = running(c)
    with refused(c, apsw.ConstraintError):
        rows(c, "DELETE FROM jobs WHERE job_id = ?", (job.job_id,))


@pytest.mark.parametrize("value", NOT_TEXTS, ids=range(len(NOT_TEXTS)))
def test_what_is_no_path_is_refused(c: apsw.Connection, value: Any) -> None:
    """MR-016: a log path is a text that can be stored; the job stays claimed."""
    claim = claimed(c)
    with refused(c, NotText) as caught:
        start_run(c, claim, log_path=value, now_ns=NOW)
    assert caught.value.name == "log_path"


@pytest.mark.parametrize("number", range(len(NOT_INTEGERS)))
def test_what_is_no_integer_is_no_run(c: apsw.Connection, number: int) -> None:
    """MR-016, MR-017: times, codes and identifiers are integers of 64 bits."""
    value = NOT_INTEGERS[number]
    claim = claimed(c, "a")
    with refused(c, NotAnInteger):
        start_run(c, claim, now_ns=value)
    for name in ("job_id", "attempts"):
        with refused(c, NotAnInteger) as caught:
            start_run(c, claim._replace(**{name: value}), now_ns=NOW)
        assert caught.value.name == name
    run = start_run(c, claim, now_ns=NOW)
    for name in ("return_code", "now_ns"):
        given: dict[str, Any] = {"return_code": 0, "now_ns": NOW, name: value}
        with refused(c, NotAnInteger) as caught:
            complete_run(c, run, **given)
        assert caught.value.name == name
    with refused(c, NotAnInteger):
        complete_run(c, run._replace(run_id=value), return_code=0, now_ns=NOW)
    with refused(c, NotAnInteger):
        latest_run_for_job(c, value)


def test_times_begin_at_zero(c: apsw.Connection) -> None:
    """MR-016, MR-017: a time before 1970 is refused, 1970 itself is not."""
    claim = claimed(c)
    with refused(c, OutOfRange):
        start_run(c, claim, now_ns=-1)
    run = start_run(c, claim, now_ns=0)
    with refused(c, OutOfRange):
        complete_run(c, run, return_code=0, now_ns=-1)
    assert complete_run(c, run, return_code=0, now_ns=0).completed_at_ns == 0
