"""Opening: WAL and NORMAL, one schema however many open first, and nothing of others touched."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from metabolism_world import NOW, dump, enqueue, every_connection, opened

from store import crash_points, sqlite
from store.metabolism import ACTIVE_STATES, connect, ensure_schema
from store.metabolism.errors import UnknownSchema
from store.metabolism.schema import SCHEMA_SQL, SCHEMA_VERSION
from store.metabolism.storage import TABLES, schema_problem
from store.sqlite import CannotOpen, immediate, rows


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    yield from opened(tmp_path / "a.sqlite3")


def _objects(connection: apsw.Connection) -> list[tuple[str, str, str]]:
    return rows(
        connection, "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY 1, 2"
    )


def _pragma(connection: apsw.Connection, name: str) -> object:
    return rows(connection, f"PRAGMA {name}")[0][0]


def _files(folder: Path) -> dict[str, bytes]:
    """Return what lies in *folder*, without the index of a WAL, which holds no data."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.endswith("-shm")
    }


def test_connect_sets_wal_normal_and_foreign_keys(connection: apsw.Connection) -> None:
    """MR-004: a new database is in WAL mode, synchronous is NORMAL, foreign keys hold."""
    names = ("journal_mode", "synchronous", "foreign_keys", "recursive_triggers")
    assert [_pragma(connection, name) for name in names] == ["wal", 1, 1, 1]
    assert _pragma(connection, "user_version") == SCHEMA_VERSION
    assert _pragma(connection, "busy_timeout") == sqlite.BUSY_TIMEOUT_MS


def test_connect_sets_the_same_on_a_database_that_exists(tmp_path: Path) -> None:
    """MR-004: what lives in a connection only is set again at each opening."""
    connect(tmp_path / "a").close()
    again = connect(tmp_path / "a")
    found = [_pragma(again, name) for name in ("journal_mode", "synchronous", "foreign_keys")]
    again.close()
    assert found == ["wal", 1, 1]


def test_the_schema_has_its_tables_indexes_and_triggers(connection: apsw.Connection) -> None:
    """MR-005, MR-006: ensure_schema makes the three tables and the partial unique index."""
    found = {(kind, name) for kind, name, _ in _objects(connection)}
    assert {name for kind, name in found if kind == "table"} == set(TABLES)
    assert TABLES == ("blackboard_claim_events", "jobs", "runs")
    [(is_unique, is_partial)] = rows(
        connection,
        "SELECT \"unique\", partial FROM pragma_index_list('jobs')"
        " WHERE name = 'idx_jobs_active_idempotency'",
    )
    assert (is_unique, is_partial) == (1, 1)
    assert len(found) == 9


def test_ensure_schema_again_changes_nothing(connection: apsw.Connection) -> None:
    """MR-005: a second run keeps every object and every row, and writes no byte."""
    enqueue(connection)
    before = (_objects(connection), dump(connection), connection.total_changes())
    ensure_schema(connection)
    ensure_schema(connection)
    assert (_objects(connection), dump(connection), connection.total_changes()) == before


def test_reopening_keeps_every_byte(tmp_path: Path) -> None:
    """MR-005: to open a database that is ready, and close it, writes nothing to it."""
    first = connect(tmp_path / "a")
    enqueue(first)
    first.close()
    before = _files(tmp_path)
    for _ in range(3):
        connect(tmp_path / "a").close()
    assert _files(tmp_path) == before


def test_the_active_states_are_four() -> None:
    """MR-007: a key is held by queued, claimed, running and recoverable jobs, and no others."""
    assert ACTIVE_STATES == ("queued", "claimed", "running", "recoverable")


def test_two_connections_of_one_process_see_each_other(tmp_path: Path) -> None:
    """MR-004: what one connection committed, another of the same process reads at once."""
    one, two = connect(tmp_path / "a"), connect(tmp_path / "a")
    job = enqueue(one)
    assert dump(two)["jobs"] == [tuple(job)]
    one.close()
    enqueue(two, "other")
    two.close()


def test_a_database_that_stayed_empty_is_finished(tmp_path: Path) -> None:
    """MR-005: an empty file, and one that was turned to WAL and no more, get the schema."""
    (tmp_path / "empty").touch()
    wal = apsw.Connection(str(tmp_path / "wal"))
    rows(wal, "PRAGMA journal_mode=WAL")
    wal.close()
    for name in ("empty", "wal"):
        connection = connect(tmp_path / name)
        assert schema_problem(connection) is None
        enqueue(connection)
        connection.close()


class OtherOpener:
    """Opens *path* a second time before the statement number *place* of the first opening."""

    def __init__(self, path: Path, place: int) -> None:
        self.path = path
        self.place = place
        self.seen: list[str] = []
        self.has_opened = False

    def __call__(self, connection: apsw.Connection, sql: str) -> None:
        is_inside = sql.startswith("PRAGMA user_version") and self.seen[-1].startswith("SELECT")
        self.seen.append(sql)
        # Under a lock of the first opener it would wait for that one, in the same thread.
        if len(self.seen) == self.place and not connection.in_transaction and not is_inside:
            connect(self.path).close()
            self.has_opened = True


