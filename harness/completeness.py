"""
Whether the recorder saw everything: the tree that its log gives is held against the real one.

Method: a copy of the starting tree follows the log; wherever the recorded processes stand still, at
a step's end, it must equal the real tree, byte for byte. A call that was missed shows as a path
that differs. Syncs change no file: that these are seen is shown by a canary, which makes every kind
of call once and counts what was recorded (``harness.recorder.canary``).

Covered: contents, names, kinds, permissions; logs that stopped early; gaps; writable shared
mappings. Not covered: times, owners, attributes; what was missed and undone between two looks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import workspace
from harness.errors import OplogError
from harness.materialise import Materialiser
from harness.oplog import Kind, Oplog

__all__ = ["Follower"]


@dataclass
class Follower:
    """
    A tree that follows a log which may still grow.

    Args:
        log: Read from where it stands; nobody else iterates over it.
        tree: A copy of the tree that the recording started from; changed.
        side: An empty or missing folder on the same file system.
        volatile: Patterns of files that are not compared, and may be mapped.
    """

    log: Oplog
    tree: Path
    side: Path
    volatile: Sequence[str] = ()
    materialiser: Materialiser = field(init=False)
    _failure: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.materialiser = Materialiser(self.tree, self.side)

    def follow(self) -> int:
        """Apply what is in the log by now; return how many ops that were."""
        count = 0
        try:
            for op in self.log:
                if self._failure is None:
                    self.materialiser.apply(op)
                count += Kind.OPEN <= op.kind
        except (OplogError, OSError) as error:
            self._failure = self._failure or f"the log cannot be followed: {error}"
        return count

    def problems(self, real: Path) -> list[str]:
        """
        Return why the log is not the whole story of *real*, one sentence each; empty where it is.

        The recorded processes must not write meanwhile.
        """
        self.follow()
        if self._failure is not None:
            return [self._failure]
        problems = [f"the recorder could not follow: {gap}" for gap in self.materialiser.gaps]
        lost = self.log.header.lost
        if lost:
            problems.append(f"recording stopped before the end: {os.strerror(lost)}")
        mapped = workspace.not_matching(self.materialiser.mapped, self.volatile)
        problems += [
            f"{name} is mapped writable and shared: what is written that way is not seen; "
            "declare it volatile, where a crash may lose it."
            for name in mapped
        ]
        differences = workspace.tree_difference(self.tree, real, self.volatile)
        return problems + [
            f"the recorder missed a write to {line} (first: by the log, second: in truth)"
            for line in differences
        ]
