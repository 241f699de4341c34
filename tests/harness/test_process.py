"""
Children of a real zygote: how they end, what they print, and that nothing of them stays behind.

A zygote inherits every orphan, which the process that runs the tests must not: each scenario runs
in a process of its own, ``process_scenarios.py``, and answers in JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import process
from harness.errors import ConfigurationError
from harness.process import CRASH_STATUS, EXIT_RAISED, Ended, Leftover, Output, describe

SCENARIOS = Path(__file__).with_name("process_scenarios.py")
REPOSITORY = SCENARIOS.parents[2]

STRANGE_START = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGABRT, signal.SIGTERM})
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that starts another one with signals ignored and blocked, as some supervisors do."""


def play(scenario: str, folder: Path, *, launcher: tuple[str, ...] = ()) -> Any:
    """Run one scenario of ``process_scenarios.py`` in a fresh zygote and return its answer."""
    done = subprocess.run(
        [*launcher, sys.executable, str(SCENARIOS), scenario, str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


# Tests.


def test_child_returns_its_status_and_what_it_printed(tmp_path: Path) -> None:
    """A target's return value is the exit status; both outputs are kept, also without a newline."""
    facts = play("returns", tmp_path.resolve())
    assert tuple(facts[key] for key in ("exit_status", "signal", "is_hung", "stack")) == (
        7,
        None,
        False,
        "",
    )
    assert "to stdout" in facts["text"]
    assert "to stderr" in facts["text"]
    assert facts["description"] == "ended by itself with status 7"


def test_early_exit_is_seen_as_such_with_the_lines_before_it(tmp_path: Path) -> None:
    """A store that calls os._exit(0) ends with status 0, and its printed lines are not lost."""
    facts = play("exits_early", tmp_path)
    assert (facts["exit_status"], facts["text"]) == (0, "a line before the crash\n")


def test_crash_at_a_boundary_runs_no_finally(tmp_path: Path) -> None:
    """The status of a crash is reported, and nothing ran after it."""
    facts = play("crashes_at_boundary", tmp_path)
    assert (facts["exit_status"], facts["text"]) == (CRASH_STATUS, "")
    assert facts["description"] == "was ended at a boundary (status 86)"


def test_every_escaping_exception_ends_in_one_status_with_its_traceback(tmp_path: Path) -> None:
    """KeyboardInterrupt, SystemExit, errors and impossible statuses are all EXIT_RAISED."""
    answers = play("raises", tmp_path)
    assert [facts["exit_status"] for facts in answers] == [EXIT_RAISED] * 6
    expected = (
        "KeyboardInterrupt",
        "SystemExit: leaving",
        "RuntimeError: broken \\udcff",
        "RuntimeError: still told",
        "ValueError: status=256 must be",
        "ValueError: status=None must be",
    )
    for words, facts in zip(expected, answers, strict=True):
        assert words in facts["text"]


def test_death_by_signal_is_named_and_leaves_the_stack(tmp_path: Path) -> None:
    """SIGSEGV is reported by name and faulthandler's stack is in the output."""
    facts = play("killed_by_segv", tmp_path)
    assert (facts["exit_status"], facts["signal"]) == (None, signal.SIGSEGV)
    assert facts["description"] == "was killed by signal SIGSEGV"
    assert "Segmentation fault" in facts["text"]


@pytest.mark.slow
def test_hung_children_die_of_abort_with_their_stack(tmp_path: Path) -> None:
    """Asleep, blocked in C, spinning, threaded, stopped or without outputs: all tell where."""
    answers = play("hangs", tmp_path)
    assert len(answers) == 6
    for name, facts in answers.items():
        assert (name, True, signal.SIGABRT) == (name, facts["is_hung"], facts["signal"])
        assert re.match(r"(Current thread|Thread) 0x", facts["stack"])
        assert "/harness/process.py" not in facts["stack"]
        assert "Extension modules" not in facts["stack"]
        assert facts["stack"] not in facts["text"]
        assert f"in {name}" in facts["stack"]
        assert 0.2 <= facts["seconds"] < 2.0
        assert facts["description"].startswith("hung for ")
    assert "in named_in_stack" in answers["blocks_other_thread"]["stack"]


@pytest.mark.slow
def test_child_that_survives_abort_is_killed(tmp_path: Path) -> None:
    """One that ignores or handles SIGABRT is killed after a while and still counts as hung."""
    answers = play("resists_abort", tmp_path)
    ends = {name: (facts["exit_status"], facts["signal"]) for name, facts in answers.items()}
    expected = {
        "ignores": (None, signal.SIGKILL),
        "handles": (None, signal.SIGKILL),
        "leaves": (0, None),
        "closes_everything": (None, signal.SIGABRT),
    }
    assert expected == ends
    for facts in answers.values():
        assert facts["is_hung"]
        assert facts["stack"].startswith("the child wrote no stack")
    assert "sleeping" in answers["ignores"]["stack"]
    assert "running" in answers["handles"]["stack"]


@pytest.mark.slow
def test_what_outlives_its_parent_is_described_and_killed(tmp_path: Path) -> None:
    """Orphans, daemons with their own session, programs and whole trees are found and ended."""
    answers = play("leaves_daemons", tmp_path)
    counts = {name: len(facts["leftovers"]) for name, facts in answers.items()}
    expected = {"grandchild": 1, "session": 1, "program": 1, "tree": 6, "without_first_thread": 1}
    assert expected == counts
    assert [facts["descendants"] for facts in answers.values()] == [False] * 5
    assert answers["program"]["leftovers"][0][1] == "sleep 120"
    assert "a fork of the child" in answers["grandchild"]["leftovers"][0][1]
    assert answers["program"]["exit_status"] == 3
    assert answers["tree"]["signal"] == signal.SIGKILL
    assert "leaving behind: " in answers["program"]["description"]
    for facts in answers.values():
        for pid, _ in facts["leftovers"]:
            assert not Path(f"/proc/{pid}").exists()


def test_process_that_keeps_forking_is_caught(tmp_path: Path) -> None:
    """A chain of processes, each the parent of the next and gone at once, does not get away."""
    facts = play("goes_on_forking", tmp_path)
    assert (facts["exit_status"], facts["descendants"]) == (0, False)
    assert 1 <= len(facts["leftovers"]) <= process.LEFTOVERS_MAX


def test_process_that_is_about_to_end_is_not_a_leftover(tmp_path: Path) -> None:
    """A zombie, and a grandchild that ends because its parent did, are reaped without a word."""
    answers = play("ends_just_after", tmp_path)
    assert len(answers) == 21
    assert [(facts["leftovers"], facts["descendants"]) for facts in answers] == [([], False)] * 21


def test_process_that_is_busy_ending_is_no_leftover(tmp_path: Path) -> None:
    """
    On a loaded machine an end takes its time: Python's resource tracker is one such process.

    After a crash nobody is waited for: what goes on working would change what the crash left.
    """
    returned, crashed = play("ends_while_busy", tmp_path)
    assert (returned["leftovers"], returned["descendants"]) == ([], False)
    assert (len(crashed["leftovers"]), crashed["descendants"]) == (1, False)


@pytest.mark.slow
def test_thousands_of_children_leak_nothing(tmp_path: Path) -> None:
    """After 2000 children the zygote has the descriptors that it had, and no child."""
    facts = play("thousands", tmp_path)
    assert facts["statuses"] == [0]
    assert facts["before"] == facts["after"]
    assert not facts["descendants"]
    assert facts["milliseconds"] < 50


def test_hangup_ends_the_whole_tree(tmp_path: Path) -> None:
    """When the asking side closes, the child and its daemon die and Hangup is raised."""
    facts = play("hears_hangup", tmp_path)
    assert facts == {"socket": "hangup", "pipe": "hangup", "descendants": False}


def test_named_descriptors_are_closed_in_the_child(tmp_path: Path) -> None:
    """close_in_child closes exactly these, and one that is not open is an error that is seen."""
    facts = play("closes_for_child", tmp_path)
    assert (facts["closed"], facts["inherited"]) == (0, 1)
    assert "Bad file descriptor" in facts["bad"]


def test_child_has_the_signal_handling_of_a_fresh_program(tmp_path: Path) -> None:
    """SIGINT raises KeyboardInterrupt and SIGTERM kills, whatever the zygote does with them."""
    facts = play("fresh_signals", tmp_path)
    assert facts["int"]["exit_status"] == EXIT_RAISED
    assert "KeyboardInterrupt" in facts["int"]["text"]
    assert facts["term"]["signal"] == signal.SIGTERM


def test_inherited_signal_handling_does_no_harm(tmp_path: Path) -> None:
    """A zygote started with SIGCHLD ignored and SIGABRT blocked still sees ends and stacks."""
    launcher = (sys.executable, "-c", STRANGE_START)
    assert play("returns", tmp_path.resolve(), launcher=launcher)["exit_status"] == 7
    facts = play("hangs_once", tmp_path, launcher=launcher)
    assert (facts["signal"], facts["is_hung"]) == (signal.SIGABRT, True)
    assert "in forever" in facts["stack"]


def test_child_dies_with_its_zygote(tmp_path: Path) -> None:
    """SIGKILL to the zygote takes the running child along."""
    facts = play("dies_with_zygote", tmp_path)
    assert facts == {"is_dead": True, "zygote": -signal.SIGKILL, "child": -signal.SIGKILL}


def test_children_write_no_core_files(tmp_path: Path) -> None:
    """The limit of a core file is 0 in children."""
    assert play("has_no_core", tmp_path) == "0 0"


@pytest.mark.slow
def test_endless_printing_is_cut_and_said_to_be(tmp_path: Path) -> None:
    """A child that prints without end fills no memory, and the text starts with what is cut."""
    facts = play("prints_without_end", tmp_path)
    assert facts["is_hung"]
    assert facts["text"].startswith("[")
    cut, words = facts["text"][1:].split(" ", 1)
    assert words.startswith("bytes before this are cut]\n")
    # More is gone than is held: it was dropped while the child printed, not only when shown.
    assert int(cut.replace(",", "")) > facts["held"]


def test_output_keeps_the_tail_on_a_character() -> None:
    """Cutting inside a character drops its rest, and broken bytes become U+FFFD."""
    with Output() as output:
        os.write(output.fileno(), "aé€".encode() + b"\xff!")
        assert output.text() == "aé€\ufffd!"
        assert output.text(limit_bytes=4) == "[6 bytes before this are cut]\n\ufffd!"
        output.clear()
        assert output.text() == ""
        assert output.fileno() > 2
    with contextlib.suppress(OSError):
        os.fstat(output.fileno())
        raise AssertionError("the descriptor is still open")


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (Ended(0, None, False, "", (), 0.1), "ended by itself with status 0"),
        (Ended(87, None, False, "", (), 0.1), "raised an error (status 87)"),
        (Ended(None, 9, False, "", (), 0.1), "was killed by signal SIGKILL"),
        (Ended(None, 40, False, "", (), 0.1), "was killed by signal 40"),
        (Ended(None, 6, True, "x", (), 10.02), "hung for 10.0 s and was killed by signal SIGABRT"),
        (
            Ended(0, None, False, "", (Leftover(12, "sleep 9"),), 0.1),
            "ended by itself with status 0, leaving behind: 12 (sleep 9)",
        ),
    ],
)
def test_every_end_reads_as_a_clause(ended: Ended, expected: str) -> None:
    """Each way to end has its own words."""
    assert expected == describe(ended)


def test_missing_pidfd_is_refused_before_anything_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A platform without pidfd_open gets a ConfigurationError that names it."""
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(ConfigurationError, match=r"os\.pidfd_open is missing"):
        process.become_zygote()
