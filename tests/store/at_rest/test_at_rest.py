"""Reading a dead process's database: its last commit is seen, and nothing beside it changes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from dead_databases import (
    OPENED,
    beside,
    changes,
    picture,
    read_values,
    values,
    watched,
)

from store import at_rest
from store.at_rest import (
    open_at_rest,
)
from store.sqlite import rows


def _plain(path: Path, *, vfs: str, exclusive: bool) -> None:
    """Read as one would without this module: read-only, no checkpoint at the end."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)) as opened:
        opened.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if exclusive:
            rows(opened, "PRAGMA locking_mode=EXCLUSIVE")
        assert read_values(opened) == [1, 2]


def test_what_is_only_in_the_wal_is_seen(dead: Callable[[str], Path]) -> None:
    """A committed row that no checkpoint has moved is read; the main file alone lacks it."""
    path = dead("wal")
    assert values(path) == [1, 2]
    beside(path, "-wal").unlink()
    assert values(path) == [1]


def test_a_transaction_cut_short_is_not_seen(dead: Callable[[str], Path]) -> None:
    """Frames without a commit are in the WAL, and the database reads as before them."""
    path = dead("wal")
    assert beside(path, "-wal").stat().st_size > 20 * 4096, "nothing was spilled"
    assert values(path) == [1, 2]


@pytest.mark.parametrize("change", ["garbage", "half a frame", "no commit", "no frame", "nonsense"])
def test_a_torn_wal_reads_as_the_last_whole_commit(
    change: str, dead: Callable[[str], Path]
) -> None:
    """Whatever is behind the last valid commit, or instead of it, is left out and left alone."""
    path, frame = dead("wal"), 24 + 4096
    wal = beside(path, "-wal")
    whole = wal.read_bytes()
    torn, expected = {
        "garbage": (whole + b"\xa5" * 5000, [1, 2]),
        "half a frame": (whole[: 32 + frame + 1000], [1, 2]),
        "no commit": (whole[: 32 + frame - 1], [1]),
        "no frame": (whole[:32], [1]),
        "nonsense": (b"\xa5" * 9000, [1]),
    }[change]
    wal.write_bytes(torn)
    before = picture(path.parent)
    assert values(path) == expected
    assert picture(path.parent) == before


@pytest.mark.parametrize("suffix", ["-wal", "-shm", ""])
@pytest.mark.parametrize("kind", ["wal", "rollback", "cold"])
def test_nothing_changes(kind: str, suffix: str, dead: Callable[[str], Path]) -> None:
    """No byte, time or name changes and nothing is opened for writing, whatever is missing."""
    path = dead(kind)
    if suffix:
        beside(path, suffix).unlink(missing_ok=True)
    before = picture(path.parent)
    with watched(path.parent) as events:
        assert values(path) == ([1] if (kind, suffix) == ("wal", "-wal") else [1, 2])
    assert (OPENED, "a.db") in events
    assert changes(events) == set()
    assert picture(path.parent) == before


@pytest.mark.parametrize(
    ("vfs", "exclusive", "caught"),
    [
        ("unix", False, {"a.db-wal", "a.db-shm"}),
        ("unix-none", True, {"a.db-wal"}),
    ],
)
def test_a_plain_read_only_open_would_be_noticed(
    vfs: str, exclusive: bool, caught: set[str], dead: Callable[[str], Path]
) -> None:
    """SQLite's own read-only mode opens the WAL for writing, and the watch says so."""
    path = dead("wal")
    with watched(path.parent) as events:
        _plain(path, vfs=vfs, exclusive=exclusive)
    assert changes(events) == caught


def test_a_plain_close_would_be_noticed(dead: Callable[[str], Path]) -> None:
    """The picture tells this module from an ordinary connection, which checkpoints at its end."""
    path = dead("wal")
    before = picture(path.parent)
    with closing(apsw.Connection(str(path))) as opened:
        assert read_values(opened) == [1, 2]
    assert picture(path.parent).keys() == {".", "a.db"}
    assert picture(path.parent)["a.db"] != before["a.db"]


