"""
Guarantee: an index that could be rebuilt never keeps the store from opening.

Bug: B11. The log is synced, the index is not; a power loss may leave the index empty, and then
every open fails although the log holds everything. Process death cannot show it, and the workload's
trace is the same in both twins: they differ in what they do with an index that does not read back.
Report: borgbackup/borg#1195.
"""

import json
import os
from functools import partial
from pathlib import Path

from harness import JSON, Campaign, Run


def logged(root: Path) -> list[int]:
    """Return the keys of the log's whole lines."""
    return [int(x) for x in (root / "log").read_bytes().split(b"\n")[:-1]]


def indexed(root: Path) -> list[int]:
    """Return the keys that the index holds."""
    return [int(key) for key in json.loads((root / "index").read_text())]


def write_index(root: Path, keys: list[int]) -> None:
    """Replace the index, without a sync, as it can be rebuilt."""
    (root / "index.new").write_text(json.dumps(keys))
    (root / "index.new").replace(root / "index")


def put(root: Path, key: int) -> None:
    """Store a key: the log first, then the index."""
    with open(root / "log", "ab") as log:
        log.write(b"%d\n" % key)
        log.flush()
        os.fsync(log.fileno())
    write_index(root, logged(root))


class _Index(Campaign):
    def prepare(self, root: Path, run: Run) -> JSON:
        (root / "log").touch()
        write_index(root, [])
        return None

    def execute(self, root: Path, run: Run) -> None:
        for n in (1, 2):
            run.step(f"put {n}", partial(put, root, n), then=list(range(1, n + 1)))

    def observe(self, root: Path) -> JSON:
        return indexed(root)

    def after_opening(self, root: Path) -> None:
        """Bring the index to what the log holds."""
        if indexed(root) != logged(root):
            write_index(root, logged(root))


class Broken(_Index):
    """Takes the index for the truth and raises where it does not read back."""

    def recover(self, root: Path, run: Run) -> None:
        self.after_opening(root)

    def spoil(self, root: Path) -> None:
        os.truncate(root / "index", 0)  # what a power loss may leave of an unsynced file


class Fixed(_Index):
    """Rebuilds an index that does not read back."""

    def recover(self, root: Path, run: Run) -> None:
        try:
            self.after_opening(root)
        except (OSError, ValueError, TypeError):
            write_index(root, logged(root))
