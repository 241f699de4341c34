"""Opening SQLite: nothing interpreted, every setting read back, each boundary one statement."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from store import sqlite
from store.sqlite import (
    CannotOpen,
    SettingRefused,
    Settings,
    apply_journal_mode,
    apply_local,
    connect,
    immediate,
    rows,
)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    opened = connect(tmp_path / "a.sqlite3", create=True)
    apply_local(opened, Settings())
    apply_journal_mode(opened)
    yield opened
    opened.close()


@pytest.fixture
def traced(connection: apsw.Connection) -> list[str]:
    statements: list[str] = []

    def trace(event: dict[str, object]) -> None:
        phase = "before" if event["code"] == apsw.SQLITE_TRACE_STMT else "after"
        statements.append(f"{phase} {event['sql']}")

    connection.trace_v2(apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE, trace, id="test")
    return statements


def _settings(connection: apsw.Connection) -> dict[str, object]:
    names = (
        "foreign_keys",
        "recursive_triggers",
        "synchronous",
        "fullfsync",
        "checkpoint_fullfsync",
        "locking_mode",
        "journal_mode",
        "busy_timeout",
    )
    return {name: rows(connection, f"PRAGMA {name}")[0][0] for name in names}


def test_every_setting_is_in_force(connection: apsw.Connection) -> None:
    """RS-015, RS-017, RS-018, RS-019: the connection has each setting that durability rests on."""
    assert _settings(connection) == {
        "foreign_keys": 1,
        "recursive_triggers": 1,
        "synchronous": 2,
        "fullfsync": 1,
        "checkpoint_fullfsync": 1,
        "locking_mode": "normal",
        "journal_mode": "wal",
        "busy_timeout": 5000,
    }


def test_a_store_may_choose_among_the_settings(tmp_path: Path) -> None:
    """A store that asks for NORMAL, no fullfsync and another timeout gets exactly that."""
    opened = connect(tmp_path / "a.sqlite3", create=True)
    apply_local(opened, Settings(synchronous="NORMAL", fullfsync=False, busy_timeout_ms=7))
    found = _settings(opened)
    opened.close()
    assert (found["synchronous"], found["fullfsync"], found["busy_timeout"]) == (1, 0, 7)
    assert (found["checkpoint_fullfsync"], found["foreign_keys"]) == (0, 1)


def test_local_settings_change_no_file(tmp_path: Path) -> None:
    """RS-007: a database in another journal mode is byte for byte the same after apply_local."""
    path = tmp_path / "a.sqlite3"
    other = apsw.Connection(str(path))
    rows(other, "CREATE TABLE t(x)")
    other.close()
    before = path.read_bytes()
    opened = connect(path, create=False)
    apply_local(opened, Settings())
    opened.close()
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["a.sqlite3"]


def test_a_setting_that_does_not_take_is_refused(connection: apsw.Connection) -> None:
    """RS-015: a transaction makes SQLite ignore foreign_keys=ON; reading it back finds that."""
    rows(connection, "PRAGMA foreign_keys=OFF")
    with pytest.raises(SettingRefused) as caught, immediate(connection):
        apply_local(connection, Settings())
    assert (caught.value.name, caught.value.expected, caught.value.found) == ("foreign_keys", 1, 0)


def test_a_database_that_cannot_be_wal_is_refused() -> None:
    """RS-035: SQLite answers with the mode it kept; anything but WAL is an error."""
    memory = apsw.Connection(":memory:")
    with pytest.raises(SettingRefused) as caught:
        apply_journal_mode(memory)
    memory.close()
    assert (caught.value.name, caught.value.found) == ("journal_mode", "memory")


@pytest.mark.parametrize("name", ["file:a.sqlite3?mode=memory", "a%20b?vfs=memdb", ":memory:"])
def test_a_path_is_taken_literally(name: str, tmp_path: Path) -> None:
    """RS-020: what looks like a URI, or like no file, is the name of a file."""
    opened = connect(tmp_path / name, create=True)
    rows(opened, "CREATE TABLE t(x)")
    opened.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_relative_path_is_refused() -> None:
    """RS-020: a relative name could begin like a URI, so it is refused before SQLite sees it."""
    with pytest.raises(ValueError, match="absolute"):
        connect(Path("file:a.sqlite3"), create=True)


def test_links_and_missing_files_are_refused(tmp_path: Path) -> None:
    """RS-024: SQLite itself refuses a link at the file or above it, and makes no file unasked."""
    (tmp_path / "real").mkdir()
    connect(tmp_path / "real" / "a.sqlite3", create=True).close()
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    (tmp_path / "link.sqlite3").symlink_to(tmp_path / "real" / "a.sqlite3")
    for name in ("folder/a.sqlite3", "link.sqlite3", "missing.sqlite3"):
        with pytest.raises(CannotOpen) as caught:
            connect(tmp_path / name, create=name != "missing.sqlite3")
        assert caught.value.path == tmp_path / name
    assert not (tmp_path / "missing.sqlite3").exists()


def test_a_transaction_is_three_traced_boundaries(
    connection: apsw.Connection, traced: list[str]
) -> None:
    """Begin, work and commit each show before and after, and nothing else does."""
    with immediate(connection):
        rows(connection, "CREATE TABLE t(x)")
    assert traced == [
        f"{phase} {sql}"
        for sql in ("BEGIN IMMEDIATE", "CREATE TABLE t(x)", "COMMIT")
        for phase in ("before", "after")
    ]


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt, SystemExit])
def test_any_exception_takes_all_of_it_back(
    raised: type[BaseException], connection: apsw.Connection
) -> None:
    """An exception of any kind leaves no row and no open transaction, and is raised on."""
    rows(connection, "CREATE TABLE t(x)")

    def act() -> None:
        with immediate(connection):
            rows(connection, "INSERT INTO t VALUES(1)")
            raise raised

    with pytest.raises(raised):
        act()
    assert not connection.in_transaction
    assert rows(connection, "SELECT * FROM t") == []


def test_a_signal_at_any_statement_leaves_no_transaction_open(connection: apsw.Connection) -> None:
    """Ctrl-C before or after BEGIN, the work or ROLLBACK ends the transaction, once each."""
    rows(connection, "CREATE TABLE t(x)")
    interrupted = []

    def act() -> None:
        with immediate(connection):
            rows(connection, "INSERT INTO t VALUES(1)")
            raise ValueError

    for statement in ("BEGIN IMMEDIATE", "INSERT INTO t VALUES(1)", "ROLLBACK"):
        for phase in (apsw.SQLITE_TRACE_STMT, apsw.SQLITE_TRACE_PROFILE):

            def interrupt(event: dict[str, object], at: object = (phase, statement)) -> None:
                if at == (event["code"], event["sql"]):
                    interrupted.append(at)
                    connection.trace_v2(0, None)
                    raise KeyboardInterrupt

            connection.trace_v2(phase, interrupt)
            with pytest.raises(KeyboardInterrupt):
                act()
            assert not connection.in_transaction, (statement, phase)
            assert rows(connection, "SELECT * FROM t") == []
    assert len(interrupted) == 6


def test_a_signal_leaves_the_transaction_of_another_alone(connection: apsw.Connection) -> None:
    """What was open before is not taken back, however the BEGIN inside of it ends."""

    def interrupt(event: dict[str, object]) -> None:
        raise KeyboardInterrupt

    rows(connection, "CREATE TABLE t(x)")
    with immediate(connection):
        rows(connection, "INSERT INTO t VALUES(1)")
        with pytest.raises(apsw.SQLError), immediate(connection):
            pytest.fail("a transaction began inside another")
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, interrupt)
        with pytest.raises(KeyboardInterrupt), immediate(connection):
            pytest.fail("a transaction began inside another")
        connection.trace_v2(0, None)
    assert rows(connection, "SELECT * FROM t") == [(1,)]


def test_a_commit_that_fails_takes_all_of_it_back(connection: apsw.Connection) -> None:
    """A deferred reference that dangles at COMMIT leaves no row and no open transaction."""
    rows(connection, "CREATE TABLE p(x PRIMARY KEY)")
    rows(connection, "CREATE TABLE c(x REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(apsw.ConstraintError), immediate(connection):
        rows(connection, "INSERT INTO c VALUES(1)")
    assert not connection.in_transaction
    assert rows(connection, "SELECT * FROM c") == []


def test_an_error_that_already_rolled_back_is_not_masked(
    connection: apsw.Connection, traced: list[str]
) -> None:
    """When SQLite ended the transaction itself, its error is raised and no ROLLBACK is sent."""
    rows(connection, "CREATE TABLE t(x UNIQUE)")
    rows(connection, "INSERT INTO t VALUES(1)")
    with pytest.raises(apsw.ConstraintError, match="UNIQUE"), immediate(connection):
        rows(connection, "INSERT OR ROLLBACK INTO t VALUES(1)")
    assert not connection.in_transaction
    assert "before ROLLBACK" not in traced


def test_a_rollback_that_fails_does_not_hide_why(
    connection: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block's own error is raised, with a note that ROLLBACK failed too."""

    def fail(connection: apsw.Connection, sql: str) -> list[tuple[object, ...]]:
        if sql == "ROLLBACK":
            raise apsw.IOError("injected")
        return rows(connection, sql)

    monkeypatch.setattr(sqlite, "rows", fail)
    with pytest.raises(KeyError) as caught, immediate(connection):
        raise KeyError
    assert ["injected" in note for note in caught.value.__notes__] == [True]


