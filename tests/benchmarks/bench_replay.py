"""
Replay on the light store against a bare loop that does the same work: ``python -m
tests.benchmarks.bench_replay``.

Method: the harness's worker and the bare loop (its docstring says what it leaves out) record the
same trace, then examine the same boundaries in turns. A ratio is of one round; medians of rounds.
"Processor" compares the processor time of the two processes and their children over the whole run,
which a busy machine disturbs less than real time.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.workdir import Workdir
from tests.benchmarks.measuring import (
    LIGHT_APSW,
    LIGHT_SQLITE3,
    Worker,
    arguments,
    light,
    print_machine,
    processor_seconds,
    python,
    recorded,
    rounds_of,
    spread,
)


@dataclass
class Bare:
    """The bare loop's process."""

    process: subprocess.Popen[str]
    boundaries: int
    checksum: int

    def seconds_for(self, boundaries: list[int]) -> float:
        """Have it examine *boundaries*, and return how long that took."""
        assert self.process.stdin
        assert self.process.stdout
        print(*boundaries, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


@contextlib.contextmanager
def bare_loop(folder: Path) -> Iterator[Bare]:
    """Start the bare loop in *folder*."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        python("bare_loop.py", str(folder)), stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        boundaries, checksum = process.stdout.readline().split()
        yield Bare(process, int(boundaries), int(checksum))
        process.stdin.close()


def main() -> None:
    """Measure and print."""
    is_smoke = arguments(__doc__).smoke
    count, rounds = (6, 2) if is_smoke else (264, 12)
    with Workdir.choose(None, 5) as workdir, contextlib.ExitStack() as stack:
        print_machine(workdir.folder)
        ours = stack.enter_context(recorded(light(LIGHT_APSW), workdir))
        bare = stack.enter_context(bare_loop(workdir.worker_folder(2, "bare")))
        standard = stack.enter_context(recorded(light(LIGHT_SQLITE3), workdir, number=3))
        checksum = zlib.crc32(ours.recording.trace_bytes)
        assert (len(ours.recording.lines), checksum) == (bare.boundaries, bare.checksum)
        boundaries = spread(bare.boundaries, count)
        print(f"{len(boundaries)} of {bare.boundaries} boundaries, trace {checksum:08x}")
        _compare(ours, bare, standard, rounds_of(boundaries, rounds))


def _compare(ours: Worker, bare: Bare, standard: Worker, rounds: list[list[int]]) -> None:
    ours.seconds_for(rounds[0])
    bare.seconds_for(rounds[0])
    pids = (ours.client.pid, bare.process.pid)
    before = [processor_seconds(pid) for pid in pids]
    figures = []
    for boundaries in rounds:
        count = len(boundaries)
        bare_rate = count / bare.seconds_for(boundaries)
        our_rate = count / ours.seconds_for(boundaries)
        figures.append((bare_rate, our_rate, our_rate / bare_rate))
    used = [processor_seconds(pid) - start for pid, start in zip(pids, before, strict=True)]
    rates = [len(x) / standard.seconds_for(x) for x in rounds[: max(2, len(rounds) // 3)]]
    bare_rate, our_rate, ratio = (statistics.median(x) for x in zip(*figures, strict=True))
    total = sum(map(len, rounds))
    print(f"bare loop          {bare_rate:7.1f} boundaries/s  {used[1] / total * 1e3:6.2f} ms cpu")
    print(f"harness, apsw      {our_rate:7.1f} boundaries/s  {used[0] / total * 1e3:6.2f} ms cpu")
    print(f"harness, sqlite3   {statistics.median(rates):7.1f} boundaries/s")
    print(f"harness / bare     {ratio:7.2f} real, {used[1] / max(used[0], 0.01):.2f} processor")


if __name__ == "__main__":
    main()
