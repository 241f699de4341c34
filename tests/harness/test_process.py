"""
Children of a real zygote: how they end, what they print, and that nothing of them stays behind.

A zygote inherits every orphan, which the process that runs the tests must not: each scenario runs
in a process of its own, this file started as a program, and answers in JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import process
from harness.errors import ConfigurationError, Hangup
from harness.process import CRASH_STATUS, EXIT_RAISED, Ended, Leftover, Output, describe, run_child

Facts = dict[str, Any]
HERE = Path(__file__)
LONG_SECONDS = 120
"""Longer than any test: what sleeps so long is killed or makes the scenario time out."""


STRANGE_START = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGABRT, signal.SIGTERM})
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that starts another one with signals ignored and blocked, as some supervisors do."""


def play(scenario: str, folder: Path, *, launcher: tuple[str, ...] = ()) -> Any:
    """Run one scenario of this file in a fresh zygote and return its answer."""
    done = subprocess.run(
        [*launcher, sys.executable, str(HERE), scenario, str(folder)],
        cwd=HERE.parents[2],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


class Zygote:
    """What a scenario gets: runs children and tells what became of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = Output()

    def run(self, target: Callable[[], int], *, seconds: float = 60, **options: Any) -> Facts:
        """Run one child; return its end and what it printed."""
        self.output.clear()
        ended = run_child(
            target,
            directory=self.folder,
            timeout_seconds=seconds,
            output=self.output,
            **options,
        )
        return {
            "exit_status": ended.exit_status,
            "signal": ended.signal,
            "is_hung": ended.is_hung,
            "stack": ended.stack,
            "leftovers": [[left.pid, left.command] for left in ended.leftovers],
            "seconds": ended.seconds,
            "text": self.output.text(),
            "description": describe(ended),
            "descendants": has_descendants(),
        }


def has_descendants() -> bool:
    """Say whether this process has any child, dead or alive."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def open_descriptors() -> list[str]:
    """Return what this process has open, the listing itself aside."""
    return sorted(
        str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()
    )


def forever() -> None:
    """Sleep until killed."""
    time.sleep(LONG_SECONDS)


def in_fork(work: Callable[[], object]) -> int:
    """Do *work* in a forked process that then ends with status 0; return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


# Scenarios: each runs in a zygote.


def returns(zygote: Zygote) -> Facts:
    def target() -> int:
        print("to stdout", end="")
        sys.stderr.write("to stderr")
        assert os.read(0, 1) == b""
        return 7 if Path.cwd() == zygote.folder else 1

    return zygote.run(target)


def exits_early(zygote: Zygote) -> Facts:
    def target() -> int:
        print("a line before the crash")
        os._exit(0)

    return zygote.run(target)


def crashes_at_boundary(zygote: Zygote) -> Facts:
    def target() -> int:
        try:
            os._exit(CRASH_STATUS)
        finally:
            print("never")

    return zygote.run(target)


def raises(zygote: Zygote) -> list[Facts]:
    def interrupt() -> int:
        raise KeyboardInterrupt

    def leave() -> int:
        sys.exit("leaving")

    def fail() -> int:
        raise RuntimeError("broken \udcff")

    def without_error_output() -> int:
        os.close(2)
        sys.stderr = None
        raise RuntimeError("still told")

    targets: list[Any] = [interrupt, leave, fail, without_error_output, lambda: 256, lambda: None]
    return [zygote.run(target) for target in targets]


def killed_by_segv(zygote: Zygote) -> Facts:
    def target() -> int:
        os.kill(os.getpid(), signal.SIGSEGV)
        return 0

    return zygote.run(target)


def hangs(zygote: Zygote) -> Facts:
    libc = ctypes.CDLL(None)

    def sleeps() -> int:
        forever()
        return 0

    def pauses_in_c() -> int:
        libc.pause()
        return 0

    def spins() -> int:
        while True:
            pass

    def blocks_other_thread() -> int:
        threading.Thread(target=named_in_stack).start()
        threading.Event().wait()
        return 0

    def named_in_stack() -> None:
        forever()

    def stops() -> int:
        os.kill(os.getpid(), signal.SIGSTOP)
        return 0

    def closes_outputs() -> int:
        os.close(1)
        os.close(2)
        forever()
        return 0

    targets = (sleeps, pauses_in_c, spins, blocks_other_thread, stops, closes_outputs)
    return {target.__name__: zygote.run(target, seconds=0.2) for target in targets}


def hangs_once(zygote: Zygote) -> Facts:
    def target() -> int:
        forever()
        return 0

    return zygote.run(target, seconds=0.05)


def resists_abort(zygote: Zygote) -> Facts:
    def ignores() -> int:
        signal.signal(signal.SIGABRT, signal.SIG_IGN)
        forever()
        return 0

    def handles() -> int:
        signal.signal(signal.SIGABRT, lambda *_: None)
        while True:
            pass

    def leaves() -> int:
        def handler(*_: object) -> None:
            os._exit(0)

        signal.signal(signal.SIGABRT, handler)
        forever()
        return 0

    def closes_everything() -> int:
        faulthandler.disable()
        os.closerange(0, 100)
        forever()
        return 0

    targets = (ignores, handles, leaves, closes_everything)
    return {target.__name__: zygote.run(target, seconds=0.1) for target in targets}


def leaves_daemons(zygote: Zygote) -> Facts:
    def grandchild() -> int:
        in_fork(forever)
        return 0

    def daemon() -> None:
        os.setsid()
        forever()

    def session() -> int:
        def work() -> None:
            os.setsid()
            in_fork(daemon)

        os.waitpid(in_fork(work), 0)
        return 0

    def program() -> int:
        subprocess.Popen(["sleep", "120"], start_new_session=True)
        return 3

    def tree() -> int:
        def branch() -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            in_fork(forever)
            in_fork(forever)
            forever()

        in_fork(branch)
        in_fork(branch)
        wait_for_processes(6)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def without_first_thread() -> int:
        def work() -> None:
            threading.Thread(target=forever).start()
            ctypes.CDLL(None).pthread_exit(None)

        in_fork(work)
        return 0

    targets = (grandchild, session, program, tree, without_first_thread)
    return {target.__name__: zygote.run(target) for target in targets}


def wait_for_processes(count: int) -> None:
    """Wait until the calling child has *count* living descendants."""
    while len(process._descendants(set())) < count:
        time.sleep(0.001)


def goes_on_forking(zygote: Zygote) -> Facts:
    def chain() -> int:
        def work() -> None:
            while True:
                if os.fork():
                    os._exit(0)

        in_fork(work)
        return 0

    return zygote.run(chain)


def ends_just_after(zygote: Zygote) -> list[Facts]:
    """Grandchildren that end with, or just after, the child that forgot them."""

    def zombie() -> int:
        pid = in_fork(lambda: None)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return 0

    def follows() -> int:
        reading, writing = os.pipe()

        def work() -> None:
            os.close(writing)
            os.read(reading, 1)  # returns when the child that holds the other side is dead
            time.sleep(0.01)  # and takes a while to end, as an interpreter does

        in_fork(work)
        return 0

    return [zygote.run(zombie), *(zygote.run(follows) for _ in range(20))]


def thousands(zygote: Zygote) -> Facts:
    def target() -> int:
        return 0

    def hang() -> int:
        forever()
        return 0

    zygote.run(target)
    before = open_descriptors()
    started = time.perf_counter()
    statuses = {zygote.run(target)["exit_status"] for _ in range(2000)}
    milliseconds = (time.perf_counter() - started) / 2000 * 1000
    hung = zygote.run(hang, seconds=0.05)
    return {
        "statuses": sorted(statuses),
        "before": before,
        "after": open_descriptors(),
        "descendants": hung["descendants"],
        "milliseconds": milliseconds,
    }


def hears_hangup(zygote: Zygote) -> Facts:
    """The asking side closes its socket while the child, and what it started, go on."""
    answers: Facts = {}
    for name, close in (("socket", socket_pair), ("pipe", pipe_pair)):
        ours, theirs = close()
        started = zygote.folder / f"{name}-started"

        def target(started: Path = started) -> int:
            subprocess.Popen(["sleep", "120"], start_new_session=True)
            started.touch()
            forever()
            return 0

        def hang_up(started: Path = started, theirs: Any = theirs) -> None:
            while not started.exists():
                time.sleep(0.001)
            theirs.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            zygote.run(target, hangup_fd=ours.fileno(), close_in_child=[theirs.fileno()])
            answers[name] = "returned"
        except Hangup:
            answers[name] = "hangup"
        thread.join()
        ours.close()
    return {**answers, "descendants": has_descendants()}


def socket_pair() -> tuple[Any, Any]:
    return socket.socketpair()


def pipe_pair() -> tuple[Any, Any]:
    reading, writing = os.pipe()
    return open(reading, "rb", buffering=0), open(writing, "wb", buffering=0)


def closes_for_child(zygote: Zygote) -> Facts:
    """Without the descriptor in the child, the other side sees the end while the child lives."""
    ours, theirs = socket.socketpair()

    def target() -> int:
        try:
            os.fstat(ours.fileno())
        except OSError:
            return 0
        return 1

    return {
        "closed": zygote.run(target, close_in_child=[ours.fileno()])["exit_status"],
        "inherited": zygote.run(target)["exit_status"],
        "bad": zygote.run(target, close_in_child=[999])["text"],
        "theirs": theirs.fileno() > 0,
    }


def fresh_signals(zygote: Zygote) -> Facts:
    """The zygote's own handling of signals is not the child's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def interrupted() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return 0

    def terminated() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return 0

    return {"int": zygote.run(interrupted), "term": zygote.run(terminated)}


def dies_with_zygote(zygote: Zygote) -> Facts:
    """A zygote within this one is killed; its child writes into a pipe whose end we wait for."""
    reading, writing = os.pipe()

    def inner() -> int:
        process.become_zygote()

        def target() -> int:
            os.write(writing, f"{os.getpid()}".encode())
            forever()
            return 0

        with Output() as output:
            run_child(target, directory=zygote.folder, timeout_seconds=60, output=output)
        return 0

    pid = in_fork(inner)
    os.close(writing)
    child = int(os.read(reading, 100))
    os.kill(pid, signal.SIGKILL)
    # Readable, as an end of file, when the last holder of the other side is dead.
    is_dead = bool(select.select([reading], [], [], 20)[0])
    if not is_dead:
        os.kill(child, signal.SIGKILL)
    statuses = {}
    for _ in range(2):
        ended, status = os.wait()
        statuses[ended] = os.waitstatus_to_exitcode(status)
    return {"is_dead": is_dead, "zygote": statuses[pid], "child": statuses[child]}


def has_no_core(zygote: Zygote) -> str:
    def target() -> int:
        print(Path("/proc/self/limits").read_text())
        return 0

    return next(
        " ".join(line.split()[-3:-1])
        for line in zygote.run(target)["text"].splitlines()
        if line.startswith("Max core")
    )


def prints_without_end(zygote: Zygote) -> Facts:
    process.OUTPUT_BYTES_MAX = 1 << 22

    def target() -> int:
        while True:
            os.write(1, b"spam and eggs.. " * 4096)

    facts = zygote.run(target, seconds=0.5)
    return {**facts, "held": zygote.output.size_bytes(), "text": facts["text"][:60]}


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
        assert facts["stack"].startswith("Fatal Python error: Aborted")
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


def _main() -> None:
    scenario, folder = sys.argv[1:]
    process.become_zygote()
    print(json.dumps(globals()[scenario](Zygote(Path(folder)))))


if __name__ == "__main__":
    _main()
