"""
Guarantee: a debit and its credit are committed together.

Bug: B29. `executescript` commits the open transaction before it runs: a COMMIT that stands in no
line of the store.
Report: gem/oq-engine#2893, also python/cpython#74778, ghaering/pysqlite#59 and
kunickiaj/codemem#226.
"""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar

from harness import JSON, Campaign, Run


class _Bank(Campaign):
    is_script: ClassVar[bool]

    def transfer(self, c: sqlite3.Connection) -> None:
        run = c.executescript if self.is_script else c.execute
        c.execute("insert into entry values ('debit', 5)")
        run("insert into entry values ('credit', 5)")
        c.commit()

    def prepare(self, root: Path, run: Run) -> JSON:
        with closing(sqlite3.connect(root / "bank.db")) as c:
            c.execute("create table entry (side text, amount integer)")
        return None

    def execute(self, root: Path, run: Run) -> None:
        with closing(sqlite3.connect(root / "bank.db")) as c:
            run.step("transfer", partial(self.transfer, c), then=[["debit", 5], ["credit", 5]])

    def observe(self, root: Path) -> JSON:
        with closing(sqlite3.connect(root / "bank.db")) as c:
            return c.execute("select side, amount from entry").fetchall()


class Broken(_Bank):
    """Runs its second half as a script."""

    is_script = True


class Fixed(_Bank):
    """Runs both halves as plain statements."""

    is_script = False
