"""
A small store of attempts that are worked on under leases, for the campaign `leases`.

An attempt is written only under the token of its newest lease, while that lease lasts: whoever
held an older one is fenced off. The store announces its writes to an observer slot of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

TTL_NS = 1_000_000_000
"""How long a lease lasts, in nanoseconds."""

_SCHEMA = """
create table if not exists attempt(
    number integer primary key, task text not null, token text not null, state text not null);
create table if not exists lease(
    token text primary key, holder text not null, expires_ns integer not null,
    is_over integer not null default 0);
"""


class Stale(Exception):
    """The write came under a lease that is over, or is no longer the attempt's newest."""


@dataclass(frozen=True)
class Guard:
    """What a holder writes under; it lives in the holder's memory only."""

    attempt: int
    token: str


class Store:
    """One connection to the store in a folder; not to be shared between threads."""

    observer: ClassVar[Callable[..., None] | None] = None

    def __init__(self, root: Path) -> None:
        self._db = sqlite3.connect(root / "leases.db", isolation_level=None)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    @classmethod
    def rows(cls, root: Path, table: str) -> list[list[Any]]:
        """Return a table's rows in order, each a list."""
        with closing(sqlite3.connect(root / "leases.db", isolation_level=None)) as db:
            return [list(row) for row in db.execute(f"select * from {table} order by 1")]

    def reserve(self, task: str, attempt: int, token: str, holder: str, now_ns: int) -> Guard:
        """
        Begin an attempt at *task* under a new lease, and return the guard of it.

        Raises: Stale: another lease on the task has not expired.
        """
        live = (
            "select 1 from lease join attempt using (token)"
            " where task = ? and is_over = 0 and expires_ns > ?"
        )
        self._begin("reserve")
        try:
            if self._db.execute(live, (task, now_ns)).fetchall():
                raise Stale(f"task {task!r} is leased")
            self._db.execute(
                "insert into lease values (?, ?, ?, 0)", (token, holder, now_ns + TTL_NS)
            )
            self._db.execute("insert into attempt values (?, ?, ?, 'new')", (attempt, task, token))
        except BaseException:
            self._db.execute("rollback")
            raise
        self._commit("reserve")
        return Guard(attempt, token)

    def advance(self, guard: Guard, state: str, now_ns: int) -> Guard:
        """
        Move an attempt on and give out a new guard, which ends the old one.

        Raises: Stale: the guard's lease is over, or another guard was given out since.
        """
        fresh = f"{guard.token}+"
        self._begin("advance")
        try:
            found = self._db.execute(
                "select expires_ns from lease join attempt using (token)"
                " where number = ? and token = ? and is_over = 0",
                (guard.attempt, guard.token),
            ).fetchall()
            if not found or found[0][0] <= now_ns:
                raise Stale(f"attempt {guard.attempt} is no longer held under {guard.token!r}")
            self._db.execute(
                "insert into lease select ?, holder, expires_ns, 0 from lease where token = ?",
                (fresh, guard.token),
            )
            self._db.execute("update lease set is_over = 1 where token = ?", (guard.token,))
            self._db.execute(
                "update attempt set state = ?, token = ? where number = ?",
                (state, fresh, guard.attempt),
            )
        except BaseException:
            self._db.execute("rollback")
            raise
        self._commit("advance")
        return Guard(guard.attempt, fresh)

    def expire(self, now_ns: int) -> None:
        """Interrupt every attempt whose lease has run out."""
        self._begin("expire")
        self._db.execute(
            "update attempt set state = 'interrupted' where state != 'interrupted' and token in"
            " (select token from lease where is_over = 0 and expires_ns <= ?)",
            (now_ns,),
        )
        self._db.execute("update lease set is_over = 1 where expires_ns <= ?", (now_ns,))
        self._commit("expire")

    def _begin(self, act: str) -> None:
        self._reached("before", act)
        self._db.execute("begin immediate")

    def _commit(self, act: str) -> None:
        self._db.execute("commit")
        self._reached("after", act)

    def _reached(self, phase: str, act: str) -> None:
        observer = type(self).observer
        if observer is not None:
            observer("point", phase, f"leases.{act}")
