"""
A database of many jobs, and one reconciliation of it in a fresh interpreter.

Run as ``python metabolism_reconcile.py make FOLDER JOBS EVERY logs``: every EVERY-th job runs,
with an open run and a launch log of its own; forty of them break a rule, ten each. With ``none``
for ``logs`` the logs are recorded and missing, which breaks a rule for each. Then as ``python
metabolism_reconcile.py reconcile|survey FOLDER few|all``: prints the seconds, what was found, and
by how much the peak of resident memory grew, in KiB. With ``all`` the moment is a day later, so
that every launch log that is there is stale.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import apsw

from store import metabolism
from store.metabolism.reconciliation import reconcile, survey

BROKEN_EACH = 10
_HOUR_NS = 3600 * 10**9
_DAY_NS = 24 * _HOUR_NS

# Job n of ?1: running where n is a multiple of ?3, else waiting or completed in turns.
_JOBS = """WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?1)
INSERT INTO jobs SELECT n, 'convert', 'local', '{"number":' || n || '}', 'part-' || n,
 CASE WHEN n % ?3 = 0 THEN 'running' WHEN n % 2 THEN 'completed' ELSE 'queued' END, 100, 0,
 CASE WHEN n % ?3 = 0 OR n % 2 THEN 'worker-' || n % 64 END,
 CASE WHEN n % ?3 = 0 OR n % 2 THEN ?2 + 3600000000000 END, min(1, n % ?3 = 0 OR n % 2), NULL,
 ?2 + n, ?2 + n FROM numbers"""
_RUNS = """INSERT INTO runs (job_id, attempt, started_at_ns, completed_at_ns, return_code, log_path)
SELECT job_id, 1, created_at_ns, CASE state WHEN 'completed' THEN created_at_ns + 1 END,
 CASE state WHEN 'completed' THEN 0 END, 'logs/' || job_id || '.log'
FROM jobs WHERE state <> 'queued'"""


def make(folder: Path, jobs: int, every: int, *, has_logs: bool) -> None:
    """Fill the database at *folder*, and write its logs."""
    now_ns = time.time_ns()
    connection = metabolism.connect(folder / "metabolism.db")
    with connection:
        connection.execute(_JOBS, (jobs, now_ns - _HOUR_NS, every))
        connection.execute(_RUNS)
    if has_logs:
        logs = folder / "logs"
        logs.mkdir()
        running = list(range(every, jobs + 1, every))
        for job_id in running:
            (logs / f"{job_id}.log").touch()
        with connection:
            _break(connection, logs, running)
    connection.close()


def _break(connection: apsw.Connection, logs: Path, running: list[int]) -> None:
    """Break each rule for ten jobs that run, spread over all of them."""
    broken = running[:: max(1, len(running) // (4 * BROKEN_EACH))][: 4 * BROKEN_EACH]
    for number, job_id in enumerate(broken):
        log = logs / f"{job_id}.log"
        match number % 4:
            case 0:
                connection.execute("DELETE FROM runs WHERE job_id = ?", (job_id,))
            case 1:
                connection.execute(
                    "UPDATE runs SET completed_at_ns = started_at_ns, return_code = 0"
                    " WHERE job_id = ?",
                    (job_id,),
                )
            case 2:
                log.unlink()
            case _:
                log.unlink()
                log.touch()
                _make_stale(log)


def _make_stale(log: Path) -> None:
    past_ns = time.time_ns() - _HOUR_NS
    os.utime(log, ns=(past_ns, past_ns))


def run(what: str, folder: Path, moment: str) -> None:
    """Reconcile the database at *folder* and print the figures."""
    now_ns = time.time_ns() + (_DAY_NS if moment == "all" else 0)
    connection = metabolism.connect(folder / "metabolism.db")
    before = _peak_kib()
    started = time.perf_counter()
    if what == "reconcile":
        result = reconcile(connection, folder=folder, now_ns=now_ns)
        count, active, worst = len(result.findings), result.active_count, result.findings[0]
    else:
        with survey(connection, folder=folder, now_ns=now_ns) as found:
            count, active = found.summary.finding_count, found.summary.active_count
            worst = next(findings := found.findings())
            passed = 1 + sum(1 for _ in findings)
        if passed != count:
            raise AssertionError(f"{count} findings were counted and {passed} came")
    seconds = time.perf_counter() - started
    print(seconds, active, count, worst.finding_id, _peak_kib() - before)
    connection.close()


def _peak_kib() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("this process has no memory")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        _, _, place, count, step, kind = sys.argv
        make(Path(place), int(count), int(step), has_logs=kind == "logs")
    else:
        run(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
