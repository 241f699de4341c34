"""
The runtime's invariants as named predicates, for every campaign over it.

Method: each is a generator of Checks, one per subject. Most look at the observation alone; those
that ask an operation what it makes of the recovered files act on them, which a check may, since
what it does is thrown away. What is ambiguous is worked out here from the rows, not by the
store's own code.

Covered: I1-01 to I1-10, I1-12 and I1-13 of the store's acceptance list; that launch logs come
before the runs that name them.
Not covered here: I1-11, that acknowledged operations survive, which the promises of the campaigns
say, and that operations are atomic, which the harness's ``step_atomicity`` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from campaigns.tables import Rows, dump_table
from harness import Check, Evidence
from store.at_rest import open_at_rest
from store.metabolism import build_blackboard_projection, connect, enqueue_job, requeue_expired_jobs
from store.metabolism.reconciliation import STALE_AFTER_NS, reconcile
from store.metabolism.schema import SCHEMA_SQL

Tables = dict[str, Rows]

DATABASE = "runtime.db"
BY_HAND = "by hand"
"""Kind of the jobs that a campaign moves with `update_job_state`."""
LEFT_RUNNING = "left running"
"""Kind of the jobs whose runs are completed without finalizing them."""

ACTIVE = frozenset({"queued", "claimed", "running", "recoverable"})
TERMINAL = frozenset({"completed", "failed"})
TABLES = ("blackboard_claim_events", "jobs", "runs")

SOUND_DATABASE = "I1-01 database is sound"
ONE_ACTIVE_KEY = "I1-02 an active key has one job"
WHOLE_LEASE = "I1-03 a lease is whole or absent"
RUN_AND_JOB = "I1-04 a running job has a run"
ENDED_TOGETHER = "I1-05 a job ends with its run"
WHOLE_END = "I1-06 an end has its return code"
KEPT_LOG = "I1-07 the log only grows"
TRUE_PROJECTION = "I1-08 the projection is the log's"
REQUEUED = "I1-09 lapsed leases are given back"
READ_ONLY = "I1-10 reconciliation changes nothing"
KEY_HELD = "I1-12 a key is held while its job is active"
REPORTED = "I1-13 what is torn is reported"
NAMED_LOG = "a run that names a log has one"

NAMES = (
    SOUND_DATABASE,
    ONE_ACTIVE_KEY,
    WHOLE_LEASE,
    RUN_AND_JOB,
    ENDED_TOGETHER,
    WHOLE_END,
    KEPT_LOG,
    TRUE_PROJECTION,
    REQUEUED,
    READ_ONLY,
    KEY_HELD,
    REPORTED,
    NAMED_LOG,
)

_NO_RUN = "running_job_no_run_row"
_ENDED = "run_finalized_but_job_running"
_NO_LOG = "running_job_missing_launch_log"
_SILENT = "running_job_stale_launch_log"


def _schema_of(connection: apsw.Connection) -> dict[tuple[str, str], tuple[Any, ...]]:
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
    return {(str(row[0]), str(row[1])): row[2:] for row in found}


def _embedded_schema() -> dict[tuple[str, str], tuple[Any, ...]]:
    with closing(apsw.Connection(":memory:")) as connection:
        connection.execute(SCHEMA_SQL)
        return _schema_of(connection)


# Once per process, and before the zygote forks.
_SCHEMA = _embedded_schema()


def all_of(root: Path, evidence: Evidence) -> Iterator[Check]:
    """Yield every check of a recovered store; the last ones change its files."""
    tables: Tables | None = evidence.observed
    missing = sorted(set(TABLES) - (tables or {}).keys())
    yield Check(SOUND_DATABASE, not missing, f"the tables {missing} are missing")
    if tables is None or missing:
        return
    yield from sound_database(root)
    yield from one_active_key(tables)
    yield from whole_lease(tables)
    yield from run_and_job(tables)
    yield from ended_together(tables)
    yield from whole_end(tables)
    yield from kept_log(tables, evidence)
    yield from named_log(evidence.observed)
    yield from read_only(root, evidence.now_ns)
    yield from reported(root, tables, evidence.now_ns)
    with closing(connect(root / DATABASE)) as connection:
        yield from append_only(connection)
        yield from true_projection(connection, tables)
        yield from requeued(root, connection, tables)
        yield from key_held(root, connection, tables, evidence.now_ns)


def sound_database(root: Path) -> Iterator[Check]:
    """I1-01: checks pass, WAL is on, the schema is the embedded one, its indexes included."""
    connection = apsw.Connection(str(root / DATABASE), flags=apsw.SQLITE_OPEN_READWRITE)
    with closing(connection):
        for pragma, right in (
            ("integrity_check", ["ok"]),
            ("foreign_key_check", []),
            ("user_version", [1]),
            ("journal_mode", ["wal"]),
        ):
            found = [row[0] for row in connection.execute(f"PRAGMA {pragma}").fetchall()]
            message = f"PRAGMA {pragma} is {found}, expected {right}"
            yield Check(SOUND_DATABASE, found == right, message)
        schema = _schema_of(connection)
    changed = sorted({f"{kind} {name}" for (kind, name), _ in schema.items() ^ _SCHEMA.items()})
    yield Check(SOUND_DATABASE, not changed, f"the schema differs from the embedded in {changed}")


def one_active_key(tables: Tables) -> Iterator[Check]:
    """I1-02: at most one active job for each idempotency key."""
    active = Counter(job["idempotency_key"] for job in tables["jobs"] if job["state"] in ACTIVE)
    for key, count in sorted(active.items()):
        yield Check(ONE_ACTIVE_KEY, count == 1, f"key {key!r} is held by {count} active jobs")


def whole_lease(tables: Tables) -> Iterator[Check]:
    """I1-03: claimed has an owner and an expiry; waiting has neither; nothing has one of them."""
    for job in tables["jobs"]:
        owner, expiry = job["claim_owner"], job["claim_expires_at_ns"]
        is_whole = (owner is None) == (expiry is None)
        if job["state"] == "claimed":
            is_whole = owner is not None and expiry is not None and job["attempts"] > 0
        elif job["state"] in ("queued", "recoverable"):
            is_whole = owner is None and expiry is None
        is_known = job["state"] in ACTIVE | TERMINAL
        yield Check(WHOLE_LEASE, is_whole and is_known, f"{_named(job)} has {owner!r}, {expiry!r}")


def run_and_job(tables: Tables) -> Iterator[Check]:
    """I1-04: no run without a job; no running job without a run, but for those moved by hand."""
    jobs = {job["job_id"]: job for job in tables["jobs"]}
    for run in tables["runs"]:
        job = jobs.get(run["job_id"])
        yield Check(
            RUN_AND_JOB,
            job is not None and run["attempt"] <= job["attempts"],
            f"run {run['run_id']} of attempt {run['attempt']} belongs to {job and _named(job)}",
        )
    for job in tables["jobs"]:
        newest = _newest(tables, job)
        if job["state"] == "running" and job["kind"] != BY_HAND:
            is_right = newest is not None and newest["attempt"] == job["attempts"]
            yield Check(RUN_AND_JOB, is_right, f"{_named(job)} has the newest run {newest}")
        elif job["state"] == "claimed":
            is_right = newest is None or newest["attempt"] < job["attempts"]
            yield Check(RUN_AND_JOB, is_right, f"{_named(job)} has a run already: {newest}")


def ended_together(tables: Tables) -> Iterator[Check]:
    """I1-05: a job has ended if and only if the run of its last claim has, as its code says."""
    for job in tables["jobs"]:
        own = _own(tables, job)
        code = own["return_code"] if own is not None else None
        if job["kind"] in (BY_HAND, LEFT_RUNNING) or (code is None and job["state"] in ACTIVE):
            continue
        expected = None if code is None else "failed" if code else "completed"
        yield Check(
            ENDED_TOGETHER,
            job["state"] == expected,
            f"{_named(job)}, and its last claim's run ended with {code!r}: expected {expected!r}",
        )


def whole_end(tables: Tables) -> Iterator[Check]:
    """I1-06: a run has a time of completion if and only if it has a return code."""
    for run in tables["runs"]:
        at, code = run["completed_at_ns"], run["return_code"]
        yield Check(
            WHOLE_END,
            (at is None) == (code is None) and (at is None or at >= run["started_at_ns"]),
            f"run {run['run_id']} was completed at {at!r} with return code {code!r}",
        )


def kept_log(tables: Tables, evidence: Evidence) -> Iterator[Check]:
    """I1-07: what was acknowledged is in the log, byte for byte and in its order."""
    log = {event["event_id"]: event for event in tables["blackboard_claim_events"]}
    last = 0
    for event in (dict(x.facts["event"]) for x in evidence.promises if x.name == "appended"):
        found = log.get(event["event_id"])
        yield Check(KEPT_LOG, found == event, f"an event was {event} and is {found}")
        is_later = event["event_id"] > last
        yield Check(KEPT_LOG, is_later, f"event {event['event_id']} was appended after {last}")
        last = event["event_id"]


def append_only(connection: apsw.Connection) -> Iterator[Check]:
    """I1-07: the database itself refuses to change or remove an event, REPLACE included."""
    log = "blackboard_claim_events"
    if not connection.execute(f"SELECT 1 FROM {log}").fetchall():
        return
    for sql in (
        f"UPDATE {log} SET object = 'another'",
        f"DELETE FROM {log}",
        f"REPLACE INTO {log} SELECT * FROM {log}",
    ):
        connection.execute("BEGIN")
        try:
            connection.execute(sql)
        except apsw.ConstraintError:
            is_refused = True
        else:
            is_refused = False
        connection.execute("ROLLBACK")
        yield Check(KEPT_LOG, is_refused, f"{sql!r} was not refused")


def named_log(observed: dict[str, Any]) -> Iterator[Check]:
    """A launch log is there, with its first line, before a run names it."""
    for run in observed["runs"]:
        if run["log_path"] is not None:
            text = observed["logs"].get(run["log_path"])
            is_begun = text is not None and "\n" in text
            yield Check(NAMED_LOG, is_begun, f"{run['log_path']} holds {text!r}")


def true_projection(connection: apsw.Connection, tables: Tables) -> Iterator[Check]:
    """I1-08: what the store projects is what the rows say, and no assertion is unaccounted for."""
    log = tables["blackboard_claim_events"]
    projection = build_blackboard_projection(connection)
    asserted = {event["event_id"] for event in log if event["kind"] == "claim_asserted"}
    invalidated = {event["assertion_id"] for event in log} & asserted
    contradictions = sum(event["kind"] == "claim_contradicted" for event in log)
    shown = [event.event_id for event in projection.active]
    for event_id in sorted(asserted):
        is_active = event_id not in invalidated
        message = f"assertion {event_id} is active {is_active}, and {shown} are shown"
        yield Check(TRUE_PROJECTION, (event_id in shown) == is_active, message)
    counts = (projection.active_count, projection.event_count, projection.contradiction_count)
    right = (len(asserted) - len(invalidated), len(log), contradictions)
    if log:
        yield Check(TRUE_PROJECTION, counts == right, f"counts are {counts}, expected {right}")


def requeued(root: Path, connection: apsw.Connection, tables: Tables) -> Iterator[Check]:
    """I1-09, I1-10: long after, all is given back but what is ambiguous, which stays as it is."""
    held = [job for job in _jobs(root).values() if job["state"] in ("claimed", "running")]
    last = max((job["claim_expires_at_ns"] or 0 for job in held), default=0)
    counts = [requeue_expired_jobs(connection, now_ns=last)]
    at_last = _jobs(root)
    counts += [requeue_expired_jobs(connection, now_ns=last + 1) for _ in range(2)]
    after = _jobs(root)
    for job in held:
        if job["claim_expires_at_ns"] == last:
            now = at_last[job["job_id"]]
            yield Check(REQUEUED, now == job, f"{_named(job)} was held until then and is {now}")
    for job in held:
        now = after[job["job_id"]]
        if _ambiguity(tables, job) is not None:
            yield Check(READ_ONLY, now == job, f"{_named(job)} was ambiguous and is {now}")
        elif job["claim_owner"] is not None:
            freed = (now["state"], now["claim_owner"], now["claim_expires_at_ns"])
            yield Check(REQUEUED, freed == ("recoverable", None, None), f"{_named(job)} is {now}")
    given = sum(after[job["job_id"]]["state"] == "recoverable" for job in held)
    if held:
        is_right = (counts[0] + counts[1], counts[2]) == (given, 0)
        yield Check(REQUEUED, is_right, f"{given} were given back, counted {counts}")


def read_only(root: Path, now_ns: int) -> Iterator[Check]:
    """I1-10: no byte changes, the same findings a moment later, each for an operator."""
    before = _files(root)
    seen = []
    for moment_ns in (now_ns, now_ns + 1):
        with open_at_rest(root / DATABASE) as connection:
            seen.append(reconcile(connection, folder=root, now_ns=moment_ns))
    yield Check(READ_ONLY, _files(root) == before, "reconciliation changed the folder")
    ids = [[finding.finding_id for finding in one.findings] for one in seen]
    yield Check(READ_ONLY, ids[0] == ids[1], f"two reconciliations found {ids}")
    for finding in seen[0].findings:
        action = finding.to_json()["action"]
        yield Check(READ_ONLY, action == "operator_review_required", f"{finding}: {action}")


def reported(root: Path, tables: Tables, now_ns: int) -> Iterator[Check]:
    """I1-13: each held job is found under the rule that its rows break, and under no other."""
    written_ns = [path.stat().st_mtime_ns for path in root.rglob("*.log")]
    stale_ns = max([now_ns, *written_ns]) + STALE_AFTER_NS + 1
    with open_at_rest(root / DATABASE) as connection:
        seen = [reconcile(connection, folder=root, now_ns=at) for at in (now_ns, stale_ns)]
    for moment_ns, silent, one in ((now_ns, None, seen[0]), (stale_ns, _SILENT, seen[1])):
        for job in tables["jobs"]:
            rule = _ambiguity(tables, job) or _log_rule(root, tables, job, silent)
            expected = [rule] if rule else []
            found = [str(x.rule) for x in one.findings if x.job_id == job["job_id"]]
            message = f"{_named(job)} at {moment_ns}: {found}, expected {expected}"
            if expected or found:
                yield Check(REPORTED, found == expected, message)


def key_held(
    root: Path, connection: apsw.Connection, tables: Tables, now_ns: int
) -> Iterator[Check]:
    """I1-12: another enqueue of each key answers its active job, or one that it inserts."""
    answers = {
        key: enqueue_job(connection, kind="again", idempotency_key=key, now_ns=now_ns)
        for key in sorted({job["idempotency_key"] for job in tables["jobs"]})
    }
    stored = _jobs(root)
    for key, (job, inserted) in answers.items():
        same = [other for other in tables["jobs"] if other["idempotency_key"] == key]
        held = [other["job_id"] for other in same if other["state"] in ACTIVE]
        is_new = job.idempotency_key == key and job.job_id not in [x["job_id"] for x in same]
        is_known = (not inserted and job.job_id in held) if held else (inserted and is_new)
        is_right = is_known and job._asdict() == stored.get(job.job_id)
        message = f"key {key!r} of jobs {held}: inserted is {inserted}, got {job}"
        yield Check(KEY_HELD, is_right, message)


def _ambiguity(tables: Tables, job: dict[str, Any]) -> str | None:
    """Return the rule that a job breaks which nobody may repair by guessing."""
    if job["state"] not in ("claimed", "running"):
        return None
    own = _own(tables, job)
    if own is None:
        return _NO_RUN if job["state"] == "running" else None
    return None if own["return_code"] is None else _ENDED


def _log_rule(root: Path, tables: Tables, job: dict[str, Any], silent: str | None) -> str | None:
    """Return the rule that the log of an open run breaks, *silent* where there is one."""
    own = _own(tables, job) if job["state"] in ("claimed", "running") else None
    if own is None or own["log_path"] is None:
        return None
    return silent if (root / own["log_path"]).is_file() else _NO_LOG


def _own(tables: Tables, job: dict[str, Any]) -> dict[str, Any] | None:
    """Return the newest run of a job if it is of the job's last claim."""
    newest = _newest(tables, job)
    return newest if newest is not None and newest["attempt"] == job["attempts"] else None


def _newest(tables: Tables, job: dict[str, Any]) -> dict[str, Any] | None:
    runs = [run for run in tables["runs"] if run["job_id"] == job["job_id"]]
    return max(runs, key=lambda run: int(run["run_id"]), default=None)


def _jobs(root: Path) -> dict[int, dict[str, Any]]:
    """Return the jobs as they are stored now, seen by a connection of their own."""
    with closing(apsw.Connection(str(root / DATABASE))) as connection:
        found = dump_table(connection, "jobs")
    return {job["job_id"]: job for job in found}


def _files(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def _named(job: dict[str, Any]) -> str:
    return f"job {job['job_id']} ({job['state']}, {job['attempts']} attempts)"
