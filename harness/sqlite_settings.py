"""
Which SQLite a store used, and with which journal mode and synchronous setting, read back.

Method: one more execution in a child that is thrown away; after each step the store's own open
connections are asked. A connection that lives only inside a step is known by what it ran.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import apsw

from harness import observe
from harness.crash import execution
from harness.stage import Stage

_SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}
_SAID = re.compile(r": pragma (?:\w+\.)?synchronous ?= ?'?(\w+)", re.IGNORECASE)
_STEPS_MAX = 20
_APSW = "apsw " + apsw.sqlite_lib_version()


@dataclass(frozen=True)
class InForce:
    """
    What was in force, several values joined by a comma; None where there is no SQLite.

    Attributes:
        sqlite: Library and version.
        journal_mode: As ``PRAGMA journal_mode`` says it.
        synchronous: off, normal, full or extra.
    """

    sqlite: str | None = None
    journal_mode: str | None = None
    synchronous: str | None = None


def settings_in_force(stage: Stage, file_modes: Sequence[str], trace: str) -> InForce:
    """
    Return what a fresh execution's connections say.

    Args:
        file_modes: Journal modes that the finished execution's files have.
        trace: The recorded trace, for connections that no step's end finds open.
    """
    if " sql " not in trace:
        return InForce()
    seen: list[tuple[str, str, str]] = []
    steps = 0

    def look() -> None:
        nonlocal steps
        steps += 1
        if steps <= _STEPS_MAX:
            with observe.paused():
                seen.extend(_ask_all(stage.root))

    def body() -> Any:
        libraries = _libraries_of_new_connections()
        execution(stage, after_step=look)()
        observe.attach(None)
        defaults = [_default_synchronous(x, stage.root, file_modes) for x in sorted(libraries)]
        return [sorted(set(seen)), sorted(libraries), defaults]

    stage.restore_fixture()
    end = stage.run(body, is_traced=True)
    found, libraries, defaults = end.value if end.has_returned else ([], [], [])
    said = sorted({_name(word) for word in _SAID.findall(trace)})
    return InForce(
        sqlite=_joined([x[0] for x in found] or libraries),
        journal_mode=_joined([x[1] for x in found] or list(file_modes)),
        synchronous=_joined([x[2] for x in found] or said or defaults),
    )


def _default_synchronous(library: str, root: Path, file_modes: Sequence[str]) -> str:
    """Return what a connection has that nobody told; it can depend on the journal mode."""
    import sqlite3  # in a child: a zygote without it forks cheaper

    connect: Callable[[str], Any] = apsw.Connection if library == _APSW else sqlite3.connect
    connection = connect(str(root / "crashconform-default.db"))
    try:
        if "wal" in file_modes:
            connection.execute("pragma journal_mode = wal").fetchall()
        return _SYNCHRONOUS[connection.execute("pragma synchronous").fetchall()[0][0]]
    finally:
        connection.close()


def _joined(values: Sequence[str]) -> str | None:
    return ", ".join(sorted(set(values))) or None


def _name(word: str) -> str:
    return _SYNCHRONOUS[int(word)] if word.isdigit() and int(word) in _SYNCHRONOUS else word.lower()


def _ask_all(root: Path) -> list[tuple[str, str, str]]:
    answers = []
    for connection in apsw.connections():
        answers += _ask(root, _APSW, connection, {"exec_trace": None, "row_trace": None})
    standard = _standard_library()
    if standard is not None:
        for thing in gc.get_objects():
            if isinstance(thing, standard.Connection):
                plain = {"row_factory": None, "text_factory": str}
                answers += _ask(root, f"sqlite3 {standard.sqlite_version}", thing, plain)
    return answers


def _standard_library() -> ModuleType | None:
    """Return the module behind `sqlite3`, which a zygote loads only for a store that does."""
    return sys.modules.get("_sqlite3")


def _ask(
    root: Path, library: str, connection: Any, plain: dict[str, Any]
) -> list[tuple[str, str, str]]:
    """Ask one connection; what the store lets its rows become is set aside meanwhile."""
    try:
        theirs = {name: getattr(connection, name) for name in plain}
        for name, value in plain.items():
            setattr(connection, name, value)
        try:
            return _asked(root, library, connection.execute)
        finally:
            for name, value in theirs.items():
                setattr(connection, name, value)
    except Exception:
        return []  # closed, busy, of another thread, or a class of the store's: it cannot be asked


def _asked(root: Path, library: str, execute: Callable[[str], Any]) -> list[tuple[str, str, str]]:
    files = [row[2] for row in execute("pragma database_list").fetchall() if row[1] == "main"]
    if not files or not files[0] or not Path(files[0]).is_relative_to(root):
        return []
    mode = execute("pragma journal_mode").fetchall()[0][0]
    synchronous = execute("pragma synchronous").fetchall()[0][0]
    return [(library, str(mode), _SYNCHRONOUS.get(int(synchronous), str(synchronous)))]


def _libraries_of_new_connections() -> set[str]:
    """Return a set that gets the library of each connection made from now on in this child."""
    libraries: set[str] = set()

    def audit(event: str, _: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect":
            libraries.add(f"sqlite3 {sys.modules['_sqlite3'].sqlite_version}")

    sys.addaudithook(audit)
    apsw.connection_hooks.append(lambda _: libraries.add(_APSW))
    return libraries
