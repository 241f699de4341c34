"""
Processes that each hold a connection and do what they are told over a pipe.

Method: an actor is an interpreter of its own. It answers each command with one message. While it
is stepped it stops before every SQL statement, and whenever the database is locked, says so, and
goes on only when it is told to: so a test decides who runs, and sees who waits, without a clock.

Run as a script, this file is the actor; imported, it is its parent's side.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

import apsw

from store.metabolism import (
    Job,
    Run,
    append_log,
    claim_next_job,
    complete_run,
    connect,
    create_log,
    enqueue_job,
    renew_claim,
    requeue_expired_jobs,
    start_run,
    update_job_state,
)

ANSWER_SECONDS_MAX = 60
BUSY_POLLS_MAX = 20_000
NOBODY = 65_534
ROOT = Path(__file__).resolve().parents[3]

Kind = Literal["done", "failed", "before", "locked"]
Operation = Callable[..., object]


class Message(NamedTuple):
    """
    What an actor says: an answer (done, failed), or where it stopped (before, locked).
    """

    kind: Kind
    value: Any


def _enqueue(
    c: apsw.Connection, key: str, priority: int, not_before_ns: int, now_ns: int
) -> tuple[Job, bool]:
    return enqueue_job(
        c,
        kind="mail",
        idempotency_key=key,
        priority=priority,
        not_before_ns=not_before_ns,
        now_ns=now_ns,
    )


def _complete(c: apsw.Connection, run: Run, code: int, finalize_job: bool, now_ns: int) -> Run:
    return complete_run(c, run, return_code=code, finalize_job=finalize_job, now_ns=now_ns)


OPERATIONS: dict[str, Operation] = {
    "enqueue": _enqueue,
    "claim": claim_next_job,
    "renew": renew_claim,
    "requeue": requeue_expired_jobs,
    "update": update_job_state,
    "start": start_run,
    "complete": _complete,
}
"""What an actor can do, under the names and arguments of the model."""


class Actor:
    """One process, as its parent holds it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
            )
        self.pipe = Connection(ours.detach())

    def send(self, name: str, **arguments: Any) -> None:
        self.pipe.send((name, arguments))

    def receive(self) -> Message:
        if not self.pipe.poll(ANSWER_SECONDS_MAX):
            raise AssertionError(f"pid {self.process.pid} said nothing for too long")
        found = self.pipe.recv()
        assert isinstance(found, Message)
        return found

    def go(self) -> Message:
        """Let a stopped actor go on to where it stops next, or to its answer."""
        self.pipe.send(None)
        return self.receive()

    def do(self, name: str, **arguments: Any) -> Any:
        """Return the answer of a command, or raise it."""
        self.send(name, **arguments)
        return self.answer()

    def answer(self) -> Any:
        message = self.receive()
        if message.kind == "failed":
            raise message.value
        assert message.kind == "done"
        return message.value

    def kill(self) -> None:
        """End the process as it stands, and reap it."""
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL
        self.pipe.close()

    def close(self) -> None:
        """End the process whatever it does, and reap it."""
        self.pipe.close()
        try:
            self.process.wait(ANSWER_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def actors(count: int) -> Iterator[list[Actor]]:
    """Yield *count* running actors; whatever happens, none of them is left."""
    with ExitStack() as stack:
        started = [stack.enter_context(actor()) for _ in range(count)]
        yield started


@contextmanager
def actor() -> Iterator[Actor]:
    """Yield one running actor; whatever happens, it is not left."""
    started = Actor()
    try:
        yield started
    finally:
        started.close()


@contextmanager
def gate(path: Path) -> Iterator[None]:
    """Hold back every actor that was sent a command with this gate, until the block has ended."""
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Performer:
    """What runs in the actor's own process."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.connection: apsw.Connection | None = None
        self.operations = OPERATIONS
        self.commands: dict[str, Operation] = {
            "open": self.open,
            "close": self.close,
            "drain": self.drain,
            "limit_file_size": limit_file_size,
            "drop_rights": drop_rights,
            "create_log": create_log,
            "append_log": append_log,
        }

    def run(self) -> None:
        while True:
            name, arguments = self.pipe.recv()
            gate = arguments.pop("gate", None)
            try:
                if gate is not None:
                    with open(gate, "rb") as file:
                        fcntl.flock(file, fcntl.LOCK_SH)
                answer = Message("done", self.perform(name, arguments))
            except Exception as error:
                answer = Message("failed", error)
            self.pipe.send(answer)

    def perform(self, name: str, arguments: dict[str, Any]) -> object:
        if name in self.commands:
            return self.commands[name](**arguments)
        return self.operations[name](self.connection, **arguments)

    def open(self, path: Path, *, is_stepped: bool = False, twin: str | None = None) -> int:
        """Open the database, by this module's operations or a broken twin of them."""
        self.close()
        if twin is not None:
            from metabolism_twins import TWINS

            self.operations = {**OPERATIONS, **TWINS[twin]}
        self.connection = connect(path)
        if is_stepped:
            self.connection.trace_v2(apsw.SQLITE_TRACE_STMT, self._before, id=self)
            self.connection.set_busy_handler(self._locked)
        else:
            self.connection.set_busy_handler(_poll)
        return os.getpid()

    def close(self) -> None:
        self.operations = OPERATIONS
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def drain(self, owner: str, first_ns: int, step_ns: int) -> list[Job]:
        """Claim until nothing is due, at a time of its own for each claim."""
        assert self.connection is not None
        taken: list[Job] = []
        while True:
            now_ns = first_ns + step_ns * len(taken)
            claim = claim_next_job(self.connection, owner=owner, now_ns=now_ns)
            if claim is None:
                return taken
            taken.append(claim)

    def _before(self, event: dict[str, Any]) -> None:
        self._stop("before", str(event["sql"]))

    def _locked(self, count: int) -> bool:
        self._stop("locked", count)
        return True

    def _stop(self, kind: Kind, value: object) -> None:
        self.pipe.send(Message(kind, value))
        try:
            self.pipe.recv()
        except EOFError:
            os._exit(0)  # the parent has gone; no exception leaves a callback of SQLite


def _poll(count: int) -> bool:
    """Wait for the lock without SQLite's growing pauses, and not for ever."""
    time.sleep(0.0005)
    return count < BUSY_POLLS_MAX


def limit_file_size(size_bytes: int | None) -> None:
    """Let this process make no file longer than this: as a disk that is full."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    soft = hard if size_bytes is None else size_bytes
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def drop_rights() -> None:
    """Make this process one that the rights of files bind; those of root do not bind it."""
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C, and closes the pipe
    import metabolism_actors

    try:
        metabolism_actors._Performer(Connection(int(sys.argv[1]))).run()
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    main()
