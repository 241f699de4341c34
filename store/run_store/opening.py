"""
Turning an existing directory into an open, verified run store database.

Method: under the init lock, clear leftovers, probe the filesystem, then judge the database by
what it says of itself before anything is written to it. A new schema is created on a connection
of its own, which is closed before its file is synced: closing a descriptor of a database drops
this process's SQLite locks on it.

Covered: new, existing, interrupted, foreign and altered databases; concurrent initialisers.
Not covered: migration. It is never implicit, and version 1 has nothing to migrate from.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import apsw

from store import crash_points, durability, sqlite
from store.run_store import init_lock, layout, probes, schema
from store.run_store.errors import (
    AlteredSchema,
    InitializationFailed,
    NotADatabase,
    UnknownVersion,
    UnversionedDatabase,
)

__all__ = ["SETTINGS", "SchemaObjects", "embedded_schema", "open_database"]

SETTINGS = sqlite.Settings(synchronous="FULL", fullfsync=True)
"""What every connection of the run store has."""

SchemaObjects: TypeAlias = Mapping[tuple[str, str], tuple[str, str | None]]
"""(type, name) -> (table, SQL); automatic indexes have no SQL."""

_SCHEMA_OBJECTS = (
    # The tables that ANALYZE and PRAGMA optimize make hold statistics, and say nothing of whose
    # database it is. The prefix is SQLite's own; nobody else can create a name with it.
    "SELECT type, name, tbl_name, sql FROM sqlite_schema"
    " WHERE name NOT LIKE 'sqlite^_stat_' ESCAPE '^' ORDER BY type, name"
)


def open_database(root: Path) -> tuple[apsw.Connection, Path]:
    """
    Open the run store database in *root*, creating it when there is none.

    Any number of threads and processes may call this at once. The connection belongs to the
    caller, who closes it, and must not be carried across a fork.

    Args:
        root: An existing absolute directory on a local filesystem, durably created.
    Durable: after success: a complete version 1 database, and its name in *root*; nothing in it
        but the schema if it is new. After an error: a database that was there is unchanged when
        it was refused; a new one may be empty or complete. After a crash: the same, and
        perhaps a probe folder that the next call removes.
    Raises:
        UnsafeLayout, NetworkFilesystem: *root* cannot hold a store.
        InitLockBusy, InitLockReplaced: the init lock could not be had.
        ProbeFailed: the filesystem lacks something.
        UnknownVersion, UnversionedDatabase, AlteredSchema, NotADatabase: the database is
            somebody else's, or was changed.
        InitializationFailed: a lock, sync or SQLite call failed; its cause is chained.
    Cost: about 5 ms on tmpfs, most of it two forks.
    """
    root = layout.checked_root(root)
    layout.check_files(root)
    with _stage("look_up_filesystem", root):
        layout.refuse_network_filesystem(root)
    with init_lock.held(root):
        with crash_points.surrounding("open.run_probes"):
            with _stage("remove_leftovers", root):
                probes.remove_leftovers(root)
            probes.run(root)
        layout.check_files(root)
        database = layout.database_path(root)
        return _durable_connection(database), database


@functools.cache
def embedded_schema(script: str) -> SchemaObjects:
    """
    Return the schema objects that *script* creates.

    Computed once per process and script, on a database in memory. A process that forks children
    which open stores saves each of them 3 ms, and the statements, by calling this first.
    """
    connection = apsw.Connection(":memory:")
    try:
        sqlite.rows(connection, script)
        return _schema_objects(connection)
    finally:
        connection.close()


def _durable_connection(database: Path) -> apsw.Connection:
    """
    Return a verified connection to *database*, creating it if needed, with synced names.

    The root is synced even when nothing was created: turning a database to WAL makes and
    unlinks a rollback journal, and after a power loss a journal that came back would undo what
    was committed since.
    """
    connection = _verified_or_created(database)
    if connection is None:
        with _stage("sync_database", database):
            durability.sync_file(database)
        connection = _verified_or_created(database)
    if connection is None:
        problem = "it became empty again; nothing but this store may use it."
        raise InitializationFailed("verify_database", database, problem)
    try:
        with _stage("sync_root", database.parent):
            durability.sync_directory(database.parent)
    except BaseException:
        connection.close()
        raise
    return connection


def _verified_or_created(database: Path) -> apsw.Connection | None:
    """
    Return a connection to the version 1 database *database*, or create that and return None.

    Creating closes the connection again, so that no connection of this process has the file
    open when a descriptor of it is closed after its sync. Refusing leaves the main file and the
    WAL as they were (but SQLite plays back a rollback journal that a dead writer left).
    """
    had_wal = layout.wal_path(database.parent).exists()
    with _stage("open_database", database):
        connection = sqlite.connect(database, create=True)
    try:
        with _stage("verify_database", database):
            # Closing the last connection would move a WAL's content into a file that is perhaps
            # not ours. A WAL that was not there holds nothing, and closing removes it again.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(had_wal))
            sqlite.apply_local(connection, SETTINGS)
            is_empty = _is_empty(connection, database)
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        with _stage("set_journal_mode", database):
            sqlite.apply_journal_mode(connection)
        if not is_empty:
            return connection
        with _stage("create_schema", database):
            _create_schema(connection)
    except BaseException:
        connection.close()
        raise
    with _stage("close_database", database):
        connection.close()
    return None


def _create_schema(connection: apsw.Connection) -> None:
    """Create the embedded schema in an empty database, whole or not at all."""
    with crash_points.surrounding("open.create_schema"), sqlite.immediate(connection):
        sqlite.rows(connection, schema.RUN_STORE_SCHEMA_SQL)


def _is_empty(connection: apsw.Connection, database: Path) -> bool:
    """Return whether *database* has nothing in it; raise unless that, or version 1, is the case."""
    version = sqlite.rows(connection, "PRAGMA user_version")[0][0]
    if version not in (0, schema.RUN_STORE_SCHEMA_VERSION):
        raise UnknownVersion(database, found=version, expected=schema.RUN_STORE_SCHEMA_VERSION)
    found = _schema_objects(connection)
    if version == 0:
        if found:
            raise UnversionedDatabase(database, tuple(sorted(name for _, name in found)))
        return True
    _check_schema(found, embedded_schema(schema.RUN_STORE_SCHEMA_SQL), database)
    return False


def _schema_objects(connection: apsw.Connection) -> SchemaObjects:
    return MappingProxyType(
        {
            (kind, name): (table, sql)
            for kind, name, table, sql in sqlite.rows(connection, _SCHEMA_OBJECTS)
        }
    )


def _check_schema(found: SchemaObjects, embedded: SchemaObjects, database: Path) -> None:
    if found == embedded:
        return
    raise AlteredSchema(
        database,
        missing=_names(embedded.keys() - found.keys()),
        unexpected=_names(found.keys() - embedded.keys()),
        changed=_names(
            key for key in embedded.keys() & found.keys() if embedded[key] != found[key]
        ),
    )


def _names(keys: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(sorted(f"{kind} {name}" for kind, name in keys))


@contextmanager
def _stage(stage: str, path: Path) -> Iterator[None]:
    """Turn what the block's calls raise into the run store's own errors, with the cause chained."""
    try:
        yield
    except apsw.NotADBError as error:
        raise NotADatabase(path) from error
    except (apsw.Error, sqlite.SqliteError, durability.DurabilityError, OSError) as error:
        raise InitializationFailed(stage, path, f"{type(error).__name__}: {error}") from error
