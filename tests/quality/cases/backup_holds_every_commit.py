"""
Guarantee: a backup holds every commit that was acknowledged before it was taken.

Bug: B09. The backup is a plain copy of the database file in WAL mode, without its WAL: it opens
fine and lacks the newest commits. No crash is needed.
Report: gem/oq-engine#11752, also senigami/audiobook-studio#246 and lbedner/aegis-stack#1198.
"""

import os
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from harness import JSON, Campaign, Run


def rows(path: Path) -> list[int] | None:
    """Return what a database holds; None where there is none."""
    if not path.exists():
        return None
    with closing(sqlite3.connect(path)) as c:
        return [n for (n,) in c.execute("select n from t")]


class _Backup(Campaign):
    def back_up(self, root: Path) -> None:
        raise NotImplementedError

    def prepare(self, root: Path, run: Run) -> JSON:
        with closing(sqlite3.connect(root / "live.db")) as c:
            c.execute("pragma journal_mode = wal")
            c.execute("create table t (n)")
        return None

    def execute(self, root: Path, run: Run) -> None:
        with closing(sqlite3.connect(root / "live.db", isolation_level=None)) as c:
            insert = partial(c.execute, "insert into t values (1)")
            run.step("insert", insert, then={"live": [1], "backup": None})
            run.step("back up", partial(self.back_up, root), then={"live": [1], "backup": [1]})

    def observe(self, root: Path) -> JSON:
        return {"live": rows(root / "live.db"), "backup": rows(root / "backup.db")}


class Broken(_Backup):
    """Copies one file of two."""

    def back_up(self, root: Path) -> None:
        shutil.copy(root / "live.db", root / "backup.db")


class Fixed(_Backup):
    """Uses SQLite's own backup into a new name, syncs it, and renames it."""

    def back_up(self, root: Path) -> None:
        with (
            closing(sqlite3.connect(root / "live.db")) as source,
            closing(sqlite3.connect(root / "backup.new")) as target,
        ):
            source.backup(target)
        for name in ("backup.new", "."):
            file = os.open(root / name, os.O_RDONLY)
            os.fsync(file)
            os.close(file)
            if name == "backup.new":
                (root / name).replace(root / "backup.db")
