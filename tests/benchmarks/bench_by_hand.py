"""
Replay against a crash test by hand, one interpreter to crash and one to verify.

Method: both take the same places of the same workload in turns; by hand the place is a fraction of
its own count of boundaries. A ratio is of one round; medians of rounds. What by_hand.py leaves out
stands in its docstring: it verifies less, so that the ratio is a lower bound. Run as ``python -m
tests.benchmarks.bench_by_hand``.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from harness.workdir import Workdir
from tests.benchmarks.measuring import (
    LIGHT_APSW,
    PROJECT,
    Worker,
    arguments,
    light,
    named,
    print_machine,
    python,
    recorded,
    rounds_of,
    spread,
)


class ByHand:
    """The scripts of one store, with a fixture."""

    def __init__(self, store: str, folder: Path) -> None:
        self._store = store
        self._root = folder / "root"
        self._fixture = folder / "fixture"
        self._fixture.mkdir()
        self._run("prepare", self._fixture)
        shutil.copytree(self._fixture, self._root)
        self.boundaries = int(self._run("crash", self._root))

    def _run(self, what: str, folder: Path, *more: str, status: int = 0) -> str:
        done = subprocess.run(
            python("by_hand.py", what, self._store, str(folder), *more),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
        )
        if done.returncode != status:
            raise AssertionError(f"{what} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def seconds_for(self, fractions: Sequence[float]) -> float:
        """Crash at each fraction of the workload and verify; return how long it took."""
        started = time.perf_counter()
        for fraction in fractions:
            shutil.rmtree(self._root)
            shutil.copytree(self._fixture, self._root)
            stop = max(1, round(fraction * self.boundaries))
            self._run("crash", self._root, str(stop), status=86)
            self._run("verify", self._root)
        return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    is_smoke = arguments(__doc__).smoke
    count, rounds = (2, 1) if is_smoke else (30, 5)
    with Workdir.choose(None, 3) as workdir:
        print_machine(workdir.folder)
        stores = [("light", light(LIGHT_APSW))]
        if not is_smoke:
            stores.append(("transitions", named("transitions:Transitions")))
        for store, found in stores:
            hand = ByHand(store, workdir.worker_folder(2, store))
            with recorded(found, workdir) as ours:
                _compare(store, hand, ours, count, rounds)


def _compare(store: str, hand: ByHand, ours: Worker, count: int, rounds: int) -> None:
    total = len(ours.recording.lines)
    figures = []
    chosen = spread(total - 1, count)
    for boundaries in rounds_of(chosen, rounds):
        by_hand = len(boundaries) / hand.seconds_for([number / total for number in boundaries])
        our_rate = len(boundaries) / ours.seconds_for(boundaries)
        figures.append((by_hand, our_rate, our_rate / by_hand))
    by_hand, our_rate, ratio = (statistics.median(x) for x in zip(*figures, strict=True))
    print(f"{store}: {len(chosen)} of {total} boundaries ({hand.boundaries} by hand)")
    print(f"  by hand  {by_hand:7.2f} boundaries/s")
    print(f"  harness  {our_rate:7.2f} boundaries/s")
    print(f"  harness / by hand {ratio:6.2f}")


if __name__ == "__main__":
    main()
