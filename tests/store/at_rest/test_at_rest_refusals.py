"""What cannot be read where it lies is refused, by name and before anything is touched."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from dead_databases import (
    beside,
    finish,
    living,
    picture,
    read_values,
    start,
    values,
    watched,
)

from store import at_rest
from store.at_rest import (
    AtRestError,
    CannotRead,
    ChangedWhileRead,
    DatabaseMissing,
    ModesDisagree,
    NeedsRecovery,
    NotADatabase,
    StillOpen,
    open_at_rest,
)
from store.sqlite import rows


@pytest.mark.parametrize(
    ("kind", "script"),
    [
        ("wal", "do('SELECT * FROM t')"),
        ("wal", "do('BEGIN IMMEDIATE; DELETE FROM t')"),
        ("rollback", "do('BEGIN IMMEDIATE')"),
        ("rollback", "do('BEGIN'); next(c.execute('SELECT * FROM t'))"),
    ],
)
def test_a_process_with_a_lock_is_refused_by_its_number(
    kind: str, script: str, dead: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that reads or writes is named, by either of its locks; after its end one reads."""
    path = dead(kind)
    monkeypatch.setattr(at_rest, "is_open_for_writing", lambda descriptor: False)
    with living(path, script) as child:
        with pytest.raises(StillOpen) as caught:
            values(path)
        with monkeypatch.context() as changed:
            changed.setattr(at_rest, "_MAIN_LOCKS", (0, 1))
            if kind == "wal":
                with pytest.raises(StillOpen):
                    values(path)
            changed.setattr(at_rest, "_SHM_LOCKS", (0, 1))
            assert values(path) == [1, 2], "something else refuses it"
    assert caught.value.pid == child.pid
    assert values(path) == [1, 2]