@pytest.mark.slow
def test_no_place_between_two_statements_misleads_a_first_opener(tmp_path: Path) -> None:
    """MR-005: wherever another process makes the schema meanwhile, both have the same one."""
    others: list[OtherOpener] = []
    while not others or len(others[-1].seen) >= len(others):
        other = OtherOpener(tmp_path / str(len(others)), len(others) + 1)
        with every_connection(other):
            first = connect(other.path)
        others.append(other)
        assert schema_problem(first) is None
        enqueue(first)
        first.close()
    assert len(others) > 20
    assert sum(other.has_opened for other in others) > 10


def test_the_folder_is_synced_by_whoever_finds_no_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MR-004: if the one who made the file died before its sync, the next one syncs the folder."""
    (tmp_path / "a").touch()
    synced: list[tuple[str, ...]] = []

    def observe(kind: str, phase: str, *names: str) -> None:
        if (kind, phase) == ("directory_sync", "after"):
            synced.append(names)

    monkeypatch.setattr(crash_points, "_observer", observe)
    connect(tmp_path / "a").close()
    assert synced == [(str(tmp_path),)]
    connect(tmp_path / "a").close()
    assert synced == [(str(tmp_path),)]


def _text(path: Path) -> None:
    path.write_bytes(b"just a text\n" * 600)


def _short_text(path: Path) -> None:
    path.write_bytes(b"text")


def _one_byte(path: Path) -> None:
    path.write_bytes(b"x")


def _of_another_program(path: Path) -> None:
    _made(path, "CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")


def _with_a_view_only(path: Path) -> None:
    _made(path, "CREATE VIEW theirs AS SELECT 1")


def _of_the_future(path: Path) -> None:
    _made(path, f"{SCHEMA_SQL}; PRAGMA user_version = {SCHEMA_VERSION + 1}")


def _of_a_negative_version(path: Path) -> None:
    _made(path, f"{SCHEMA_SQL}; PRAGMA user_version = -1")


def _without_a_version(path: Path) -> None:
    _made(path, SCHEMA_SQL)


def _with_our_version_by_chance(path: Path) -> None:
    _made(path, f"CREATE TABLE jobs (x); PRAGMA user_version = {SCHEMA_VERSION}")


def _without_its_unique_index(path: Path) -> None:
    _made(
        path,
        f"{SCHEMA_SQL}; DROP INDEX idx_jobs_active_idempotency;"
        f" PRAGMA user_version = {SCHEMA_VERSION}",
    )


def _without_a_trigger(path: Path) -> None:
    _made(
        path,
        f"{SCHEMA_SQL}; DROP TRIGGER blackboard_claim_events_no_delete;"
        f" PRAGMA user_version = {SCHEMA_VERSION}",
    )


def _with_a_wal_of_a_dead_writer(path: Path) -> None:
    made = path.with_name("living")
    writer = apsw.Connection(str(made))
    rows(writer, "PRAGMA journal_mode=WAL")
    rows(writer, "CREATE TABLE theirs (x)")
    for end in ("", "-wal"):
        shutil.copy(f"{made}{end}", f"{path}{end}")
    writer.close()
    made.unlink()


def _made(path: Path, script: str) -> None:
    other = apsw.Connection(str(path))
    rows(other, script)
    other.close()


FOREIGN = {
    _text: "file is not a database",
    _short_text: "file is not a database",
    _one_byte: "it is one byte long, which SQLite takes for empty",
    _of_another_program: "it holds theirs and has no user_version",
    _with_a_view_only: "it holds theirs and has no user_version",
    _of_the_future: f"user_version is {SCHEMA_VERSION + 1}, and {SCHEMA_VERSION} is known",
    _of_a_negative_version: f"user_version is -1, and {SCHEMA_VERSION} is known",
    _without_a_version: "blackboard_claim_events, blackboard_claim_events_no_delete",
    _with_our_version_by_chance: "blackboard_claim_events, blackboard_claim_events_no_delete",
    _without_its_unique_index: "idx_jobs_active_idempotency are missing",
    _without_a_trigger: "blackboard_claim_events_no_delete are missing",
    _with_a_wal_of_a_dead_writer: "it holds theirs and has no user_version",
}


@pytest.mark.parametrize("make", FOREIGN, ids=lambda make: make.__name__.strip("_"))
def test_a_foreign_file_is_refused_unchanged(make: Callable[[Path], None], tmp_path: Path) -> None:
    """MR-002: what is not the runtime's is named, and neither it nor its WAL changes a byte."""
    path = tmp_path / "theirs.db"
    make(path)
    before = _files(tmp_path)
    with pytest.raises(UnknownSchema, match="this is not a metabolism database") as caught:
        connect(path)
    assert FOREIGN[make] in caught.value.problem
    assert _files(tmp_path) == before
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.problem) == (str(caught.value), caught.value.problem)


