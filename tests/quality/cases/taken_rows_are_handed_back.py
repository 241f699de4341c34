"""
Guarantee: after a restart every message gets done, also those that a dead worker had taken.

Bug: B08. A taken row is "processing"; the queue looks at pending rows only, and a start takes
nothing back.
Report: volcengine/OpenViking#3225, also litements/litequeue#1, dagster-io/dagster#1735 and
Netflix/metaflow#1112.
"""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from harness import JSON, Campaign, Run

TAKE = """
    update message set status = 'processing'
    where id = (select min(id) from message where status = 'pending') returning id
"""


def drain(c: sqlite3.Connection) -> None:
    """Take and finish messages until none is pending."""
    while taken := c.execute(TAKE).fetchall():
        c.execute("update message set status = 'done' where id = ?", taken[0])


class _MessageQueue(Campaign):
    hands_back: ClassVar[bool]

    def connect(self, root: Path) -> sqlite3.Connection:
        return sqlite3.connect(root / "queue.db", isolation_level=None)

    def prepare(self, root: Path, run: Run) -> JSON:
        with closing(self.connect(root)) as c:
            c.execute("create table message (id integer primary key, status text)")
        return None

    def execute(self, root: Path, run: Run) -> None:
        with closing(self.connect(root)) as c:
            for n in (1, 2):
                put = partial(c.execute, "insert into message values (?, 'pending')", (n,))
                run.step(f"put {n}", put)
            run.step("drain", partial(drain, c), then={"1": "done", "2": "done"})

    def recover(self, root: Path, run: Run) -> None:
        with closing(self.connect(root)) as c:
            if self.hands_back:
                c.execute("update message set status = 'pending' where status = 'processing'")
            drain(c)

    def after_recovery(self, expected: Any) -> JSON:
        return dict.fromkeys(expected, "done")

    def observe(self, root: Path) -> JSON:
        with closing(self.connect(root)) as c:
            return {str(n): status for n, status in c.execute("select id, status from message")}


class Broken(_MessageQueue):
    """Starts as if no worker had ever died."""

    hands_back = False


class Fixed(_MessageQueue):
    """Takes back what the dead worker had, before it drains."""

    hands_back = True
