"""
Reading the database of a dead process where it lies, without changing anything.

Method: SQLite reads the very files, through a VFS that opens them read-only, creates and deletes
nothing, takes no lock, and keeps what would be in ``-shm`` in memory. So a committed transaction
that is only in the WAL is seen, one that was cut short is not, and both are still there for the
next reader. Before that the files are judged, since such a VFS would read wrongly whatever is in
use or needs a recovery; afterwards it is checked that they stayed what they were.

Covered: databases in WAL or rollback mode on Linux, also where nothing may be written; several
readers at once, in any number of threads and processes.
Not covered: a process that has the file open, at the moment without a lock, where the file system
has no leases, the file belongs to another user, or the process is on another host: it is noticed
only when it writes; a ``-wal`` that belongs to another state of the file, as after a restored
backup; access times; a temporary folder that is the database's own.

A process that has the database open itself must not read it here: closing any descriptor of a
file drops all record locks that the process holds on it, and SQLite's locks are such locks.
Descriptors found in ``/proc`` are refused, but another thread may open the file right after that,
so keeping it closed during the block is the caller's duty.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import apsw

from store._file_use import find_user, is_open_for_writing, lock_holder, uses
from store.sqlite import SettingRefused, SqliteError, rows

__all__ = [
    "AtRestError",
    "CannotRead",
    "ChangedWhileRead",
    "DatabaseMissing",
    "ModesDisagree",
    "NeedsRecovery",
    "NotADatabase",
    "StillOpen",
    "open_at_rest",
]

_MAGIC: Final = b"SQLite format 3\0"
_HEADER_SIZE: Final = 100
_READ_VERSION_AT: Final = 19
_WAL_MODE: Final = 2
_WAL_HEADER_SIZE: Final = 32
_MAIN_LOCKS: Final = (0x4000_0000, 512)
"""First byte and count of SQLite's pending, reserved and shared locks."""
_SHM_LOCKS: Final = (120, 9)
"""The same of its WAL locks, and of the one that every user of the ``-shm`` holds."""
_TEMPORARY: Final = (
    apsw.SQLITE_OPEN_TEMP_DB
    | apsw.SQLITE_OPEN_TRANSIENT_DB
    | apsw.SQLITE_OPEN_TEMP_JOURNAL
    | apsw.SQLITE_OPEN_SUBJOURNAL
)
_READ_ONLY: Final = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB
"""Said of every file: of one that is called a WAL, SQLite makes root change the owner."""
_serial = itertools.count()

_Fingerprint: TypeAlias = tuple[int, int, int, int]
"""Device, inode, size and time of the last change of content."""


class AtRestError(SqliteError):
    """
    Root of what this module raises itself.

    Attributes:
        path: The file that is meant.
        found: What is the matter with it.
    """

    expected = "the database of a dead process"

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(path, found)
        self.path = path
        self.found = found

    def __str__(self) -> str:
        return f"path={str(self.path)!r} {self.found}; expected {self.expected}."


class DatabaseMissing(AtRestError):
    """
    There is no such file.
    """

    expected = "the database of a dead process. Name the file that the process wrote to"


class NotADatabase(AtRestError):
    """
    There is something else than an SQLite database.
    """

    expected = (
        "an SQLite database of which at least the first page was written. Name the file that the "
        "process wrote to"
    )


class CannotRead(AtRestError):
    """
    The file, or one of those beside it, cannot be opened or read.
    """

    expected = (
        "regular files that this user may read, also beside the database. Get the right to read "
        "them, or copy the database with its -wal and open the copy"
    )


class NeedsRecovery(AtRestError):
    """
    A transaction in rollback mode was cut short, and only writing can take it back.
    """

    expected = (
        "no rollback journal that is still needed. Let the owner open the database, or copy it "
        "with its -journal and -wal under the same names, let SQLite open the copy for writing "
        "once, and read that"
    )


class ModesDisagree(AtRestError):
    """
    The database is in rollback mode and has a ``-wal``; its state depends on who wrote last.
    """

    expected = (
        "a -wal only beside a database in WAL mode. SQLite would let the -wal win, which undoes "
        "whatever was committed after it. Copy the database alone, or both, and open the copy"
    )


