"""
The one place where a test can watch the stores' durability boundaries that are not SQL.

Method: code in ``store/`` calls `reached` before and after each file sync, directory sync,
no-replace rename and named point. One module-private slot holds the observer. It is ``None``
unless a test or a campaign assigned it (``crash_points._observer = observer``), and then a call
costs one comparison. No environment variable, configuration key or public function fills it.

Covered: what `store.durability` does, and the points that a store names.
Not covered: SQL statements (the connection's own trace shows them) and plain writes, creates
and unlinks (only a recorder of system calls sees those).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol, TypeAlias

__all__ = ["Kind", "Observer", "Phase", "reached", "surrounding"]

Kind: TypeAlias = Literal["file_sync", "directory_sync", "rename", "point"]
Phase: TypeAlias = Literal["before", "after"]


class Observer(Protocol):
    """
    What the slot holds: called once per boundary, in the thread that reached it.

    An observer may end the process. If it raises, the operation it announces does not happen
    (``before``) or has happened and is reported as the raised error (``after``).
    """

    def __call__(self, kind: Kind, phase: Phase, /, *names: str) -> None: ...


_observer: Observer | None = None


def reached(kind: Kind, phase: Phase, *names: str) -> None:
    """
    Announce one boundary to the attached observer, if there is one.

    Args:
        kind: What is about to happen, or has happened.
        phase: ``before`` the operation, or ``after`` it succeeded. A failed operation announces
            only ``before``.
        names: Absolute paths for the file kinds (a rename: source, destination); one label for
            a point.
    Cost: One comparison when nothing is attached.
    """
    if _observer is not None:
        _observer(kind, phase, *names)


@contextmanager
def surrounding(label: str) -> Iterator[None]:
    """
    Announce the point *label* before the block and, when the block succeeded, after it.

    Args:
        label: ``<component>.<verb>``; stable for ever, since reports and tests refer to it.
    """
    reached("point", "before", label)
    yield
    reached("point", "after", label)
