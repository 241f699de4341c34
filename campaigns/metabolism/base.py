"""What every campaign over the metabolism runtime has in common."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import apsw

from campaigns.metabolism import invariants
from campaigns.metabolism.invariants import DATABASE, TERMINAL
from campaigns.tables import dump_tables
from harness import JSON, Campaign, Check, Evidence, Observer, Run
from store import crash_points
from store.metabolism import (
    ClaimEvent,
    Job,
    append_claim_event,
    claim_next_job,
    complete_run,
    connect,
    create_log,
    enqueue_job,
    requeue_expired_jobs,
    start_run,
)
from store.metabolism import Run as JobRun

LEASE_NS = 60 * 10**9
"""How long a lease of these campaigns lives, in nanoseconds."""

LATE = "late"
"""Key of the job that a restarted runtime enqueues, and id of the claim that it asserts."""

_UNCHANGING = (
    "job_id",
    "kind",
    "provider",
    "params_json",
    "idempotency_key",
    "priority",
    "not_before_ns",
    "created_at_ns",
)
"""The columns of a job that no operation changes."""


class _MetabolismCampaign(Campaign):
    """
    A runtime that is opened again after a crash: all its tables are observed, all invariants held.

    A power loss may take its newest commits: WAL with synchronous NORMAL. After a crash a worker
    waits until every lease has lapsed, gives back what they held, takes one job after the other to
    its end, and asserts a claim of its own.
    """

    durability = "consistent"
    invariants: ClassVar[tuple[str, ...]] = invariants.NAMES

    def attach(self, observer: Observer) -> None:
        crash_points._observer = observer

    def prepare(self, root: Path, run: Run) -> None:
        connect(root / DATABASE).close()

    def execute(self, root: Path, run: Run) -> None:
        with self.opened(root) as connection:
            self._work(connection, root, run)

    def opened(self, root: Path) -> closing[apsw.Connection]:
        """Return the runtime's connection, closed at the end of its block."""
        return closing(connect(root / DATABASE))

    def _work(self, connection: apsw.Connection, root: Path, run: Run) -> None:
        """Run the workload on an open database, as steps."""
        raise NotImplementedError

    def recover(self, root: Path, run: Run) -> None:
        connect(root / DATABASE).close()

    def observe(self, root: Path) -> JSON:
        """Return every row of every table, and the launch logs; None before there is a table."""
        tables = dump_tables(root / DATABASE)
        logs = {str(x.relative_to(root)): x.read_text() for x in sorted(root.rglob("*.log"))}
        return None if tables is None else {**tables, "logs": logs}

    def check(self, root: Path, evidence: Evidence) -> Iterator[Check]:
        yield from invariants.all_of(root, evidence)

    def resume(self, root: Path, run: Run) -> None:
        with self.opened(root) as connection:
            run.sleep(2 * LEASE_NS / 1e9)
            requeue_expired_jobs(connection, now_ns=run.clock())
            enqueue(connection, run, LATE)
            while claim := claim_next_job(connection, owner="restarted", now_ns=run.clock()):
                promise_claimed(run, claim)
                log_path = f"logs/{claim.job_id}-{claim.attempts}.log"
                create_log(root, log_path)
                begun = start_run(connection, claim, log_path=log_path, now_ns=run.clock())
                ended = complete_run(
                    connection, begun, return_code=0, finalize_job=True, now_ns=run.clock()
                )
                promise_completed(run, ended, state="completed")
            assert_claim(connection, run, LATE)

    def complete(self, root: Path, evidence: Evidence) -> bool:
        """Every job has ended but those that are for an operator; the last claim is there."""
        tables = evidence.observed
        open_jobs = [job for job in tables["jobs"] if job["state"] not in TERMINAL]
        operators = (invariants.BY_HAND, invariants.LEFT_RUNNING)
        late = [job for job in tables["jobs"] if job["idempotency_key"] == LATE]
        events = [event["claim_id"] for event in tables["blackboard_claim_events"]]
        return (
            all(job["kind"] in operators for job in open_jobs)
            and {job["state"] for job in late} == {"completed"}
            and events[-1:] == [LATE]
        )

    def promised_enqueued(
        self, root: Path, evidence: Evidence, *, job_id: int, key: str, asked: dict[str, Any]
    ) -> bool:
        """A job that was enqueued stays, under its key, as it was asked for."""
        expected = {"job_id": job_id, "idempotency_key": key, **asked}
        return any(expected.items() <= job.items() for job in evidence.observed["jobs"])

    def promised_claimed(
        self,
        root: Path,
        evidence: Evidence,
        *,
        job: dict[str, Any],
        attempt: int,
        owner: str,
        until: int,
    ) -> bool:
        """While a lease lives, nobody else has the job; afterwards its attempts tell of it."""
        [found] = [x for x in evidence.observed["jobs"] if x["job_id"] == job["job_id"]]
        is_held = (found["attempts"], found["claim_owner"]) == (attempt, owner)
        has_lapsed = evidence.now_ns > until and found["attempts"] >= attempt
        return job.items() <= found.items() and (is_held or has_lapsed)

    def promised_started(self, root: Path, evidence: Evidence, *, begun: dict[str, Any]) -> bool:
        """A run that was started stays, with all that its end does not change."""
        return any(begun.items() <= row.items() for row in evidence.observed["runs"])

    def promised_completed(
        self,
        root: Path,
        evidence: Evidence,
        *,
        ended: dict[str, Any],
        return_code: int,
        state: str,
    ) -> bool:
        """A run that was completed stays as it was told, and its job is where that left it."""
        [job] = [row for row in evidence.observed["jobs"] if row["job_id"] == ended["job_id"]]
        is_told = (ended["return_code"], job["state"]) == (return_code, state)
        return is_told and ended in evidence.observed["runs"]

    def promised_appended(self, root: Path, evidence: Evidence, *, event: dict[str, Any]) -> bool:
        """An event that was appended stays as it is."""
        return event in evidence.observed["blackboard_claim_events"]