@pytest.mark.parametrize("kind", ["wal", "rollback"])
def test_a_process_without_a_lock_is_refused_by_its_number(
    kind: str, dead: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that only opened the database, or that is between transactions, is named too."""
    path = dead(kind)
    with path.open("rb") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError as error:
            pytest.skip(f"this file system has no leases: {error}")
    with living(path, "do('SELECT * FROM t')" if kind == "rollback" else "") as child:
        with pytest.raises(StillOpen) as caught:
            values(path)
        with monkeypatch.context() as changed:
            changed.setattr(at_rest, "is_open_for_writing", lambda descriptor: False)
            assert values(path) == [1, 2], "a lock refuses it"
    assert caught.value.pid == child.pid
    assert values(path) == [1, 2]


def test_a_database_that_is_open_here_keeps_its_locks(
    dead: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process's own connection is refused before a descriptor's end could drop its locks."""
    path = dead("wal")
    with closing(apsw.Connection(str(path))) as own:
        assert read_values(own) == [1, 2]
        assert _locks_here() != []
        held = _locks_here()
        with pytest.raises(StillOpen, match="this one") as caught:
            values(path)
        assert (caught.value.pid, _locks_here()) == (os.getpid(), held)
        monkeypatch.setattr(at_rest, "_require_closed_here", lambda paths: None)
        with pytest.raises(StillOpen):
            values(path)
        assert _locks_here() != held, "the check that was left out guards nothing"


def test_a_read_lock_of_this_process_is_found(dead: Callable[[str], Path]) -> None:
    """A connection that cannot write has locks to lose as well, while it reads."""
    path = dead("rollback")
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as own:
        assert values(path) == [1, 2], "it has no lock yet"
        rows(own, "BEGIN")
        assert read_values(own) == [1, 2]
        with pytest.raises(StillOpen, match="this one"):
            values(path)
        assert _locks_here() != []


def _locks_here() -> list[str]:
    texts = [entry.read_text() for entry in Path("/proc/self/fdinfo").iterdir() if entry.exists()]
    return sorted(line for text in texts for line in text.splitlines() if "lock:" in line)


def _commit_during_a_block(path: Path, raised: type[Exception] | None) -> None:
    with open_at_rest(path):
        finish(start(path, "do('INSERT INTO t VALUES(4, 0)'); os._exit(0)"))
        if raised is not None:
            raise raised


@pytest.mark.parametrize("raised", [None, apsw.SQLError])
def test_a_change_during_the_block_is_an_error(
    raised: type[Exception] | None, dead: Callable[[str], Path]
) -> None:
    """A commit of another process makes the block fail, and explains errors of SQLite in it."""
    path = dead("wal")
    with pytest.raises(ChangedWhileRead, match=r"a\.db-wal") as caught:
        _commit_during_a_block(path, raised)
    assert type(caught.value.__cause__) is (raised or type(None))
    assert values(path) == [1, 2, 4]


def test_a_wal_that_appears_is_a_change(dead: Callable[[str], Path]) -> None:
    """A file that was not there counts, and an exception that is not SQLite's is raised on."""
    path = dead("rollback")
    with pytest.raises(ChangedWhileRead), open_at_rest(path):
        beside(path, "-wal").touch()
    with pytest.raises(KeyError):
        _remove_wal_and_raise(path)


def _remove_wal_and_raise(path: Path) -> None:
    with open_at_rest(path):
        beside(path, "-wal").unlink()
        raise KeyError


def test_a_journal_that_is_needed_is_refused(dead: Callable[[str], Path]) -> None:
    """Only a recovery, which writes, could undo what the main file has of an open transaction."""
    path = dead("hot")
    before = picture(path.parent)
    with pytest.raises(NeedsRecovery) as caught:
        values(path)
    assert caught.value.path == beside(path, "-journal")
    assert picture(path.parent) == before
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with closing(apsw.Connection(f"{path.as_uri()}?immutable=1", flags=flags)) as trusting:
        assert read_values(trusting) != [1, 2]


def test_a_wal_beside_a_database_in_rollback_mode_is_refused(dead: Callable[[str], Path]) -> None:
    """A stale WAL would undo later commits, as SQLite lets it; a bare header is nothing."""
    path = dead("wal")
    stale = beside(path, "-wal").read_bytes()
    beside(path, "-wal").unlink()
    finish(start(path, "do('PRAGMA journal_mode=DELETE'); do('INSERT INTO t VALUES(7, 0)')"))
    beside(path, "-wal").write_bytes(stale[:32])
    assert values(path) == [1, 7]
    beside(path, "-wal").write_bytes(stale)
    with pytest.raises(ModesDisagree):
        values(path)
    with closing(apsw.Connection(str(path))) as trusting:
        assert read_values(trusting) == [1, 2]


def _folder(path: Path) -> None:
    path.mkdir()


_WRONG: dict[str, tuple[Callable[[Path], object], type[AtRestError]]] = {
    "missing": (lambda path: None, DatabaseMissing),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), DatabaseMissing),
    "a link to itself": (lambda path: path.symlink_to(path), CannotRead),
    "a folder": (_folder, NotADatabase),
    "a pipe": (os.mkfifo, CannotRead),
    "empty": (Path.touch, NotADatabase),
    "text": (lambda path: path.write_text("text " * 50), NotADatabase),
    "a header cut off": (lambda path: path.write_bytes(b"SQLite format 3\0"), NotADatabase),
    "a header of zeros": (
        lambda path: path.write_bytes(b"SQLite format 3\0".ljust(4096, b"\0")),
        NotADatabase,
    ),
}


@pytest.mark.parametrize("what", _WRONG)
def test_what_is_no_database_is_named(what: str, tmp_path: Path) -> None:
    """Each thing that is not a database has a type, and its message the path and a next step."""
    make, expected = _WRONG[what]
    path = tmp_path / "a.db"
    make(path)
    with pytest.raises(expected) as caught:
        values(path)
    assert caught.value.path == path
    assert repr(str(path)) in str(caught.value)
    assert "; expected " in str(caught.value)


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    """A pipe is refused unopened, since its writer would notice."""
    os.mkfifo(tmp_path / "a.db")
    with watched(tmp_path) as events, pytest.raises(CannotRead, match="not a regular file"):
        values(tmp_path / "a.db")
    assert events == []


def test_a_path_that_cannot_be_one_is_named(dead: Callable[[str], Path]) -> None:
    """A file as a folder, a zero byte, bytes that are no text, and a folder as WAL are refused."""
    path = dead("rollback")
    strange = path.with_name(os.fsdecode(b"\xff.db"))
    shutil.copy(path, strange)
    beside(path, "-wal").mkdir()
    for wrong in (path / "a.db", path.with_name("a\0b"), strange, path):
        with pytest.raises((DatabaseMissing, CannotRead)):
            values(wrong)


def test_errors_keep_their_facts() -> None:
    """Pickling keeps type, attributes and message."""
    error = StillOpen(Path("/a"), 7)
    for known in (error, StillOpen(Path("/a"), None), CannotRead(Path("/a"), "why")):
        again = pickle.loads(pickle.dumps(known))
        assert (type(again), str(again), vars(again)) == (type(known), str(known), vars(known))
    assert (error.path, error.pid) == (Path("/a"), 7)
