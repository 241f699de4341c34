"""
Opening the runtime's database.

Method: WAL with ``synchronous=NORMAL``. A commit is written to the WAL and not synced: it
survives the death of the process at once, and a power loss only once a checkpoint has synced it.
After a power loss the newest commits may be missing, each wholly, never one in the middle.

Source: https://www.sqlite.org/pragma.html#pragma_synchronous, for what NORMAL keeps in WAL mode.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import apsw

from store import durability, sqlite
from store.metabolism.errors import UnknownSchema
from store.metabolism.schema import SCHEMA_SQL, SCHEMA_VERSION

__all__ = ["SETTINGS", "TABLES", "connect", "ensure_schema", "schema_problem"]

SETTINGS: Final = sqlite.Settings(synchronous="NORMAL", fullfsync=False)
"""What every connection of the runtime has in force."""

TABLES: Final = ("blackboard_claim_events", "jobs", "runs")
"""The runtime's tables, sorted."""

_RETRY_SECONDS = 0.01


def connect(path: Path) -> apsw.Connection:
    """
    Open the database at *path*, which is created if it is missing, ready for every operation.

    Any number of processes may do so at once, also when the file does not exist yet.

    Durable: after success: the file's name; its content as far as NORMAL goes. After an error or
        a crash inside: an empty database, or a whole one.
    Raises:
        UnknownSchema: the database is not the runtime's; it is as it was.
        store.sqlite.CannotOpen: the file cannot be opened or made there.
        store.sqlite.SettingRefused: this file system cannot hold a WAL.
        store.durability.SyncFailed: the folder could not be synced.
        apsw.BusyError: another process held the database for the whole busy timeout.
    """
    path = path.parent.resolve() / path.name
    is_new = not path.exists()
    connection = sqlite.connect(path, create=True)
    try:
        sqlite.apply_local(connection, SETTINGS)
        if problem := schema_problem(connection):
            raise UnknownSchema(problem)
        _turn_to_wal(connection)
        if is_new:
            durability.sync_directory(path.parent)
        ensure_schema(connection)
    except apsw.NotADBError as error:
        connection.close()
        raise UnknownSchema(str(error)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def ensure_schema(connection: apsw.Connection) -> None:
    """
    Create the tables, indexes and triggers, all or none; does nothing where they are.

    Raises: UnknownSchema: the database holds something else; it is as it was.
    """
    if _version(connection) == SCHEMA_VERSION and schema_problem(connection) is None:
        return
    with sqlite.immediate(connection):
        if problem := schema_problem(connection):
            raise UnknownSchema(problem)
        if _version(connection) != SCHEMA_VERSION:
            sqlite.rows(connection, SCHEMA_SQL)
            sqlite.rows(connection, f"PRAGMA user_version={SCHEMA_VERSION}")


def schema_problem(connection: apsw.Connection) -> str | None:
    """
    Say why the database is neither empty nor the runtime's; None where it is one of the two.

    Reads only. A database that this returns None for may still be empty: see ``user_version``.
    """
    version = _version(connection)
    found = [
        str(name)
        for (name,) in sqlite.rows(
            connection,
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%'"
            " ESCAPE '\\' ORDER BY name",
        )
    ]
    if version not in (0, SCHEMA_VERSION):
        return f"user_version is {version}, and {SCHEMA_VERSION} is known"
    if version == 0 and found:
        return f"it holds the tables {', '.join(found)} and has no user_version"
    missing = sorted(set(TABLES) - set(found)) if version else []
    return f"the tables {', '.join(missing)} are missing" if missing else None


def _version(connection: apsw.Connection) -> int:
    return int(sqlite.rows(connection, "PRAGMA user_version")[0][0])


def _turn_to_wal(connection: apsw.Connection) -> None:
    """Wait for other first openers: SQLite answers busy at once where waiting could deadlock."""
    until = time.monotonic() + SETTINGS.busy_timeout_ms / 1000
    while True:
        try:
            return sqlite.apply_journal_mode(connection)
        except apsw.BusyError:
            if time.monotonic() > until:
                raise
        time.sleep(_RETRY_SECONDS)
