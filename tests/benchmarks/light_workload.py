"""
The light store: one table in one SQLite file, and thirty transactions of one row each.

Plain functions without the harness, so that the campaign, the bare loop and the crash by hand run
the same calls. *sqlite* is `apsw`, or the standard library's `sqlite3` through `Standard`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TRANSACTIONS = 30
DATABASE = "light.db"


def prepare(connect: Callable[[str], Any]) -> None:
    """Make the store in the working directory, empty."""
    connection = connect(DATABASE)
    connection.execute("create table kept(id integer primary key, value text not null)")
    connection.close()


def put(connection: Any, number: int) -> None:
    """Store one row in a transaction of its own."""
    connection.execute("begin immediate")
    connection.execute("insert into kept values(?, ?)", (number, f"value {number}"))
    connection.execute("commit")


def recover(connect: Callable[[str], Any]) -> None:
    """Start the store as a restart does: SQLite rolls back what was in flight."""
    connection = connect(DATABASE)
    connection.execute("select count(*) from kept").fetchall()
    connection.close()


def observe(connect: Callable[[str], Any]) -> list[list[Any]]:
    """Return all rows."""
    connection = connect(DATABASE)
    rows = [list(row) for row in connection.execute("select id, value from kept order by id")]
    connection.close()
    return rows


def expected(count: int) -> list[list[Any]]:
    """Return what `observe` shows after *count* transactions."""
    return [[number, f"value {number}"] for number in range(count)]
