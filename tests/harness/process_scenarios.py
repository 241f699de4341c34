"""
What children of a real zygote do: the program that ``test_process.py`` starts for each scenario.

It becomes a zygote, plays the scenario of the given name, and answers in JSON.
"""

from __future__ import annotations

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
from functools import partial
from pathlib import Path
from typing import Any

from harness import process
from harness.errors import Hangup
from harness.process import CRASH_STATUS, Output, describe, run_child

Facts = dict[str, Any]
LONG_SECONDS = 120
"""Longer than any test: what sleeps so long is killed or makes the scenario time out."""


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


def ends_while_busy(zygote: Zygote) -> list[Facts]:
    """Grandchildren that need half a second of processor time to end after their parent."""

    def ending(status: int) -> int:
        reading, writing = os.pipe()

        def work() -> None:
            os.close(writing)
            os.read(reading, 1)
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                pass

        in_fork(work)
        os.close(reading)
        return status

    return [zygote.run(partial(ending, status)) for status in (0, CRASH_STATUS)]


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


def _main() -> None:
    scenario, folder = sys.argv[1:]
    process.become_zygote()
    print(json.dumps(globals()[scenario](Zygote(Path(folder)))))


if __name__ == "__main__":
    _main()
