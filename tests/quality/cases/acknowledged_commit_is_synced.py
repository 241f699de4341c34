"""
Guarantee: a commit that was acknowledged in WAL mode survives a power loss.

Bug: B30. With synchronous NORMAL the WAL is not synced until a checkpoint: a power loss takes the
newest commits, and damages nothing. It survives process death, and must not be called durable.
Report: smabe/end-of-line#113, also Chia-Network/chia-blockchain#5993, coleifer/huey#53 and
superfly/litefs#127.
"""

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import ClassVar

from harness import JSON, Campaign, Run


class _Wal(Campaign):
    synchronous: ClassVar[str]

    def connect(self, root: Path) -> sqlite3.Connection:
        c = sqlite3.connect(root / "a.db", isolation_level=None)
        c.execute(f"pragma synchronous = {self.synchronous}")
        return c

    def prepare(self, root: Path, run: Run) -> JSON:
        with closing(self.connect(root)) as c:
            c.execute("pragma journal_mode = wal")
            c.execute("create table t (n integer primary key)")
        return None

    def execute(self, root: Path, run: Run) -> None:
        with closing(self.connect(root)) as c:
            for n in (1, 2):
                insert = partial(c.execute, "insert into t values (?)", (n,))
                run.step(f"insert {n}", insert, then=list(range(1, n + 1)))

    def observe(self, root: Path) -> JSON:
        with closing(self.connect(root)) as c:
            return [n for (n,) in c.execute("select n from t")]

    def spoil(self, root: Path) -> None:
        with closing(self.connect(root)) as c:
            c.execute("delete from t where n = 2")  # the newest commit, never synced


class Broken(_Wal):
    """Acknowledges what it never synced."""

    synchronous = "normal"


class Fixed(_Wal):
    """Syncs the WAL at each commit."""

    synchronous = "full"