def enqueue(
    connection: apsw.Connection, run: Run, key: str, *, kind: str = "job", **more: Any
) -> Job:
    """Enqueue and promise it as it was asked for; an active job of the key will do as it is."""
    job, inserted = enqueue_job(
        connection, kind=kind, idempotency_key=key, now_ns=run.clock(), **more
    )
    asked = {"kind": kind, "params_json": as_json(more.pop("params", {})), **more}
    run.promise("enqueued", job_id=job.job_id, key=key, asked=asked if inserted else {})
    return job


def as_json(value: dict[str, Any]) -> str:
    """Return what is stored of a JSON object, worked out without the store's code."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def promise_claimed(run: Run, claim: Job) -> None:
    """Promise what a lease says."""
    run.promise("claimed", **_told_of(claim))


def withdraw_claimed(run: Run, claim: Job) -> None:
    """End that promise, before the lease is replaced by a longer one."""
    run.withdraw("claimed", **_told_of(claim))


def _told_of(claim: Job) -> dict[str, Any]:
    """Return what a claim says: of the job what no operation changes, and of its lease."""
    told = claim._asdict()
    return {
        "job": {name: told[name] for name in _UNCHANGING},
        "attempt": claim.attempts,
        "owner": claim.claim_owner,
        "until": claim.claim_expires_at_ns,
    }


def promise_started(run: Run, begun: JobRun) -> None:
    """Promise what a start says that the end of the run leaves as it is."""
    told = begun._asdict()
    is_open = (told.pop("completed_at_ns"), told.pop("return_code")) == (None, None)
    assert is_open
    run.promise("started", begun=told)


def promise_completed(run: Run, ended: JobRun, *, return_code: int = 0, state: str) -> None:
    """Promise the end of a run, with the code that was given, and the state of its job."""
    run.promise("completed", ended=ended._asdict(), return_code=return_code, state=state)


def assert_claim(connection: apsw.Connection, run: Run, claim_id: str) -> ClaimEvent:
    """Append an assertion and promise it."""
    event = append_claim_event(
        connection,
        kind="claim_asserted",
        claim_id=claim_id,
        subject="runtime",
        predicate="is",
        object="alive",
        now_ns=run.clock(),
    )
    run.promise("appended", event=event._asdict())
    return event
