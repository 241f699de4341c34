"""
The zygote's memory over ten thousand boundaries, and what is left of them.

Method: one worker examines the light store's boundaries over and over. Its resident memory (of the
zygote alone; children share its pages) is read after each thousandth part; at the end its
descriptors, its child processes and the files beside the root are compared with those after the
first rounds. Run as ``python -m tests.benchmarks.bench_memory [--boundaries N]``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from harness.discovery import Found
from harness.workdir import Workdir
from tests.benchmarks.measuring import (
    LIGHT_APSW,
    Worker,
    light,
    named,
    parent_of,
    print_machine,
    recorded,
)

_SAMPLES = 10


def resident_kib(pid: int) -> int:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("the zygote has no memory")


def kept(pid: int, folder: Path) -> tuple[int, int, list[str]]:
    """Return descriptors, children, and every path in the work folder outside the root."""
    children = [path for path in Path("/proc").glob("[0-9]*") if parent_of(path) == pid]
    paths = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    outside = sorted(path for path in paths if "/root/" not in path and "/checked/" not in path)
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), len(children), outside


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The zygote's memory over many boundaries.")
    parser.add_argument("--boundaries", type=int, default=10_000)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run at all?")
    options = parser.parse_args()
    total = 40 if options.smoke else options.boundaries
    with Workdir.choose(None, 2) as workdir:
        print_machine(workdir.folder)
        _watch(light(LIGHT_APSW), workdir, total)
        if not options.smoke:
            _watch(named("transitions:Transitions"), workdir, max(1, total // 50))


def _watch(found: Found, workdir: Workdir, total: int) -> None:
    with recorded(found, workdir) as worker:
        pid = worker.client.pid
        worker.examine(1)
        before = kept(pid, workdir.folder)
        started = time.perf_counter()
        samples = [resident_kib(pid)]
        for sample in range(_SAMPLES):
            _examine(worker, total * sample // _SAMPLES, total * (sample + 1) // _SAMPLES)
            samples.append(resident_kib(pid))
        after = kept(pid, workdir.folder)
        seconds = time.perf_counter() - started
    print(f"{found.name}: {total} boundaries in {seconds:.0f} s")
    print("  resident MiB", *(f"{sample / 1024:.1f}" for sample in samples))
    print(f"  descriptors {before[0]} -> {after[0]}, children {before[1]} -> {after[1]}")
    print(f"  paths beside the root {len(before[2])} -> {len(after[2])}")
    if before != after:
        print("  LEAKED:", sorted(set(after[2]) - set(before[2]))[:10], file=sys.stderr)
        raise SystemExit(1)


def _examine(worker: Worker, start: int, stop: int) -> None:
    size = len(worker.recording.lines)
    for number in range(start, stop):
        worker.examine(1 + number * 7 % size)


if __name__ == "__main__":
    main()
