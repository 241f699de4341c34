"""
The queues that are compared: the metabolism runtime, the same statements bare, and three others.

Each has the same three acts for a worker that takes a dict and gets it back: enqueue, claim,
complete. All run in WAL mode with ``synchronous=NORMAL``; how each came to that is in `how`.

What each promises is not the same. huey deletes a task when it hands it out, so that a dead
worker's task is gone; litequeue and persist-queue mark it, without a lease. None of the three
refuses a second job of one key or what a worker writes that was away for too long. Priorities and
due times huey knows, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import apsw
import litequeue  # type: ignore[import-not-found]
import persistqueue  # type: ignore[import-not-found]
from huey import SqliteHuey  # type: ignore[import-not-found]

from store import metabolism
from store.metabolism import JobState

LEASE_NS = 60 * 10**9
NOW_NS = 1_700_000_000_000_000_000
_compact = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
PRAGMAS = ("journal_mode", "synchronous", "wal_autocheckpoint", "page_size", "cache_size")


def params_of(number: int) -> dict[str, Any]:
    """Return what the worker of job *number* needs."""
    return {"number": number, "input": f"shards/part-{number:06}.parquet", "columns": ["a", "b"]}


class Contender:
    """
    One queue in one new database. The claims it hands out are opaque.

    Attributes:
        how: How WAL and NORMAL were set.
    """

    name: ClassVar[str]
    how: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        raise NotImplementedError

    def enqueue(self, number: int) -> None:
        """Put one job."""
        raise NotImplementedError

    def claim(self) -> Any:
        """Take the next job, which must be there."""
        raise NotImplementedError

    def number_of(self, claim: Any) -> int:
        """Return the job's number, as the worker reads it from what it was given."""
        raise NotImplementedError

    def complete(self, claim: Any) -> None:
        """Record that it was done."""
        raise NotImplementedError

    def completed(self) -> int:
        """Return how many the database says are done."""
        raise NotImplementedError

    def settings(self) -> list[str]:
        """Return the settings that are in force, read back from the connection that writes."""
        return [f"{name}={self._ask(f'PRAGMA {name}')}" for name in PRAGMAS]

    def close(self) -> None:
        """Close the database."""
        raise NotImplementedError

    def _ask(self, sql: str) -> Any:
        raise NotImplementedError


class Ours(Contender):
    """The runtime: enqueue_job, claim_next_job, update_job_state."""

    name = "metabolism"
    how = "by connect()"

    def __init__(self, folder: Path) -> None:
        self.connection = metabolism.connect(folder / "metabolism.db")
        self.now_ns = NOW_NS

    def enqueue(self, number: int) -> None:
        self.now_ns += 1
        metabolism.enqueue_job(
            self.connection,
            kind="convert",
            idempotency_key=f"part-{number:06}",
            params=params_of(number),
            now_ns=self.now_ns,
        )

    def claim(self) -> Any:
        self.now_ns += 1
        return metabolism.claim_next_job(
            self.connection, owner="worker-1", lease_ns=LEASE_NS, now_ns=self.now_ns
        )

    def number_of(self, claim: Any) -> int:
        return int(json.loads(claim.params_json)["number"])

    def complete(self, claim: Any) -> None:
        self.now_ns += 1
        metabolism.update_job_state(
            self.connection, claim.job_id, JobState.COMPLETED, now_ns=self.now_ns
        )

    def completed(self) -> int:
        return int(self._ask("SELECT count(*) FROM jobs WHERE state = 'completed'"))

    def close(self) -> None:
        self.connection.close()

    def _ask(self, sql: str) -> Any:
        return self.connection.execute(sql).fetchall()[0][0]


class OursWithRuns(Ours):
    """The runtime's full path: the work is a run, which ends together with its job."""

    name = "metabolism with runs"

    def complete(self, claim: Any) -> None:
        self.now_ns += 2
        run = metabolism.start_run(self.connection, claim, now_ns=self.now_ns - 1)
        metabolism.complete_run(
            self.connection, run, return_code=0, finalize_job=True, now_ns=self.now_ns
        )


_Statement = tuple[str, Callable[[tuple[Any, ...]], tuple[Any, ...]] | None]
_PER_CONNECTION = ("synchronous", "foreign_keys", "recursive_triggers", "fullfsync")
_PER_CONNECTION += ("checkpoint_fullfsync", "cache_size", "wal_autocheckpoint", "busy_timeout")


