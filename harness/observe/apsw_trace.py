"""
Statements run through apsw, as SQLite reports them.

Method: a hook on every new connection registers a trace of its own beside the store's.

Covered: every statement of every connection made after `install`, subclasses and later
connections included; BEGIN, COMMIT, savepoints, pragmas, DDL, reads; statements that virtual
tables run. Inside a trigger "before" only, because SQLite tells no more.

Not covered: backups, blob writes, sessions, the checkpoint of a closing connection, for which
SQLite has no event; a store that empties `apsw.connection_hooks` before it connects.
"""

from __future__ import annotations

from typing import Any

import apsw

from harness.observe.slot import SLOT, note_failure, report

_STATEMENT = apsw.SQLITE_TRACE_STMT
_MASK = apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE


def install() -> None:
    """Trace every apsw connection that this process makes from now on; idempotent."""
    if _trace not in apsw.connection_hooks:
        apsw.connection_hooks.append(_trace)


def _trace(connection: apsw.Connection) -> None:
    try:
        tracer = _Tracer(connection.filename)
        # Without an id of our own, the store's own trace would take the place of ours.
        connection.trace_v2(_MASK, tracer, id=tracer)
    except Exception as error:
        note_failure("apsw connection hook", error)


class _Tracer:
    """
    The trace of one connection; holds the database's path, not the connection itself.

    apsw cuts a leading "-- " from the text and calls it a trigger's; it is put back, so the text
    is the one that SQLite gave, and the same as through the standard library.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, event: dict[str, Any]) -> None:
        if SLOT.sink is None:
            return
        try:
            if event["code"] != _STATEMENT:
                report("sql", "after", self._path, event["sql"])
            elif event["trigger"]:
                report("sql", "before", self._path, "-- " + event["sql"])
            else:
                report("sql", "before", self._path, event["sql"])
        except Exception as error:
            note_failure("apsw trace", error)
