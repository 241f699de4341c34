"""
The metabolism runtime's queue beside three others and its own statements bare; reconciliation.

Method: each queue gets a new database for each round, and within a round all take turns, a slice of
the jobs at a time, long enough for warm caches; figures are medians of rounds, and a ratio is of
one round. Once with a backlog: all jobs are enqueued, then all claimed, then all completed. Once
each job alone (cycle), in a queue that holds no other job that waits; and that again after many
jobs that are done. Every queue runs in WAL mode with synchronous=NORMAL, read back and printed; one
process, the same params for all, which each worker reads. Reconciliation runs in a fresh
interpreter for each figure, its database in the page cache. Run as ``python -m
tests.benchmarks.bench_metabolism``.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from harness.workdir import Workdir
from tests.benchmarks.measuring import PROJECT, arguments, file_system, print_machine, python
from tests.benchmarks.metabolism_contenders import CONTENDERS, Bare, BareWithRuns, Contender, Ours
from tests.benchmarks.metabolism_contenders import OursWithRuns as Full

_SLICE = 500
_HISTORY = 5
"""How many times the jobs of a round are done before the last rounds begin."""
_PEERS = ("litequeue", "huey", "persist-queue")


class Seconds(NamedTuple):
    """Time on the clock, and of this process on a processor."""

    real: float
    processor: float

    @classmethod
    def now(cls) -> Seconds:
        """Return the time, from which another can be subtracted."""
        return cls(time.perf_counter(), time.process_time())

    def plus(self, other: Seconds) -> Seconds:
        """Return the sum."""
        return Seconds(self.real + other.real, self.processor + other.processor)

    def since(self, start: Seconds) -> Seconds:
        """Return what has passed."""
        return Seconds(self.real - start.real, self.processor - start.processor)

    def per_job(self, count: int) -> Seconds:
        """Return microseconds for each job."""
        return Seconds(self.real / count * 1e6, self.processor / count * 1e6)


Figures = dict[str, list[Seconds]]
Taken = tuple[str, str, Seconds]


def main() -> None:
    """Measure and print."""
    is_smoke = arguments(__doc__).smoke
    count, rounds = (60, 1) if is_smoke else (2000, 5)
    sizes = (1000, 2000) if is_smoke else (250_000, 500_000, 1_000_000)
    with Workdir.choose(None, 1) as workdir:
        memory = workdir.worker_folder(0, "metabolism")
        print_machine(memory)
        print(
            f"SQLite {apsw.sqlite_lib_version()} (apsw), {sqlite3.sqlite_version} (sqlite3);",
            ", ".join(f"{name} {version(name)}" for name in _PEERS),
        )
        _print_settings(memory)
        _compare(memory, count, rounds)
        with _on_disk(memory) as disk:
            if disk is not None:
                _compare(disk, count, rounds)
        _reconcile(memory, sizes, repeats=1 if is_smoke else 3)


@contextmanager
def _on_disk(memory: Path) -> Iterator[Path | None]:
    """Give a folder in the temporary folder, or None where that is no other file system."""
    if Path(tempfile.gettempdir()).stat().st_dev == memory.stat().st_dev:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="bench-metabolism-") as folder:
        yield Path(folder)


@contextmanager
def _opened(folder: Path) -> Iterator[list[Contender]]:
    """Give each queue in a new database of its own."""
    place = folder / "queues"
    place.mkdir()
    queues: list[Contender] = []
    try:
        for number, kind in enumerate(CONTENDERS):
            (place / str(number)).mkdir()
            queues.append(kind(place / str(number)))
        yield queues
    finally:
        for queue in queues:
            queue.close()
        shutil.rmtree(place)


def _print_settings(folder: Path) -> None:
    with _opened(folder) as queues:
        for queue in queues:
            print(f"  {queue.name:<22}{' '.join(queue.settings())}  set {queue.how}")


def _compare(folder: Path, count: int, rounds: int) -> None:
    figures: dict[str, Figures] = {kind.name: {} for kind in CONTENDERS}
    completed = 0
    for number in range(rounds + 1):  # the first is a warm-up
        for acts in (_BACKLOG, _ONE_BY_ONE):
            with _opened(folder) as queues:
                taken = _work(queues, acts, range(count), turn=number)
                completed += sum(queue.completed() for queue in queues)
            if number:
                _note(figures, taken, count)
    with _opened(folder) as queues:
        done, size = _HISTORY * count, min(_SLICE, count)
        _work(queues, {"history": _cycle}, range(done), turn=0)
        for number in range(rounds):
            jobs = range(done + number * size, done + (number + 1) * size)
            _note(figures, _work(queues, {"later": _cycle}, jobs, turn=number), size)
        completed += sum(queue.completed() for queue in queues)
    expected = (2 * (rounds + 1) * count + done + rounds * size) * len(CONTENDERS)
    print(f"\n{file_system(folder)}: {count} jobs, {rounds} rounds, us per job")
    print(f"completed {completed} of {expected}")
    _print_table(figures, done)


def _note(figures: dict[str, Figures], taken: list[Taken], count: int) -> None:
    """Add what a round took, in us per job; and of a backlog's acts the sum."""
    sums: dict[str, Seconds] = {}
    for queue, act, seconds in taken:
        figures[queue].setdefault(act, []).append(seconds.per_job(count))
        sums[queue] = sums[queue].plus(seconds) if queue in sums else seconds
    if len(taken) > len(sums):
        for queue, seconds in sums.items():
            figures[queue].setdefault("all", []).append(seconds.per_job(count))


