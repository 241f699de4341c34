"""
SQLite's own checks of every database in a tree, on a copy, in a process of its own.

Covered: integrity check and foreign-key check of each file with SQLite's header.
Not covered: what the check cannot read, such as a missing collation; that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw

from harness import workspace
from harness.stage import Stage

_ROWS_MAX = 20
_SIDECARS = ("-wal", "-journal")


@dataclass(frozen=True)
class Checked:
    """
    What SQLite said.

    Attributes:
        databases: How many were looked at.
        complaints: One line each, starting with the database's relative path.
        notes: What could not be checked, and why.
        journal_modes: What each database's file says, sorted, each once.
        failure: Why there is no answer at all; empty where there is one.
    """

    databases: int
    complaints: list[str]
    notes: list[str]
    journal_modes: list[str]
    failure: str = ""


def check_databases(stage: Stage) -> Checked:
    """Check every database under the root; the root itself is only read, without SQLite."""
    databases = workspace.list_databases(stage.root)
    if not databases:
        return Checked(0, [], [], [])
    copied = stage.side / "checked"
    copied.mkdir(exist_ok=True)
    workspace.clear_tree(copied)
    pairs = [_copy(path, stage.root, copied / str(n)) for n, path in enumerate(databases)]
    end = stage.run(lambda: _check_all(pairs))
    if not end.has_returned:
        return Checked(len(pairs), [], [], [], end.failure("SQLite's check"))
    complaints, notes, modes = end.value
    return Checked(len(pairs), complaints, notes, modes)


def _copy(path: Path, root: Path, to: Path) -> tuple[str, Path]:
    to.mkdir()
    for suffix in ("", *_SIDECARS):
        workspace.copy_file(f"{path}{suffix}", f"{to}/{path.name}{suffix}")
    return str(path)[len(str(root)) + 1 :], to / path.name


def _check_all(pairs: Sequence[tuple[str, Path]]) -> tuple[list[str], list[str], list[str]]:
    complaints: list[str] = []
    notes: list[str] = []
    modes: set[str] = set()
    for name, path in pairs:
        try:
            complaints += [f"{name}: {line}" for line in _check(path, modes)]
        except (apsw.CorruptError, apsw.NotADBError) as error:
            complaints.append(f"{name}: {error}")
        except apsw.Error as error:
            notes.append(f"{name} could not be checked: {error}")
    return complaints, notes, sorted(modes)


def _check(path: Path, modes: set[str]) -> list[str]:
    connection = apsw.Connection(str(path))
    try:
        modes.update(str(row[0]) for row in connection.execute("pragma journal_mode"))
        rows = connection.execute(f"pragma integrity_check({_ROWS_MAX})").fetchall()
        lines = [str(row[0]) for row in rows if row[0] != "ok"]
        for table, rowid, parent, _ in connection.execute("pragma foreign_key_check").fetchall():
            lines.append(f"foreign key of {table} row {rowid} refers to nothing in {parent}")
        return lines[:_ROWS_MAX]
    finally:
        connection.close()