class StillOpen(AtRestError):
    """
    A living process has the database open.

    Attributes:
        pid: The process, or None where the kernel does not tell.
    """

    expected = (
        "a database that nobody has open. End the process first; while it lives, ask through a "
        "connection of its own"
    )

    def __init__(self, path: Path, pid: int | None) -> None:
        who = "a process that the kernel does not name" if pid is None else f"process {pid}"
        here = " (this one)" if pid == os.getpid() else ""
        super().__init__(path, f"is open in {who}{here}")
        self.args = (path, pid)
        self.pid = pid


class ChangedWhileRead(AtRestError):
    """
    The database or its WAL changed during the block; what was read may be of no one state.
    """

    expected = (
        "one unchanged state from beginning to end. Discard what was read; when the process that "
        "writes has ended, read again"
    )


@contextmanager
def open_at_rest(path: Path) -> Iterator[apsw.Connection]:
    """
    Give a connection on a dead process's database, as its last committed transaction left it.

    Links in *path* are followed. The whole block sees one state. Statements that would write
    raise `apsw.ReadOnlyError`; temporary tables, and SQLite's own temporary files, are allowed,
    and attaching other files is not. One thread at a time may use the connection.

    Durable: Nothing changes, whatever happens: no byte, size, name or time of change in the
        database's folder.
    Raises:
        DatabaseMissing: There is nothing at *path*.
        NotADatabase: *path* is a folder, empty, or of another format.
        CannotRead: *path* or a file beside it cannot be read.
        NeedsRecovery: A hot rollback journal lies beside *path*.
        ModesDisagree: A WAL lies beside a database in rollback mode.
        StillOpen: A living process, perhaps this one, has *path* open.
        ChangedWhileRead: At the end of the block, or instead of an `apsw.Error` in it.
        apsw.CorruptError: As SQLite finds the content damaged, here or in the block.
    Cost: O(size of the WAL) time, about 1/500 of that in memory, whatever the database's size.
    """
    main = _resolved(path)
    before = _fingerprints(main)
    has_wal = _judge(main)
    try:
        with closing(_connect(main, has_wal=has_wal)) as connection:
            yield connection
    except (apsw.Error, AtRestError) as error:
        _require_unchanged(main, before, cause=error)
        raise
    _require_unchanged(main, before)


def _judge(main: Path) -> bool:
    """Refuse whatever cannot be read as it lies, and tell whether there is a WAL to read."""
    wal, shm, journal = (_beside(main, suffix) for suffix in ("-wal", "-shm", "-journal"))
    _require_closed_here([main, wal, shm])
    header = _head(main, _HEADER_SIZE, locks=_MAIN_LOCKS, of=main)
    if header is None:
        raise DatabaseMissing(main, "does not exist any more")
    if len(header) < _HEADER_SIZE:
        raise NotADatabase(main, f"has {len(header)} bytes" if header else "is empty")
    if not header.startswith(_MAGIC):
        raise NotADatabase(main, "does not begin as an SQLite database does")
    _head(shm, 0, locks=_SHM_LOCKS, of=main)
    # SQLite's own rule: a journal whose first byte is 0 was ended by its commit.
    if (_head(journal, 1) or b"\0") != b"\0":
        raise NeedsRecovery(journal, "is the journal of a transaction that was cut short")
    # Without a whole header and more, SQLite takes nothing from a WAL either.
    has_wal = len(_head(wal, _WAL_HEADER_SIZE + 1) or b"") > _WAL_HEADER_SIZE
    if has_wal and header[_READ_VERSION_AT] != _WAL_MODE:
        raise ModesDisagree(main, "is in rollback mode and has a -wal")
    return has_wal


def _connect(main: Path, *, has_wal: bool) -> apsw.Connection:
    vfs = _ReadOnlyVFS(str(main), is_immutable=not has_wal)
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOFOLLOW | apsw.SQLITE_OPEN_PRIVATECACHE
    connection: apsw.Connection | None = None
    try:
        connection = apsw.Connection(str(main), flags=flags, vfs=vfs.name)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        # Before the first read: from then on SQLite keeps the index of the WAL in memory.
        mode = rows(connection, "PRAGMA locking_mode=EXCLUSIVE")
        if mode != [("exclusive",)]:
            raise SettingRefused("locking_mode", "exclusive", mode)
        rows(connection, "PRAGMA schema_version")
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, apsw.NotADBError):
            raise NotADatabase(main, f"was not taken by SQLite: {error}") from error
        if isinstance(error, (apsw.CantOpenError, apsw.IOError, apsw.PermissionsError)):
            raise CannotRead(main, f"could not be opened: {error}") from error
        raise
    return connection


