"""Databases that dead processes left, and ways to see whether reading one changed anything."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from store.at_rest import open_at_rest
from store.sqlite import rows

_WAL = """
do("PRAGMA journal_mode=WAL; CREATE TABLE t(x, y); INSERT INTO t VALUES(1, '')")
do("PRAGMA wal_checkpoint(TRUNCATE); INSERT INTO t VALUES(2, '')")
"""
_CUT_SHORT = """
do("PRAGMA cache_size=5; BEGIN IMMEDIATE; UPDATE t SET x = x + 10; CREATE TABLE u(y)")
for _ in range(50): do("INSERT INTO u VALUES(randomblob(3000))")
os._exit(0)
"""
# Each leaves the rows 1 and 2 committed.
DEAD = {
    "wal": _WAL + _CUT_SHORT,
    "rollback": 'do(\'CREATE TABLE t(x, y); INSERT INTO t VALUES(1, ""), (2, "")\')',
    "cold": "do('PRAGMA journal_mode=PERSIST; CREATE TABLE t(x, y)')\n"
    'do(\'INSERT INTO t VALUES(1, ""), (2, "")\')',
    "hot": 'do(\'CREATE TABLE t(x, y); INSERT INTO t VALUES(1, ""), (2, "")\')' + _CUT_SHORT,
}


def start(path: Path, script: str) -> subprocess.Popen[str]:
    """Run *script* in a process of its own, with a connection on *path* as ``c``."""
    head = (
        "import apsw, os, sys\nc = apsw.Connection(sys.argv[1])\ndo = lambda s: list(c.execute(s))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", f"{head}\n{script}", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(child: subprocess.Popen[str]) -> None:
    """Let the process end, and require that it was well."""
    child.communicate(timeout=60)
    assert child.returncode == 0


@contextmanager
def living(path: Path, script: str) -> Iterator[subprocess.Popen[str]]:
    """Run *script* in a process that lives, and keeps its connection, until the block ends."""
    child = start(path, script + "\nprint('ready', flush=True)\nsys.stdin.read()\nos._exit(0)")
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        finish(child)


def beside(path: Path, suffix: str) -> Path:
    """Return the name of a file that SQLite keeps beside the database *path*."""
    return path.with_name(path.name + suffix)


def values(path: Path) -> list[int]:
    """Return what the table has, read at rest."""
    with open_at_rest(path) as connection:
        return read_values(connection)


def read_values(connection: apsw.Connection) -> list[int]:
    """Return what the table has, in order."""
    return [x for (x,) in rows(connection, "SELECT x FROM t ORDER BY x")]


def picture(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return everything that may not change in *folder*, and its own time."""
    found: dict[str, tuple[object, ...]] = {".": (folder.stat().st_mtime_ns,)}
    for path in sorted(folder.iterdir()):
        status = path.stat()
        times = (status.st_mtime_ns, status.st_ctime_ns)
        found[path.name] = (status.st_ino, status.st_mode, *times, path.read_bytes())
    return found


OPENED, _READING = 0x20, 0x01 | 0x10 | 0x20
"""inotify's IN_OPEN, and with it IN_ACCESS and IN_CLOSE_NOWRITE."""


@contextmanager
def watched(folder: Path) -> Iterator[list[tuple[int, str]]]:
    """
    Collect what the kernel reports of the files in *folder* until the block ends.

    A descriptor that could write is reported when it is closed, even when it never wrote.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert descriptor >= 0
    assert libc.inotify_add_watch(descriptor, bytes(folder), 0xFFF) >= 0
    events: list[tuple[int, str]] = []
    try:
        yield events
        data = b""
        with suppress(BlockingIOError):
            data = os.read(descriptor, 1 << 20)
        while data:
            _, mask, _, size = struct.unpack_from("iIII", data)
            events.append((mask & 0xFFF, data[16 : 16 + size].rstrip(b"\0").decode()))
            data = data[16 + size :]
    finally:
        os.close(descriptor)


def changes(events: list[tuple[int, str]]) -> set[str]:
    """Return the names to which something else than reading happened."""
    return {name for mask, name in events if mask & ~_READING}