def test_a_vfs_that_opens_to_write_would_be_noticed(
    dead: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the VFS's one constant both files are opened for writing, and the watch says so."""
    monkeypatch.setattr(
        at_rest, "_READ_ONLY", apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_MAIN_DB
    )
    path = dead("wal")
    with watched(path.parent) as events:
        assert values(path) == [1, 2]
    assert changes(events) == {"a.db", "a.db-wal"}


@pytest.mark.skipif(os.geteuid() != 0, reason="SQLite changes an owner only for root")
def test_a_vfs_that_lets_sqlite_change_the_owner_would_be_noticed(
    dead: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SQLite knows to be a WAL it gives, for root, to the owner of the database."""
    monkeypatch.setattr(at_rest, "_READ_ONLY", apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_WAL)
    path = dead("wal")
    os.chown(beside(path, "-wal"), 65534, 65534)
    with watched(path.parent) as events:
        assert values(path) == [1, 2]
    assert changes(events) == {"a.db-wal"}
    assert beside(path, "-wal").stat().st_uid == 0


def test_every_descriptor_is_read_only(dead: Callable[[str], Path]) -> None:
    """While the connection is open the kernel knows two descriptors, both without write access."""
    path = dead("wal")
    with open_at_rest(path) as connection:
        assert read_values(connection) == [1, 2]
        assert _modes(path.parent) == {"a.db": os.O_RDONLY, "a.db-wal": os.O_RDONLY}
    assert _modes(path.parent) == {}


def _modes(folder: Path) -> dict[str, int]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        target = entry.readlink() if entry.is_symlink() else Path()
        if target.parent == folder:
            found[target.name] = fcntl.fcntl(int(entry.name), fcntl.F_GETFL) & os.O_ACCMODE
    return found


def test_the_vfs_passes_on_no_writable_open(
    dead: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite asks to write and create the WAL; what reaches the file system is read-only."""
    asked: dict[str, tuple[int, int]] = {}

    class Recording(at_rest._ReadOnlyVFS):
        def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
            before = flags[0]
            opened = super().xOpen(name, flags)
            plain = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
            asked[Path(plain).name] = (before & 7, flags[0] & 7)
            return opened

    monkeypatch.setattr(at_rest, "_ReadOnlyVFS", Recording)
    assert values(dead("wal")) == [1, 2]
    read, write, create = 1, 2, 4
    assert asked == {"a.db": (read, read), "a.db-wal": (write | create, read)}


_REFUSED = {
    "INSERT INTO t VALUES(9, '')": apsw.ReadOnlyError,
    "PRAGMA user_version=9": apsw.ReadOnlyError,
    "PRAGMA wal_checkpoint(TRUNCATE)": apsw.ReadOnlyError,
    "PRAGMA journal_mode=DELETE": apsw.ReadOnlyError,
    "VACUUM": apsw.ReadOnlyError,
    "VACUUM INTO 'FOLDER/copy.db'": apsw.CantOpenError,
    "ATTACH 'FOLDER/other.db' AS other": apsw.CantOpenError,
    "ATTACH 'FOLDER/new.db' AS other": apsw.CantOpenError,
}


@pytest.mark.parametrize("sql", sorted(_REFUSED))
def test_statements_that_write_are_refused(sql: str, dead: Callable[[str], Path]) -> None:
    """Neither rows, nor settings, nor checkpoints, nor new files beside it come through."""
    path = dead("wal")
    with closing(apsw.Connection(str(path.with_name("other.db")))) as other:
        rows(other, "CREATE TABLE k(x)")
    before = picture(path.parent)
    with (
        watched(path.parent) as events,
        open_at_rest(path) as connection,
        pytest.raises(_REFUSED[sql]),
    ):
        rows(connection, sql.replace("FOLDER", str(path.parent)))
    assert changes(events) == set()
    assert picture(path.parent) == before


def test_the_vfs_deletes_nothing(dead: Callable[[str], Path]) -> None:
    """SQLite has no reason to delete a file of a database that was judged, and could not."""
    path = dead("wal")
    vfs = at_rest._ReadOnlyVFS(str(path), is_immutable=False)
    with pytest.raises(apsw.ReadOnlyError):
        vfs.xDelete(str(beside(path, "-wal")), False)
    assert beside(path, "-wal").exists()


def test_temporary_files_stay_possible(dead: Callable[[str], Path]) -> None:
    """A temporary table that outgrows its cache goes to a file elsewhere, and is read back."""
    path = dead("wal")
    numbers = "WITH n(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM n WHERE x < 500)"
    with watched(path.parent) as events, open_at_rest(path) as connection:
        rows(connection, "PRAGMA temp.cache_size=5")
        rows(connection, f"CREATE TEMP TABLE big AS {numbers} SELECT x, zeroblob(2000) FROM n")
        assert rows(connection, "SELECT sum(x) FROM big") == [(125250,)]
        targets = [str(e.readlink()) for e in Path("/proc/self/fd").iterdir() if e.is_symlink()]
        assert any(target.endswith("(deleted)") for target in targets)
    assert changes(events) == set()


def test_several_readers_at_once(dead: Callable[[str], Path]) -> None:
    """Threads that have the database open at the same moment all read it."""
    path, found = dead("wal"), []
    together = threading.Barrier(3)

    def read() -> None:
        with open_at_rest(path) as connection:
            together.wait(timeout=60)
            found.append(read_values(connection))
            together.wait(timeout=60)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1, 2]] * 3