class _ReadOnlyVFS(apsw.VFS):
    """
    Opens one database and the files beside it read-only, and takes no lock.

    Args:
        is_immutable: Tell SQLite so; it then looks for no WAL, and needs none in WAL mode.
    """

    def __init__(self, main: str, *, is_immutable: bool) -> None:
        self.name = f"at-rest-{next(_serial)}"
        self._main = main
        self._readable = (main, f"{main}-wal", f"{main}-journal")
        self._is_immutable = is_immutable
        super().__init__(self.name, "unix-none", maxpathname=4096)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if flags[0] & _TEMPORARY:
            return super().xOpen(name, flags)
        plain = name.filename() if isinstance(name, apsw.URIFilename) else name
        if plain not in self._readable:
            raise apsw.CantOpenError(f"{plain!r} is not part of the database that is at rest")
        flags[0] = _READ_ONLY
        if plain == self._main and self._is_immutable:
            return _ImmutableFile("unix-none", name, flags)
        return apsw.VFSFile("unix-none", name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        raise apsw.ReadOnlyError(f"{filename!r} belongs to a database that is at rest")


class _ImmutableFile(apsw.VFSFile):
    def xDeviceCharacteristics(self) -> int:
        return super().xDeviceCharacteristics() | apsw.SQLITE_IOCAP_IMMUTABLE


def _resolved(path: Path) -> Path:
    try:
        main = Path(os.path.realpath(path, strict=True))
        str(main).encode()
    except (FileNotFoundError, NotADirectoryError) as error:
        found = "is a link to nothing" if path.is_symlink() else "does not exist"
        raise DatabaseMissing(path, found) from error
    except (OSError, ValueError) as error:
        raise CannotRead(path, f"cannot be reached: {error}") from error
    if main.is_dir():
        raise NotADatabase(path, "is a folder")
    return main


def _beside(main: Path, suffix: str) -> Path:
    return main.with_name(main.name + suffix)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotRead(path, f"cannot be reached: {error.strerror}") from error


def _fingerprints(main: Path) -> dict[Path, _Fingerprint | None]:
    found = {path: _status(path) for path in (main, _beside(main, "-wal"))}
    return {
        path: status and (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        for path, status in found.items()
    }


def _require_unchanged(
    main: Path, before: dict[Path, _Fingerprint | None], *, cause: Exception | None = None
) -> None:
    after = _fingerprints(main)
    changed = [path.name for path in before if before[path] != after[path]]
    if changed:
        raise ChangedWhileRead(main, f"changed while it was read: {changed}") from cause


def _require_closed_here(paths: list[Path]) -> None:
    """Refuse files that this process uses, before one of its descriptors of them is closed."""
    known = {(status.st_dev, status.st_ino) for path in paths if (status := _status(path))}
    if uses("self", known):
        raise StillOpen(paths[0], os.getpid())


def _head(
    path: Path, size: int, *, locks: tuple[int, int] | None = None, of: Path | None = None
) -> bytes | None:
    """Read the first bytes of *path*, if there is one, and refuse it under *locks* of others."""
    status = _status(path)
    if status is None:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise CannotRead(path, "is not a regular file")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if locks is not None:
                _require_unused(descriptor, locks, of or path)
            return os.pread(descriptor, size, 0)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotRead(path, f"could not be read: {error.strerror}") from error


def _require_unused(descriptor: int, locks: tuple[int, int], main: Path) -> None:
    pid = lock_holder(descriptor, *locks)
    if pid is not None and pid > 0:
        raise StillOpen(main, pid)
    if pid is not None or is_open_for_writing(descriptor):
        opened = os.fstat(descriptor)
        raise StillOpen(main, find_user({(opened.st_dev, opened.st_ino)}))
