"""
Two workers against one: ``python -m tests.benchmarks.bench_jobs``.

Method: the light store and the run store's lease renewal are run with ``--jobs 1`` and ``--jobs 2``
in turns. The time is that of exploring, from the moment the recording stands; the whole run is
printed as well, in which recording is sequential. Median of the rounds' ratios.
"""

from __future__ import annotations

import os
import statistics
import time

from harness.discovery import Found
from harness.runner import Options, Result, run_campaign
from harness.verdict import Verdict
from harness.workdir import Workdir
from tests.benchmarks.measuring import (
    LIGHT_APSW,
    PROJECT,
    arguments,
    children,
    light,
    named,
    print_machine,
    share_alike,
)


class Stopwatch:
    """Notes when exploring begins and ends."""

    def __init__(self) -> None:
        self.started_at = self.exploring_at = self.finished_at = 0.0

    def started(self, found: Found) -> None:
        """Recording begins."""
        self.started_at = time.perf_counter()

    def exploring(self, result: Result) -> None:
        """Exploring begins."""
        share_alike(children())
        self.exploring_at = time.perf_counter()

    def judged(self, result: Result, verdict: Verdict) -> None:
        """One boundary is done."""

    def finished(self, result: Result) -> None:
        """The workers are gone."""
        self.finished_at = time.perf_counter()


def timed(found: Found, workdir: Workdir, jobs: int, *, shards: int) -> tuple[int, float, float]:
    """Run once; return boundaries, seconds of exploring, seconds of all."""
    watch = Stopwatch()
    options = Options(jobs=jobs, shard=(1, shards), import_path=(PROJECT,))
    result = run_campaign(found, workdir, options, watch)
    if result.exit_code or not result.verdicts:
        raise AssertionError(f"{found.name}: {result.counts}, {result.problem}")
    whole = watch.finished_at - watch.started_at
    return len(result.verdicts), watch.finished_at - watch.exploring_at, whole


def main() -> None:
    """Measure and print."""
    is_smoke = arguments(__doc__).smoke
    rounds, shards = (1, 60) if is_smoke else (5, 1)
    campaigns = [light(LIGHT_APSW)] if is_smoke else [light(LIGHT_APSW), named("lease_renewal")]
    with Workdir.choose(None, 2) as workdir:
        print_machine(workdir.folder)
        for found in campaigns:
            runs = [
                [timed(found, workdir, jobs, shards=shards) for jobs in (1, 2)]
                for _ in range(rounds)
            ]
            _show(found.name, runs)
        print(f"load at the end {os.getloadavg()[0]:.2f}")


def _show(name: str, runs: list[list[tuple[int, float, float]]]) -> None:
    rates = [[count / exploring for count, exploring, _ in pair] for pair in runs]
    one, two = (statistics.median(x) for x in zip(*rates, strict=True))
    ratio = statistics.median(pair[1] / pair[0] for pair in rates)
    whole = statistics.median(pair[0][2] / pair[1][2] for pair in runs)
    print(f"{name}: {runs[0][0][0]} boundaries")
    print(f"  jobs 1  {one:7.1f} boundaries/s")
    print(f"  jobs 2  {two:7.1f} boundaries/s")
    print(f"  jobs 2 / jobs 1 {ratio:6.2f} exploring, {whole:.2f} whole run")


if __name__ == "__main__":
    main()
