"""
Opening SQLite the way a durable store needs it, and the two ways to talk to it.

Method: a connection is opened on a plain path with explicit flags, every setting is written and
then read back, and each transaction boundary is one plain SQL statement, so that a trace of the
connection shows exactly what the store did.

Covered: WAL stores on one host, through apsw.
Not covered: whether a database is the right one; its store checks that between `apply_local`,
which changes no file, and `apply_journal_mode`, which does.

A connection must not be used by two threads at once inside `immediate`: SQLite serialises single
calls, not transactions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import apsw

__all__ = [
    "BUSY_TIMEOUT_MS",
    "CannotOpen",
    "Parameters",
    "SettingRefused",
    "Settings",
    "SqliteError",
    "apply_journal_mode",
    "apply_local",
    "changes",
    "connect",
    "immediate",
    "rows",
]

BUSY_TIMEOUT_MS = 5_000
"""How long one lock acquisition may wait, in milliseconds."""

Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]

_SYNCHRONOUS = {"NORMAL": 1, "FULL": 2, "EXTRA": 3}


class SqliteError(Exception):
    """
    Root of what this module raises itself; errors of statements stay apsw's own.
    """


class CannotOpen(SqliteError):
    """
    SQLite would not open the file.

    Attributes:
        path: The database file.
        reason: SQLite's words.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"path={str(self.path)!r} could not be opened: {self.reason}; expected a regular "
            "file, or a free name in a writable folder, with no symbolic link on the way."
        )


