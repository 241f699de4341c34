"""
Launch logs: the file in which a running job shows that it is alive.

A log's name and first bytes are durable before a run may name it, so a missing log always means
that somebody removed it. Each line is synced: its time is what reconciliation looks at.
"""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path

from store import durability
from store.metabolism.arguments import text
from store.metabolism.errors import LogRefused

__all__ = ["append_log", "create_log", "log_file"]


def log_file(folder: Path, log_path: str) -> Path:
    """
    Return where a recorded *log_path* lies: below the database's *folder*, or where it says.
    """
    return folder / log_path


def create_log(folder: Path, log_path: str, *, first_line: str = "started") -> Path:
    """
    Make a new launch log and return its path.

    Args:
        folder: The database's folder, so that both can be moved together.
        log_path: As `start_run` will record it; its folder is made if it is missing.
    Durable: after success: the folders, the file's name and its first line. After an error or a
        crash inside: perhaps an empty or unnamed file, which no run names yet.
    Raises:
        NotText: *log_path* or *first_line* is no text.
        LogRefused: the file exists, or cannot be made.
        store.durability.SyncFailed: it could not be synced.
    """
    path = log_file(folder, text("log_path", log_path))
    text("first_line", first_line)
    try:
        _make_folder(path.parent)
        with open(path, "xb", buffering=0) as file:
            _write_line(file, path, first_line)
    except OSError as error:
        raise LogRefused(str(path), f"it cannot be made: {error.strerror}") from error
    durability.sync_directory(path.parent)
    return path


def append_log(path: Path, line: str) -> None:
    """
    Add one line to a launch log, which must exist.

    Durable: after success: the line. After an error or a crash inside: none of it, a part, or all.
    Raises:
        NotText: *line* is no text.
        LogRefused: there is no such file, or it cannot be written.
        store.durability.SyncFailed: it could not be synced.
    """
    text("line", line)
    try:
        # Not "a": that would make a missing log, which is what reconciliation must see.
        with open(path, "r+b", buffering=0) as file:
            if file.seek(0, os.SEEK_END) and not _ends_a_line(file):
                line = f"\n{line}"  # a crash cut the last line: the new one is one of its own
            _write_line(file, path, line)
    except OSError as error:
        raise LogRefused(str(path), f"it cannot be written: {error.strerror}") from error


def _ends_a_line(file: FileIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _write_line(file: FileIO, path: Path, line: str) -> None:
    rest = memoryview(f"{line}\n".encode())
    while rest:
        rest = rest[file.write(rest) :]
    durability.sync_file(path, descriptor=file.fileno())


def _make_folder(folder: Path) -> None:
    """Make what is missing of *folder*, each name durable in its parent."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        durability.sync_directory(path.parent)
