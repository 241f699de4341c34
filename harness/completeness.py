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
    _uncertain: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.materialiser = Materialiser(self.tree, self.side)

    def follow(self) -> int:
        """Apply what is in the log by now; return how many ops that were."""
        count = 0
        try:
            for op in self.log:
                if op.is_uncertain:
                    self._uncertain.append(
                        f"process {op.process} died in a call of kind {op.kind.name.lower()}, "
                        "which may have happened, in part or whole"
                    )
                elif self._failure is None:
                    self.materialiser.apply(op)
                count += op.kind >= Kind.OPEN
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
            return [*self._uncertain, self._failure]
        problems = self._uncertain + [
            f"the recorder could not follow: {gap}" for gap in self.materialiser.gaps
        ]
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
        return problems + [f"the recorder missed a write to {_told(line)}" for line in differences]


def _told(line: str) -> str:
    path, _, difference = line.rpartition(": ")
    for ours, theirs in (("in the first", "by the log"), ("in the second", "in truth")):
        difference = difference.replace(ours, theirs)
    return (
        f"{path}: by the log and in truth, {difference}"
        if " and " in difference
        else (f"{path}: {difference}")
    )
