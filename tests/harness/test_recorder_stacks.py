"""The Python stack that caused an op: the right line, whoever made the call."""

from __future__ import annotations

import inspect
import os
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from harness.oplog import Kind, Op
from harness.recorder import Options, Session, missing_stacks
from tests.harness.recorded import Recorded, needs_recorder, record

_PROBLEM = missing_stacks()
pytestmark = [
    needs_recorder,
    pytest.mark.skipif(
        _PROBLEM is not None and not os.environ.get("CI"), reason=f"NOT TESTED, stacks: {_PROBLEM}"
    ),
]


def _line(mark: str) -> str:
    """Return FILE:LINE of the line of this file that ends in a comment."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.endswith(f"  # {mark}"))
    return f"{__file__}:{number}"


def _frames(done: Recorded, op: Op) -> list[str]:
    return done.stacks[op.stack].split("\n") if op.stack else []


def _body(root: Path, session: Session) -> None:
    fd = os.open("direct", os.O_CREAT | os.O_WRONLY)
    os.fsync(fd)  # os.fsync
    with closing(sqlite3.connect("sqlite3.db")) as connection:
        connection.execute("CREATE TABLE t (a)")  # sqlite3
    apsw.Connection("apsw.db").execute("CREATE TABLE t (a)")  # apsw

    def work() -> None:
        (root / "thread").write_bytes(b"thread")  # thread

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    list(_generator())
    [os.mkdir(name) for name in ("comprehension",)]  # comprehension
    eval("os.mkdir('evaluated')")  # eval
    subprocess.run(["sh", "-c", "mkdir program"], check=True)


def _generator() -> Iterator[None]:
    os.mkdir("generator")  # generator
    yield


def test_ops_carry_the_line_that_caused_them(tmp_path: Path) -> None:
    """os, sqlite3, apsw, threads, generators: each op has its line, and its callers."""
    done = record(tmp_path, _body, Options())
    named = {op.name.decode(): op for op in done.of(Kind.CREATE) + done.of(Kind.MKDIR)}
    (fsync,) = done.of(Kind.FSYNC)
    assert _frames(done, fsync)[0] == f"{_line('os.fsync')} _body"
    for name, mark in (
        ("sqlite3.db-journal", "sqlite3"),
        ("apsw.db-journal", "apsw"),
        ("thread", "thread"),
        ("generator", "generator"),
        ("comprehension", "comprehension"),
        ("evaluated", "eval"),
    ):
        places = [frame.rpartition(" ")[0] for frame in _frames(done, named[name])]
        assert _line(mark) in places, name
    callers = [frame.rpartition(" ")[2] for frame in _frames(done, fsync)]
    assert callers[:2] == ["_body", "_be_child"]
    assert named["program"].stack == 0


def test_a_stack_is_written_once(tmp_path: Path) -> None:
    """A thousand calls of one line have one stack record."""

    def body(root: Path, session: Session) -> None:
        fd = os.open("file", os.O_CREAT | os.O_WRONLY)
        for _ in range(1000):
            os.write(fd, b"x")

    done = record(tmp_path, body, Options())
    stacks = {op.stack for op in done.of(Kind.WRITE)}
    assert len(stacks) <= 2  # CPython specialises the instruction after a few calls
    assert len(done.of(Kind.STACK)) < 10


def test_stacks_can_be_switched_off(tmp_path: Path) -> None:
    """Without stacks, no op has one."""
    done = record(tmp_path, _body, Options(stacks=False))
    assert done.of(Kind.STACK) == []
    assert {op.stack for op in done.ops} == {0}


def test_names_that_are_no_ascii(tmp_path: Path) -> None:
    """Functions and files of any script are told as they are called."""
    source = "import os\ndef größe_名():\n    os.mkdir('made')\n"

    def body(root: Path, session: Session) -> None:
        space: dict[str, object] = {}
        exec(compile(source, "/ü/名/𝄞.py", "exec"), space)
        inspect.unwrap(space["größe_名"])()  # type: ignore[arg-type]

    done = record(tmp_path, body, Options())
    (made,) = done.of(Kind.MKDIR)
    assert _frames(done, made)[0] == "/ü/名/𝄞.py:3 größe_名"


@pytest.mark.slow
def test_stacks_while_threads_run_python(tmp_path: Path) -> None:
    """Threads that write, while others run Python, each have their own line."""

    def body(root: Path, session: Session) -> None:
        def first() -> None:
            for _ in range(300):
                (root / "first").write_bytes(b"1" * 10)

        def second() -> None:
            for _ in range(300):
                (root / "second").write_bytes(b"2" * 10)

        threads = [threading.Thread(target=one) for one in (first, second, first, second)]
        for thread in threads:
            thread.start()
        total = sum(number * number for number in range(300_000))
        for thread in threads:
            thread.join()
        assert total > 0

    done = record(tmp_path, body, Options())
    seen = {(op.payload[:1], _frames(done, op)[1].rpartition(" ")[2]) for op in done.of(Kind.WRITE)}
    assert seen == {(b"1", "first"), (b"2", "second")}
    assert done.problems == []
