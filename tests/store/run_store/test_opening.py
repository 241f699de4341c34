"""Opening a run store: what is created, what is accepted, what is refused unchanged."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from store import crash_points, sqlite
from store.run_store.errors import (
    InitializationFailed,
    RunStoreError,
)
from store.run_store.opening import open_database
from store.run_store.schema import RUN_STORE_SCHEMA_SQL, RUN_STORE_SCHEMA_VERSION
from store.sqlite import rows

REPOSITORY = Path(__file__).parents[3]
DATABASE = "run.sqlite3"
SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
COMMITS_AND_CLOSES = """
import sys
from pathlib import Path
from store.run_store.opening import open_database
connection, _ = open_database(Path(sys.argv[1]))
connection.execute("PRAGMA user_version").fetchall()
connection.close()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """Every statement of every connection on the database, as it is about to run."""
    found: list[str] = []

    def attach(connection: apsw.Connection) -> None:
        if Path(connection.filename).name == DATABASE:
            connection.trace_v2(
                apsw.SQLITE_TRACE_STMT, lambda event: found.append(event["sql"]), id="test"
            )

    apsw.connection_hooks.append(attach)
    yield found
    apsw.connection_hooks.remove(attach)


def _opened_and_closed(root: Path) -> None:
    connection, _ = open_database(root)
    connection.close()


def _foreign(root: Path, *script: str) -> None:
    """Make a database in *root* that the store did not make."""
    connection = apsw.Connection(str(root / DATABASE))
    for statement in script:
        rows(connection, statement)
    connection.close()


def test_a_fresh_root_gets_the_whole_schema_and_nothing_else(root: Path) -> None:
    """RS-008, RS-026, RS-038: version 1, every object, no row, no file that nobody asked for."""
    connection, path = open_database(root)
    assert path == root.resolve() / DATABASE
    assert rows(connection, "PRAGMA user_version") == [(RUN_STORE_SCHEMA_VERSION,)]
    memory = apsw.Connection(":memory:")
    rows(memory, RUN_STORE_SCHEMA_SQL)
    assert rows(connection, SCHEMA) == rows(memory, SCHEMA)
    tables = [name for kind, name, _, _ in rows(connection, SCHEMA) if kind == "table"]
    assert len(tables) == 16
    assert {name: rows(connection, f"SELECT * FROM {name}") for name in tables} == {
        name: [] for name in tables
    }
    connection.close()
    memory.close()
    assert sorted(found.name for found in root.iterdir()) == [".run-store-init.lock", DATABASE]


@pytest.mark.parametrize("kind", ["zero bytes", "empty", "empty WAL", "statistics only"])
def test_an_empty_database_is_created_in_place(kind: str, root: Path) -> None:
    """RS-008: a file without objects and version is what an interrupted first open leaves."""
    if kind == "zero bytes":
        (root / DATABASE).touch()
    elif kind == "empty WAL":
        _foreign(root, "PRAGMA journal_mode=WAL")
    else:
        _foreign(root, "CREATE TABLE t(x)", "ANALYZE", "DROP TABLE t")
        if kind == "empty":
            _foreign(root, "DROP TABLE sqlite_stat1", "DROP TABLE sqlite_stat4", "VACUUM")
    connection, _ = open_database(root)
    assert rows(connection, "PRAGMA user_version") == [(1,)]
    connection.close()


def test_the_version_is_read_before_anything_is_written(root: Path, statements: list[str]) -> None:
    """RS-007, RS-015: settings of the connection, then the version, then journal mode and DDL."""
    for is_first in (True, False):
        statements.clear()
        _opened_and_closed(root)
        version = statements.index("PRAGMA user_version")
        schema = next(at for at, sql in enumerate(statements) if "sqlite_schema" in sql)
        journal = statements.index("PRAGMA journal_mode=WAL")
        assert statements.index("PRAGMA foreign_keys") < version < schema < journal
        assert statements.index("PRAGMA recursive_triggers") < version
        begin = statements.index("BEGIN IMMEDIATE") if is_first else journal + 1
        assert journal < begin
        assert not [sql for sql in statements[:begin] if sql.lstrip().startswith("CREATE")]
        assert ("COMMIT" in statements) == is_first


