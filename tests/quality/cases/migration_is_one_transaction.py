"""
Guarantee: a schema change and the version that tells of it are committed together.

Bug: B04. `sqlite3` opens no transaction for DDL, so ALTER TABLE is durable at once and the version
comes later; each start then fails with "duplicate column name".
Report: dgahagan/shelf#24, also simonw/llm#1520, borgbase/vorta#1761 and Estudely/riftor#126.
"""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from harness import JSON, Campaign, Run

MIGRATED: JSON = {"version": 2, "columns": ["id", "price"]}


class _Application(Campaign):
    is_explicit: ClassVar[bool]

    def migrate(self, root: Path) -> None:
        with closing(sqlite3.connect(root / "app.db")) as c:
            if c.execute("select v from version").fetchone() == (2,):
                return
            if self.is_explicit:
                c.execute("begin immediate")
            c.execute("alter table item add column price integer")
            c.execute("update version set v = 2")
            c.commit()

    def prepare(self, root: Path, run: Run) -> JSON:
        with closing(sqlite3.connect(root / "app.db")) as c:
            c.execute("create table item (id integer primary key)")
            c.execute("create table version as select 1 as v")
        return None

    def execute(self, root: Path, run: Run) -> None:
        run.step("migrate", partial(self.migrate, root), then=MIGRATED)

    def recover(self, root: Path, run: Run) -> None:
        self.migrate(root)

    def after_recovery(self, expected: Any) -> JSON:
        return MIGRATED

    def observe(self, root: Path) -> JSON:
        with closing(sqlite3.connect(root / "app.db")) as c:
            (version,) = c.execute("select v from version").fetchone()
            names: list[str] = [row[1] for row in c.execute("pragma table_info(item)")]
            return {"version": version, "columns": names}


class Broken(_Application):
    """Relies on the transaction that `sqlite3` does not open."""

    is_explicit = False


class Fixed(_Application):
    """Begins the transaction itself."""

    is_explicit = True
