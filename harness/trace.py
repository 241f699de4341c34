"""
Boundaries, steps and recordings: the data that every other part of the harness passes around.

A trace is canonical text, one line per boundary: phase, kind, and what it concerns. Lines carry
paths relative to the store's root, no parameters, no times, and pids written ``<pid>``, so two
executions of one deterministic workload have equal traces.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import ConfigurationError

MARKS = frozenset({"step", "promise", "effect", "end"})
"""Kinds that the harness itself sets; they do not prove that a store was observed."""

END_LINE = "end"
_PATHS_BY_KIND = {"file_sync": 1, "directory_sync": 1, "rename": 2, "write": 1, "sql": 1}
_KIND = re.compile(r"[a-z][a-z0-9_]*")
_SLUG = re.compile(r"[^A-Za-z0-9_.+-]+")
_SLUG_SIZE_MAX = 60


class Promise(NamedTuple):
    """A named fact that the store acknowledged; it binds from the call on."""

    name: str
    facts: dict[str, Any]


class Effect(NamedTuple):
    """Something done to the outside world, in order, never rolled back."""

    name: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class Boundary:
    """
    One numbered durability boundary of an execution.

    Attributes:
        number: 1-based position in the trace.
        kind: sql, file_sync, directory_sync, rename, write, point, step, promise, effect or end.
        phase: "before" or "after"; "after" for ``end``.
        text: What it concerns, canonical: a path and a statement, paths, or a name.
    """

    number: int
    kind: str
    phase: str
    text: str

    @property
    def line(self) -> str:
        """The canonical line of the trace."""
        return END_LINE if self.kind == "end" else f"{self.phase} {self.kind} {self.text}"

    @property
    def identity(self) -> str:
        """A stable, readable id such as ``0142-after-sql-COMMIT``."""
        if self.kind == "end":
            return f"{self.number:04d}-end"
        text = self.text
        if self.kind == "sql":
            text = text.partition(": ")[2]
        slug = _SLUG.sub("-", text).strip("-")[:_SLUG_SIZE_MAX].strip("-")
        return f"{self.number:04d}-{self.phase}-{self.kind}" + (f"-{slug}" if slug else "")

    @property
    def is_mark(self) -> bool:
        """Whether the harness set it, rather than the store."""
        return self.kind in MARKS


def parse_line(number: int, line: str) -> Boundary:
    """
    Return the boundary that a canonical line describes.

    Raises: ValueError: the line is not of the form ``PHASE KIND TEXT``.
    """
    if line == END_LINE:
        return Boundary(number, "end", "after", "")
    phase, _, rest = line.partition(" ")
    kind, _, text = rest.partition(" ")
    if phase not in ("before", "after") or not kind:
        raise ValueError(f"trace line {number} {line!r} is not 'before|after KIND TEXT'")
    return Boundary(number, kind, phase, text)


class Canonical:
    """
    Turns what a hook saw into a canonical line, or None where it does not concern the store.

    Not thread-safe by itself; the tape calls it under its lock.
    """

    def __init__(self, root: Path, pid: int) -> None:
        self._root = str(root)
        self._inside = self._root + os.sep
        self._pid = str(pid)
        self._lines: dict[tuple[str, ...], bytes | None] = {}

    def line(self, kind: str, phase: str, names: Sequence[str]) -> bytes | None:
        """
        Return the line's bytes with its newline, or None for a file outside the root.

        Raises: ConfigurationError: a store announces what cannot be a line of its own.
        """
        key = (kind, phase, *names)
        try:
            return self._lines[key]
        except KeyError:
            _check_announced(kind, phase)
            made = self._lines[key] = self._make(kind, phase, names)
            return made

    def mark(self, kind: str, phase: str, name: str) -> bytes:
        """Return the line of a mark, which only the harness sets."""
        made = self._make(kind, phase, [name])
        assert made is not None, "a mark has no path"
        return made

    def _make(self, kind: str, phase: str, names: Sequence[str]) -> bytes | None:
        paths = _PATHS_BY_KIND.get(kind, 0)
        relative = [self._relative(name) for name in names[:paths]]
        if paths and all(name is None for name in relative):
            return None
        shown = ["<outside>" if name is None else name for name in relative]
        rest = [" ".join(str(name).split()) for name in names[paths:]]
        text = f"{shown[0]}: {' '.join(rest)}" if kind == "sql" else " ".join(shown + rest)
        if self._pid in text:
            text = re.sub(rf"(?<!\d){self._pid}(?!\d)", "<pid>", text)
        if not text.isprintable():
            text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
        return f"{phase} {kind} {text}\n".encode("utf-8", "backslashreplace")

    def _relative(self, name: str) -> str | None:
        if not name:
            return None
        # Lexically first: resolving links asks the kernel once per folder on the way.
        return self._inner(os.path.abspath(name)) or self._inner(os.path.realpath(name))

    def _inner(self, path: str) -> str | None:
        if path == self._root:
            return "."
        return path[len(self._inside) :] if path.startswith(self._inside) else None


def _check_announced(kind: str, phase: str) -> None:
    """Refuse what a store's own observer slot may have been given by mistake."""
    if phase not in ("before", "after"):
        raise ConfigurationError(
            f"the store announced {kind!r} with phase={phase!r}; the observer that attach() gets "
            'is called as observer(kind, "before" or "after", *names).'
        )
    if not _KIND.fullmatch(kind) or kind in MARKS:
        raise ConfigurationError(
            f"the store announced kind={kind!r}; a kind is a word of small letters, digits and "
            f"underscores, such as 'point', and none of {sorted(MARKS)}."
        )


