"""
Guarantee: a head file is on disk before its name is, so that no power loss leaves it empty.

Bug: B01. The queue's head is written to a new name and renamed, and nothing is synced. Process
death cannot show it: the page cache outlives the process.
Second bug, in the same store: a chunk line past the count stays, so the next item is hidden behind
it. It shows only once the recovered queue is written to.
Report: peter-wangxu/persist-queue#180, also #56.
"""

import json
import os
from functools import partial
from pathlib import Path
from typing import IO, ClassVar

from harness import JSON, Campaign, Run


def read_count(root: Path) -> int:
    """Return how many items the head file says there are."""
    return int(json.loads((root / "head").read_text())["count"])


class _Queue(Campaign):
    syncs: ClassVar[bool] = False
    cuts_leftovers: ClassVar[bool] = True

    def sync(self, file: IO[bytes]) -> None:
        file.flush()
        if self.syncs:
            os.fsync(file.fileno())

    def put(self, root: Path, item: int) -> None:
        count = read_count(root) + 1
        with open(root / "chunk", "ab") as chunk:
            chunk.write(b"%d\n" % item)
            self.sync(chunk)
        with open(root / "head.new", "wb") as head:
            head.write(json.dumps({"count": count}).encode())
            self.sync(head)
        (root / "head.new").replace(root / "head")
        if self.syncs:
            folder = os.open(root, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    def prepare(self, root: Path, run: Run) -> JSON:
        (root / "chunk").touch()
        (root / "head").write_text('{"count": 0}')
        return None

    def execute(self, root: Path, run: Run) -> None:
        for n in (1, 2, 3):
            run.step(f"put {n}", partial(self.put, root, n), then=list(range(1, n + 1)))

    def recover(self, root: Path, run: Run) -> None:
        count = read_count(root)
        if self.cuts_leftovers:
            lines = (root / "chunk").read_bytes().splitlines(keepends=True)[:count]
            os.truncate(root / "chunk", len(b"".join(lines)))

    def observe(self, root: Path) -> JSON:
        return [int(x) for x in (root / "chunk").read_text().split()[: read_count(root)]]

    def spoil(self, root: Path) -> None:
        os.truncate(root / "head", 0)  # what a power loss may leave of an unsynced file


class Broken(_Queue):
    """Renames what it never synced."""


class BrokenTwice(_Queue):
    """Keeps bytes past the count as well."""

    cuts_leftovers = False


class Fixed(_Queue):
    """Syncs chunk, head and directory before it acknowledges."""

    syncs = True
