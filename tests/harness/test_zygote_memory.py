"""A zygote that has forked thousands of children is as small as one that has forked a few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from support import Recorded, recorded

WARM_UP = 40
BOUNDARIES = 220  # each takes eight children: execute, recover twice, resume, four that look
RESIDENT_BYTES_MAX = 40 << 20
GROWTH_BYTES_MAX = 1 << 20

BODY = """
def execute(self, root, run):
    db = sqlite3.connect(root / 'a.db', isolation_level=None)
    db.execute('create table t(n)')
    for n in (1, 2):
        run.step(f'save {n}', lambda n=n: save(root / 's', n), then=n)
        run.step(f'insert {n}', lambda n=n: db.execute('insert into t values (1)'), then=UNCHANGED)
    db.close()
def recover(self, root, run): note('recover')
def check(self, root, evidence): yield Check('whole', evidence.observed in (0, 1, 2))
def complete(self, root, evidence): return True
def resume(self, root, run): save(root / 's', 2)
"""


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    resident_bytes: int
    descriptors: int
    children: int
    threads: int
    maps: int


def footprint(process: psutil.Process) -> Footprint:
    """Measure a process."""
    return Footprint(
        process.memory_info().rss,
        process.num_fds(),
        len(process.children(recursive=True)),
        process.num_threads(),
        len(Path(f"/proc/{process.pid}/maps").read_text().splitlines()),
    )


def explore(store: Recorded, count: int) -> None:
    """Kill and verify at *count* boundaries, over and over the same trace."""
    last = len(store.recording.lines)
    for number in range(count):
        verdict = store.verdict(1 + number % last)
        assert verdict.kind == "survived", verdict.violation


@pytest.mark.slow
def test_a_zygote_stays_small_and_leaks_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Over thousands of children memory is flat, and no descriptor, process or file stays."""
    with recorded(tmp_path, BODY) as store:
        process = psutil.Process(store.worker.pid)
        explore(store, WARM_UP)
        store.notes()
        before = footprint(process)
        files = sorted(store.root.parent.iterdir())
        explore(store, BOUNDARIES)
        after = footprint(process)
        recoveries = len(store.notes())
        left = sorted(store.root.parent.iterdir())
    record_property("resident_bytes_before", before.resident_bytes)
    record_property("resident_bytes_after", after.resident_bytes)
    assert recoveries == 2 * BOUNDARIES
    assert after.resident_bytes < RESIDENT_BYTES_MAX
    assert after.resident_bytes - before.resident_bytes < GROWTH_BYTES_MAX
    assert (after.descriptors, after.children, after.threads, after.maps) == (
        before.descriptors,
        0,
        1,
        before.maps,
    )
    assert left == files


@pytest.mark.slow
def test_a_finished_run_leaves_no_folder_and_no_process(tmp_path: Path) -> None:
    """When a worker is closed its folder, its process and its children are gone."""
    with recorded(tmp_path, BODY) as store:
        explore(store, 3)
        folder, pid = store.root.parent.parent, store.worker.pid
        assert folder.is_dir()
    assert not folder.exists()
    assert not psutil.pid_exists(pid)
    assert psutil.Process().children(recursive=True) == []
