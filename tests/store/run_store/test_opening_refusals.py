"""Which databases an open refuses, and that it leaves them as they were."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from store.run_store.errors import (
    AlteredSchema,
    IncompatibleDatabase,
    NotADatabase,
    UnknownVersion,
    UnversionedDatabase,
)
from store.run_store.opening import embedded_schema, open_database
from store.run_store.schema import RUN_STORE_SCHEMA_SQL
from store.sqlite import rows

DATABASE = "run.sqlite3"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


def _opened_and_closed(root: Path) -> None:
    connection, _ = open_database(root)
    connection.close()


def _foreign(root: Path, *script: str) -> None:
    """Make a database in *root* that the store did not make."""
    connection = apsw.Connection(str(root / DATABASE))
    for statement in script:
        rows(connection, statement)
    connection.close()


def _left_open(root: Path, *script: str) -> None:
    """Run *script* on the database in *root*, and leave its WAL as a dead process would."""
    work = root.parent / "work"
    shutil.copytree(root, work)
    connection = apsw.Connection(str(work / DATABASE))
    rows(connection, "PRAGMA journal_mode=WAL")
    for statement in script:
        rows(connection, statement)
    # Reading a database that is open drops its locks; nobody else uses this one.
    for suffix in ("", "-wal"):
        shutil.copyfile(work / (DATABASE + suffix), root / (DATABASE + suffix))
    connection.close()
    assert (root / f"{DATABASE}-wal").stat().st_size > 0


def _bytes(root: Path) -> dict[str, bytes]:
    """Return the content of the main file and the WAL; the shared memory index is volatile."""
    return {
        path.name: path.read_bytes()
        for path in sorted(root.iterdir())
        if path.name in (DATABASE, f"{DATABASE}-wal")
    }


def _refusal(root: Path) -> IncompatibleDatabase:
    """Open *root*, which must be refused with not a byte changed."""
    before = _bytes(root)
    with pytest.raises(IncompatibleDatabase) as caught:
        open_database(root)
    assert _bytes(root) == before
    assert caught.value.path == root.resolve() / DATABASE
    return caught.value


@pytest.mark.parametrize("version", [2, -1, 2**31 - 1])
@pytest.mark.parametrize("left", ["closed", "closed WAL", "with a WAL"])
def test_an_unknown_version_is_refused_unchanged(left: str, version: int, root: Path) -> None:
    """RS-009: a newer or stranger layout is refused, also when its newest rows are in the WAL."""
    mode = "PRAGMA journal_mode=" + ("DELETE" if left == "closed" else "WAL")
    _foreign(root, mode, f"PRAGMA user_version={version}", "CREATE TABLE theirs(x)")
    if left == "with a WAL":
        _left_open(root, "INSERT INTO theirs VALUES(1)")
    refused = _refusal(root)
    assert isinstance(refused, UnknownVersion)
    assert (refused.found, refused.expected) == (version, 1)


@pytest.mark.parametrize("left", ["closed", "with a WAL"])
@pytest.mark.parametrize(
    "script", ["CREATE TABLE theirs(x)", "CREATE VIEW theirs AS SELECT 1"], ids=["table", "view"]
)
def test_an_unversioned_database_with_objects_is_refused_unchanged(
    left: str, script: str, root: Path
) -> None:
    """RS-010: somebody else's database is never taken for an empty one."""
    if left == "with a WAL":
        _foreign(root, "PRAGMA journal_mode=WAL")
        _left_open(root, script)
    else:
        _foreign(root, script)
    refused = _refusal(root)
    assert isinstance(refused, UnversionedDatabase)
    assert refused.objects == ("theirs",)


def test_a_file_that_is_no_database_is_refused_unchanged(root: Path) -> None:
    """RS-010: content that SQLite cannot read is refused and kept."""
    (root / DATABASE).write_bytes(b"somebody's notes\n" * 100)
    assert isinstance(_refusal(root), NotADatabase)


ALTERATIONS = {
    "extra table": ("CREATE TABLE extra(x)", "unexpected", "table extra"),
    "extra index": ("CREATE INDEX extra ON events(at_ns)", "unexpected", "index extra"),
    "extra view": ("CREATE VIEW extra AS SELECT 1", "unexpected", "view extra"),
    "extra trigger": (
        "CREATE TRIGGER extra AFTER INSERT ON events BEGIN SELECT 1; END",
        "unexpected",
        "trigger extra",
    ),
    "no index": (
        "DROP INDEX one_accepted_attempt_per_slot",
        "missing",
        "index one_accepted_attempt_per_slot",
    ),
    "no table": ("DROP TABLE leased_artifacts", "missing", "table leased_artifacts"),
    "new column": ("ALTER TABLE leases ADD COLUMN extra TEXT", "changed", "table leases"),
}


@pytest.mark.parametrize("case", ALTERATIONS)
def test_an_altered_schema_is_refused_unchanged(case: str, root: Path) -> None:
    """RS-011: one object more, less or different, of any type, refuses the database by name."""
    script, kind, name = ALTERATIONS[case]
    _opened_and_closed(root)
    _foreign(root, script)
    refused = _refusal(root)
    assert isinstance(refused, AlteredSchema)
    assert name in getattr(refused, kind)


def test_each_missing_or_weakened_trigger_is_refused(root: Path) -> None:
    """RS-011: every trigger of the schema is compared, its body included."""
    _opened_and_closed(root)
    triggers = {
        name: sql
        for (kind, name), (_, sql) in embedded_schema(RUN_STORE_SCHEMA_SQL).items()
        if kind == "trigger"
    }
    assert len(triggers) > 10
    pristine = (root / DATABASE).read_bytes()
    for name, sql in triggers.items():
        assert sql is not None
        (root / DATABASE).write_bytes(pristine)
        _foreign(root, f"DROP TRIGGER {name}")
        refused = _refusal(root)
        assert isinstance(refused, AlteredSchema)
        assert refused.missing == (f"trigger {name}",)
    _foreign(root, sql.replace("BEGIN", "BEGIN SELECT 1;", 1))
    refused = _refusal(root)
    assert isinstance(refused, AlteredSchema)
    assert refused.changed == (f"trigger {name}",)


def test_an_altered_schema_in_the_wal_is_refused_unchanged(root: Path) -> None:
    """RS-011: an alteration that is committed only to the WAL counts, and stays there."""
    _opened_and_closed(root)
    _left_open(root, "CREATE TABLE extra(x)")
    refused = _refusal(root)
    assert isinstance(refused, AlteredSchema)
    assert refused.unexpected == ("table extra",)


def test_statistics_are_no_alteration(root: Path) -> None:
    """RS-011: the tables that ANALYZE keeps for the planner do not refuse the database."""
    _opened_and_closed(root)
    insert = "INSERT INTO applicability_decisions VALUES('d', 'c', 'excluded', '{}')"
    _foreign(root, insert, "ANALYZE")
    connection, _ = open_database(root)
    assert rows(connection, "SELECT count(*) > 0 FROM sqlite_stat1") == [(1,)]
    connection.close()