def test_settings_are_applied_again_on_each_open(root: Path) -> None:
    """RS-015, RS-017, RS-018, RS-019, RS-021: one caller's changes do not reach the next open."""
    expected = {
        "foreign_keys": 1,
        "recursive_triggers": 1,
        "synchronous": 2,
        "fullfsync": 1,
        "checkpoint_fullfsync": 1,
        "locking_mode": "normal",
        "journal_mode": "wal",
        "busy_timeout": 5000,
    }
    for _ in range(2):
        connection, _ = open_database(root)
        assert {name: rows(connection, f"PRAGMA {name}")[0][0] for name in expected} == expected
        for weaker in ("foreign_keys=OFF", "synchronous=OFF", "journal_mode=DELETE"):
            rows(connection, f"PRAGMA {weaker}")
        connection.close()


def test_insert_only_rows_survive_insert_or_replace(root: Path) -> None:
    """RS-016: on a connection from open, the guards hold for the delete half of a replace too."""
    connection, _ = open_database(root)
    decision = "INTO applicability_decisions VALUES('d', 'c', 'excluded', ?)"
    rows(connection, f"INSERT {decision}", ("{}",))
    with pytest.raises(apsw.ConstraintError):
        rows(connection, f"INSERT OR REPLACE {decision}", ('{"other":1}',))
    kept = rows(connection, "SELECT record_json FROM applicability_decisions")
    connection.close()
    assert kept == [("{}",)]


def test_a_name_like_a_uri_is_a_plain_root(tmp_path: Path) -> None:
    """RS-020: nothing in the root's name is interpreted."""
    root = tmp_path / "file:x?mode=memory&vfs=memdb#%20"
    root.mkdir()
    _opened_and_closed(root)
    assert (root / DATABASE).stat().st_size > 0


