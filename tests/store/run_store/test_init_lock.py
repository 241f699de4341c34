"""One initialiser at a time, on one inode, for ever."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store.run_store import init_lock
from store.run_store.errors import InitializationFailed, InitLockBusy, InitLockReplaced
from store.run_store.opening import open_database

LOCK = ".run-store-init.lock"
REPOSITORY = Path(__file__).parents[3]
HOLDS_LOCK = """
import fcntl, sys
with open(sys.argv[1], "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.readline()
"""
OPENS = """
import sys
from pathlib import Path
from store.run_store.opening import open_database
print("ready", flush=True)
sys.stdin.readline()
connection, path = open_database(Path(sys.argv[1]))
print(connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0])
connection.close()
"""


def _python(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def _another_process_holds(lock: Path) -> Iterator[subprocess.Popen[str]]:
    with _python(HOLDS_LOCK, str(lock)) as holder:
        try:
            assert _line(holder) == "held"
            yield holder
        finally:
            _end(holder)


def _end(holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None
    holder.stdin.close()
    assert holder.wait(timeout=30) == 0


def test_a_held_lock_refuses_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-025: while another process initialises, an open waits its time and is then refused."""
    assert init_lock.TIMEOUT_S == 5.0
    monkeypatch.setattr(init_lock, "TIMEOUT_S", 0.02)
    with _another_process_holds(tmp_path / LOCK), pytest.raises(InitLockBusy) as caught:
        open_database(tmp_path)
    assert (caught.value.path, caught.value.waited_s) == (tmp_path.resolve() / LOCK, 0.02)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK], "nothing was done without it"


def test_a_lock_released_in_time_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RS-025: an open that waits goes on as soon as the other initialiser is done."""
    with _another_process_holds(tmp_path / LOCK) as holder:
        slept = []

        def end_holder(seconds: float) -> None:
            monkeypatch.undo()
            slept.append(seconds)
            _end(holder)

        monkeypatch.setattr("time.sleep", end_holder)
        connection, _ = open_database(tmp_path)
        connection.close()
    assert slept == [init_lock.POLL_S]


def test_the_lock_file_stays_the_same_inode(tmp_path: Path) -> None:
    """RS-025: no open and no failed block removes, replaces or writes the lock file."""
    with init_lock.held(tmp_path):
        pass
    inode = (tmp_path / LOCK).stat().st_ino
    for _ in range(2):
        connection, _ = open_database(tmp_path)
        connection.close()
    with pytest.raises(KeyError), init_lock.held(tmp_path):
        raise KeyError
    with init_lock.held(tmp_path):
        assert (tmp_path / LOCK).stat().st_ino == inode
    assert (tmp_path / LOCK).read_bytes() == b""


@pytest.mark.parametrize("left", ["another file", "nothing"])
def test_a_lock_on_a_file_that_lost_its_name_is_refused(
    left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-025: a lock file that was replaced while it was being locked locks nobody out."""
    real = fcntl.flock
    path = tmp_path / LOCK

    def replace_then_lock(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            path.unlink()
            if left == "another file":
                path.touch()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replace_then_lock)
    with pytest.raises(InitLockReplaced) as caught, init_lock.held(tmp_path):
        pytest.fail("ran under a lock that excludes nobody")
    assert caught.value.path == path


def test_a_filesystem_that_cannot_lock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-035: an injected failure of the lock call ends the open at once, without a database."""

    def fail(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            raise OSError(errno.ENOLCK, "injected")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(InitializationFailed) as caught:
        open_database(tmp_path)
    assert caught.value.stage == "take_init_lock"
    assert isinstance(caught.value.__cause__, OSError)
    assert not (tmp_path / "run.sqlite3").exists()


def test_concurrent_threads_open_one_database(tmp_path: Path) -> None:
    """RS-025: threads that open a fresh root at once all get the same complete database."""
    count = 4
    start = threading.Barrier(count)
    found: list[int] = []

    def act() -> None:
        start.wait(timeout=30)
        connection, _ = open_database(tmp_path)
        found.append(connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()[0][0])
        connection.close()

    threads = [threading.Thread(target=act) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(found) == count
    assert len(set(found)) == 1
    assert found[0] > 0


def test_concurrent_processes_open_one_database(tmp_path: Path) -> None:
    """RS-025: processes that open a fresh root at once all get the same complete database."""
    processes = [_python(OPENS, str(tmp_path)) for _ in range(3)]
    assert [_line(process) for process in processes] == ["ready"] * 3
    answers = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        answers.append(process.communicate(timeout=60)[0])
        assert process.returncode == 0
    assert len(set(answers)) == 1
    assert int(answers[0]) > 0