def test_ensure_schema_refuses_a_foreign_connection_unchanged() -> None:
    """MR-002: ensure_schema by itself refuses too, and leaves no transaction open."""
    memory = apsw.Connection(":memory:")
    rows(memory, "CREATE TABLE theirs (x)")
    with pytest.raises(UnknownSchema):
        ensure_schema(memory)
    assert not memory.in_transaction
    assert [name for _, name, _ in _objects(memory)] == ["theirs"]
    memory.close()


def test_objects_of_others_beside_ours_are_left_alone(tmp_path: Path) -> None:
    """MR-005: statistics and an index that an operator added do not make a database foreign."""
    first = connect(tmp_path / "a")
    rows(first, "CREATE INDEX by_kind ON jobs (kind)")
    enqueue(first)
    rows(first, "ANALYZE")
    first.close()
    again = connect(tmp_path / "a")
    assert "by_kind" in [name for _, name, _ in _objects(again)]
    again.close()


def _a_folder(path: Path) -> Path:
    path.mkdir()
    return path


def _below_a_missing_folder(path: Path) -> Path:
    return path / "a"


def _below_a_file(path: Path) -> Path:
    path.touch()
    return path / "a"


def _a_link(path: Path) -> Path:
    connect(path.with_name("real")).close()
    path.symlink_to(path.with_name("real"))
    return path


def _behind_a_loop(path: Path) -> Path:
    path.symlink_to(path)
    return path / "a"


def _too_long(path: Path) -> Path:
    return path.with_name("x" * 300)


def _with_nul(path: Path) -> Path:
    return path.with_name("a\0b")


def _not_unicode(path: Path) -> Path:
    return path.with_name(os.fsdecode(b"a\xff"))


UNUSABLE = (
    _a_folder,
    _below_a_missing_folder,
    _below_a_file,
    _a_link,
    _behind_a_loop,
    _too_long,
    _with_nul,
    _not_unicode,
)


@pytest.mark.parametrize("place", UNUSABLE, ids=lambda place: place.__name__.strip("_"))
def test_an_unusable_place_is_named(place: Callable[[Path], Path], tmp_path: Path) -> None:
    """MR-004: a path where no database can be is refused with its name, and nothing is made."""
    path = place(tmp_path / "here")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CannotOpen) as caught:
        connect(path)
    assert caught.value.path.name == path.name
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_behind_a_link_is_resolved(tmp_path: Path) -> None:
    """MR-004: the folder may be a link, the file may not."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    connect(tmp_path / "link" / "a").close()
    assert (tmp_path / "real" / "a").is_file()


def test_a_damaged_database_is_never_called_foreign(tmp_path: Path) -> None:
    """MR-004: a torn file of ours raises SQLite's own error, and is not written."""
    path = tmp_path / "a"
    connect(path).close()
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    before = _files(tmp_path)
    with pytest.raises(apsw.CorruptError):
        connect(path)
    assert _files(tmp_path) == before


def test_a_failed_opening_leaves_no_connection(tmp_path: Path) -> None:
    """MR-004: after a refusal the process holds no descriptor of the file."""
    _of_another_program(tmp_path / "theirs.db")
    before = len(list(Path("/proc/self/fd").iterdir()))
    errors = []
    for _ in range(3):
        with pytest.raises(UnknownSchema) as caught:
            connect(tmp_path / "theirs.db")
        errors.append(caught.value)  # with its frames, so that nothing is closed by being forgotten
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(errors) == 3


def test_a_key_is_free_again_for_the_index(connection: apsw.Connection) -> None:
    """MR-006, MR-008: the index alone admits any number of ended jobs and one active job."""
    columns = "kind, provider, params_json, idempotency_key, state, priority, not_before_ns"
    insert = (
        f"INSERT INTO jobs ({columns}, attempts, created_at_ns, updated_at_ns, claim_owner,"
        f" claim_expires_at_ns) VALUES ('k', 'p', '{{}}', 'same', ?, 0, 0, 1, {NOW}, {NOW}, ?, ?)"
    )
    for state in ("completed", "failed", "completed", "running"):
        rows(connection, insert, (state, "w", NOW))
    for state in ACTIVE_STATES:
        holder = ("w", NOW) if state in ("claimed", "running") else (None, None)
        with pytest.raises(apsw.ConstraintError, match="idempotency_key"), immediate(connection):
            rows(connection, insert, (state, *holder))


def test_a_database_that_must_exist_is_not_made(tmp_path: Path) -> None:
    """With create=False a missing file is refused and stays missing; one that exists is opened."""
    path = tmp_path / "missing.db"
    with pytest.raises(CannotOpen):
        connect(path, create=False)
    assert list(tmp_path.iterdir()) == []
    connect(path).close()
    connect(path, create=False).close()
