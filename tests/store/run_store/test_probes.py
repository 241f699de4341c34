"""What a filesystem must show before a database is opened on it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from store import crash_points, durability, sqlite
from store.run_store import probes
from store.run_store.errors import ProbeFailed
from store.run_store.opening import open_database

FOLDER = ".run-store-probe-0001"


def _listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(crash_points, "_observer", lambda *call: calls.append(call))
    return calls


def _refusal(root: Path) -> ProbeFailed:
    """Open *root*, which must be refused by a probe, with no database and no folder left."""
    with pytest.raises(ProbeFailed) as caught:
        open_database(root)
    assert _listing(root) == [".run-store-init.lock"], "a refused root holds nothing but the lock"
    assert caught.value.root == root.resolve()
    assert caught.value.__cause__ is not None
    return caught.value


def test_every_open_probes_before_the_database_is_opened(
    tmp_path: Path, seen: list[tuple[str, ...]]
) -> None:
    """RS-027: on first and later opens every probe ends before SQLite touches the database."""

    def opened(connection: apsw.Connection) -> None:
        seen.append(("opened", Path(connection.filename).name))

    apsw.connection_hooks.append(opened)
    try:
        for _ in range(2):
            seen.clear()
            connection, _ = open_database(tmp_path)
            connection.close()
            end = seen.index(("point", "after", "open.run_probes"))
            assert seen[0] == ("point", "before", "open.run_probes")
            assert seen[:end].count(("opened", "probe.sqlite3")) == 2
            assert ("opened", "run.sqlite3") in seen[end:]
            assert ("opened", "run.sqlite3") not in seen[:end]
    finally:
        apsw.connection_hooks.remove(opened)


def test_syncs_and_renames_come_in_one_fixed_order(
    tmp_path: Path, seen: list[tuple[str, ...]]
) -> None:
    """RS-030, RS-031, RS-033: file, its folders; two refusals, one move, its parent; the root."""
    folder = tmp_path / FOLDER
    probes.run(tmp_path)
    taken = [
        ("rename", "before", str(folder / "source"), str(folder / name))
        for name in ("full", "empty", "moved")
    ]
    assert [call for call in seen if call[1] == "before"] == [
        ("file_sync", "before", str(folder / "synced")),
        ("directory_sync", "before", str(folder)),
        ("directory_sync", "before", str(tmp_path)),
        *taken,
        ("directory_sync", "before", str(folder)),
        ("directory_sync", "before", str(tmp_path)),
    ]
    assert [call[3] for call in seen if call[:2] == ("rename", "after")] == [str(folder / "moved")]


def test_the_folder_is_gone_before_the_root_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-033: the last thing that the probes do is to make their own removal durable."""
    listings: list[list[str]] = []

    def look(kind: str, phase: str, /, *names: str) -> None:
        if (kind, names) == ("directory_sync", (str(tmp_path),)):
            listings.append(_listing(tmp_path))

    monkeypatch.setattr(crash_points, "_observer", look)
    probes.run(tmp_path)
    assert listings == [[FOLDER], [FOLDER], [], []]


def test_the_same_open_leaves_the_same_trace(tmp_path: Path, seen: list[tuple[str, ...]]) -> None:
    """Probe folders are numbered, so two opens of one root announce the same paths."""
    runs = []
    for _ in range(2):
        seen.clear()
        probes.run(tmp_path)
        runs.append(list(seen))
    assert runs[0] == runs[1]
    assert len(runs[0]) > 10


