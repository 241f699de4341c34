"""
Guarantee: a task that was accepted is queued or done, also when its worker dies (at-least-once).

Bug: B03. The worker deletes the row when it takes the task; a worker that dies loses it.
Report: coleifer/huey#253, also #733, #844 and #239 (there by design: at-most-once).
"""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar

from harness import JSON, Campaign, Evidence, Run


def connect(root: Path) -> sqlite3.Connection:
    """Open the queue, each statement a transaction of its own unless it says BEGIN."""
    return sqlite3.connect(root / "queue.db", isolation_level=None)


class _TaskQueue(Campaign):
    take: ClassVar[str]
    """What taking a task does to its row."""

    def work(self, c: sqlite3.Connection) -> None:
        while ids := c.execute("select min(id) from task where state = 'queued'").fetchone():
            if ids == (None,):
                return
            c.execute(self.take, ids)
            c.execute("begin immediate")  # the task itself runs before this
            c.execute("delete from task where id = ?", ids)
            c.execute("insert or ignore into result values (?)", ids)
            c.execute("commit")

    def prepare(self, root: Path, run: Run) -> JSON:
        with closing(connect(root)) as c:
            c.execute("create table task (id integer primary key, state text)")
            c.execute("create table result (id integer primary key)")
        return None

    def execute(self, root: Path, run: Run) -> None:
        with closing(connect(root)) as c:
            for n in (1, 2):
                accept = partial(c.execute, "insert into task values (?, 'queued')", (n,))
                run.step(f"accept {n}", accept)
                run.promise("accepted", id=n)
            between = [{"task": [2], "result": [1]}]
            then = {"task": [], "result": [1, 2]}
            run.step("work", partial(self.work, c), then=then, between=between)

    def recover(self, root: Path, run: Run) -> None:
        with closing(connect(root)) as c:
            c.execute("update task set state = 'queued' where state = 'taken'")

    def observe(self, root: Path) -> JSON:
        with closing(connect(root)) as c:
            return {t: [n for (n,) in c.execute(f"select id from {t}")] for t in ("task", "result")}

    def promised_accepted(self, root: Path, evidence: Evidence, *, id: int) -> bool:
        return id in evidence.observed["task"] + evidence.observed["result"]


class Broken(_TaskQueue):
    """Forgets a task when it takes it."""

    take = "delete from task where id = ?"


class Fixed(_TaskQueue):
    """Marks it as taken, and deletes it with its result; recovery hands it back."""

    take = "update task set state = 'taken' where id = ?"
