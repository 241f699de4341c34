"""Each benchmark runs in a tiny size and prints counts that can be checked; no time is asserted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.recorder import missing

PROJECT = Path(__file__).parents[2]


def printed_by(name: str) -> str:
    """Run one benchmark as a person does, tiny, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.benchmarks.{name}", "--smoke"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_replay_and_the_bare_loop_have_the_same_boundaries() -> None:
    """Both explore the same places of the same trace, known by its checksum."""
    text = printed_by("bench_replay")
    assert re.search(r"^6 of 241 boundaries, trace 6d93734d$", text, re.MULTILINE)
    assert re.search(r"^harness / bare +\d+\.\d\d real", text, re.MULTILINE)


@pytest.mark.slow
def test_by_hand_crashes_and_verifies() -> None:
    """The scripts by hand count the same boundaries, but for the end."""
    text = printed_by("bench_by_hand")
    assert re.search(r"^light: 2 of 241 boundaries \(240 by hand\)$", text, re.MULTILINE)


@pytest.mark.slow
def test_jobs_explore_everything() -> None:
    """A run with one worker and one with two explore the same share."""
    text = printed_by("bench_jobs")
    assert re.search(r": 5 boundaries$", text, re.MULTILINE)


@pytest.mark.slow
def test_memory_is_flat_and_nothing_leaks() -> None:
    """A few dozen boundaries leave no descriptor, process or file, and no memory."""
    text = printed_by("bench_memory")
    assert re.search(r"children 0 -> 0$", text, re.MULTILINE)
    sizes = re.search(r"resident MiB ([\d. ]+)$", text, re.MULTILINE)
    assert sizes
    first, *_, last = (float(size) for size in sizes[1].split())
    assert first < 40
    assert last - first < 1


@pytest.mark.slow
def test_phases_sum_up() -> None:
    """The table of phases has one line for each kind of child."""
    text = printed_by("bench_phases")
    for phase in ("execute", "recover", "sqlite check", "judge", "resume"):
        assert re.search(rf"^  {phase} +\d+\.\d+ children", text, re.MULTILINE), phase


@pytest.mark.slow
def test_the_recorder_sees_every_write() -> None:
    """Each variant, on memory and on disk, has as many writes in its log as were made."""
    problem = missing()
    if problem is not None and not os.environ.get("CI"):
        pytest.skip(f"NOT TESTED, the recorder: {problem}")
    text = printed_by("bench_recorder")
    counts = re.findall(r"^  pwrite of \d+ bytes .* (\d+) writes", text, re.MULTILINE)
    assert counts == ["300"] * 12
    assert len(re.findall(r"^  WAL, .* times", text, re.MULTILINE)) == 16
