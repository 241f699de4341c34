"""The light store as campaigns: through apsw, and through the standard library's sqlite3."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import light_workload as workload

from harness import JSON, Campaign, Run


class _Light(Campaign):
    """Thirty transactions, a step each; the default resume and end."""

    def connect(self, path: str) -> Any:
        raise NotImplementedError

    def prepare(self, root: Path, run: Run) -> None:
        workload.prepare(self.connect)

    def execute(self, root: Path, run: Run) -> None:
        connection = self.connect(workload.DATABASE)
        for number in range(workload.TRANSACTIONS):
            run.step(f"put {number}", partial(workload.put, connection, number))
        connection.close()

    def recover(self, root: Path, run: Run) -> None:
        workload.recover(self.connect)

    def observe(self, root: Path) -> JSON:
        return workload.observe(self.connect)


class LightApsw(_Light):
    """Through apsw."""

    def connect(self, path: str) -> Any:
        return apsw.Connection(path)


class LightSqlite3(_Light):
    """Through the standard library, without its implicit transactions."""

    def connect(self, path: str) -> Any:
        return sqlite3.connect(path, isolation_level=None)
