"""Stopping a run: Ctrl-C, termination, and a reader that goes away leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_project import SLOW, Project, make_project

pytestmark = pytest.mark.slow

GONE_SECONDS_MAX = 20.0


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with a campaign that survives and one that takes a long time."""
    project = make_project(tmp_path / "project")
    project.add("a_settings.py", (SLOW).replace("0.05", "0").replace("Slow", "Quick"))
    (project.folder / "campaigns" / "settings.py").unlink()
    project.add("slow.py", SLOW)
    (project.folder / "work").mkdir()
    return project


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(project: Project, *arguments: str) -> subprocess.Popen[str]:
    """Start a run in a work folder of its own, and return when exploring has begun."""
    process = project.start(
        "run", "slow", "--workdir", "work", *arguments, preexec_fn=_default_signals
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("slow: exploring"):
            return process
    raise AssertionError(process.communicate())


def wait_until_gone(project: Project) -> None:
    """Fail where a process of the run lives on."""
    until = time.monotonic() + GONE_SECONDS_MAX
    while project.processes():
        assert time.monotonic() < until, project.processes()
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stopped_run_leaves_nothing_and_reports_what_was_covered(
    project: Project, number: signal.Signals
) -> None:
    """A stopping signal ends every child, removes the work folder, writes the JSON, exits 3."""
    process = start(project, "--json", "r.json", "--jobs", "2")
    assert len(project.processes()) >= 3
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert project.processes() == []
    assert list((project.folder / "work").iterdir()) == []
    assert "Traceback" not in err
    assert "INTERRUPTED slow  interrupted after " in out
    assert "INTERRUPTED: " in out
    assert "PASS" not in out
    report = json.loads((project.folder / "r.json").read_text())
    (campaign,) = report["campaigns"]
    assert report["exit"] == 3
    assert campaign["inconclusive"].startswith("interrupted after ")
    assert campaign["boundaries"] == campaign["survived"]


def test_second_interrupt_leaves_nothing(project: Project) -> None:
    """However often Ctrl-C comes, children are ended and the folder is removed."""
    process = start(project, "--jobs", "2")
    for _ in range(20):
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGINT)
        time.sleep(0.005)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "Traceback" not in err
    assert project.processes() == []
    assert list((project.folder / "work").iterdir()) == []


@pytest.mark.parametrize("delay_ms", [20, 60, 120, 200, 300, 450])
def test_interrupt_at_any_moment_leaves_nothing(project: Project, delay_ms: int) -> None:
    """Also while listing, starting workers and recording, one Ctrl-C ends all without a trace."""
    process = project.start("run", "--workdir", "work", preexec_fn=_default_signals)
    time.sleep(0.1 + delay_ms / 1000)  # any moment will do; none is waited for
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (3, -signal.SIGINT), err
    if process.returncode == 3:
        assert "Traceback" not in err
    wait_until_gone(project)
    assert list((project.folder / "work").iterdir()) == []


def test_interrupt_while_the_command_starts_shows_no_traceback(tmp_path: Path) -> None:
    """The command imports nothing before it can say in a line that it was interrupted."""
    code = """
import sys, harness.cli
assert [x for x in sys.modules if x.startswith("harness")] == ["harness", "harness.cli"]
class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == NAME: raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
sys.exit(harness.cli.main(["list"]))
"""
    for name in ("harness.cli.entry", "harness.cli.signals", "harness.cli.commands", "click"):
        done = subprocess.run(
            [sys.executable, "-c", code.replace("NAME", repr(name))],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        expected = (3, "", "crashconform: interrupted\n")
        assert (done.returncode, done.stdout, done.stderr) == expected, name


def test_killed_run_takes_its_workers_along(project: Project) -> None:
    """SIGKILL cannot be handled: the workers see their socket end, and leave."""
    process = start(project, "--jobs", "2")
    process.kill()
    process.communicate(timeout=60)
    wait_until_gone(project)


def test_reader_that_goes_away_stops_the_run_quietly(project: Project) -> None:
    """``crashconform run | head -1`` ends soon, says nothing of a broken pipe, leaves nothing."""
    reading, writing = os.pipe()
    process = project.start("run", "--workdir", "work", "--json", "r.json", stdout=writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        pipe.readline()
    _, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (3, "")
    assert project.processes() == []
    assert list((project.folder / "work").iterdir()) == []
    assert json.loads((project.folder / "r.json").read_text())["exit"] == 3


def test_list_into_a_closed_pipe_is_quiet(project: Project) -> None:
    """``crashconform list | true`` says nothing."""
    reading, writing = os.pipe()
    os.close(reading)
    process = project.start("list", stdout=writing)
    os.close(writing)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
