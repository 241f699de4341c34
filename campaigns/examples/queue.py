"""
A job queue whose jobs are handled at least once.

Shows a delivery contract, a promise that an effect keeps, and `after_recovery`: recovery moves
jobs back, and the campaign says how.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from harness import ANYTHING, Campaign, Run

_TAKE = """
update job set state = 'taken'
where id = (select min(id) from job where state = 'ready') returning id
"""


def connect(root: Path) -> sqlite3.Connection:
    """Open the queue in autocommit mode: every statement is a transaction."""
    return sqlite3.connect(root / "queue.db", isolation_level=None)


class Queue(Campaign):
    """No accepted job is forgotten; one that was taken when the process died is taken again."""

    delivery = {"handled": "at-least-once"}

    def prepare(self, root: Path, run: Run) -> None:
        """Make an empty queue."""
        with closing(connect(root)) as db:
            db.execute("create table job(id integer primary key, state text not null)")

    def execute(self, root: Path, run: Run) -> None:
        """Accept two jobs and handle both."""
        with closing(connect(root)) as db:
            for job in (1, 2):
                run.step(f"accept {job}", partial(self._accept, db, job))
                run.promise("handled", job=job)
            run.step(
                "work off",
                partial(self._work_off, db, run),
                then={"1": "done", "2": "done"},
                between=ANYTHING,
            )

    def _accept(self, db: sqlite3.Connection, job: int) -> None:
        db.execute("insert into job values (?, 'ready')", (job,))

    def _work_off(self, db: sqlite3.Connection, run: Run) -> None:
        while taken := db.execute(_TAKE).fetchall():
            job = taken[0][0]
            run.effect("handled", job=job)
            db.execute("update job set state = 'done' where id = ?", (job,))

    def recover(self, root: Path, run: Run) -> None:
        """Give back what a dead process had taken."""
        with closing(connect(root)) as db:
            db.execute("update job set state = 'ready' where state = 'taken'")

    def observe(self, root: Path) -> dict[str, str]:
        """Return each job's state."""
        with closing(connect(root)) as db:
            return {str(job): state for job, state in db.execute("select id, state from job")}

    def after_recovery(self, expected: dict[str, str]) -> dict[str, str]:
        """Say what recovery makes of a right state: what was taken is ready."""
        return {job: "ready" if state == "taken" else state for job, state in expected.items()}
