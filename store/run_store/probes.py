"""
What a root's filesystem must do before a run store trusts it, tried out in a private folder.

Method: each probe does the real thing once and checks both that it worked and that what must
be refused was refused. They run under the init lock, on every open, before the database is
touched, in a folder that is removed afterwards.

Covered: file locks, record locks between processes, syncs that report success, no-replace
rename, WAL with two connections, STRICT tables, JSON.
Not covered: storage that acknowledges a sync without doing it; locks between hosts.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import apsw

from store.durability import (
    DestinationExists,
    DurabilityError,
    rename_no_replace,
    sync_directory,
    sync_file,
)
from store.run_store.errors import ProbeFailed
from store.sqlite import SqliteError, apply_journal_mode, connect, rows

__all__ = ["remove_leftovers", "run"]

_FOLDER_NAME = re.compile(r"\.run-store-probe-(\d{4,})")
_PAYLOAD = b"run store probe\n"
_TAKEN, _REFUSED, _BROKEN = 0, 1, 2
"""How a probing child ends."""


class _Unmet(Exception):
    """A probe saw something else than it must."""


def run(root: Path) -> None:
    """
    Try out in *root* everything that a run store needs of its filesystem.

    The caller holds the init lock. Folder names count up from 1, skipping taken ones.

    Durable: after success: the root's entries, without the probe folder. After an error the
        folder is gone if it could be removed. After a crash it may be left over, which means
        nothing and is cleared by `remove_leftovers`.
    Raises: ProbeFailed: something is missing; its cause is chained.
    Cost: two short-lived children and five syncs.
    """
    folder = _free_folder(root)
    _attempt("make_folder", root, folder.mkdir)
    try:
        for name, probe in _PROBES:
            _attempt(name, root, partial(probe, folder))
    except BaseException:
        with suppress(OSError):
            _remove_tree(folder)
        raise
    _attempt("remove_folder", root, partial(_remove_tree, folder))
    _attempt("sync_root", root, partial(sync_directory, root))


def remove_leftovers(root: Path) -> None:
    """
    Remove the probe folders that interrupted opens left in *root*.

    The caller holds the init lock, so no such folder is in use. What cannot be removed, or is
    no folder, stays and is in nobody's way.

    Durable: Nothing by itself; the next `run` syncs the root.
    """
    for name in _names(root):
        folder = root / name
        if _FOLDER_NAME.fullmatch(name) and stat.S_ISDIR(folder.lstat().st_mode):
            with suppress(OSError):
                _remove_tree(folder)


def _attempt(name: str, root: Path, act: Callable[[], None]) -> None:
    try:
        act()
    except (_Unmet, OSError, DurabilityError, SqliteError, apsw.Error) as error:
        raise ProbeFailed(name, root, f"{type(error).__name__}: {error}") from error


def _require(condition: bool, unmet: str) -> None:
    if not condition:
        raise _Unmet(unmet)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _free_folder(root: Path) -> Path:
    taken = {int(found[1]) for found in map(_FOLDER_NAME.fullmatch, _names(root)) if found}
    number = next(number for number in range(1, len(taken) + 2) if number not in taken)
    return root / f".run-store-probe-{number:04d}"


def _remove_tree(folder: Path) -> None:
    """Remove the directory *folder* and what is in it, in a fixed order, following no link."""
    for name in _names(folder):
        path = folder / name
        if stat.S_ISDIR(path.lstat().st_mode):
            _remove_tree(path)
        else:
            path.unlink()
    folder.rmdir()


def _file_locks(folder: Path) -> None:
    """Two descriptors opened apart exclude each other, and the lock can be taken again."""
    path = folder / "file-lock"
    first = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        second = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _require(_flock(first), "a free file lock was refused.")
            _require(not _flock(second), "a held file lock was granted a second time.")
            fcntl.flock(first, fcntl.LOCK_UN)
            _require(_flock(second), "a released file lock was refused.")
        finally:
            os.close(second)
    finally:
        os.close(first)


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _record_locks(folder: Path) -> None:
    """Another process is refused a record lock while this one holds it, and not afterwards."""
    path = folder / "record-lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _require(
            _child_locks(descriptor) == _REFUSED, "a child was not refused a held record lock."
        )
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
        _require(_child_locks(descriptor) == _TAKEN, "a child could not take a free record lock.")
    finally:
        os.close(descriptor)


def _child_locks(descriptor: int) -> int:
    """
    Fork a child that tries to lock *descriptor*; return how it ended, after reaping it.

    The child calls ``fcntl`` and leaves: no import, no file, no exit handler. It leaves on
    every path, also when a signal handler raises right after the fork.
    """
    parent, ended = os.getpid(), _BROKEN
    try:
        child = _fork()
        if child == 0:
            ended = _lock_once(descriptor)
    finally:
        if os.getpid() != parent:
            os._exit(ended)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _lock_once(descriptor: int) -> int:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return _REFUSED if error.errno in (errno.EACCES, errno.EAGAIN) else _BROKEN
    return _TAKEN


def _fork() -> int:
    # From Python 3.12 on, forking beside threads warns, in the parent, after the child exists.
    # The child here takes no lock that another thread could have held.
    if sys.version_info < (3, 12):
        return os.fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _syncs(folder: Path) -> None:
    """A written file and the folders around it report that they are durable."""
    path = folder / "synced"
    path.write_bytes(_PAYLOAD)
    sync_file(path)
    sync_directory(folder)
    sync_directory(folder.parent)


def _rename(folder: Path) -> None:
    """A folder moves to a free name with its content, and onto no folder, full or empty."""
    source, full, empty = folder / "source", folder / "full", folder / "empty"
    for directory in (source, full, empty):
        directory.mkdir()
    (source / "payload").write_bytes(_PAYLOAD)
    (full / "other").write_bytes(b"")
    for taken, content in ((full, ["other"]), (empty, [])):
        try:
            rename_no_replace(source, taken)
        except DestinationExists:
            _require(
                _names(taken) == content and _names(source) == ["payload"],
                f"a refused rename onto the {taken.name} folder changed a folder.",
            )
        else:
            raise _Unmet(f"a rename replaced the {taken.name} folder.")
    moved = folder / "moved"
    rename_no_replace(source, moved)
    _require(
        not source.exists() and (moved / "payload").read_bytes() == _PAYLOAD,
        "a rename lost or changed what it moved.",
    )
    sync_directory(folder)


def _sqlite(folder: Path) -> None:
    """Two WAL connections isolate each other, and STRICT, JSON and a checkpoint work."""
    path = folder / "probe.sqlite3"
    first = connect(path, create=True, busy_timeout_ms=0)
    try:
        apply_journal_mode(first)
        rows(first, "CREATE TABLE probe(size INTEGER, note TEXT CHECK(json_valid(note))) STRICT")
        second = connect(path, create=False, busy_timeout_ms=0)
        try:
            _isolation(first, second)
        finally:
            second.close()
        _refused(first, "INSERT INTO probe VALUES('many', '{}')", "a text in an INTEGER column")
        _refused(first, "INSERT INTO probe VALUES(1, '{')", "a note that is not JSON")
        busy, logged, moved = rows(first, "PRAGMA wal_checkpoint(FULL)")[0]
        _require(
            busy == 0 and logged > 0 and logged == moved,
            f"a checkpoint moved {moved} of {logged} frames, busy={busy}.",
        )
    finally:
        first.close()


def _isolation(first: apsw.Connection, second: apsw.Connection) -> None:
    notes = "SELECT size, json_extract(note, '$.by') FROM probe"
    rows(first, "BEGIN IMMEDIATE")
    rows(first, """INSERT INTO probe VALUES(1, '{"by":"first"}')""")
    try:
        rows(second, "BEGIN IMMEDIATE")
    except apsw.BusyError:
        pass
    else:
        raise _Unmet("two connections held the write lock at once.")
    _require(rows(second, notes) == [], "uncommitted rows were visible.")
    rows(first, "COMMIT")
    _require(rows(second, notes) == [(1, "first")], "a committed row was not visible.")
    rows(second, "BEGIN IMMEDIATE")
    rows(second, """INSERT INTO probe VALUES(2, '{"by":"second"}')""")
    rows(second, "ROLLBACK")
    _require(rows(first, notes) == [(1, "first")], "a rolled back row was visible.")


def _refused(connection: apsw.Connection, sql: str, what: str) -> None:
    try:
        rows(connection, sql)
    except apsw.ConstraintError:
        return
    raise _Unmet(f"{what} was accepted.")


_PROBES: tuple[tuple[str, Callable[[Path], None]], ...] = (
    ("file_locks", _file_locks),
    ("record_locks", _record_locks),
    ("syncs", _syncs),
    ("rename", _rename),
    ("sqlite", _sqlite),
)