@pytest.mark.parametrize(
    ("granted", "reason"),
    [(True, "granted a second time"), (False, "a free file lock was refused")],
)
def test_file_locks_that_exclude_nobody_are_refused(
    granted: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-028: descriptors that do not exclude each other, or cannot lock, refuse the root."""
    monkeypatch.setattr(probes, "_flock", lambda descriptor: granted)
    refused = _refusal(tmp_path)
    assert refused.probe == "file_locks"
    assert reason in refused.reason


def test_file_locks_that_stay_held_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-028: a lock that cannot be taken again after its release refuses the root."""
    real = fcntl.flock
    folder = tmp_path / FOLDER

    def keep(descriptor: int, operation: int) -> None:
        if operation != fcntl.LOCK_UN or not folder.exists():
            real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", keep)
    refused = _refusal(tmp_path)
    assert (refused.probe, "released" in refused.reason) == ("file_locks", True)


def test_record_locks_that_exclude_nobody_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-029: a child that gets a lock which its parent holds refuses the root."""
    monkeypatch.setattr(fcntl, "lockf", lambda descriptor, operation: None)
    refused = _refusal(tmp_path)
    assert (refused.probe, "not refused" in refused.reason) == ("record_locks", True)


def test_record_locks_that_stay_held_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-029: a child that cannot lock after its parent's release refuses the root."""
    real = fcntl.lockf

    def keep(descriptor: int, operation: int) -> None:
        if operation != fcntl.LOCK_UN:
            real(descriptor, operation)

    monkeypatch.setattr(fcntl, "lockf", keep)
    refused = _refusal(tmp_path)
    assert (refused.probe, "could not take" in refused.reason) == ("record_locks", True)


def test_a_process_that_cannot_fork_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-029: no child, no proof: a failed fork refuses the root."""

    def fail() -> int:
        raise OSError(errno.EAGAIN, "injected")

    monkeypatch.setattr(os, "fork", fail)
    refused = _refusal(tmp_path)
    assert (refused.probe, "injected" in refused.reason) == ("record_locks", True)


def _killed(descriptor: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("survived SIGKILL")


def _interrupted(descriptor: int) -> int:
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", [_killed, _interrupted])
def test_a_child_that_ends_otherwise_is_refused(
    end: Callable[[int], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-029: a child that was killed, or raised, proves nothing, and never returns to our code."""
    monkeypatch.setattr(probes, "_lock_once", end)
    parent = os.getpid()
    assert _refusal(tmp_path).probe == "record_locks"
    assert os.getpid() == parent


def test_every_child_is_reaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RS-029: two children are forked, one refused and one granted, and none is left behind."""
    children: list[int] = []
    ended: list[int] = []
    real_fork, real_locks = probes._fork, probes._child_locks

    def fork() -> int:
        child = real_fork()
        if child:
            children.append(child)
        return child

    def locks(descriptor: int) -> int:
        ended.append(real_locks(descriptor))
        return ended[-1]

    monkeypatch.setattr(probes, "_fork", fork)
    monkeypatch.setattr(probes, "_child_locks", locks)
    probes.run(tmp_path)
    assert ended == [probes._REFUSED, probes._TAKEN]
    assert len(children) == 2
    for child in children:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


@pytest.mark.parametrize("failing", range(5))
def test_a_sync_that_fails_is_refused(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-030, RS-031, RS-035: whichever of the five syncs fails, the root is refused."""
    real, calls = os.fsync, []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == failing + 1:
            raise OSError(errno.EIO, "injected")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    refused = _refusal(tmp_path)
    assert refused.probe == ["syncs", "syncs", "syncs", "rename", "sync_root"][failing]
    assert len(calls) == failing + 1, "nothing is synced after a failed sync"


@pytest.mark.parametrize("replaced", ["full", "empty"])
def test_a_rename_that_replaces_is_refused(
    replaced: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-031: a rename that takes the name of a folder, full or empty, refuses the root."""
    real = durability._no_replace()
    assert real is not None

    def rename(source: bytes, destination: bytes) -> int:
        path = Path(os.fsdecode(destination))
        if path.name == replaced:
            for child in path.iterdir():
                child.unlink()
            Path(os.fsdecode(source)).rename(path)
            return 0
        return real(source, destination)

    monkeypatch.setattr(durability, "_no_replace", lambda: rename)
    refused = _refusal(tmp_path)
    assert (refused.probe, f"replaced the {replaced}" in refused.reason) == ("rename", True)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("touches the destination", "changed a folder"),
        ("touches the source", "changed a folder"),
        ("loses the payload", "lost or changed"),
        ("copies", "lost or changed"),
    ],
)
def test_a_rename_that_changes_a_folder_is_refused(
    broken: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-031: a refusal must change neither folder, and a success must keep the payload."""
    real = durability._no_replace()
    assert real is not None

    def rename(source: bytes, destination: bytes) -> int:
        number = real(source, destination)
        if broken == "touches the destination" and number:
            (Path(os.fsdecode(destination)) / "new").touch()
        elif broken == "touches the source" and number:
            (Path(os.fsdecode(source)) / "payload").unlink()
        elif broken == "loses the payload" and not number:
            (Path(os.fsdecode(destination)) / "payload").write_bytes(b"")
        elif broken == "copies" and not number:
            Path(os.fsdecode(source)).mkdir()
        return number

    monkeypatch.setattr(durability, "_no_replace", lambda: rename)
    refused = _refusal(tmp_path)
    assert (refused.probe, reason in refused.reason) == ("rename", True)


def test_a_platform_without_the_rename_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-036: without a no-replace rename there is no store."""
    monkeypatch.setattr(durability, "_no_replace", lambda: None)
    refused = _refusal(tmp_path)
    assert refused.probe == "rename"
    assert isinstance(refused.__cause__, durability.NoReplaceUnsupported)


SUBSTITUTES = {
    "no exclusion": ("second", "BEGIN IMMEDIATE", "SELECT 1", "write lock at once"),
    "no write lock": ("first", "BEGIN IMMEDIATE", "SELECT 1", "write lock at once"),
    "lost commit": ("first", "COMMIT", "ROLLBACK", "committed row was not visible"),
    "lost rollback": ("second", "ROLLBACK", "COMMIT", "rolled back row was visible"),
    "no STRICT": ("first", ") STRICT", ")", "text in an INTEGER column"),
    "no JSON check": ("first", "CHECK(json_valid(note))", "", "not JSON was accepted"),
    "no checkpoint": ("first", "PRAGMA wal_checkpoint(FULL)", "SELECT 0, 4, 3", "moved 3 of 4"),
    "busy checkpoint": ("first", "PRAGMA wal_checkpoint(FULL)", "SELECT 1, 4, 4", "busy=1"),
    "no WAL content": ("first", "PRAGMA wal_checkpoint(FULL)", "SELECT 0, 0, 0", "moved 0 of 0"),
}


@pytest.mark.parametrize("case", SUBSTITUTES)
def test_an_sqlite_that_breaks_a_promise_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-020, RS-032: each promise that the store takes from SQLite is checked by the probe."""
    who, old, new, reason = SUBSTITUTES[case]
    connections: list[apsw.Connection] = []
    replaced = []

    def rows(connection: apsw.Connection, sql: str) -> list[tuple[Any, ...]]:
        if connection not in connections:
            connections.append(connection)
        mine = connections.index(connection) == ("first", "second").index(who)
        if mine and old in sql:
            replaced.append(sql)
            sql = sql.replace(old, new)
        return sqlite.rows(connection, sql)

    monkeypatch.setattr(probes, "rows", rows)
    refused = _refusal(tmp_path)
    assert (refused.probe, reason in refused.reason) == ("sqlite", True), refused.reason
    assert replaced, "nothing was broken"


def test_uncommitted_rows_that_show_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-032: a second connection that sees what the first has not committed refuses the root."""
    first: list[apsw.Connection] = []

    def rows(connection: apsw.Connection, sql: str) -> list[tuple[Any, ...]]:
        first.append(connection)
        return sqlite.rows(first[0] if sql.startswith("SELECT") else connection, sql)

    monkeypatch.setattr(probes, "rows", rows)
    assert "uncommitted" in _refusal(tmp_path).reason


def test_a_filesystem_without_wal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-035: where SQLite stays in another journal mode there is no fallback to that mode."""

    def refuse(connection: apsw.Connection) -> None:
        raise sqlite.SettingRefused("journal_mode", "wal", "delete")

    monkeypatch.setattr(probes, "apply_journal_mode", refuse)
    refused = _refusal(tmp_path)
    assert refused.probe == "sqlite"
    assert isinstance(refused.__cause__, sqlite.SettingRefused)


def test_a_root_where_no_folder_can_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-035: a root that takes no new folder is refused, with the cause."""

    def fail(path: Path) -> None:
        raise PermissionError(errno.EACCES, "injected")

    monkeypatch.setattr(Path, "mkdir", fail)
    assert _refusal(tmp_path).probe == "make_folder"


def test_leftover_folders_are_removed(tmp_path: Path) -> None:
    """RS-040: what an interrupted probe left, nested and with links, is gone after an open."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    root = tmp_path / "root"
    for name in (FOLDER, ".run-store-probe-0007"):
        (root / name / "source").mkdir(parents=True)
        (root / name / "source" / "payload").touch()
        (root / name / "link").symlink_to(outside)
    connection, _ = open_database(root)
    connection.close()
    assert _listing(root) == [".run-store-init.lock", "run.sqlite3"]
    assert _listing(outside) == ["kept"], "a link was followed"


def test_a_leftover_that_cannot_be_removed_is_in_nobody_s_way(
    tmp_path: Path, seen: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-040: the probes then use the next free number, and the open succeeds."""
    stuck = tmp_path / FOLDER
    stuck.mkdir()
    real = Path.rmdir

    def rmdir(path: Path) -> None:
        if path == stuck:
            raise PermissionError(errno.EACCES, "injected")
        real(path)

    monkeypatch.setattr(Path, "rmdir", rmdir)
    connection, _ = open_database(tmp_path)
    connection.close()
    assert _listing(tmp_path) == [".run-store-init.lock", FOLDER, "run.sqlite3"]
    assert ("file_sync", "before", str(tmp_path / ".run-store-probe-0002" / "synced")) in seen


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_name_like_a_probe_folder_s_is_left_alone(kind: str, tmp_path: Path) -> None:
    """RS-040: a file or link of that name is kept, not followed, and stepped over."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "kept").touch()
    odd = root / FOLDER
    odd.touch() if kind == "file" else odd.symlink_to(outside)
    connection, _ = open_database(root)
    connection.close()
    assert _listing(root) == [".run-store-init.lock", FOLDER, "run.sqlite3"]
    assert _listing(outside) == ["kept"]
