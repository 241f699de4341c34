"""
Databases in any state, torn ones included: rows are written by SQL, past every operation.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apsw

from store.metabolism.reconciliation import Reconciliation, reconcile
from store.metabolism.schema import SCHEMA_SQL, SCHEMA_VERSION
from store.sqlite import rows

S = 10**9
NOW = 1_800_000_000 * S
STALE = 600 * S


class HeldWorld:
    """A database in a folder, and the shortest ways to put rows and logs into it."""

    def __init__(self, folder: Path, *, sql: str = SCHEMA_SQL, encoding: str = "UTF-8") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / "metabolism.sqlite3"
        self.connection = apsw.Connection(str(self.path))
        rows(self.connection, f"PRAGMA encoding = '{encoding}'")
        rows(self.connection, "PRAGMA journal_mode = WAL")
        rows(self.connection, sql)
        rows(self.connection, f"PRAGMA user_version = {SCHEMA_VERSION}")

    def close(self) -> Path:
        """Close the database and return its path."""
        self.connection.close()
        return self.path

    def insert(self, table: str, **columns: object) -> None:
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        rows(
            self.connection,
            f"INSERT INTO {table} ({names}) VALUES ({marks})",
            tuple(columns.values()),
        )

    def job(self, job_id: int = 1, state: str = "running", **columns: object) -> None:
        waits = state in ("queued", "recoverable")
        row: dict[str, object] = {
            "kind": "mail",
            "provider": "local",
            "params_json": "{}",
            "idempotency_key": f"key-{job_id}",
            "priority": 100,
            "not_before_ns": 0,
            "claim_owner": None if waits else "worker-1",
            "claim_expires_at_ns": None if waits else NOW + 60 * S,
            "attempts": 1,
            "created_at_ns": NOW - 7_200 * S,
            "updated_at_ns": NOW - 3_600 * S,
        }
        self.insert("jobs", job_id=job_id, state=state, **{**row, **columns})

    def run(self, job_id: int = 1, **columns: object) -> None:
        row = {"job_id": job_id, "attempt": 1, "started_at_ns": NOW - 3_600 * S}
        self.insert("runs", **{**row, **columns})

    def log(self, log_path: str, *, age_ns: int) -> Path:
        path = self.folder / log_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"started\n")
        os.utime(path, ns=(NOW - age_ns, NOW - age_ns))
        return path

    def reconcile(self, now_ns: int = NOW, stale_after_ns: int = STALE) -> Reconciliation:
        return reconcile(
            self.connection, folder=self.folder, now_ns=now_ns, stale_after_ns=stale_after_ns
        )

    def rules(self) -> list[str]:
        return [finding.rule.value for finding in self.reconcile().findings]


NO_RUN = "running_job_no_run_row"
FINALIZED = "run_finalized_but_job_running"
MISSING = "running_job_missing_launch_log"
STALE_LOG = "running_job_stale_launch_log"


def _claimed_job_without_a_run(w: HeldWorld) -> None:
    w.job(state="claimed")


def _claimed_again_over_an_ended_run(w: HeldWorld) -> None:
    w.job(state="claimed", attempts=2)
    w.run(attempt=1, completed_at_ns=NOW, return_code=1)


def _claimed_again_over_an_open_run_whose_log_is_gone(w: HeldWorld) -> None:
    w.job(state="claimed", attempts=2)
    w.run(attempt=1, log_path="gone.log")


def _running_with_an_open_run_and_no_log(w: HeldWorld) -> None:
    w.job()
    w.run()


def _running_with_a_fresh_log(w: HeldWorld) -> None:
    w.job()
    w.run(log_path="logs/1.log")
    w.log("logs/1.log", age_ns=STALE)


def _running_with_a_log_from_the_future(w: HeldWorld) -> None:
    w.job()
    w.run(log_path="1.log")
    w.log("1.log", age_ns=-3_600 * S)


def _retried_after_an_ended_run(w: HeldWorld) -> None:
    w.job(attempts=2)
    w.run(attempt=1, completed_at_ns=NOW, return_code=1, log_path="gone.log")
    w.run(attempt=2)


def _jobs_that_nobody_holds(w: HeldWorld) -> None:
    for at, state in enumerate(("queued", "recoverable", "completed", "failed"), start=1):
        w.job(at, state)
        w.run(at, completed_at_ns=NOW, return_code=0)


def _running_without_a_run(w: HeldWorld) -> None:
    w.job()


def _running_by_hand_without_a_lease(w: HeldWorld) -> None:
    w.job(claim_owner=None, claim_expires_at_ns=None, attempts=0)


def _running_over_an_ended_run(w: HeldWorld) -> None:
    w.job()
    w.run(completed_at_ns=NOW - S, return_code=0, log_path="gone.log")


def _running_over_an_ended_run_of_an_older_claim(w: HeldWorld) -> None:
    w.job(attempts=2)
    w.run(attempt=1, completed_at_ns=NOW - S, return_code=0)


def _running_over_an_ended_run_after_an_open_one(w: HeldWorld) -> None:
    w.job()
    w.run()
    w.run(completed_at_ns=NOW - S, return_code=-9)


def _claimed_over_its_own_ended_run(w: HeldWorld) -> None:
    w.job(state="claimed")
    w.run(completed_at_ns=NOW - S, return_code=0)


def _log_is_gone(w: HeldWorld) -> None:
    w.job()
    w.run(log_path="logs/1.log")


def _claimed_and_the_log_of_its_own_run_is_gone(w: HeldWorld) -> None:
    w.job(state="claimed")
    w.run(log_path="logs/1.log")


def _log_is_a_folder(w: HeldWorld) -> None:
    w.job()
    w.run(log_path="logs")
    (w.folder / "logs").mkdir()


def _log_is_a_link_to_nowhere(w: HeldWorld) -> None:
    w.job()
    w.run(log_path="1.log")
    (w.folder / "1.log").symlink_to("nowhere")


def _log_is_old(w: HeldWorld) -> None:
    w.job()
    w.run(log_path="1.log")
    w.log("1.log", age_ns=STALE + 1)


def _log_is_old_at_an_absolute_path(w: HeldWorld) -> None:
    w.job()
    w.run(log_path=str(w.log("1.log", age_ns=1_200 * S)))


def _log_is_behind_a_loop(w: HeldWorld) -> None:
    w.job()
    w.run(log_path="loop/1.log")
    (w.folder / "loop").symlink_to("loop")


def _log_is_behind_a_file(w: HeldWorld) -> None:
    w.job()
    w.run(log_path="file/1.log")
    (w.folder / "file").write_bytes(b"")


def _log_has_a_name_that_is_too_long(w: HeldWorld) -> None:
    w.job()
    w.run(log_path="x" * 5_000)


def _log_has_a_name_that_no_file_can_have(w: HeldWorld) -> None:
    w.job()
    w.run(log_path="a\0b")


STATES: dict[Callable[[HeldWorld], None], list[str]] = {
    _claimed_job_without_a_run: [],
    _claimed_again_over_an_ended_run: [],
    _claimed_again_over_an_open_run_whose_log_is_gone: [],
    _running_with_an_open_run_and_no_log: [],
    _running_with_a_fresh_log: [],
    _running_with_a_log_from_the_future: [],
    _retried_after_an_ended_run: [],
    _jobs_that_nobody_holds: [],
    _running_without_a_run: [NO_RUN],
    _running_by_hand_without_a_lease: [NO_RUN],
    _running_over_an_ended_run: [FINALIZED],
    _running_over_an_ended_run_of_an_older_claim: [NO_RUN],
    _running_over_an_ended_run_after_an_open_one: [FINALIZED],
    _claimed_over_its_own_ended_run: [FINALIZED],
    _log_is_gone: [MISSING],
    _claimed_and_the_log_of_its_own_run_is_gone: [MISSING],
    _log_is_a_folder: [MISSING],
    _log_is_a_link_to_nowhere: [MISSING],
    _log_is_old: [STALE_LOG],
    _log_is_old_at_an_absolute_path: [STALE_LOG],
    _log_is_behind_a_loop: [STALE_LOG],
    _log_is_behind_a_file: [STALE_LOG],
    _log_has_a_name_that_is_too_long: [STALE_LOG],
    _log_has_a_name_that_no_file_can_have: [STALE_LOG],
}
"""Every state that the rules tell apart, and the rules that it breaks."""


class Answer(NamedTuple):
    """What one command printed, and its exit code."""

    code: int
    out: str
    err: str


Run = Callable[..., Answer]


def dead(world: HeldWorld) -> Path:
    """Return the database as a runtime leaves it that was killed: with a WAL, and no process."""
    folder = world.folder.parent / "dead"
    shutil.copytree(world.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("*-shm"))
    assert (folder / "metabolism.sqlite3-wal").stat().st_size > 0
    return folder / "metabolism.sqlite3"


def several(world: HeldWorld, count: int = 3) -> None:
    for job_id in range(1, count + 1):
        world.job(job_id, claim_expires_at_ns=NOW - 60 * S)
    world.job(count + 1)
    world.run(count + 1, run_id=7, completed_at_ns=NOW - 60 * S, return_code=3)
    world.job(count + 2, claim_expires_at_ns=NOW - 60 * S)
    world.run(count + 2, run_id=8, log_path="logs/8.log")
    world.log("logs/8.log", age_ns=1_200 * S)


def state_of(folder: Path) -> dict[str, object]:
    paths = [folder, *sorted(folder.rglob("*"))]
    return {
        str(path): (
            path.lstat().st_mtime_ns,
            path.lstat().st_ino,
            path.read_bytes() if path.is_file() else None,
        )
        for path in paths
    }
