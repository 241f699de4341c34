"""
Whether a database that somebody left behind is the runtime's, and whole enough to be judged.

A finding is only as good as the indexes that it was read through: one lost entry makes a run look
missing. So a database is compared with the schema and checked by SQLite before it is reconciled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

import apsw

from store.metabolism.errors import MetabolismError, UnknownSchema
from store.metabolism.schema import SCHEMA_SQL, SCHEMA_VERSION
from store.metabolism.storage import schema_problem
from store.sqlite import rows

__all__ = ["DamagedDatabase", "EmptyDatabase", "require_runtime", "require_sound"]

_SHOWN_MAX: Final = 3
_STEPS: Final = 200_000
_OBJECTS: Final = "SELECT name, type, sql FROM sqlite_schema WHERE sql IS NOT NULL"


class DamagedDatabase(MetabolismError):
    """
    SQLite's own check found the database damaged.

    Attributes:
        problems: What it said, the first few.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(
            f"the database is damaged: {'; '.join(problems)}. Nothing in it can be relied on; "
            "keep it as it is, and restore it from a backup or recover a copy."
        )
        self.problems = problems


class EmptyDatabase(MetabolismError):
    """
    There is nothing in the database, so nothing can be said of a runtime.
    """

    def __init__(self) -> None:
        super().__init__(
            "the database is empty: no runtime wrote to it, or its -wal file was left behind; name "
            "the file that the runtime used, with the files beside it."
        )


def require_runtime(connection: apsw.Connection) -> None:
    """
    Return if the database has this runtime's tables, indexes and triggers as they were made.

    Objects besides them are left to whoever added them. Reads only.

    Raises:
        DamagedDatabase: its schema cannot be read.
        EmptyDatabase: it has nothing at all.
        UnknownSchema: it has something else; says what differs.
        apsw.Error: the database could not be read.
    """
    with _damage_named():
        if problem := schema_problem(connection):
            raise UnknownSchema(problem)
        if rows(connection, "PRAGMA user_version")[0][0] != SCHEMA_VERSION:
            raise EmptyDatabase
        found = {(name, kind): sql for name, kind, sql in rows(connection, _OBJECTS)}
    changed = sorted(key[0] for key, sql in _known_objects().items() if found.get(key) != sql)
    if changed:
        raise UnknownSchema(f"it defines {', '.join(changed)} otherwise")


def require_sound(connection: apsw.Connection) -> None:
    """
    Return if pages, indexes, rows and references are as SQLite and the schema demand.

    Reads only, and a signal can end it early. SQLite drops CHECK constraints where a database is
    opened for reading only, ``PRAGMA integrity_check`` included; so they are checked apart.

    Raises:
        DamagedDatabase: something is not.
        apsw.Error: the database could not be read.
    Cost: Linear, with sorting; a few seconds for a million jobs with as many runs.
    Source: https://www.sqlite.org/pragma.html#pragma_integrity_check; sqlite3AddCheckConstraint in
        SQLite's src/build.c, for what is dropped.
    """
    connection.set_progress_handler(_go_on, _STEPS, id=require_sound)
    try:
        with _damage_named():
            for problems in (_damaged_pages, _broken_checks, _missing_parents):
                if found := problems(connection):
                    raise DamagedDatabase(tuple(found))
    finally:
        connection.set_progress_handler(None, id=require_sound)


@contextmanager
def _damage_named() -> Iterator[None]:
    """Call damaged what SQLite cannot read, and what is text without being one."""
    try:
        yield
    except apsw.CorruptError as error:
        raise DamagedDatabase((str(error),)) from error
    except UnicodeDecodeError as error:
        raise DamagedDatabase((f"{bytes(error.object[:40])!r}... is no text",)) from error


def _damaged_pages(connection: apsw.Connection) -> list[str]:
    answers = rows(connection, f"PRAGMA integrity_check({_SHOWN_MAX})")
    if answers == [("ok",)]:
        return []
    lines = [line for (answer,) in answers for line in str(answer).splitlines()]
    return [line for line in lines if not line.startswith("***")][:_SHOWN_MAX] or lines


def _broken_checks(connection: apsw.Connection) -> list[str]:
    found: list[str] = []
    for table, checks in _checks().items():
        broken = " ".join(f"WHEN NOT ({check}) THEN '{name}'" for name, check in checks)
        rows_found = rows(
            connection,
            f"SELECT rowid, CASE {broken} END AS broken FROM {table} "
            f"WHERE broken IS NOT NULL LIMIT {_SHOWN_MAX}",
        )
        found += [f"row {row_id} of {table} breaks {name}" for row_id, name in rows_found]
    return found[:_SHOWN_MAX]


def _missing_parents(connection: apsw.Connection) -> list[str]:
    # As a function, since only a SELECT can be limited.
    orphans = rows(
        connection,
        f'SELECT "table", rowid, parent FROM pragma_foreign_key_check LIMIT {_SHOWN_MAX}',
    )
    return [
        f"row {row_id} of {table} belongs to a row of {parent} that is missing"
        for table, row_id, parent in orphans
    ]


@cache
def _checks() -> dict[str, list[tuple[str, str]]]:
    """Return the named CHECK constraints of each table of the schema."""
    checks: dict[str, list[tuple[str, str]]] = {}
    for table in re.finditer(r"(?ms)^CREATE TABLE (\w+) \((.*?)^\) STRICT;", SCHEMA_SQL):
        for found in re.finditer(r"CONSTRAINT (\w+) CHECK \(", table[2]):
            check = _up_to_its_end(table[2][found.end() :])
            checks.setdefault(table[1], []).append((found[1], check))
    return checks


def _up_to_its_end(sql: str) -> str:
    """Return what stands before the parenthesis that closes one opened before *sql*."""
    depth = 1
    for at, character in enumerate(sql):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return sql[:at]
    raise AssertionError("the schema's parentheses are not balanced")


def _go_on() -> bool:
    """Run as Python, so that a pending signal is heard in the midst of a long statement."""
    return False


@cache
def _known_objects() -> dict[tuple[str, str], str]:
    reference = apsw.Connection(":memory:")
    try:
        rows(reference, SCHEMA_SQL)
        return {(name, kind): sql for name, kind, sql in rows(reference, _OBJECTS)}
    finally:
        reference.close()
