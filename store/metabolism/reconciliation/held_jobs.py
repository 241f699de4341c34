"""
The claimed and running jobs of a database, each with its newest run, as one snapshot.

Method: one SELECT, fetched row by row, so that memory does not grow with the number of jobs and
every row is of the same moment. Nothing is taken on trust: text is read as bytes and decoded
with escapes, and a value that the schema does not admit ends the walk with an error that names
the row.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple, NoReturn

import apsw

from store.metabolism.errors import MetabolismError
from store.sqlite import rows

__all__ = ["HeldJob", "MalformedRow", "encoding", "held_jobs"]


class MalformedRow(MetabolismError):
    """
    A row holds what the schema does not admit: the database is damaged, or was made elsewhere.

    Attributes:
        table: Where the row is.
        row_id: Which row.
        problem: What is wrong with it.
    """

    def __init__(self, table: str, row_id: int, problem: str) -> None:
        super().__init__(
            f"row {row_id} of {table} {problem}; the database is damaged. Restore it from a "
            "backup, or let PRAGMA integrity_check on a copy name everything that is wrong."
        )
        self.table = table
        self.row_id = row_id
        self.problem = problem


class HeldJob(NamedTuple):
    """
    One claimed or running job, and its newest run; ``run_id`` is None where it has none.

    The texts are the bytes that the database holds, in its `encoding`.
    """

    job_id: int
    state: str
    kind: bytes
    idempotency_key: bytes
    claim_owner: bytes | None
    claim_expires_at_ns: int | None
    attempts: int
    updated_at_ns: int
    run_id: int | None
    run_attempt: int | None
    started_at_ns: int | None
    completed_at_ns: int | None
    return_code: int | None
    log_path: bytes | None


_SQL: Final = """SELECT j.job_id, j.state, CAST(j.kind AS BLOB), CAST(j.idempotency_key AS BLOB),
 CAST(j.claim_owner AS BLOB), j.claim_expires_at_ns, j.attempts, j.updated_at_ns,
 r.run_id, r.attempt, r.started_at_ns, r.completed_at_ns, r.return_code, CAST(r.log_path AS BLOB)
 FROM jobs AS j LEFT JOIN runs AS r
 ON r.run_id = (SELECT max(run_id) FROM runs WHERE runs.job_id = j.job_id)
 WHERE j.state IN ('claimed', 'running')"""

_NULL: Final = type(None)
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "job_id": (int,),
    "state": (str,),
    "kind": (bytes,),
    "idempotency_key": (bytes,),
    "claim_owner": (bytes, _NULL),
    "claim_expires_at_ns": (int, _NULL),
    "attempts": (int,),
    "updated_at_ns": (int,),
    "run_id": (int, _NULL),
    "run_attempt": (int, _NULL),
    "started_at_ns": (int, _NULL),
    "completed_at_ns": (int, _NULL),
    "return_code": (int, _NULL),
    "log_path": (bytes, _NULL),
}
_OF_A_RUN: Final = ("run_attempt", "started_at_ns", "completed_at_ns", "return_code", "log_path")


def held_jobs(connection: apsw.Connection) -> Generator[HeldJob, None, None]:
    """
    Yield every claimed and running job once, in no particular order.

    The read transaction lasts until the last row, or until the iterator is closed.

    Raises:
        MalformedRow: a value is of a wrong type, or is missing.
        apsw.Error: the database could not be read.
    Cost: Linear in the held jobs, through the indexes of the schema; constant memory.
    """
    sound: set[tuple[object, ...]] = set()
    cursor = connection.execute(_SQL)
    try:
        for row in cursor:
            job = HeldJob._make(row)
            shape = (job.state, *map(type, row))
            if shape not in sound:
                _require_sound(job)
                sound.add(shape)
            yield job
    finally:
        cursor.close(True)


def encoding(connection: apsw.Connection) -> str:
    """Return the encoding of the database's texts, in Python's name for it."""
    return str(rows(connection, "PRAGMA encoding")[0][0]).lower()


def _require_sound(job: HeldJob) -> None:
    """Raise for what the schema does not admit; whether it does depends on state and types only."""
    for name, value in job._asdict().items():
        if type(value) not in _TYPES[name]:
            _refuse(job, name, f"holds {name}={value!r:.40}")
    if (job.claim_expires_at_ns is None) != (job.claim_owner is None):
        _refuse(job, "claim_owner", "holds half a lease")
    if job.claim_owner is None and job.state == "claimed":
        _refuse(job, "claim_owner", "is claimed by nobody")
    if job.run_id is None:
        return
    for name in ("run_attempt", "started_at_ns"):
        if getattr(job, name) is None:
            _refuse(job, name, f"has no {name}")
    if (job.completed_at_ns is None) != (job.return_code is None):
        _refuse(job, "return_code", "has half an end")


def _refuse(job: HeldJob, column: str, problem: str) -> NoReturn:
    if column in _OF_A_RUN and job.run_id is not None:
        raise MalformedRow("runs", job.run_id, problem)
    raise MalformedRow("jobs", job.job_id, problem)
