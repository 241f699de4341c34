"""Launch logs: durable before a run names them, one line at a time, and never made by appending."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metabolism_world import NOT_TEXTS, NOW, claimed

from store import crash_points, durability
from store.metabolism import append_log, connect, create_log, start_run
from store.metabolism.errors import LogRefused, NotText
from store.metabolism.launch_log import log_file


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bytes | None]]:
    """Return what is synced from here on: the kind, the name, and what a file held by then."""
    found: list[tuple[str, str, bytes | None]] = []

    def observe(kind: str, phase: str, *names: str) -> None:
        if phase == "after":
            path = Path(names[0])
            found.append((kind, names[0], path.read_bytes() if path.is_file() else None))

    monkeypatch.setattr(crash_points, "_observer", observe)
    return found


def test_a_new_log_is_durable_with_its_name(
    tmp_path: Path, synced: list[tuple[str, str, bytes | None]]
) -> None:
    """MR-031: first line and name are synced, in this order, each new folder's name before."""
    path = create_log(tmp_path, "logs/deep/1.log")
    assert path == tmp_path / "logs/deep/1.log"
    assert synced == [
        ("directory_sync", str(tmp_path), None),
        ("directory_sync", str(tmp_path / "logs"), None),
        ("file_sync", str(path), b"started\n"),
        ("directory_sync", str(tmp_path / "logs/deep"), None),
    ]


def test_each_line_is_synced(tmp_path: Path, synced: list[tuple[str, str, bytes | None]]) -> None:
    """MR-031: an appended line is durable when the call returns, after the ones before it."""
    path = create_log(tmp_path, "1.log", first_line="begun")
    synced.clear()
    append_log(path, "one")
    append_log(path, "zwei ü")
    assert synced == [
        ("file_sync", str(path), b"begun\none\n"),
        ("file_sync", str(path), "begun\none\nzwei ü\n".encode()),
    ]


def test_appending_shows_life(tmp_path: Path) -> None:
    """MR-031: a line gives the log a new time of writing, which is what reconciliation reads."""
    path = create_log(tmp_path, "1.log")
    os.utime(path, ns=(5, 5))
    append_log(path, "alive")
    assert path.stat().st_mtime_ns > 5


@pytest.mark.parametrize("left", [b"", b"sta", b"started\n\xff", b"started"])
def test_a_line_that_a_crash_cut_stays_apart(tmp_path: Path, left: bytes) -> None:
    """MR-031: the next line begins a line of its own, and what was cut is kept as it is."""
    path = tmp_path / "1.log"
    path.write_bytes(left)
    append_log(path, "after")
    assert path.read_bytes() == left + (b"\n" if left else b"") + b"after\n"


def test_appending_makes_no_log(tmp_path: Path) -> None:
    """MR-031: a log that somebody removed stays missing, for reconciliation to see."""
    path = create_log(tmp_path, "1.log")
    path.unlink()
    with pytest.raises(LogRefused, match="it cannot be written: No such file") as caught:
        append_log(path, "alive")
    assert caught.value.path == str(path)
    assert list(tmp_path.iterdir()) == []


def test_a_log_is_never_made_twice(tmp_path: Path) -> None:
    """MR-031: a name that is taken is refused, and what is there stays."""
    path = create_log(tmp_path, "1.log")
    append_log(path, "alive")
    with pytest.raises(LogRefused, match="it cannot be made: File exists"):
        create_log(tmp_path, "1.log", first_line="other")
    assert path.read_bytes() == b"started\nalive\n"


def _a_folder(path: Path) -> Path:
    path.mkdir()
    return path


def _below_a_file(path: Path) -> Path:
    path.touch()
    return path / "1.log"


def _too_long(path: Path) -> Path:
    return path.with_name("x" * 300)


def _behind_a_loop(path: Path) -> Path:
    path.symlink_to(path)
    return path / "1.log"


def _a_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


PLACES = (_a_folder, _below_a_file, _too_long, _behind_a_loop, _a_pipe)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__.strip("_"))
def test_where_no_log_can_be_is_refused(place: Callable[[Path], Path], tmp_path: Path) -> None:
    """MR-031: neither made nor written, with the name and the reason."""
    path = place(tmp_path / "here")
    operations: list[Callable[[], object]] = [
        lambda: create_log(tmp_path, str(path.relative_to(tmp_path))),
        lambda: append_log(path, "x"),
    ]
    for operation in operations:
        with pytest.raises(LogRefused) as caught:
            operation()
        assert caught.value.path == str(path)
        assert caught.value.problem.rpartition(": ")[2] not in ("", "None")


def test_a_failed_sync_is_not_taken_for_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MR-031: where the sync fails the caller hears it, and the line may or may not be there."""
    path = create_log(tmp_path, "1.log")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(durability.SyncFailed):
        append_log(path, "alive")
    with pytest.raises(durability.SyncFailed):
        create_log(tmp_path, "2.log")


def test_a_relative_name_lies_below_the_folder(tmp_path: Path) -> None:
    """MR-031: so the database and its logs can be moved together; an absolute name stays."""
    assert log_file(tmp_path, "logs/1.log") == tmp_path / "logs/1.log"
    assert log_file(Path("/elsewhere"), str(tmp_path / "1.log")) == tmp_path / "1.log"


def test_a_run_names_the_log_as_it_was_made(tmp_path: Path) -> None:
    """MR-016, MR-031: the recorded path finds the log again from the database's folder."""
    connection = connect(tmp_path / "a.sqlite3")
    path = create_log(tmp_path, "logs/1.log")
    run = start_run(connection, claimed(connection), log_path="logs/1.log", now_ns=NOW)
    connection.close()
    assert run.log_path is not None
    assert log_file(tmp_path, run.log_path) == path


@pytest.mark.parametrize("value", NOT_TEXTS, ids=range(len(NOT_TEXTS)))
def test_what_is_no_text_is_no_line(value: Any, tmp_path: Path) -> None:
    """MR-031: names and lines are texts; nothing is made or written for anything else."""
    path = create_log(tmp_path, "1.log")
    operations: list[tuple[str, Callable[[], object]]] = [
        ("log_path", lambda: create_log(tmp_path, value)),
        ("first_line", lambda: create_log(tmp_path, "2.log", first_line=value)),
        ("line", lambda: append_log(path, value)),
    ]
    for name, operation in operations:
        with pytest.raises(NotText) as caught:
            operation()
        assert caught.value.name == name
    assert [found.name for found in tmp_path.iterdir()] == ["1.log"]
    assert path.read_bytes() == b"started\n"
