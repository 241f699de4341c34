"""What all benchmarks share: a harness worker with its recording, machine facts, and tables."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.client import ZygoteClient
from harness.discovery import Found
from harness.runner import Options, Result, open_worker, record_with, recording_from
from harness.trace import Recording
from harness.workdir import Workdir

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent
LIGHT_APSW = "LightApsw"
LIGHT_SQLITE3 = "LightSqlite3"
_LIGHT_FILE = HERE / "light_store.py"
_TICKS = os.sysconf("SC_CLK_TCK")
# The harness's workers import from the tree that the benchmark itself stands in.
os.environ["PYTHONPATH"] = str(PROJECT)


@dataclass(frozen=True)
class Worker:
    """A zygote that has recorded its campaign."""

    client: ZygoteClient
    recording: Recording
    found: Found

    def examine(self, boundary: int) -> None:
        """Crash and verify one boundary, which must survive."""
        verdict = self.client.call("examine", boundary=boundary)
        if verdict["kind"] != "survived" or verdict["died_at"] != boundary:
            raise AssertionError(f"{self.found.name}@{boundary}: {verdict}")

    def seconds_for(self, boundaries: Sequence[int]) -> float:
        """Examine *boundaries* and return how long that took."""
        started = time.perf_counter()
        for boundary in boundaries:
            self.examine(boundary)
        return time.perf_counter() - started


def light(class_name: str) -> Found:
    """Return a variant of the light store."""
    return Found(f"light_store:{class_name}", str(_LIGHT_FILE), class_name, str(_LIGHT_FILE))


def run_store() -> list[Found]:
    """Return the run store's campaigns."""
    with ZygoteClient([PROJECT]) as client:
        return list(client.list(["campaigns.run_store"], PROJECT))


def named(part: str) -> Found:
    """Return the first campaign of the run store that has *part* in its name."""
    return next(found for found in run_store() if part in found.name)


@contextlib.contextmanager
def recorded(found: Found, workdir: Workdir, *, number: int = 0) -> Iterator[Worker]:
    """Start a worker in part *number* of the work folder (and use the next), and record."""
    options = Options(import_path=(PROJECT,))
    with open_worker(found, workdir, number, options) as client:
        with open_worker(found, workdir, number + 1, options) as second:
            result = Result(found)
            data = record_with(client, second, result)
        if data is None:
            raise AssertionError(f"{found.name} cannot be recorded: {result.problem}")
        share_alike([client.pid])
        yield Worker(client, recording_from(data), found)


def spread(total: int, count: int) -> list[int]:
    """Return *count* boundaries of *total*, evenly spread, all of them where there are fewer."""
    count = min(count, total)
    return [1 + index * total // count for index in range(count)]


def rounds_of(boundaries: Sequence[int], rounds: int) -> list[list[int]]:
    """Deal *boundaries* out to rounds that are all alike."""
    return [list(boundaries[index::rounds]) for index in range(rounds)]


def processor_seconds(pid: int) -> float:
    """Return what the process *pid* and its reaped children have used, in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS


def share_alike(pids: Iterable[int]) -> None:
    """
    Give workers the share of the processor that this process has, where sessions are scheduled.

    Each worker is a session of its own, so that raising a benchmark's share on a busy machine
    would leave the workers behind. Source: sched(7), "The autogroup feature".
    """
    with contextlib.suppress(OSError):
        # "/autogroup-7 nice 0", or nothing for a process that no session was made for.
        words = Path("/proc/self/autogroup").read_text().split()
        for pid in pids if words else ():
            Path(f"/proc/{pid}/autogroup").write_text(words[-1])


def children() -> list[int]:
    """Return this process's children."""
    return [
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdigit() and parent_of(path) == os.getpid()
    ]


def parent_of(process: Path) -> int:
    """Return the parent of a process in /proc, 0 where it is gone."""
    try:
        return int((process / "stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def arguments(description: str | None) -> argparse.Namespace:
    """Parse the one option that all benchmarks have."""
    parser = argparse.ArgumentParser(description=(description or "").strip().splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: does it run at all?")
    return parser.parse_args()


def print_machine(folder: Path) -> None:
    """Print what the figures depend on."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    print(
        f"{time.strftime('%Y-%m-%d')}  {os.cpu_count()} cores of {model}  "
        f"Linux {platform.release()}  Python {platform.python_version()}  "
        f"{file_system(folder)}  load {load}"
    )


def file_system(folder: Path) -> str:
    """Return the type of the file system that *folder* is in."""
    number = f"{os.major(folder.stat().st_dev)}:{os.minor(folder.stat().st_dev)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split(" ")
        if words[2] == number:
            return words[words.index("-") + 1]
    return "unknown file system"


def python(script: str, *more: str) -> list[str]:
    """Return the command line of a fresh interpreter that runs a script of this folder."""
    return [sys.executable, str(HERE / script), *more]
