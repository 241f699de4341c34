"""
A worker that takes a task out of its table before it runs it: a task may be lost, never run twice.

Shows an at-most-once contract, a step that is never repeated, and results that pass from one step
to the next also where the first was skipped after a crash.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from harness import UNCHANGED, Campaign, Run

_TAKE = "delete from task where id = (select min(id) from task) returning id"


def connect(root: Path) -> sqlite3.Connection:
    """Open the table of tasks in autocommit mode."""
    return sqlite3.connect(root / "tasks.db", isolation_level=None)


class Worker(Campaign):
    """No task runs twice."""

    delivery = {"ran": "at-most-once"}

    def prepare(self, root: Path, run: Run) -> None:
        """Make two tasks."""
        with closing(connect(root)) as db:
            db.execute("create table task(id integer primary key)")
            db.execute("insert into task values (1), (2)")

    def execute(self, root: Path, run: Run) -> None:
        """Take each task, then run it."""
        with closing(connect(root)) as db:
            for number in (1, 2):
                task = run.step(f"take {number}", partial(self._take, db))
                run.step(
                    f"run {number}",
                    partial(run.effect, "ran", task=task),
                    then=UNCHANGED,
                    retry="never",
                )

    def _take(self, db: sqlite3.Connection) -> int:
        ((task,),) = db.execute(_TAKE).fetchall()
        return int(task)

    def observe(self, root: Path) -> list[int]:
        """Return the tasks that nobody has taken."""
        with closing(connect(root)) as db:
            return [task for (task,) in db.execute("select id from task order by id")]