def test_a_second_writer_is_refused_at_its_first_statement(
    connection: apsw.Connection, tmp_path: Path
) -> None:
    """RS-019: the write lock is taken by BEGIN, and waiting for it ends at the busy timeout."""
    other = connect(tmp_path / "a.sqlite3", create=False, busy_timeout_ms=1)
    with immediate(connection):
        with pytest.raises(apsw.BusyError), immediate(other):
            pytest.fail("two connections held the write lock")
        assert not other.in_transaction
    other.close()


def test_rows_ends_its_statement(connection: apsw.Connection, traced: list[str]) -> None:
    """A SELECT has completed, for a trace and for the lock it held, when rows returns."""
    numbers = "WITH n(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM n WHERE x < 5) SELECT x FROM n"
    assert rows(connection, numbers) == [(1,), (2,), (3,), (4,), (5,)]
    assert traced == [f"before {numbers}", f"after {numbers}"]
    assert rows(connection, "SELECT ?, :b", (1, "two")) == [(1, "two")]
    assert rows(connection, "SELECT :a", {"a": 3}) == [(3,)]


def test_an_insert_only_guard_holds_against_replace(connection: apsw.Connection) -> None:
    """RS-016: the delete half of INSERT OR REPLACE fires a guard only with recursive_triggers."""
    rows(
        connection,
        "CREATE TABLE t(x PRIMARY KEY, y); INSERT INTO t VALUES(1, 'first');"
        "CREATE TRIGGER guard BEFORE DELETE ON t BEGIN SELECT RAISE(ABORT, 'insert only'); END",
    )
    with pytest.raises(apsw.ConstraintError, match="insert only"):
        rows(connection, "INSERT OR REPLACE INTO t VALUES(1, 'second')")
    assert rows(connection, "SELECT y FROM t") == [("first",)]
    rows(connection, "PRAGMA recursive_triggers=OFF")
    rows(connection, "INSERT OR REPLACE INTO t VALUES(1, 'second')")
    assert rows(connection, "SELECT y FROM t") == [("second",)], "the setting is what guards"


def test_errors_keep_their_facts_across_processes() -> None:
    """Pickling keeps type, attributes and message."""
    refused = pickle.loads(pickle.dumps(SettingRefused("synchronous", 2, 1)))
    assert (refused.name, refused.expected, refused.found) == ("synchronous", 2, 1)
    assert "synchronous=1" in str(refused)
    closed = pickle.loads(pickle.dumps(CannotOpen(Path("/a"), "why")))
    assert (closed.path, closed.reason) == (Path("/a"), "why")