class SettingRefused(SqliteError):
    """
    A setting was written and another value was read back.

    Attributes:
        name: The pragma.
        expected: The value that the store needs, as SQLite spells it.
        found: The value that the connection has.
    """

    def __init__(self, name: str, expected: object, found: object) -> None:
        super().__init__(name, expected, found)
        self.name = name
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return (
            f"{self.name}={self.found!r} was read back, expected {self.expected!r}; this SQLite "
            "or this file system cannot hold the store, and a weaker setting is not an option."
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """
    What a store asks of each of its connections. WAL, ``locking_mode=NORMAL``,
    ``foreign_keys=ON`` and ``recursive_triggers=ON`` are not negotiable.

    Attributes:
        synchronous: ``FULL`` syncs the WAL at each commit. ``NORMAL`` does so only at
            checkpoints: the newest commits survive process death but perhaps not power loss.
        fullfsync: Ask for the stronger sync where a platform has one, for the database and for
            checkpoints.
        busy_timeout_ms: How long one lock acquisition may wait.
    """

    synchronous: Literal["NORMAL", "FULL", "EXTRA"] = "FULL"
    fullfsync: bool = True
    busy_timeout_ms: int = BUSY_TIMEOUT_MS


def connect(path: Path, *, create: bool, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> apsw.Connection:
    """
    Open *path* for reading and writing, with nothing in the path interpreted.

    No URI, no choice of VFS, no shared cache. SQLite refuses a symbolic link anywhere on the
    way, so the caller resolves the folder first.

    Args:
        path: Absolute path of the database file.
        create: Create the file when it is missing. It stays empty until something is written.
        busy_timeout_ms: How long one lock acquisition may wait.
    Raises:
        ValueError: *path* is relative; an absolute one can never be read as a URI.
        CannotOpen: SQLite refused.
    """
    if not path.is_absolute():
        raise ValueError(f"path={str(path)!r} must be absolute; resolve it first.")
    flags = (
        apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW | apsw.SQLITE_OPEN_PRIVATECACHE
    ) | (apsw.SQLITE_OPEN_CREATE if create else 0)
    try:
        connection = apsw.Connection(str(path), flags=flags)
    except apsw.Error as error:
        raise CannotOpen(path, str(error)) from error
    connection.set_busy_timeout(busy_timeout_ms)
    return connection


def apply_local(connection: apsw.Connection, settings: Settings) -> None:
    """
    Write and read back the settings that live in the connection only.

    Durable: Nothing; no byte of the database changes, so a database may be judged afterwards
        and still be refused unchanged.
    Raises: SettingRefused: a value did not take.
    """
    flag = "ON" if settings.fullfsync else "OFF"
    connection.set_busy_timeout(settings.busy_timeout_ms)
    _set(connection, "foreign_keys", "ON", 1)
    _set(connection, "recursive_triggers", "ON", 1)
    _set(connection, "synchronous", settings.synchronous, _SYNCHRONOUS[settings.synchronous])
    _set(connection, "fullfsync", flag, int(settings.fullfsync))
    _set(connection, "checkpoint_fullfsync", flag, int(settings.fullfsync))
    _expect("locking_mode", "normal", rows(connection, "PRAGMA locking_mode=NORMAL"))


def apply_journal_mode(connection: apsw.Connection) -> None:
    """
    Turn the database to WAL, which it stays in, and check the mode that SQLite answers.

    Durable: after success: the mode. After an error: the database is in its former mode.
    Raises:
        SettingRefused: SQLite stayed in another mode, as on a file system without mmap.
        apsw.BusyError: another connection held the database for the whole busy timeout.
    """
    _expect("journal_mode", "wal", rows(connection, "PRAGMA journal_mode=WAL"))


def rows(
    connection: apsw.Connection, sql: str, parameters: Parameters = ()
) -> list[tuple[Any, ...]]:
    """
    Execute *sql* and return all its rows.

    Always fetches to the end: an open cursor would hold a read transaction, and would move the
    statement's end, as a trace sees it, to whenever the cursor is collected.
    """
    return connection.execute(sql, parameters).fetchall()


def changes(connection: apsw.Connection, sql: str, parameters: Parameters = ()) -> int:
    """
    Execute *sql*, one statement that returns no row, and return how many rows it changed.
    """
    connection.execute(sql, parameters)
    return connection.changes()


class immediate:
    """
    Run the block in one transaction that holds the write lock from its first statement.

    A class, since a generator costs as much again as BEGIN and COMMIT themselves.

    Durable: after success: all of the block, as far as ``synchronous`` promises. After any
        exception, also one of COMMIT: none of it; but a signal during COMMIT is raised when that
        is done, and then it is all of it. After a crash inside: none of it, or all of it when the
        crash came after COMMIT reached the WAL.
    Raises: apsw.BusyError: another writer held the lock for the whole busy timeout.
    """

    __slots__ = ("_connection",)

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        connection = self._connection
        is_nested = connection.in_transaction  # then BEGIN fails, and what is open is not ours
        try:
            connection.execute("BEGIN IMMEDIATE")
        except apsw.Error:
            raise
        except BaseException as error:
            # A signal that comes while BEGIN waits for the lock is raised once BEGIN has it.
            if connection.in_transaction and not is_nested:
                _roll_back(connection, error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        connection = self._connection
        try:
            if error is None:
                connection.execute("COMMIT")
        except BaseException as failed:
            error = failed
            raise
        finally:
            # Some errors make SQLite roll back by itself; a second ROLLBACK would mask them.
            if error is not None and connection.in_transaction:
                _roll_back(connection, error)


def _roll_back(connection: apsw.Connection, error: BaseException) -> None:
    try:
        rows(connection, "ROLLBACK")
    except apsw.Error as failed:
        error.add_note(f"ROLLBACK failed too: {failed}. Close the connection; that rolls back.")
    except BaseException:
        # A second signal, which may have come before ROLLBACK or after it.
        if connection.in_transaction:
            rows(connection, "ROLLBACK")
        raise


def _set(connection: apsw.Connection, name: str, value: str, expected: int) -> None:
    rows(connection, f"PRAGMA {name}={value}")
    _expect(name, expected, rows(connection, f"PRAGMA {name}"))


def _expect(name: str, expected: object, answer: list[tuple[Any, ...]]) -> None:
    found = answer[0][0] if answer else None
    if found != expected:
        raise SettingRefused(name, expected, found)
