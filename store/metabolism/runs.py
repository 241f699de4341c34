"""
Runs: what a worker did with a job that it claimed.

Method: a run and its job change together, in one immediate transaction, fenced by the claim. The
one exception is on purpose: `complete_run` without *finalize_job* records the end of the run and
leaves its job running, for someone else to decide.
"""

from __future__ import annotations

import apsw

from store.metabolism.arguments import integer, text
from store.metabolism.errors import RunIsCompleted, RunMissing
from store.metabolism.queue import job_by_id, move, stale
from store.metabolism.records import Job, JobState, Run
from store.metabolism.transactions import immediate
from store.sqlite import changes, rows

__all__ = ["complete_run", "latest_run_for_job", "start_run"]

_INSERT = "INSERT INTO runs (job_id, attempt, started_at_ns, log_path) VALUES (?, ?, ?, ?)"

_COMPLETE = """UPDATE runs SET completed_at_ns = ?, return_code = ?
 WHERE run_id = ? AND completed_at_ns IS NULL"""

_BY_ID = "SELECT * FROM runs WHERE run_id = ?"

_NEWEST = "SELECT * FROM runs WHERE job_id = ? ORDER BY run_id DESC LIMIT 1"


def start_run(
    connection: apsw.Connection, claim: Job, *, log_path: str | None = None, now_ns: int
) -> Run:
    """
    Move the claimed job to running and insert its run, both or neither; return the run.

    Args:
        claim: What `claim_next_job` or `renew_claim` returned.
        log_path: The launch log, made before by `launch_log.create_log`.
    Durable: after success: both rows, see `storage`. After an error: nothing.
    Raises:
        StaleClaim: the job is not claimed under this claim any more.
        JobMissing: there is no such job.
        NotText, NotAnInteger, OutOfRange: an argument, named by the error.
    """
    if log_path is not None:
        text("log_path", log_path)
    integer("job_id", claim.job_id)
    integer("attempts", claim.attempts)
    integer("now_ns", now_ns, least=0)
    with immediate(connection):
        held = (JobState.CLAIMED, claim.attempts)
        if not move(connection, claim.job_id, JobState.RUNNING, held=held, now_ns=now_ns):
            raise stale(connection, claim.job_id, claim.attempts)
        begun = (claim.job_id, claim.attempts, now_ns, log_path)
        connection.execute(_INSERT, begun)
        [run] = rows(connection, _BY_ID, (connection.last_insert_rowid(),))
    return Run._make(run)


def complete_run(
    connection: apsw.Connection,
    run: Run,
    *,
    return_code: int,
    finalize_job: bool = False,
    now_ns: int,
) -> Run:
    """
    Record the end of an open run and, with *finalize_job*, of its job; return the run.

    Args:
        return_code: 0 makes a finalized job completed, any other failed.
        finalize_job: Without it the job stays running, which `reconcile` shows until an operator
            decides.
    Durable: after success: all of it, see `storage`. After an error: nothing.
    Raises:
        RunMissing: there is no such run.
        RunIsCompleted: it has ended already.
        StaleClaim: with *finalize_job*: the job is not running under this run's claim any more.
            What the run did can still be recorded without *finalize_job*.
        NotAnInteger, OutOfRange: an argument, named by the error.
    """
    integer("run_id", run.run_id)
    integer("return_code", return_code)
    integer("now_ns", now_ns, least=0)
    with immediate(connection):
        is_open = changes(connection, _COMPLETE, (now_ns, return_code, run.run_id))
        found = rows(connection, _BY_ID, (run.run_id,))
        if not found:
            raise RunMissing(run.run_id)
        ended = Run._make(found[0])
        if not is_open:
            raise RunIsCompleted(ended.run_id, int(found[0][5]))
        if finalize_job:
            state = JobState.FAILED if return_code else JobState.COMPLETED
            held = (JobState.RUNNING, ended.attempt)
            if not move(connection, ended.job_id, state, held=held, now_ns=now_ns):
                raise stale(connection, ended.job_id, ended.attempt)
    return ended


def latest_run_for_job(connection: apsw.Connection, job_id: int) -> Run | None:
    """
    Return the newest run of a job, None where it has none.

    Raises: JobMissing: there is no such job.
    """
    found = rows(connection, _NEWEST, (job_by_id(connection, job_id).job_id,))
    return Run._make(found[0]) if found else None
