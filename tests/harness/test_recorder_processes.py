"""The recorder among processes, signals and deaths: nothing is lost, and nobody waits for ever."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import workspace
from harness.completeness import Follower
from harness.errors import RecorderError
from harness.oplog import Kind, Mark, Op, Oplog
from harness.recorder import Options, Session, recording, seal
from tests.harness.recorded import QUIET, needs_recorder, record
from tests.harness.recorder_calls import LIBC, prepare, raw

pytestmark = needs_recorder


def _append(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(fd, data)
    os.close(fd)


def test_the_log_of_a_process_that_exits_in_the_middle_is_whole(tmp_path: Path) -> None:
    """Every call that returned before os._exit is in the log, and the exit, too."""

    def body(root: Path, session: Session) -> None:
        session.mark(Mark.STEP_BEGIN, 1, "first")
        for number in range(100):
            _append(root / "file", b"%d\n" % number)
        os._exit(86)

    done = record(tmp_path, body, status=86)
    assert done.problems == []
    assert len(done.of(Kind.WRITE)) == 100
    assert done.ops[-1].kind is Kind.EXIT
    assert done.ops[-1].offset == 86
    marks = done.of(Kind.MARKER)
    assert [(m.mode, m.offset, m.payload) for m in marks] == [(Mark.STEP_BEGIN, 1, b"first")]
    seal(done.log_path)
    with Oplog.read(done.log_path) as log:
        assert list(log) == done.ops


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_killed_processes_leave_a_log_that_gives_their_tree(seed: int, tmp_path: Path) -> None:
    """However several writers are killed, the log gives their tree but for one call under way."""
    root, log_path = tmp_path / "root", tmp_path / "log"
    root.mkdir()
    prepare(root)
    workspace.copy_tree(root, tmp_path / "derived")
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            with recording(root, log_path, QUIET):
                _write_for_ever(root, writing)
        finally:
            os._exit(1)
    os.close(writing)
    assert len(_read(reading, 30)) == 30  # all of them are at it
    time.sleep(random.Random(seed).random() / 50)  # any moment will do
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while os.read(reading, 1000):
        pass  # its end comes with the death of the last
    os.close(reading)
    seal(log_path)
    with Oplog.read(log_path) as log:
        follower = Follower(log, tmp_path / "derived", tmp_path / "side")
        assert follower.follow() > 30
        problems, uncertain = follower.problems(root), log.uncertain
        if not any("died in" in problem for problem in problems):
            assert problems == [] or _is_explained(problems, uncertain, follower), problems


def _is_explained(problems: list[str], op: Op | None, follower: Follower) -> bool:
    """Say whether the paths that differ are those of the call under way."""
    if op is None:
        return False
    names = [os.fsdecode(name) for name in (op.name, op.second) if name]
    if op.object is not None:
        names += follower.materialiser.names_of(op.object)
    return all(any(f" {name}: " in problem for name in names) for problem in problems)


def _read(descriptor: int, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := os.read(descriptor, count - len(data))):
        data += piece
    return data


def _write_for_ever(root: Path, told: int) -> None:
    name = "a" if os.fork() == 0 else "b" if os.fork() == 0 else "c"
    number = 0
    while True:
        number += 1
        _append(root / "all", f"{name}{number} ".encode() * 300)
        (root / f"{name}{number % 7}").write_bytes(b"x" * number)
        os.rename(root / f"{name}{number % 7}", root / f"{name}-moved")
        if number <= 10:
            os.write(told, b".")


@pytest.mark.slow
def test_a_writer_that_was_killed_with_the_lock_holds_up_nobody(tmp_path: Path) -> None:
    """Others go on when one is killed at any moment, and the log stays whole."""

    def body(root: Path, session: Session) -> None:
        for round_ in range(40):
            pid = os.fork()
            if pid == 0:
                while True:
                    _append(root / "victim", b"v" * 3000)
            time.sleep(0.002 + round_ % 7 / 2000)  # any moment will do
            os.kill(pid, signal.SIGKILL)
            _append(root / "witness", b"%d," % round_)
            os.waitpid(pid, 0)

    done = record(tmp_path, body)
    written = [op for op in done.of(Kind.WRITE) if op.payload.endswith(b",")]
    assert len(written) == 40
    uncertain = [op for op in done.ops if op.is_uncertain]
    assert done.problems == [] or len(uncertain) > 0, done.problems
    assert all("died in" in problem for problem in done.problems[: len(uncertain)])


@pytest.mark.slow
def test_handlers_may_write_in_the_middle_of_anything(tmp_path: Path) -> None:
    """A signal handler that writes under the root never waits for the call that it interrupts."""

    def body(root: Path, session: Session) -> None:
        def on_alarm(number: int, frame: object) -> None:
            _append(root / "handler", b"h")
            calls.append(number)

        calls: list[int] = []
        signal.signal(signal.SIGVTALRM, on_alarm)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0005, 0.0005)
        while len(calls) < 10:
            _append(root / "main", b"m" * 100)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    done = record(tmp_path, body)
    assert done.problems == []
    assert sum(op.payload == b"h" for op in done.of(Kind.WRITE)) >= 10


def test_no_signal_mask_hides_a_call(tmp_path: Path) -> None:
    """With all signals blocked, and in handlers that block all, calls are recorded as ever."""

    def body(root: Path, session: Session) -> None:
        every = set(signal.Signals)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, every)
        _append(root / "blocked", b"1")
        now = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert every - now == {signal.SIGSYS, signal.SIGKILL, signal.SIGSTOP}
        thread = threading.Thread(target=_append, args=(root / "blocked", b"2"))
        thread.start()
        thread.join()
        subprocess.run(["sh", "-c", "echo 3 >> blocked"], check=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
        signal.signal(signal.SIGSYS, signal.SIG_DFL)
        _append(root / "blocked", b"4")

    done = record(tmp_path, body)
    assert done.problems == []
    assert b"".join(op.payload for op in done.of(Kind.WRITE)) == b"123\n4"


@pytest.mark.slow
def test_every_way_to_start_a_program(tmp_path: Path) -> None:
    """fork and exec, vfork, posix_spawn, system, popen: what they write is recorded."""

    def body(root: Path, session: Session) -> None:
        os.system("echo system > system")
        os.popen("echo popen > popen").close()
        subprocess.run("echo run | cat > run", shell=True, check=True)
        subprocess.run(["sh", "-c", "echo p > pre"], preexec_fn=lambda: os.nice(0), check=True)
        pid = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", "echo spawned"],
            {},
            file_actions=[(os.POSIX_SPAWN_OPEN, 1, b"spawn", os.O_CREAT | os.O_WRONLY, 0o644)],
        )
        assert os.waitpid(pid, 0)[1] == 0
        code = "import os; os.chdir('..'); open('root/python', 'w').write('python')"
        subprocess.run([sys.executable, "-c", code], check=True)
        threads = [
            threading.Thread(target=subprocess.run, args=(["sh", "-c", f"echo {n} > t{n}"],))
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert subprocess.run(["sh", "-c", "echo x > x; exit 7"]).returncode == 7
        assert subprocess.run(["/no/such"], check=False, executable="/bin/false").returncode == 1

    done = record(tmp_path, body)
    assert done.problems == []
    names = {op.name.decode() for op in done.of(Kind.CREATE)}
    wanted = {"system", "popen", "run", "pre", "spawn", "python", "x", "t0", "t1", "t2", "t3"}
    assert wanted <= names


@pytest.mark.slow
def test_waiting_calls_hold_no_lock(tmp_path: Path) -> None:
    """Who waits at a pipe, a FIFO or a socket keeps nobody from writing, and can be interrupted."""

    def body(root: Path, session: Session) -> None:
        os.mkfifo("fifo")
        reading, writing = os.pipe()

        def wait_at_a_full_pipe() -> None:
            os.write(writing, bytes(1 << 20))

        def wait_at_a_fifo() -> None:
            os.close(os.open("fifo", os.O_CREAT | os.O_WRONLY))

        def splice_from_an_empty_pipe() -> None:
            os.splice(empty, target, 5)

        empty, filled = os.pipe()
        target = os.open("spliced", os.O_CREAT | os.O_WRONLY)
        waiting = [
            threading.Thread(target=one)
            for one in (wait_at_a_full_pipe, wait_at_a_fifo, splice_from_an_empty_pipe)
        ]
        for thread in waiting:
            thread.start()
        for number in range(200):
            _append(root / "file", b"%d" % number)
        got = 0
        while got < 1 << 20:
            got += len(os.read(reading, 1 << 16))
        os.close(os.open("fifo", os.O_RDONLY))
        os.write(filled, b"bytes")
        for thread in waiting:
            thread.join()

    done = record(tmp_path, body)
    assert done.problems == []
    assert [op.payload for op in done.of(Kind.WRITE)][-1] == b"bytes"


def test_what_would_write_unseen_is_refused(tmp_path: Path) -> None:
    """io_uring is told to be missing, so that a program falls back to calls that are seen."""

    def body(root: Path, session: Session) -> None:
        with pytest.raises(OSError, match="not implemented") as caught:
            raw("io_uring_setup", 8, ctypes.create_string_buffer(200))
        assert caught.value.errno == errno.ENOSYS
        assert LIBC.syscall(ctypes.c_long(0x40000001), 1, b"x", 1) == -1  # the x32 interface

    assert record(tmp_path, body).problems == []


@pytest.mark.slow
def test_a_static_program_dies_loudly(tmp_path: Path) -> None:
    """What cannot be recorded is ended by SIGSYS rather than let through."""
    source = tmp_path / "static.c"
    source.write_text(
        '#include <stdio.h>\nint main() { FILE *f = fopen("s", "w"); fputs("s", f); }'
    )
    built = subprocess.run(["cc", "-static", "-o", tmp_path / "static", source], check=False)
    if built.returncode:
        pytest.skip("NOT TESTED, static programs: no static libc here")

    def body(root: Path, session: Session) -> None:
        done = subprocess.run([root.parent / "static"], check=False)
        assert done.returncode == -signal.SIGSYS

    done = record(tmp_path, body)
    assert done.problems == []


def test_threads_that_were_there_before(tmp_path: Path) -> None:
    """The filter covers threads that ran when recording began; forks made by any are covered."""
    root, log_path = tmp_path / "root", tmp_path / "log"
    root.mkdir()
    go = threading.Event()

    def work(number: int) -> None:
        go.wait()
        _append(root / f"{number}", bytes(700_000))
        subprocess.run(["sh", "-c", f"echo {number} >> {root}/{number}"], check=True)

    def body() -> None:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        with recording(root, log_path, QUIET):
            go.set()
            for thread in threads:
                thread.join()

    os.waitpid(_forked(body), 0)
    workspace.copy_tree(root, tmp_path / "copy")
    (tmp_path / "derived").mkdir()
    (tmp_path / "derived").chmod(root.stat().st_mode)
    with Oplog.read(log_path) as log:
        follower = Follower(log, tmp_path / "derived", tmp_path / "side")
        assert follower.problems(root) == []
    assert {path.stat().st_size for path in root.iterdir()} == {700_002}


def test_one_recording_per_process(tmp_path: Path) -> None:
    """A second recording in one process is refused, and so is a log in the root or over a file."""

    def body(root: Path, session: Session) -> None:
        (root / "inner").mkdir()
        with (
            pytest.raises(RecorderError, match="recorded already"),
            recording(root / "inner", root.parent / "other"),
        ):
            pass

    done = record(tmp_path, body)
    assert done.problems == []

    def again() -> None:
        for root, log_path in (
            (tmp_path / "root", done.log_path),
            (tmp_path / "no", tmp_path / "x"),
        ):
            with (
                pytest.raises(RecorderError, match=r"state.*exists|log.*exists|root.*No such"),
                recording(root, log_path),
            ):
                pass
        (tmp_path / "refused").touch()

    os.waitpid(_forked(again), 0)
    assert (tmp_path / "refused").exists()
    assert not list(tmp_path.glob("*.state")) + list(tmp_path.glob("x"))
    with Oplog.read(done.log_path) as log:
        assert list(log) == done.ops
    with (
        pytest.raises(RecorderError, match="outside of the root"),
        recording(tmp_path / "root", tmp_path / "root" / "log"),
    ):
        pass


@pytest.mark.slow
def test_large_writes_and_a_log_that_is_full(tmp_path: Path) -> None:
    """A write larger than the window is whole in the log; when that is full, the store goes on."""
    data = random.Random(1).randbytes(3 << 20)

    def body(root: Path, session: Session) -> None:
        for number in range(8):
            (root / f"{number}").write_bytes(data)
            _append(root / "small", b"small")

    (tmp_path / "whole").mkdir()
    done = record(tmp_path / "whole", body)
    assert done.problems == []
    assert sum(op.payload == data for op in done.of(Kind.WRITE)) == 8

    (tmp_path / "full").mkdir()
    options = Options(stacks=False, log_size_max=10 << 20)
    full = record(tmp_path / "full", body, options, status=70)
    assert any("recording stopped before the end" in problem for problem in full.problems)
    assert (tmp_path / "full" / "root" / "7").read_bytes() == data


@pytest.mark.parametrize("kill", [False, True])
def test_a_follower_keeps_up_with_a_log_that_grows(kill: bool, tmp_path: Path) -> None:
    """At each step's end, while the process stands still, the tree can be compared."""
    root, log_path = tmp_path / "root", tmp_path / "log"
    root.mkdir()
    workspace.copy_tree(root, tmp_path / "derived")
    (here, theirs), (answer, asked) = os.pipe(), os.pipe()

    def steps() -> None:
        with recording(root, log_path, QUIET):
            for number in range(5):
                (root / f"{number % 3}").write_bytes(bytes(200_000))
                os.write(theirs, b".")
                os.read(answer, 1)

    pid = _forked(steps)
    os.read(here, 1)
    with Oplog.read(log_path) as log:
        follower = Follower(log, tmp_path / "derived", tmp_path / "side")
        for _ in range(4):
            assert follower.problems(root) == []
            os.write(asked, b".")
            os.read(here, 1)
        if kill:
            os.kill(pid, signal.SIGKILL)
        os.write(asked, b".")
        os.waitpid(pid, 0)
        assert follower.problems(root) == []
    for descriptor in (here, theirs, answer, asked):
        os.close(descriptor)


def _forked(body: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    return pid