Act = Callable[[Contender, list[int], list[Any]], None]


def _enqueue(queue: Contender, numbers: list[int], claims: list[Any]) -> None:
    for number in numbers:
        queue.enqueue(number)


def _claim(queue: Contender, numbers: list[int], claims: list[Any]) -> None:
    for _ in numbers:
        claims.append(queue.claim())


def _complete(queue: Contender, numbers: list[int], claims: list[Any]) -> None:
    for number in numbers:
        if queue.number_of(claims[number]) != number:
            raise AssertionError(f"{queue.name}: job {number} was lost, or is not the oldest")
        queue.complete(claims[number])


def _cycle(queue: Contender, numbers: list[int], claims: list[Any]) -> None:
    for number in numbers:
        queue.enqueue(number)
        claim = queue.claim()
        if queue.number_of(claim) != number:
            raise AssertionError(f"{queue.name}: job {number} was lost")
        queue.complete(claim)


_BACKLOG: dict[str, Act] = {"enqueue": _enqueue, "claim": _claim, "complete": _complete}
_ONE_BY_ONE: dict[str, Act] = {"cycle": _cycle}


def _work(queues: list[Contender], acts: dict[str, Act], jobs: range, *, turn: int) -> list[Taken]:
    """Do each act for all jobs before the next, all queues in turns, and return what it took."""
    claims: dict[str, list[Any]] = {queue.name: [] for queue in queues}
    taken = []
    for name, act in acts.items():
        spent = {queue.name: Seconds(0, 0) for queue in queues}
        for part, start in enumerate(range(jobs.start, jobs.stop, _SLICE)):
            numbers = list(range(start, min(jobs.stop, start + _SLICE)))
            first = (turn + part) % len(queues)
            for queue in (*queues[first:], *queues[:first]):
                started = Seconds.now()
                act(queue, numbers, claims[queue.name])
                spent[queue.name] = spent[queue.name].plus(Seconds.now().since(started))
        taken += [(queue, name, seconds) for queue, seconds in spent.items()]
    return taken


def _print_table(figures: dict[str, Figures], done: int) -> None:
    names = ("enqueue", "claim", "complete", "all", "cycle", "later")
    heading = "".join(f"{name:>9}" for name in names)
    print(f"  {'':<22}{heading}  (later: cycle after {done} jobs)")
    for name, columns in figures.items():
        medians = (statistics.median(one.real for one in columns[column]) for column in names)
        print(f"  {name:<22}" + "".join(f"{median:9.1f}" for median in medians))
    print("  ratio in processor time, least to greatest, and in real time")
    for ours, other in (
        (Ours.name, Bare.name),
        *((Ours.name, name) for name in _PEERS),
        (Full.name, BareWithRuns.name),
    ):
        for column in ("all", "cycle", "later"):
            ratios = _ratios(figures[ours][column], figures[other][column])
            print(f"  {ours} / {other}, {column}: {ratios}")


def _ratios(ours: list[Seconds], theirs: list[Seconds]) -> str:
    """Return the medians of the rounds' ratios."""
    processor = [a.processor / b.processor for a, b in zip(ours, theirs, strict=True)]
    real = statistics.median(a.real / b.real for a, b in zip(ours, theirs, strict=True))
    middle = statistics.median(processor)
    return f"{middle:.2f} ({min(processor):.2f} to {max(processor):.2f}), real {real:.2f}"


def _reconcile(folder: Path, sizes: tuple[int, ...], *, repeats: int) -> None:
    print(f"\nreconcile, {file_system(folder)}: median of {repeats}; memory: growth of VmHWM")
    for size in sizes:
        with _made(folder, size, every=10, logs="logs") as place:
            for what, moment in (("reconcile", "few"), ("survey", "all"), ("reconcile", "all")):
                _measure(place, what, moment, repeats)
    # Far more findings than SQLite's cache holds.
    with _made(folder, sizes[-1], every=2, logs="none") as place:
        _measure(place, "survey", "all", repeats)


@contextmanager
def _made(folder: Path, size: int, *, every: int, logs: str) -> Iterator[Path]:
    """Make a database, and remove it."""
    place = folder / "reconcile"
    place.mkdir()
    try:
        _child("make", str(place), str(size), str(every), logs)
        mib = (place / "metabolism.db").stat().st_size / 2**20
        print(f"  {size} jobs, {size // every} running, {mib:.0f} MiB, launch logs: {logs}")
        yield place
    finally:
        shutil.rmtree(place)


def _measure(place: Path, what: str, moment: str, repeats: int) -> None:
    answers = [_child(what, str(place), moment).split() for _ in range(repeats)]
    seconds = statistics.median(float(answer[0]) for answer in answers)
    mib = max(int(answer[4]) for answer in answers) / 1024
    ((active, count, worst),) = {tuple(answer[1:4]) for answer in answers}
    print(
        f"    {what:<10}{active} looked at, {count} findings, worst {worst}: "
        f"{seconds:.2f} s, {seconds / int(active) * 1e6:.1f} us each, {mib:.1f} MiB"
    )


def _child(*words: str) -> str:
    done = subprocess.run(
        python("metabolism_reconcile.py", *words),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    if done.returncode:
        raise AssertionError(f"{words} ended with {done.returncode}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