@dataclass(frozen=True)
class Step:
    """
    One logical operation of a recorded workload.

    Attributes:
        label: Unique in the workload.
        begin, end: Numbers of the boundaries before and after it.
        then: "value", "unchanged" or "observed": where its expectation came from.
        given: The observation that *then* demanded, where it gave one.
        between: Observations that are also right while it is in flight; None: any is.
        retry: What the default resume does with it when it was in flight.
        result: What it returned, as JSON.
        is_lost: Whether the result was no JSON and died with the process.
    """

    label: str
    begin: int
    end: int
    then: str
    given: Any
    between: list[Any] | None
    retry: str
    result: Any
    is_lost: bool


@dataclass(frozen=True)
class Entry:
    """One journalled act: a promise, its withdrawal, an effect, a step begun or done."""

    at: int
    act: str
    name: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """
    One golden execution and what was observed around it.

    Attributes:
        root: The store's root in the process that recorded it.
        trace: Canonical lines, each with its newline.
        journal: What steps, promises and effects wrote, one JSON array a line.
        prepared: The journal of ``prepare``, where promises of old data stand.
        steps: In order of execution.
        expected: Observations: [0] of the fixture, [i] after step i.
        ended: The observation after the execution returned.
        sqlite_golden: Complaints of SQLite's own checks about the finished execution.
        sqlite, journal_mode, synchronous: What was really in force; None without SQLite.
    """

    root: str
    trace: str
    journal: str
    prepared: str
    steps: list[Step]
    expected: list[Any] = field(default_factory=list)
    ended: Any = None
    sqlite_golden: list[str] = field(default_factory=list)
    sqlite: str | None = None
    journal_mode: str | None = None
    synchronous: str | None = None

    @cached_property
    def lines(self) -> list[str]:
        """The trace's lines without newlines; boundary k is ``lines[k - 1]``."""
        return self.trace.split("\n")[:-1]

    @cached_property
    def boundaries(self) -> list[Boundary]:
        """Every boundary, in order."""
        return [parse_line(number, line) for number, line in enumerate(self.lines, 1)]

    @cached_property
    def trace_bytes(self) -> bytes:
        """The trace as the tape holds it."""
        return self.trace.encode()

    @cached_property
    def trace_offsets(self) -> list[int]:
        """``trace_offsets[k]`` is the size in bytes of the first k lines."""
        return [0, *accumulate(len(line.encode()) + 1 for line in self.lines)]

    @cached_property
    def journal_bytes(self) -> bytes:
        """The journal as the tape holds it."""
        return self.journal.encode()

    @cached_property
    def entries(self) -> list[Entry]:
        """The journal, parsed."""
        return parse_journal(self.journal)

    @cached_property
    def _journal_offsets(self) -> list[int]:
        return [0, *accumulate(len(x.encode()) + 1 for x in self.journal.split("\n")[:-1])]

    def journal_before(self, boundary: int) -> tuple[int, int]:
        """Return (entries, bytes) journalled before *boundary* was announced."""
        count = bisect_left(self.entries, boundary, key=lambda entry: entry.at)
        return count, self._journal_offsets[count]

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Every number that occurs in the trace: a child must not have one as its pid."""
        return frozenset(int(x) for x in re.findall(r"\d+", self.trace) if len(x) < 12)

    def acknowledged(self, boundary: int) -> int:
        """Return how many steps had returned at *boundary*."""
        return sum(1 for step in self.steps if step.end <= boundary)

    def in_flight(self, boundary: int) -> Step | None:
        """Return the step that had begun and not returned at *boundary*."""
        for step in self.steps:
            if step.begin < boundary < step.end:
                return step
        return None

    def step_at(self, boundary: int) -> str | None:
        """Return the label of the step in flight, else of the last one acknowledged."""
        flying = self.in_flight(boundary)
        if flying is not None:
            return flying.label
        done = self.acknowledged(boundary)
        return self.steps[done - 1].label if done else None


def parse_journal(text: str) -> list[Entry]:
    """Return the acts that a journal holds."""
    return [Entry(*json.loads(line)) for line in text.split("\n")[:-1]]


def binding(entries: Iterable[Entry]) -> list[Promise]:
    """Return the promises that no later withdrawal ended, in order, each once."""
    kept: list[Promise] = []
    for entry in entries:
        promise = Promise(entry.name, entry.facts)
        if entry.act == "promise" and promise not in kept:
            kept.append(promise)
        elif entry.act == "withdraw" and promise in kept:
            kept.remove(promise)
    return kept


def effects_of(entries: Iterable[Entry]) -> list[Effect]:
    """Return what was done to the outside world, in order."""
    return [Effect(entry.name, entry.facts) for entry in entries if entry.act == "effect"]
