"""A migration of a schema in two transactions: a crash between them leaves what none expects."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from harness import UNCHANGED, Campaign, Check, Evidence, Run


def connect(root: Path) -> sqlite3.Connection:
    """Open the database in autocommit mode."""
    return sqlite3.connect(root / "data.db", isolation_level=None)


def migrate(root: Path) -> None:
    """Bring the schema to version 2; broken, since the two statements are two transactions."""
    with closing(connect(root)) as db:
        if db.execute("select number from version").fetchall() == [(1,)]:
            db.execute("alter table item add column note")
            db.execute("update version set number = 2")


class Migration(Campaign):
    """Every start finishes the migration."""

    def prepare(self, root: Path, run: Run) -> None:
        """Make a database of version 1."""
        with closing(connect(root)) as db:
            db.executescript(
                "create table version(number); insert into version values (1);create table item(id)"
            )

    def execute(self, root: Path, run: Run) -> None:
        """Migrate it."""
        run.step("migrate", partial(migrate, root), then=UNCHANGED)

    def recover(self, root: Path, run: Run) -> None:
        """Migrate it, where that was not done."""
        migrate(root)

    def observe(self, root: Path) -> list[Any]:
        """Return the items; the version is left out, since recovery changes it."""
        with closing(connect(root)) as db:
            return [list(row) for row in db.execute("select * from item")]

    def check(self, root: Path, evidence: Evidence) -> Iterator[Check]:
        """After recovery the version is 2."""
        with closing(connect(root)) as db:
            version = db.execute("select number from version").fetchall()
        yield Check("migrated", version == [(2,)], f"the version is {version}")
