"""
What recording costs: a SQLite WAL workload and single calls, bare and recorded.

Method: each measurement is a forked child of its own with a fresh root; the variants take turns, so
that they share the machine's moods, and ratios are medians over rounds. The log lies on the same
file system as the root. Run as ``python -m tests.benchmarks.bench_recorder``.
"""

from __future__ import annotations

import os
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import apsw

from harness.oplog import Kind, Oplog
from harness.recorder import Options, load, missing, recording
from tests.benchmarks.measuring import arguments, print_machine

_MEMORY = Path("/dev/shm")
VARIANTS: dict[str, Options | None] = {
    "bare": None,
    "calls only": Options(stacks=False, seed=None, clock_start_ns=None),
    "with stacks": Options(seed=None, clock_start_ns=None),
    "with everything": Options(),
}
Work = Callable[[Path, int], tuple[float, float]]
"""Returns seconds by the clock, and of the processor."""


@dataclass(frozen=True)
class Measured:
    """One child: seconds of the work, of starting to record, and what the log holds."""

    seconds: float
    processor_seconds: float
    start_seconds: float
    log_size: int
    ops: int
    writes: int


@dataclass
class Timer:
    """Seconds since it was made, by the clock and of the processor."""

    def __post_init__(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Return both."""
        return time.perf_counter() - self._started[0], time.process_time() - self._started[1]


def wal(synchronous: str) -> Work:
    """Return a workload of transactions that insert one row each."""

    def work(root: Path, count: int) -> tuple[float, float]:
        connection = apsw.Connection(str(root / "db"))
        connection.execute("PRAGMA journal_mode=wal").fetchall()
        connection.execute(f"PRAGMA synchronous={synchronous}").fetchall()
        connection.execute("CREATE TABLE t (a, b)")
        timer = Timer()
        for number in range(count):
            connection.execute("BEGIN")
            connection.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * 200))
            connection.execute("COMMIT")
        seconds = timer.read()
        connection.close()
        return seconds

    return work


def writes(size: int, *, outside: bool = False) -> Work:
    """Return a workload of writes of one size, to a file in the root or beside it."""

    def work(root: Path, count: int) -> tuple[float, float]:
        folder = root.parent if outside else root
        descriptor = os.open(folder / "file", os.O_CREAT | os.O_WRONLY)
        data = bytes(size)
        timer = Timer()
        for _ in range(count):
            os.pwrite(descriptor, data, 0)
        return timer.read()

    return work


def measure(folder: Path, work: Work, count: int, options: Options | None) -> Measured:
    """Run *work* in a child, recorded or bare."""
    base = Path(tempfile.mkdtemp(dir=folder))
    root, log_path = base / "root", base / "log"
    root.mkdir()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            started = time.perf_counter()
            if options is None:
                times = *work(root, count), 0.0
            else:
                with recording(root, log_path, options):
                    begun = time.perf_counter()
                    times = *work(root, count), begun - started
            os.write(writing, struct.pack("ddd", *times))
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    seconds, processor_seconds, start_seconds = struct.unpack("ddd", os.read(reading, 24))
    os.close(reading)
    os.close(writing)
    size, ops, written = 0, 0, 0
    if options is not None:
        size = log_path.stat().st_size
        with Oplog.read(log_path) as log:
            for op in log:
                ops += op.kind >= Kind.OPEN
                written += op.kind is Kind.WRITE
    shutil.rmtree(base)
    return Measured(seconds, processor_seconds, start_seconds, size, ops, written)


def show(folder: Path, name: str, work: Work, count: int, rounds: int) -> None:
    """Measure all variants in turn and print one line each."""
    found: dict[str, list[Measured]] = {variant: [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant, options in VARIANTS.items():
            found[variant].append(measure(folder, work, count, options))
    for variant, measured in found.items():
        each = statistics.median(one.seconds for one in measured) / count * 1e6
        pairs = list(zip(measured, found["bare"], strict=True))
        ratio = statistics.median(one.seconds / bare.seconds for one, bare in pairs)
        processor = statistics.median(
            one.processor_seconds / bare.processor_seconds for one, bare in pairs
        )
        line = (
            f"  {name:22} {variant:16} {each:8.1f} us  {ratio:5.2f} times"
            f"  ({processor:5.2f} of the processor)"
        )
        if variant != "bare":
            last = measured[-1]
            start = statistics.median(one.start_seconds for one in measured) * 1e3
            line += (
                f"  {last.writes} writes  {last.log_size / count:6.0f} B each  start {start:.1f} ms"
            )
        print(line, flush=True)


def main() -> None:
    """Measure and print, on memory and on disk."""
    is_smoke = arguments(__doc__).smoke
    problem = missing()
    if problem is not None:
        raise SystemExit(problem)
    scale, rounds = (100, 1) if is_smoke else (1, 7)
    load()
    for folder in (_MEMORY, Path(tempfile.gettempdir())):
        print_machine(folder)
        for synchronous in ("normal", "full"):
            name = f"WAL, synchronous={synchronous}"
            count = 3000 if synchronous == "normal" or folder == _MEMORY else 500
            show(folder, name, wal(synchronous), max(20, count // scale), rounds)
        show(folder, "pwrite of 24 bytes", writes(24), 30_000 // scale, rounds)
        show(folder, "pwrite of 4096 bytes", writes(4096), 30_000 // scale, rounds)
        show(folder, "pwrite beside the root", writes(24, outside=True), 30_000 // scale, rounds)


if __name__ == "__main__":
    main()