def test_the_question_of_another_reader_is_no_use(dead: Callable[[str], Path]) -> None:
    """The lease by which another thread asks who else is there keeps nobody from reading."""
    path = dead("wal")
    with path.open("rb") as other:
        try:
            fcntl.fcntl(other, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError as error:
            pytest.skip(f"this file system has no leases: {error}")
        assert values(path) == [1, 2]


def test_links_are_followed(dead: Callable[[str], Path], tmp_path: Path) -> None:
    """Through a link the WAL is found, which lies beside the file and not beside the link."""
    (tmp_path / "link").symlink_to(dead("wal"))
    assert values(tmp_path / "link") == [1, 2]


def test_no_vfs_stays_registered(dead: Callable[[str], Path]) -> None:
    """After the block SQLite knows the file systems that it knew before."""
    before = apsw.vfs_names()
    assert values(dead("wal")) == [1, 2]
    assert apsw.vfs_names() == before


def test_opening_reads_little_of_a_large_database(tmp_path: Path) -> None:
    """32 MiB of content are not read when the database is opened."""
    path = tmp_path / "a.db"
    with closing(apsw.Connection(str(path))) as made:
        rows(made, "PRAGMA journal_mode=WAL; CREATE TABLE t(x, y)")
        rows(made, "INSERT INTO t VALUES(1, zeroblob(33554432))")
    before = _characters_read()
    assert values(path) == [1]
    assert path.stat().st_size > 1 << 25
    assert _characters_read() - before < 1 << 18


def _characters_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


_UNPRIVILEGED = """
import ctypes, pathlib, struct, sys
from store.at_rest import AtRestError, open_at_rest
assert ctypes.CDLL(None).capset(struct.pack("Ii", 0x20080522, 0), bytes(24)) == 0
path = pathlib.Path(sys.argv[1])
for refused in (lambda: path.open("r+b"), path.with_name("new").touch):
    try: refused()
    except PermissionError: continue
    sys.exit("it can be written")
try:
    with open_at_rest(path) as c: print(c.execute("SELECT group_concat(x) FROM t").get)
except AtRestError as error: print(type(error).__name__, error.path.name)
"""


@pytest.mark.parametrize(
    ("unreadable", "expected"),
    [("", "1,2"), *((f"a.db{end}", f"CannotRead a.db{end}") for end in ("", "-wal", "-shm"))],
)
def test_files_that_cannot_be_written_are_read(
    unreadable: str, expected: str, dead: Callable[[str], Path]
) -> None:
    """Without any right to write it works; without the right to read the file is named."""
    folder = dead("wal").parent
    for path in folder.iterdir():
        path.chmod(0 if path.name == unreadable else 0o444)
    folder.chmod(0o555)
    before = None if unreadable else picture(folder)
    run = [sys.executable, "-c", _UNPRIVILEGED, str(folder / "a.db")]
    root = Path(at_rest.__file__).parents[1]
    answer = subprocess.run(run, check=True, capture_output=True, text=True, cwd=root)
    folder.chmod(0o755)
    assert answer.stdout.strip() == expected
    folder.chmod(0o555)
    assert before is None or picture(folder).keys() == before.keys()
    folder.chmod(0o755)
