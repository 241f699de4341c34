"""
What each operation of a fixture does: one call of the runtime, or one act on the clock or a log.

Each returns the row that ``as`` names, if it has one, and what ``returns`` is compared with: plain
JSON in which a row is called by the first name that the case gave it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import apsw

from store.metabolism.blackboard import append_claim_event, build_blackboard_projection
from store.metabolism.fixture_checks import Reference
from store.metabolism.launch_log import append_log, create_log, log_file
from store.metabolism.queue import (
    claim_next_job,
    enqueue_job,
    renew_claim,
    requeue_expired_jobs,
    update_job_state,
)
from store.metabolism.reconciliation import Reconciliation, reconcile
from store.metabolism.records import ClaimEvent, Job, Run
from store.metabolism.runs import complete_run, start_run

__all__ = ["SECOND", "START_NS", "STEPS", "Row", "World"]

SECOND: Final = 10**9
"""A second, in nanoseconds."""

START_NS: Final = 1_767_225_600 * SECOND
"""Where the clock of every case starts: the first moment of 2026, UTC."""

Row: TypeAlias = Job | Run | ClaimEvent

_Done: TypeAlias = tuple[Row | None, Any]
_Given: TypeAlias = Mapping[str, Any]


class World:
    """
    One case as it is played: its database, its folder, its clock and its named results.

    Attributes:
        now_ns: The case's clock.
        stale_after_seconds: What ``reconcile`` uses where a step says nothing else.
        rows: What each name stands for: the row as its step returned it.
        requeued_count: How many jobs were given back so far.
    """

    def __init__(self, connection: apsw.Connection, folder: Path, stale_after_seconds: int) -> None:
        self.connection = connection
        self.folder = folder
        self.now_ns = START_NS
        self.stale_after_seconds = stale_after_seconds
        self.rows: dict[str, Row] = {}
        self.requeued_count = 0
        self._names: dict[tuple[str, int], str] = {}

    def bind(self, name: str, row: Row) -> None:
        """
        Let *name* stand for *row*.
        """
        kind = {Job: "job", Run: "run", ClaimEvent: "event"}[type(row)]
        self.rows[name] = row
        self._names.setdefault((kind, row[0]), name)

    def called(self, kind: str, row_id: int | None) -> str | None:
        """
        Return the first name of a row; a description where it has none, None for no row.
        """
        if row_id is None:
            return None
        return self._names.get((kind, row_id), f"unnamed {kind} {row_id}")

    def given(self, value: Any) -> Any:
        """
        Return the arguments of a step, rows in the place of their names.
        """
        return {
            key: self.rows[item.name] if isinstance(item, Reference) else item
            for key, item in value.items()
        }

    def plain(self, value: Any) -> Any:
        """
        Return an expectation as plain JSON, each row called by its first name.
        """
        if isinstance(value, Reference):
            return self.called(value.kind, self.rows[value.name][0])
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        return value

    def reconcile(self, stale_after_seconds: int) -> Reconciliation:
        """
        Reconcile the case's database at the case's time.
        """
        return reconcile(
            self.connection,
            folder=self.folder,
            now_ns=self.now_ns,
            stale_after_ns=stale_after_seconds * SECOND,
        )

    def reconciliation(self, found: Reconciliation) -> dict[str, Any]:
        """
        Return what an expectation about a reconciliation is compared with.
        """
        return {
            "status": found.status,
            "rule_counts": dict(found.rule_counts),
            "findings": [
                {
                    "rule": finding.rule.value,
                    finding.object_kind: self.called(finding.object_kind, finding.object_id),
                }
                for finding in found.findings
            ],
        }

    def projection(self) -> dict[str, Any]:
        """
        Return what an expectation about the blackboard is compared with.
        """
        found = build_blackboard_projection(self.connection)
        return {
            "active_count": found.active_count,
            "event_count": found.event_count,
            "contradiction_count": found.contradiction_count,
            "active": [self.called("event", event.event_id) for event in found.active],
        }

    def job(self, job: Job) -> dict[str, Any]:
        """
        Return what an expectation about a job is compared with.
        """
        return {
            "job": self.called("job", job.job_id),
            "state": job.state,
            "attempts": job.attempts,
            "claim_owner": job.claim_owner,
            "last_error": job.last_error,
            "priority": job.priority,
        }

    def run(self, run: Run) -> dict[str, Any]:
        """
        Return what an expectation about a run is compared with.
        """
        return {
            "job": self.called("job", run.job_id),
            "attempt": run.attempt,
            "return_code": run.return_code,
            "log_path": run.log_path,
        }

    def date_log(self, log_path: str, *, age_seconds: int = 0) -> None:
        """
        Let the log look as if it was last written *age_seconds* before the case's time.

        Raises: OSError: the file system does not keep such times.
        """
        path = log_file(self.folder, log_path)
        wanted = self.now_ns - age_seconds * SECOND
        os.utime(path, ns=(wanted, wanted))
        if (kept := path.stat().st_mtime_ns) != wanted:
            raise OSError(f"a file dated {wanted} ns shows {kept} ns")


def _only(given: _Given, *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _lease(given: _Given) -> dict[str, int]:
    return {"lease_ns": given["lease_seconds"] * SECOND} if "lease_seconds" in given else {}


def _enqueue_job(world: World, given: _Given) -> _Done:
    said = _only(given, "kind", "idempotency_key", "params", "provider", "priority")
    if "not_before_seconds" in given:
        said["not_before_ns"] = world.now_ns + given["not_before_seconds"] * SECOND
    job, is_new = enqueue_job(world.connection, **said, now_ns=world.now_ns)
    return job, {**world.job(job), "inserted": is_new}


def _claim_next_job(world: World, given: _Given) -> _Done:
    job = claim_next_job(
        world.connection, owner=given["owner"], **_lease(given), now_ns=world.now_ns
    )
    return job, None if job is None else world.job(job)


def _renew_claim(world: World, given: _Given) -> _Done:
    job = renew_claim(world.connection, given["claim"], **_lease(given), now_ns=world.now_ns)
    return job, world.job(job)


def _requeue_expired_jobs(world: World, given: _Given) -> _Done:
    count = requeue_expired_jobs(world.connection, now_ns=world.now_ns)
    world.requeued_count += count
    return None, count


def _update_job_state(world: World, given: _Given) -> _Done:
    job = update_job_state(
        world.connection,
        given["job"].job_id,
        given["state"],
        **_only(given, "last_error"),
        now_ns=world.now_ns,
    )
    return job, world.job(job)


def _start_run(world: World, given: _Given) -> _Done:
    run = start_run(
        world.connection, given["claim"], **_only(given, "log_path"), now_ns=world.now_ns
    )
    return run, world.run(run)


def _complete_run(world: World, given: _Given) -> _Done:
    said = _only(given, "return_code", "finalize_job")
    run = complete_run(world.connection, given["run"], **said, now_ns=world.now_ns)
    return run, world.run(run)


def _append_claim_event(world: World, given: _Given) -> _Done:
    said = _only(given, "kind", "claim_id", "subject", "predicate", "object", "payload")
    if "assertion" in given:
        said["assertion_id"] = given["assertion"].event_id
    event = append_claim_event(world.connection, **said, now_ns=world.now_ns)
    assertion = world.called("event", event.assertion_id)
    return event, {"kind": event.kind, "claim_id": event.claim_id, "assertion": assertion}


def _create_log(world: World, given: _Given) -> _Done:
    create_log(world.folder, given["log_path"])
    world.date_log(given["log_path"])
    return None, None


def _append_log(world: World, given: _Given) -> _Done:
    append_log(log_file(world.folder, given["log_path"]), given["line"])
    world.date_log(given["log_path"])
    return None, None


def _reconcile(world: World, given: _Given) -> _Done:
    found = world.reconcile(given.get("stale_after_seconds", world.stale_after_seconds))
    return None, world.reconciliation(found)


def _build_blackboard_projection(world: World, given: _Given) -> _Done:
    return None, world.projection()


def _backdate_log(world: World, given: _Given) -> _Done:
    world.date_log(given["log_path"], age_seconds=given["seconds"])
    return None, None


def _remove_log(world: World, given: _Given) -> _Done:
    log_file(world.folder, given["log_path"]).unlink()
    return None, None


def _advance(world: World, given: _Given) -> _Done:
    world.now_ns += given["seconds"] * SECOND
    return None, None


STEPS: Final[Mapping[str, Callable[[World, _Given], _Done]]] = {
    "enqueue_job": _enqueue_job,
    "claim_next_job": _claim_next_job,
    "renew_claim": _renew_claim,
    "requeue_expired_jobs": _requeue_expired_jobs,
    "update_job_state": _update_job_state,
    "start_run": _start_run,
    "complete_run": _complete_run,
    "append_claim_event": _append_claim_event,
    "create_log": _create_log,
    "append_log": _append_log,
    "reconcile": _reconcile,
    "build_blackboard_projection": _build_blackboard_projection,
    "backdate_log": _backdate_log,
    "remove_log": _remove_log,
    "advance": _advance,
}
"""Does what `fixture_cases.OPERATIONS` admits, key by key."""
