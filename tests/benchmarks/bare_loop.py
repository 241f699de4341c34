"""
The ceiling for replay on the light store: what a hand-written loop costs, and no harness.

For each boundary it does what the harness does for this campaign, in the same order and in the same
number of forked children (eight):

    remove what is in the root, copy the fixture into it; child: the workload under a trace hook,
    ``os._exit`` at the boundary; check of status, place of death and trace prefix; remove -shm
    files; child: recover, traced; copy the database, child: SQLite's checks on the copy; copy the
    root, child: observe and compare, answer through shared memory; put the copy back; child:
    recover again, traced; copy, child: observe again, put back; child: resume, traced; child:
    observe and compare with the end.

It does not: bound a child in time, collect what children print, look for processes left behind, die
with its parent, report exceptions, keep a journal of steps, clock or identifiers, copy modes, times
and links, know more than one database, or say in words what is wrong: an assertion ends it.

It runs in a fresh interpreter that imports what it needs and nothing else. Run as ``python
bare_loop.py FOLDER``; then each line of numbers on its input is a round of boundaries, answered by
a line with its seconds. The first answer is the number of boundaries and the trace's CRC-32.
"""

# Bare: the calls of the system, as a hand-written loop would make them.
# ruff: noqa: PTH102, PTH103, PTH104, PTH106, PTH108, PTH208

from __future__ import annotations

import gc
import json
import mmap
import os
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

import apsw
import light_workload as workload

CRASHED = 86
_COUNT, _DIED_AT, _TRACE_SIZE, _REPLY_SIZE = range(4)
_TRACE_AT, _REPLY_AT, _SIZE = 1 << 12, 1 << 22, 1 << 23