class Bare(Contender):
    """
    The runtime's own statements on a plain connection, with nothing around them.

    They are those of two cycles of *traced*, so that they cannot differ from what it executes. What
    differs between the cycles is bound anew for each job; everything else is constant.
    """

    name = "bare apsw"
    how = "as read back from metabolism's connection"
    traced: ClassVar[type[Ours]] = Ours

    def __init__(self, folder: Path) -> None:
        ours = self.traced(folder)
        wanted = {name: ours.connection.pragma(name) for name in _PER_CONNECTION}
        script = self._record(folder)
        ours.close()
        self.connection = apsw.Connection(str(folder / "metabolism.db"))
        for name, value in wanted.items():
            self.connection.pragma(name, value)
            if self.connection.pragma(name) != value:
                raise AssertionError(f"{name}={value} was not taken")
        self.now_ns = NOW_NS
        self._run_id = 0
        self._enqueue, self._claim, self._complete, self._constants = script

    def _record(self, folder: Path) -> tuple[Any, ...]:
        """Return the statements of the acts, and the constants among their bindings."""
        other = folder / "traced"
        other.mkdir()
        ours = self.traced(other)
        # So that no id of a job is that of a run or a number of attempts.
        for number in range(100, 110):
            ours.enqueue(number)
            metabolism.update_job_state(ours.connection, number - 99, JobState.FAILED, now_ns=1)
        first, second = _cycle(ours, 7), _cycle(ours, 8)
        ours.close()
        constants: list[Any] = []
        acts = [
            [_template(a, b, known, constants) for a, b in zip(one, two, strict=True)]
            for one, two, known in zip(first, second, _NAMES, strict=True)
        ]
        return (*acts, tuple(constants))

    def enqueue(self, number: int) -> None:
        self.now_ns += 1
        values = (
            self.now_ns,
            f"part-{number:06}",
            _compact(params_of(number)),
            *self._constants,
        )
        execute = self.connection.execute
        for sql, bind in self._enqueue:
            execute(sql, bind and bind(values)).fetchall()

    def claim(self) -> Any:
        self.now_ns += 1
        now_ns, until = self.now_ns, self.now_ns + LEASE_NS
        values = (now_ns, until, None, *self._constants)
        execute = self.connection.execute
        claimed: Any = ()
        for sql, bind in self._claim:
            found = execute(sql, bind and bind(values)).fetchall()
            if found:
                claimed = found[0]
                values = (now_ns, until, claimed[0], *self._constants)
        return claimed

    def number_of(self, claim: Any) -> int:
        return int(json.loads(claim[3])["number"])

    def complete(self, claim: Any) -> None:
        self.now_ns += 2
        self._run_id += 1
        values = (self.now_ns, claim[0], self._run_id, *self._constants)
        execute = self.connection.execute
        for sql, bind in self._complete:
            execute(sql, bind and bind(values)).fetchall()

    completed = Ours.completed
    close = Ours.close
    _ask = Ours._ask


class BareWithRuns(Bare):
    """The same with the statements of the full path."""

    name = "bare apsw with runs"
    traced = OursWithRuns


# What may differ from job to job, by act, in the order in which `Bare` binds it.
_NAMES = (("now", "key", "params"), ("now", "until", "job_id"), ("now", "job_id", "run_id"))


