"""
Guarantee: an acknowledged commit in SQLite's rollback mode is not rolled back by a later restart.

Bug: B20, a control. With SQLite's default (synchronous FULL) the directory is not synced once the
journal is deleted: where names need a directory sync, a power loss may bring the journal back, and
it rolls back the last commit. Process death cannot show it, and nothing ever damages the file.
Report: agronholm/apscheduler#113 and grantjenks/python-diskcache#67 (neither found its cause).
"""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar

from harness import JSON, Campaign, Run


def put(c: sqlite3.Connection, job: int) -> None:
    """Store a job and its partner in one transaction."""
    c.execute("insert into job values (?, ?)", (job, "x" * 6000))
    c.execute("insert into job values (?, 'partner')", (job + 10,))
    c.commit()


class _Jobs(Campaign):
    synchronous: ClassVar[str]

    def connect(self, root: Path) -> sqlite3.Connection:
        c = sqlite3.connect(root / "jobs.db")
        c.execute(f"pragma synchronous = {self.synchronous}")
        return c

    def prepare(self, root: Path, run: Run) -> JSON:
        with closing(self.connect(root)) as c:
            c.execute("create table job (id integer primary key, body text)")
        return None

    def execute(self, root: Path, run: Run) -> None:
        with closing(self.connect(root)) as c:
            run.step("put 1", partial(put, c, 1), then=[1, 11])
            run.step("put 2", partial(put, c, 2), then=[1, 2, 11, 12])

    def observe(self, root: Path) -> JSON:
        with closing(self.connect(root)) as c:
            return [n for (n,) in c.execute("select id from job order by id")]

    def spoil(self, root: Path) -> None:
        with closing(self.connect(root)) as c:
            c.execute("delete from job where id in (2, 12)")  # as the journal come back does
            c.commit()


class Broken(_Jobs):
    """SQLite's default."""

    synchronous = "full"


class Fixed(_Jobs):
    """Also syncs the directory, as part of the commit."""

    synchronous = "extra"
