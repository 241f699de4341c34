"""
Guarantee: each mail of the outbox is delivered exactly once.

Bug: B13. The mail is sent, then its row is marked; a death between the two sends it again.
Report: entire-vc/evc-team-relay#115, also apache/airflow#58570.
"""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar

from harness import JSON, UNCHANGED, Campaign, Run


class _Outbox(Campaign):
    delivery = {"mail": "exactly-once"}  # noqa: RUF012 - as INTERFACE has it
    receiver_remembers: ClassVar[bool]

    def flush(self, root: Path, run: Run) -> None:
        with closing(sqlite3.connect(root / "outbox.db", isolation_level=None)) as c:
            for (n,) in c.execute("select id from mail where sent = 0 order by id").fetchall():
                if not (self.receiver_remembers and {"id": n} in run.effects("mail")):
                    run.effect("mail", id=n)
                c.execute("update mail set sent = 1 where id = ?", (n,))

    def prepare(self, root: Path, run: Run) -> JSON:
        with closing(sqlite3.connect(root / "outbox.db")) as c:
            c.executescript("create table mail (id, sent); insert into mail values (1, 0), (2, 0)")
        for n in (1, 2):
            run.promise("mail", id=n)
        return None

    def execute(self, root: Path, run: Run) -> None:
        run.step("flush", partial(self.flush, root, run), then=UNCHANGED)

    def recover(self, root: Path, run: Run) -> None:
        self.flush(root, run)

    def observe(self, root: Path) -> JSON:
        with closing(sqlite3.connect(root / "outbox.db")) as c:
            return [n for (n,) in c.execute("select id from mail order by id")]


class Broken(_Outbox):
    """Its receiver accepts whatever it gets."""

    receiver_remembers = False


class Fixed(_Outbox):
    """The id travels as an idempotency key; the receiver drops a key that it has seen."""

    receiver_remembers = True
