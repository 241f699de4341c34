"""A backup that copies the database and forgets its WAL: broken without any crash."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from harness import Campaign, Run


def read(path: Path) -> list[Any] | None:
    """Return the rows of a database, None where there is none."""
    if not path.exists():
        return None
    with closing(sqlite3.connect(path)) as db:
        return [list(row) for row in db.execute("select * from item")]


class Backup(Campaign):
    """The copy shows what the original shows."""

    def prepare(self, root: Path, run: Run) -> None:
        """Make a database in WAL mode whose table stands in the main file."""
        with closing(sqlite3.connect(root / "a.db", isolation_level=None)) as db:
            db.executescript("pragma journal_mode = wal; create table item(id)")

    def execute(self, root: Path, run: Run) -> None:
        """Insert an item, then copy the main file."""
        with closing(sqlite3.connect(root / "a.db", isolation_level=None)) as db:
            insert = partial(db.execute, "insert into item values (1)")
            run.step("insert", insert, then=[[[1]], None])
            copy = partial(shutil.copy, root / "a.db", root / "b.db")
            run.step("copy", copy, then=[[[1]], [[1]]])

    def observe(self, root: Path) -> list[Any]:
        """Return the rows of the original and of the copy."""
        return [read(root / name) for name in ("a.db", "b.db")]
