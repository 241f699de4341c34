"""
An outbox: mails stand in the database and are sent until each is known to be sent.

Shows an exactly-once contract, promises about old data, and a receiver that remembers: the same
mail sent twice is dropped there, which `run.effects` lets the sender ask for.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from harness import UNCHANGED, Campaign, Run


def connect(root: Path) -> sqlite3.Connection:
    """Open the outbox in autocommit mode."""
    return sqlite3.connect(root / "outbox.db", isolation_level=None)


def flush(root: Path, run: Run) -> None:
    """Send each unsent mail that the receiver lacks, and note that it was sent."""
    with closing(connect(root)) as db:
        for (mail,) in db.execute("select id from mail where is_sent = 0 order by id").fetchall():
            if {"mail": mail} not in run.effects("sent"):
                run.effect("sent", mail=mail)
            db.execute("update mail set is_sent = 1 where id = ?", (mail,))


class Outbox(Campaign):
    """Each mail that is in the outbox reaches its receiver once."""

    delivery = {"sent": "exactly-once"}

    def prepare(self, root: Path, run: Run) -> None:
        """Put two mails into the outbox; both are promised."""
        with closing(connect(root)) as db:
            db.execute("create table mail(id integer primary key, is_sent integer not null)")
            db.execute("insert into mail values (1, 0), (2, 0)")
        for mail in (1, 2):
            run.promise("sent", mail=mail)

    def execute(self, root: Path, run: Run) -> None:
        """Send them; the outbox keeps its mails."""
        run.step("flush", partial(flush, root, run), then=UNCHANGED)

    def recover(self, root: Path, run: Run) -> None:
        """Send what is left, as every start does."""
        flush(root, run)

    def observe(self, root: Path) -> list[int]:
        """Return the mails in the outbox."""
        with closing(connect(root)) as db:
            return [mail for (mail,) in db.execute("select id from mail order by id")]