def test_file_and_root_are_synced_after_the_schema_commit(
    root: Path, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-034: commit, close, sync of the file with no connection on it, then of the root."""
    database = root / DATABASE

    def look(kind: str, phase: str, /, *names: str) -> None:
        if kind == "file_sync" and names == (str(database),):
            held = [link.resolve() for link in Path("/proc/self/fd").iterdir()]
            assert database.resolve() not in held, "closing would drop SQLite's locks"
            assert not database.with_name(f"{DATABASE}-wal").exists(), "the file alone is whole"
        statements.append(f"{phase} {kind} {Path(names[0]).name}")

    monkeypatch.setattr(crash_points, "_observer", look)
    _opened_and_closed(root)
    commit = statements.index("COMMIT")
    after = [line for line in statements[commit:] if not line.startswith(("PRAGMA", "SELECT"))]
    assert after == [
        "COMMIT",
        "after point open.create_schema",
        f"before file_sync {DATABASE}",
        f"after file_sync {DATABASE}",
        "before directory_sync root",
        "after directory_sync root",
    ]


def test_a_database_that_was_turned_to_wal_has_its_names_synced(
    root: Path, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-034: the root is synced after the mode change, whose rollback journal must stay gone."""
    _opened_and_closed(root)
    _foreign(root, "PRAGMA journal_mode=DELETE")
    monkeypatch.setattr(
        crash_points, "_observer", lambda kind, phase, *names: statements.append(f"{phase} {kind}")
    )
    _opened_and_closed(root)
    assert statements[-3:] == [
        "PRAGMA journal_mode=WAL",
        "before directory_sync",
        "after directory_sync",
    ]


def test_an_open_store_keeps_its_locks(root: Path) -> None:
    """RS-034: another process that opens and closes does not take this one's WAL away."""
    connection, path = open_database(root)
    rows(connection, "INSERT INTO applicability_decisions VALUES('d', 'c', 'excluded', '{}')")
    wal = path.with_name(f"{DATABASE}-wal")
    inode = wal.stat().st_ino
    reopened, _ = open_database(root)
    reopened.close()
    subprocess.run(
        [sys.executable, "-c", COMMITS_AND_CLOSES, str(root)],
        check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert wal.stat().st_ino == inode
    rows(connection, "INSERT INTO applicability_decisions VALUES('e', 'c', 'excluded', '{}')")
    connection.close()
    connection, _ = open_database(root)
    assert rows(connection, "SELECT count(*) FROM applicability_decisions") == [(2,)]
    connection.close()


def _fail_nth_sync(monkeypatch: pytest.MonkeyPatch, nth: int) -> list[int]:
    real, calls = os.fsync, []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == nth:
            raise OSError(errno.EIO, "injected")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return calls


@pytest.mark.parametrize("is_new", [True, False])
def test_whichever_sync_fails_there_is_no_handle(
    is_new: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-035, RS-039: each sync of an open fails in turn; a retry then finds a whole store."""
    if not is_new:
        _opened_and_closed(root)
    failures = 0
    for nth in range(1, 100):
        if is_new:
            shutil.rmtree(root)
            root.mkdir()
        with monkeypatch.context() as patch:
            calls = _fail_nth_sync(patch, nth)
            try:
                _opened_and_closed(root)
            except RunStoreError:
                failures += 1
            if len(calls) < nth:
                break
            assert failures == nth, "an injected failure was swallowed"
        _opened_and_closed(root)
    assert failures == (7 if is_new else 6)


def test_a_failed_sync_leaves_a_database_that_a_retry_reopens(
    root: Path, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-039: the schema is committed by then; the retry verifies it and creates nothing."""
    with monkeypatch.context() as patch:
        _fail_nth_sync(patch, 6)
        with pytest.raises(InitializationFailed) as caught:
            open_database(root)
    assert (caught.value.stage, caught.value.path) == ("sync_database", root / DATABASE)
    before = (root / DATABASE).read_bytes()
    statements.clear()
    _opened_and_closed(root)
    assert "BEGIN IMMEDIATE" not in statements
    assert (root / DATABASE).read_bytes() == before


@pytest.mark.parametrize("breaks", ["syntax", "existing table", "commit"])
def test_a_schema_that_fails_is_rolled_back_whole(
    breaks: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-008, RS-035: an error anywhere in the script leaves an empty database, not a part."""
    end = {
        "syntax": "CREATE TABLE (",
        "existing table": "CREATE TABLE events(x);",
        "commit": "CREATE TABLE p(x PRIMARY KEY);"
        "CREATE TABLE c(x REFERENCES p DEFERRABLE INITIALLY DEFERRED); INSERT INTO c VALUES(1);",
    }[breaks]
    with monkeypatch.context() as patch:
        patch.setattr("store.run_store.schema.RUN_STORE_SCHEMA_SQL", RUN_STORE_SCHEMA_SQL + end)
        with pytest.raises(InitializationFailed) as caught:
            open_database(root)
    assert caught.value.stage == "create_schema"
    connection = apsw.Connection(str(root / DATABASE))
    assert rows(connection, SCHEMA) == []
    assert rows(connection, "PRAGMA user_version") == [(0,)]
    connection.close()
    _opened_and_closed(root)


def test_a_database_that_stays_out_of_wal_gives_no_handle(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-035: where the database itself cannot turn to WAL, the open ends before the schema."""

    def refuse(connection: apsw.Connection) -> None:
        raise sqlite.SettingRefused("journal_mode", "wal", "delete")

    monkeypatch.setattr(sqlite, "apply_journal_mode", refuse)
    with pytest.raises(InitializationFailed) as caught:
        open_database(root)
    assert caught.value.stage == "set_journal_mode"
    assert isinstance(caught.value.__cause__, sqlite.SettingRefused)
    assert (root / DATABASE).read_bytes() == b""


def test_the_points_of_an_open_are_reached(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named points open.run_probes and open.create_schema surround what they name."""
    seen: list[tuple[str, ...]] = []
    monkeypatch.setattr(crash_points, "_observer", lambda *call: seen.append(call))

    def points() -> list[tuple[str, ...]]:
        return [call for call in seen if call[0] == "point"]

    _opened_and_closed(root)
    probes = [("point", "before", "open.run_probes"), ("point", "after", "open.run_probes")]
    created = [("point", "before", "open.create_schema"), ("point", "after", "open.create_schema")]
    assert points() == probes + created
    seen.clear()
    _opened_and_closed(root)
    assert points() == probes


def test_the_reference_schema_is_computed_once(root: Path) -> None:
    """After the first open of a process, no open builds the schema in memory again."""
    _opened_and_closed(root)
    opened: list[str] = []

    def note(connection: apsw.Connection) -> None:
        opened.append(connection.filename)

    apsw.connection_hooks.append(note)
    try:
        _opened_and_closed(root)
    finally:
        apsw.connection_hooks.remove(note)
    assert [Path(name).name for name in opened] == ["probe.sqlite3", "probe.sqlite3", DATABASE]