class Loop:
    """The shared memory, the root, and a place beside it."""

    def __init__(self, folder: str) -> None:
        self.root, self.side = f"{folder}/root", f"{folder}/side"
        for path in (self.root, self.side, f"{self.side}/fixture", f"{self.side}/checked"):
            os.makedirs(path, exist_ok=True)
        self.memory = mmap.mmap(-1, _SIZE)
        self.header = memoryview(self.memory)[:_TRACE_AT].cast("q")
        self.stop = 0
        self.trace = b""
        self.ends: list[int] = []
        self.steps: list[tuple[int, int]] = []

    # -- in children ------------------------------------------------------------------------

    def write(self, line: str) -> None:
        """Write a trace line, and die where it is the one to die at."""
        header, data = self.header, line.encode() + b"\n"
        start = _TRACE_AT + header[_TRACE_SIZE]
        self.memory[start : start + len(data)] = data
        header[_TRACE_SIZE] += len(data)
        header[_COUNT] += 1
        if header[_COUNT] == self.stop:
            header[_DIED_AT] = self.stop
            os._exit(CRASHED)

    def traced(self, path: str) -> apsw.Connection:
        """Connect, with every statement written before and after it runs."""
        connection = apsw.Connection(path)

        def trace(event: dict[str, Any]) -> None:
            phase = "before" if event["code"] == apsw.SQLITE_TRACE_STMT else "after"
            self.write(f"{phase} sql {path}: {event['sql']}")

        connection.trace_v2(apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE, trace)
        return connection

    def execute(self, done: int = 0) -> None:
        """Run the workload from transaction *done* on."""
        connection = self.traced(workload.DATABASE)
        for number in range(done, workload.TRANSACTIONS):
            self.write(f"before step put {number}")
            workload.put(connection, number)
            self.write(f"after step put {number}")
        connection.close()
        self.write("end")

    def check(self) -> None:
        """SQLite's own checks of the copy."""
        connection = apsw.Connection(f"{self.side}/checked/{workload.DATABASE}")
        assert connection.execute("pragma integrity_check(20)").fetchall() == [("ok",)]
        assert connection.execute("pragma foreign_key_check").fetchall() == []
        connection.close()

    def judge(self, right: list[Any]) -> None:
        """Observe, compare, and answer."""
        observed = workload.observe(apsw.Connection)
        assert observed in right, (observed, right)
        data = json.dumps(observed).encode()
        self.memory[_REPLY_AT : _REPLY_AT + len(data)] = data
        self.header[_REPLY_SIZE] = len(data)

    # -- in the parent ----------------------------------------------------------------------

    def run(self, body: Callable[[], Any], stop: int = 0, status: int = 0) -> None:
        """Run *body* in a child that ends with *status*."""
        for field in (_COUNT, _DIED_AT, _TRACE_SIZE, _REPLY_SIZE):
            self.header[field] = 0
        pid = os.fork()
        if pid == 0:
            try:
                self.stop = stop
                os.chdir(self.root)
                body()
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert ended == status, (ended, status)

    def reply(self) -> Any:
        """Return what the last child answered."""
        return json.loads(self.memory[_REPLY_AT : _REPLY_AT + self.header[_REPLY_SIZE]])

    def record(self) -> None:
        """Make the fixture, and the golden trace."""
        self.run(lambda: workload.prepare(apsw.Connection))
        copy(self.root, f"{self.side}/fixture")
        self.run(self.execute)
        self.trace = self.memory[_TRACE_AT : _TRACE_AT + self.header[_TRACE_SIZE]]
        lines = self.trace.decode().split("\n")[:-1]
        size = 0
        for line in lines:
            size += len(line) + 1
            self.ends.append(size)
        names = [f" step put {n}" for n in range(workload.TRANSACTIONS)]
        self.steps = [(lines.index("before" + n) + 1, lines.index("after" + n) + 1) for n in names]

    def examine(self, boundary: int) -> None:
        """Crash at *boundary* and verify."""
        root, side = self.root, self.side
        clear(root)
        copy(f"{side}/fixture", root)
        self.run(self.execute, stop=boundary, status=CRASHED)
        assert self.header[_DIED_AT] == self.header[_COUNT] == boundary
        size = self.header[_TRACE_SIZE]
        assert size == self.ends[boundary - 1]
        assert self.memory[_TRACE_AT : _TRACE_AT + size] == self.trace[:size]
        for name in os.listdir(root):
            if name.endswith("-shm"):
                os.unlink(f"{root}/{name}")
        done = sum(end <= boundary for _, end in self.steps)
        is_flying = any(begin < boundary < end for begin, end in self.steps)
        right = [workload.expected(n) for n in range(done, done + 1 + is_flying)]

        self.run(lambda: workload.recover(self.traced))
        clear(f"{side}/checked")
        copy(root, f"{side}/checked")
        self.run(self.check)
        first = self.judged_aside(right)
        self.run(lambda: workload.recover(self.traced))
        assert self.judged_aside(right) == first
        self.run(lambda: self.execute(len(first)))
        self.run(lambda: self.judge([workload.expected(workload.TRANSACTIONS)]))
        assert self.reply() == workload.expected(workload.TRANSACTIONS)

    def judged_aside(self, right: list[Any]) -> Any:
        """Judge, and put back the root as it was before."""
        saved = f"{self.side}/saved"
        os.mkdir(saved)
        copy(self.root, saved)
        self.run(lambda: self.judge(right))
        clear(self.root)
        os.rmdir(self.root)
        os.rename(saved, self.root)
        return self.reply()


def copy(source: str, destination: str) -> None:
    """Copy the files of a flat folder."""
    for name in os.listdir(source):
        with (
            open(f"{source}/{name}", "rb", buffering=0) as reading,
            open(f"{destination}/{name}", "wb", buffering=0) as writing,
        ):
            writing.write(reading.read())


def clear(folder: str) -> None:
    """Remove the files of a flat folder."""
    for name in os.listdir(folder):
        os.unlink(f"{folder}/{name}")


def main() -> None:
    """Serve rounds until the input ends."""
    loop = Loop(sys.argv[1])
    gc.collect()
    gc.freeze()
    gc.disable()
    loop.record()
    print(len(loop.ends), zlib.crc32(loop.trace), flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        for boundary in line.split():
            loop.examine(int(boundary))
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