def _cycle(ours: Ours, number: int) -> list[list[tuple[str, list[Any], dict[str, Any]]]]:
    """Run one job and return, for each act, statements, bindings, and what these may be."""
    seen: list[tuple[str, Any]] = []

    def note(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        seen.append((sql, list(bindings or ())))
        return True

    def taken(**facts: Any) -> list[tuple[str, list[Any], dict[str, Any]]]:
        statements = [(sql, bindings, facts) for sql, bindings in seen]
        seen.clear()
        return statements

    ours.connection.exec_trace = note
    acts = []
    ours.enqueue(number)
    params = _compact(params_of(number))
    acts.append(taken(now={ours.now_ns}, key={f"part-{number:06}"}, params={params}))
    claim = ours.claim()
    until = ours.now_ns + LEASE_NS
    acts.append(taken(now={ours.now_ns}, until={until}, job_id={claim.job_id}))
    ours.complete(claim)
    times = {ours.now_ns - 1, ours.now_ns}
    acts.append(taken(now=times, job_id={claim.job_id}, run_id={number - 6}))
    ours.connection.exec_trace = None
    return acts


def _template(
    first: tuple[str, list[Any], dict[str, Any]],
    second: tuple[str, list[Any], dict[str, Any]],
    names: tuple[str, ...],
    constants: list[Any],
) -> _Statement:
    """Return one statement with a function from an act's values to its bindings."""
    if first[0] != second[0]:
        raise AssertionError(f"one cycle executes {first[0]!r}, another {second[0]!r}")
    places = []
    for a, b in zip(first[1], second[1], strict=True):
        if a == b:
            places.append(len(names) + len(constants))
            constants.append(a)
            continue
        fitting = [n for n in names if a in first[2].get(n, ()) and b in second[2].get(n, ())]
        if len(fitting) != 1:
            raise AssertionError(f"{first[0]!r} binds {a!r}, then {b!r}: which of {names} is that?")
        places.append(names.index(fitting[0]))
    if not places:
        return first[0], None
    if len(places) == 1:
        (place,) = places
        return first[0], lambda values: (values[place],)
    return first[0], itemgetter(*places)


class LiteQueue(Contender):
    """litequeue: put, pop, done."""

    name = "litequeue"
    how = "by litequeue itself"

    def __init__(self, folder: Path) -> None:
        self.queue = litequeue.LiteQueue(folder / "litequeue.db")

    def enqueue(self, number: int) -> None:
        self.queue.put(json.dumps(params_of(number)))

    def claim(self) -> Any:
        return self.queue.pop()

    def number_of(self, claim: Any) -> int:
        return int(json.loads(claim.data)["number"])

    def complete(self, claim: Any) -> None:
        self.queue.done(claim.message_id)

    def completed(self) -> int:
        return int(self._ask("SELECT count(*) FROM Queue WHERE status = 2"))

    def close(self) -> None:
        self.queue.close()

    def _ask(self, sql: str) -> Any:
        return self.queue.conn.execute(sql).fetchone()[0]


class Huey(Contender):
    """huey: a call of a task, dequeue, execute, which stores the result of a no-op."""

    name = "huey"
    how = "WAL by huey; PRAGMA synchronous=1 on its connection, it has FULL or OFF only"

    def __init__(self, folder: Path) -> None:
        self.huey = SqliteHuey("jobs", filename=str(folder / "huey.db"))
        self.huey.storage.conn.execute("PRAGMA synchronous=1")
        self.convert = self.huey.task()(_work)

    def enqueue(self, number: int) -> None:
        self.convert(params_of(number))

    def claim(self) -> Any:
        return self.huey.dequeue()

    def number_of(self, claim: Any) -> int:
        return int(claim.args[0]["number"])

    def complete(self, claim: Any) -> None:
        self.huey.execute(claim)

    def completed(self) -> int:
        return int(self.huey.storage.result_store_size())

    def close(self) -> None:
        self.huey.storage.close()

    def _ask(self, sql: str) -> Any:
        return self.huey.storage.conn.execute(sql).fetchone()[0]


def _work(params: dict[str, Any]) -> bool:
    return True


class PersistQueue(Contender):
    """persist-queue's SQLiteAckQueue: put, get, ack by id."""

    name = "persist-queue"
    how = "WAL by persist-queue; PRAGMA synchronous=NORMAL on its connection"

    def __init__(self, folder: Path) -> None:
        self.queue = persistqueue.SQLiteAckQueue(str(folder / "persistqueue"))
        self.queue._putter.execute("PRAGMA synchronous=NORMAL")

    def enqueue(self, number: int) -> None:
        self.queue.put(params_of(number))

    def claim(self) -> Any:
        return self.queue.get(block=False, raw=True)

    def number_of(self, claim: Any) -> int:
        return int(claim["data"]["number"])

    def complete(self, claim: Any) -> None:
        self.queue.ack(id=claim["pqid"])

    def completed(self) -> int:
        return int(self.queue.acked_count())

    def close(self) -> None:
        self.queue.close()

    def _ask(self, sql: str) -> Any:
        return self.queue._putter.execute(sql).fetchone()[0]


CONTENDERS: tuple[type[Contender], ...] = (
    Ours,
    Bare,
    LiteQueue,
    Huey,
    PersistQueue,
    OursWithRuns,
    BareWithRuns,
)
"""In the order of the table."""
