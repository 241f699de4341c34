"""What a recorded store cannot draw at random: two executions are the same, byte for byte."""

from __future__ import annotations

import ctypes
import json
import os
import random
import secrets
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from harness.oplog import Kind, Mark
from harness.recorder import Options, Session
from harness.workspace import tree_difference
from tests.harness.recorded import QUIET, Recorded, needs_recorder, record
from tests.harness.recorder_calls import LIBC, X86

pytestmark = needs_recorder

GETRANDOM = 318 if X86 else 278


def _draw(root: Path, session: Session) -> None:
    """Draw by every means, and leave what came out."""
    direct = ctypes.create_string_buffer(16)
    LIBC.syscall(ctypes.c_long(GETRANDOM), direct, ctypes.c_long(16), 0)
    libc = ctypes.create_string_buffer(16)
    assert LIBC.getentropy(libc, 16) == 0
    drawn = {
        "urandom": os.urandom(8).hex(),
        "getrandom": os.getrandom(8, os.GRND_NONBLOCK).hex(),
        "direct": direct.raw.hex(),
        "libc": libc.raw.hex(),
        "device": [_device("/dev/urandom"), _device("/dev/random")],
        "uuid": str(uuid.uuid4()),
        "secrets": secrets.token_hex(8),
        "random": random.SystemRandom().random(),
        "fresh": random.Random().random(),
        "file": Path(tempfile.mktemp()).name,
        "clock": [time.time(), time.time_ns(), time.gmtime()[:6]],
        "date": subprocess.run(["date", "+%s"], capture_output=True, text=True).stdout,
        "head": subprocess.run(
            ["head", "-c", "8", "/dev/urandom"], capture_output=True
        ).stdout.hex(),
        "child": subprocess.run(
            [sys.executable, "-c", "import os, time; print(os.urandom(8).hex(), time.time())"],
            capture_output=True,
            text=True,
        ).stdout,
    }
    (root / "drawn").write_text(json.dumps(drawn))


def _device(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(8).hex()


def _databases(root: Path, session: Session) -> None:
    for module in (sqlite3, apsw):
        connect = module.connect if module is sqlite3 else module.Connection
        with closing(connect(f"{module.__name__}.db")) as connection:
            connection.execute("PRAGMA journal_mode=wal").fetchall()
            connection.execute("CREATE TABLE t (a, b, c)")
            values = "randomblob(20), datetime('now'), random()"
            connection.execute(f"INSERT INTO t VALUES ({values})")
            if module is sqlite3:
                connection.commit()


def _twice(tmp_path: Path, body: object, **options: object) -> list[Recorded]:
    found = []
    for number in "12":
        (tmp_path / number).mkdir()
        found.append(
            record(tmp_path / number, body, Options(**options), volatile=("*-shm",))  # type: ignore[arg-type]
        )
    return found


def _content(done: Recorded) -> list[tuple[object, ...]]:
    return [
        (op.kind, op.name, op.offset, op.payload)
        for op in done.ops
        if op.kind in (Kind.CREATE, Kind.WRITE, Kind.UNLINK, Kind.TRUNCATE)
    ]


@pytest.mark.slow
def test_randomness_and_the_wall_clock_are_the_same_each_time(tmp_path: Path) -> None:
    """Whatever means a store draws by, also in programs that it starts, the same comes out."""
    first, second = _twice(tmp_path, _draw)
    assert _content(first) == _content(second)
    drawn = json.loads(first.of(Kind.WRITE)[-1].payload)
    assert len({json.dumps(value) for value in drawn.values()}) == len(drawn)
    assert drawn["device"][0] != drawn["device"][1]
    assert 0 < drawn["clock"][1] - drawn["clock"][0] * 10**9 < 10**7


def test_databases_are_the_same_each_time(tmp_path: Path) -> None:
    """SQLite's salts, blobs and times are the same, through both bindings."""
    first, second = _twice(tmp_path, _databases, stacks=False)
    assert len(_content(first)) > 20
    assert _content(first) == _content(second)
    assert first.problems == second.problems == []


def test_an_execution_that_is_not_recorded_can_leave_the_same_bytes(tmp_path: Path) -> None:
    """Without calls the log is empty, and the files are those of a recorded execution."""

    def body(root: Path, session: Session) -> None:
        _databases(root, session)
        subprocess.run("head -c 9 /dev/urandom > head; date > date", shell=True, check=True)
        session.mark(Mark.STEP_END, 1)

    for name, calls in (("with", True), ("without", False)):
        (tmp_path / name).mkdir()
        done = record(tmp_path / name, body, Options(calls=calls), volatile=("*",))
        assert (len(done.ops) > 0) == calls
    roots = [tmp_path / name / "root" for name in ("with", "without")]
    assert tree_difference(*roots, ("*-shm",)) == []
    assert (roots[0] / "apsw.db").stat().st_size > 0


def test_another_seed_draws_otherwise(tmp_path: Path) -> None:
    """The seed decides."""

    def body(root: Path, session: Session) -> None:
        (root / "drawn").write_bytes(os.urandom(64))

    drawn = []
    for seed in (1, 2, 1):
        folder = tmp_path / f"{len(drawn)}"
        folder.mkdir()
        drawn.append(record(folder, body, Options(seed=seed)).of(Kind.WRITE)[-1].payload)
    assert drawn[0] == drawn[2] != drawn[1]


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    """Without a seed and a clock, both are real."""

    def body(root: Path, session: Session) -> None:
        (root / "drawn").write_bytes(os.urandom(64))
        (root / "time").write_text(str(time.time()))

    before = time.time()
    drawn = set()
    for number in "12":
        (tmp_path / number).mkdir()
        writes = record(tmp_path / number, body, QUIET).of(Kind.WRITE)
        drawn.add(writes[0].payload)
        assert before < float(writes[1].payload) < time.time()
    assert len(drawn) == 2


def test_monotonic_time_is_real(tmp_path: Path) -> None:
    """Waits end: the monotonic clock is not made up, and so no lock waits for ever."""

    def body(root: Path, session: Session) -> None:
        started = time.monotonic()
        lock = threading.Lock()
        lock.acquire()
        assert not lock.acquire(timeout=0.05)
        assert not threading.Event().wait(0.05)
        time.sleep(0.01)
        assert 0.1 < time.monotonic() - started < 30

    assert record(tmp_path, body, Options()).problems == []
