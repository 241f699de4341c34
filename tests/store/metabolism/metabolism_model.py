"""
The queue and its runs as plain Python: what every operation must answer and leave behind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from store.metabolism import Job, Run
from store.metabolism.errors import (
    JobIsTerminal,
    MetabolismError,
    OnlyByClaim,
    RunIsCompleted,
    StaleClaim,
)
from store.metabolism.queue import REQUEUED

ENDED = ("completed", "failed")
HELD = ("claimed", "running")
WAITING = ("queued", "recoverable")

Refusal = type[MetabolismError]


class Model:
    """What the queue and its runs are, by the words of the specification."""

    def __init__(self, jobs: Iterable[Job] = (), runs: Iterable[Run] = ()) -> None:
        self.jobs = list(jobs)
        self.runs = list(runs)

    def copy(self) -> Model:
        return Model(self.jobs, self.runs)

    def change(self, job: Job, **changed: Any) -> Job:
        made = job._replace(**changed)
        self.jobs[made.job_id - 1] = made
        return made

    def newest(self, job_id: int) -> Run | None:
        runs = [run for run in self.runs if run.job_id == job_id]
        return runs[-1] if runs else None

    def enqueue(self, key: str, priority: int, not_before_ns: int, now_ns: int) -> tuple[Job, bool]:
        for job in self.jobs:
            if job.idempotency_key == key and job.state not in ENDED:
                return job, False
        number = len(self.jobs) + 1
        waits = ("queued", priority, not_before_ns, None, None, 0, None, now_ns, now_ns)
        self.jobs.append(Job(number, "mail", "local", "{}", key, *waits))
        return self.jobs[-1], True

    def claim(self, owner: str, lease_ns: int, now_ns: int) -> Job | None:
        due = [job for job in self.jobs if job.state in WAITING and job.not_before_ns <= now_ns]
        if not due:
            return None
        job = min(due, key=lambda job: (job.priority, job.created_at_ns, job.job_id))
        return self.change(
            job,
            state="claimed",
            claim_owner=owner,
            claim_expires_at_ns=now_ns + lease_ns,
            attempts=job.attempts + 1,
            updated_at_ns=now_ns,
        )

    def renew(self, claim: Job, lease_ns: int, now_ns: int) -> Job | Refusal:
        job = self.jobs[claim.job_id - 1]
        if job.state not in HELD or job.attempts != claim.attempts or job.claim_owner is None:
            return StaleClaim
        return self.change(job, claim_expires_at_ns=now_ns + lease_ns, updated_at_ns=now_ns)

    def is_ambiguous(self, job: Job) -> bool:
        run = self.newest(job.job_id)
        if run is None or run.attempt != job.attempts:
            return job.state == "running"
        return run.completed_at_ns is not None

    def requeue(self, now_ns: int) -> int:
        count = 0
        for job in list(self.jobs):
            lapses = job.claim_expires_at_ns
            has_lapsed = job.state in HELD and lapses is not None and lapses < now_ns
            if has_lapsed and not self.is_ambiguous(job):
                count += 1
                freed = {"claim_owner": None, "claim_expires_at_ns": None}
                self.change(
                    job,
                    state="recoverable",
                    last_error=REQUEUED,
                    updated_at_ns=now_ns,
                    **freed,
                )
        return count

    def update(self, job_id: int, state: str, now_ns: int) -> Job | Refusal:
        job = self.jobs[job_id - 1]
        if state == "claimed":
            return OnlyByClaim
        if job.state in ENDED:
            return JobIsTerminal
        return self._moved(job, state, now_ns)

    def _moved(self, job: Job, state: str, now_ns: int) -> Job:
        freed = {"claim_owner": None, "claim_expires_at_ns": None} if state in WAITING else {}
        return self.change(job, state=state, last_error=None, updated_at_ns=now_ns, **freed)

    def start(self, claim: Job, now_ns: int) -> Run | Refusal:
        job = self.jobs[claim.job_id - 1]
        if job.state != "claimed" or job.attempts != claim.attempts:
            return StaleClaim
        self._moved(job, "running", now_ns)
        number = len(self.runs) + 1
        self.runs.append(Run(number, job.job_id, job.attempts, now_ns, None, None, None))
        return self.runs[-1]

    def complete(self, run: Run, code: int, finalize_job: bool, now_ns: int) -> Run | Refusal:
        found = self.runs[run.run_id - 1]
        job = self.jobs[found.job_id - 1]
        if found.completed_at_ns is not None:
            return RunIsCompleted
        if finalize_job and (job.state != "running" or job.attempts != found.attempt):
            return StaleClaim
        ended = found._replace(completed_at_ns=now_ns, return_code=code)
        self.runs[run.run_id - 1] = ended
        if finalize_job:
            self._moved(job, "failed" if code else "completed", now_ns)
        return ended
