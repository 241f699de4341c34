"""
Opening the runtime's database.

Method: WAL with ``synchronous=NORMAL``. A commit is written to the WAL and not synced: it
survives the death of the process at once, and a power loss only once a checkpoint has synced it.
After a power loss the newest commits may be missing, each wholly, never one in the middle.

Source: https://www.sqlite.org/pragma.html#pragma_synchronous, for what NORMAL keeps in WAL mode.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

import apsw

from store import durability, sqlite
from store.metabolism.errors import DatabaseBusy, UnknownSchema
from store.metabolism.schema import SCHEMA_SQL, SCHEMA_VERSION
from store.metabolism.transactions import opened_here

__all__ = ["SETTINGS", "TABLES", "connect", "ensure_schema", "schema_problem"]

SETTINGS: Final = sqlite.Settings(synchronous="NORMAL", fullfsync=False)
"""What every connection of the runtime has in force."""

TABLES: Final = ("blackboard_claim_events", "jobs", "runs")
"""The runtime's tables, sorted."""

_RETRY_SECONDS = 0.01


def connect(path: Path, *, create: bool = True) -> apsw.Connection:
    """
    Open the database at *path*, ready for every operation.

    Any number of processes may do so at once, also when the file does not exist yet. A connection
    must not be carried across a fork: in the child its operations are refused.

    Args:
        create: Make the file where it is missing. An operator who means one that exists says no.
    Durable: after success: the file's name; its content as far as NORMAL goes. After an error or
        a crash inside: an empty database, or a whole one.
    Raises:
        UnknownSchema: the database is not the runtime's; its file and its WAL are as they were,
            except that SQLite plays back a rollback journal that a dead writer left.
        DatabaseBusy: another process held the database for the whole busy timeout.
        store.sqlite.CannotOpen: the file cannot be opened for writing, or made there.
        store.sqlite.SettingRefused: this file system cannot hold a WAL.
        store.durability.SyncFailed: the folder could not be synced.
        apsw.Error: SQLite's own: the disk is full or fails, or the file is damaged.
    """
    path, connection, had_wal = _opened(path, create=create)
    try:
        # Closing the last connection would move a WAL's content into a file that is perhaps not
        # ours.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(had_wal))
        sqlite.apply_local(connection, SETTINGS)
        is_empty = _is_empty(connection, path)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        _turn_to_wal(connection)
        if is_empty:
            # Not only where this process made the file: whoever did may have died since.
            durability.sync_directory(path.parent)
        ensure_schema(connection)
    except BaseException as error:
        connection.close()
        if isinstance(error, apsw.NotADBError):
            raise UnknownSchema(str(error)) from error
        if isinstance(error, apsw.BusyError):
            raise DatabaseBusy(str(path)) from error
        if isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError)):
            raise sqlite.CannotOpen(path, str(error)) from error
        raise
    opened_here(connection)
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
    # One statement sees one moment. In two, a first opener could create the schema in between.
    seen = sqlite.rows(
        connection,
        "SELECT user_version, type, name FROM pragma_user_version LEFT JOIN sqlite_schema"
        " ON name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
    )
    version = int(seen[0][0])
    found = {(str(kind), str(name)) for _, kind, name in seen if name is not None}
    if version not in (0, SCHEMA_VERSION):
        return f"user_version is {version}, and {SCHEMA_VERSION} is known"
    if version == 0:
        names = ", ".join(sorted(name for _, name in found))
        return f"it holds {names} and has no user_version" if found else None
    made = re.findall(r"^CREATE (?:UNIQUE )?(TABLE|INDEX|TRIGGER) (\w+)", SCHEMA_SQL, re.MULTILINE)
    missing = sorted(name for kind, name in made if (kind.lower(), name) not in found)
    return f"{', '.join(missing)} are missing" if missing else None


def _opened(path: Path, *, create: bool) -> tuple[Path, apsw.Connection, bool]:
    """Return *path* with its folder resolved, its connection, and whether a WAL lay beside it."""
    try:
        path = path.parent.resolve() / path.name
        had_wal = path.with_name(f"{path.name}-wal").exists()
        return path, sqlite.connect(path, create=create), had_wal
    except (OSError, RuntimeError, ValueError) as error:
        raise sqlite.CannotOpen(path, str(error)) from error


def _is_empty(connection: apsw.Connection, path: Path) -> bool:
    """Return whether the schema is still to be made; refuse a file that is not to be written."""
    if problem := schema_problem(connection):
        raise UnknownSchema(problem)
    if connection.readonly("main"):
        raise sqlite.CannotOpen(path, "it can be read only, and every operation writes")
    if _version(connection):
        return False
    if path.stat().st_size == 1:
        raise UnknownSchema("it is one byte long, which SQLite takes for empty")
    return True


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
