"""The one sink of this process, and what each thread has to remember about it."""

from __future__ import annotations

import os
from _thread import _local
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Sink = Callable[..., None]

_FAILURES_MAX = 20


class _Slot:
    """Where the sink is kept: an attribute, so that every hook reads the present one."""

    __slots__ = ("failures", "sink")

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.failures: list[tuple[str, BaseException]] = []


class _ThreadState(_local):
    """Pause depth, and the announcement that no report has followed yet, of one thread."""

    paused: int = 0
    announced: tuple[str, ...] | None = None


SLOT = _Slot()
_THREAD = _ThreadState()


def attach(sink: Sink | None) -> None:
    """
    Switch observation on, with *sink*, or off with None, in this process and all its threads.

    Off is the default, and what a process that the store forks starts with. *sink* is called as
    ``sink(kind, phase, *names)`` on the thread that acts, before or after the act; it may end the
    process with `os._exit`. What it raises is kept in `failures` and never reaches the store.
    """
    SLOT.sink = sink


def failures() -> tuple[str, ...]:
    """
    Return what went wrong inside the hooks of this process, at most 20 lines, oldest first.

    A harness that sees one must not call the execution observed.
    """
    return tuple(f"{what}: {type(error).__name__}: {error}" for what, error in SLOT.failures)


def raise_first_failure() -> None:
    """
    Raise the first error that a hook or the sink of this process met, if there was one.

    For the harness, once the store's code has returned: an error of the sink, such as a full
    tape, must stop the execution's verdict without ever having been seen by the store.
    """
    if SLOT.failures:
        raise SLOT.failures[0][1]


def note_failure(what: str, error: BaseException) -> None:
    """Keep a hook's own failure, since a hook must never raise into the store."""
    if len(SLOT.failures) < _FAILURES_MAX:
        SLOT.failures.append((what, error))


def is_on() -> bool:
    """Return whether a report made now on this thread would reach a sink."""
    return SLOT.sink is not None and not _THREAD.paused


@contextmanager
def paused() -> Iterator[None]:
    """
    Report nothing of what this thread does inside; may be nested.

    Other threads go on reporting. The depth found at entry is put back at exit, so a child that
    was forked inside, and was reset by the fork, is right too.
    """
    depth = _THREAD.paused
    _THREAD.paused = depth + 1
    try:
        yield
    finally:
        _THREAD.paused = depth


def report(kind: str, phase: str, /, *names: str) -> None:
    """
    Hand one event to the sink, unless observation is off or paused; never raises an Exception.

    What the sink itself does is not reported.
    """
    sink = SLOT.sink
    thread = _THREAD
    if sink is None or thread.paused:
        return
    thread.announced = None
    thread.paused = 1
    try:
        sink(kind, phase, *names)
    except Exception as error:
        note_failure(f"sink({kind!r}, {phase!r})", error)
    finally:
        thread.paused = 0


def announce(kind: str, phase: str, /, *names: str) -> None:
    """
    Report what a store says of itself: the observer that `Campaign.attach` gives to a store.

    Kind and names pass unchanged. A "before" also silences the next call that a file hook would
    report with the same kind and names, if no other report of this thread comes between, so that
    a store that announces its sync and then calls `os.fsync` is counted once.
    """
    report(kind, phase, *names)
    if phase == "before" and is_on():
        _THREAD.announced = (kind, *names)


def was_announced(kind: str, /, *names: str) -> bool:
    """
    Return whether the store has just announced this very act; one announcement answers once.

    Paths that differ as text are compared resolved: the last part of a rename's names stays
    as it is, since rename moves a symbolic link and not its target.
    """
    announced = _THREAD.announced
    if announced is None or announced[0] != kind or len(announced) != len(names) + 1:
        return False
    if announced[1:] != names and not _are_same_paths(kind, announced[1:], names):
        return False
    _THREAD.announced = None
    return True


def _are_same_paths(kind: str, left: tuple[str, ...], right: tuple[str, ...]) -> bool:
    resolve = _resolved_name if kind == "rename" else os.path.realpath
    try:
        return [resolve(os.fsdecode(path)) for path in left] == [resolve(path) for path in right]
    except (OSError, TypeError, ValueError):
        return False


def _resolved_name(path: str) -> str:
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118 - text in, text out


def reset_in_child() -> None:
    """Silence a process that has just been forked, until somebody attaches in it again."""
    SLOT.sink = None
    SLOT.failures = []
    _THREAD.paused = 0
    _THREAD.announced = None
