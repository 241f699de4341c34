"""
Guarantee: a record appended after a crash can be read back, whatever the crash left before it.

Bug: B07. Record and newline are two writes; after a death between them, the next record lands on
the torn line, and the reader skips both. It shows only when the recovered log is written to.
Report: Tracer-Cloud/opensre#5750, again in #6356; the same in elizaOS/eliza#30878.
"""

import json
import os
from functools import partial
from pathlib import Path
from typing import BinaryIO, ClassVar

from harness import JSON, Campaign, Evidence, Run


def append(log: BinaryIO, number: int) -> None:
    """Append one record and sync it."""
    log.write(json.dumps({"id": number}).encode())
    log.write(b"\n")
    os.fsync(log.fileno())


class _Log(Campaign):
    cuts_torn_tail: ClassVar[bool]

    def open(self, root: Path) -> BinaryIO:
        if self.cuts_torn_tail:
            with open(root / "log", "r+b") as log:
                log.truncate(log.read().rfind(b"\n") + 1)
        return open(root / "log", "ab", buffering=0)

    def prepare(self, root: Path, run: Run) -> JSON:
        (root / "log").touch()
        return None

    def execute(self, root: Path, run: Run) -> None:
        with self.open(root) as log:
            for n in (1, 2):
                run.step(f"append {n}", partial(append, log, n), then=list(range(1, n + 1)))

    def observe(self, root: Path) -> JSON:
        found = []
        for line in (root / "log").read_bytes().split(b"\n"):
            try:
                found.append(json.loads(line)["id"])
            except ValueError:
                continue
        return found

    def resume(self, root: Path, run: Run) -> None:
        with self.open(root) as log:
            append(log, 9)
        run.promise("appended", number=9)

    def promised_appended(self, root: Path, evidence: Evidence, *, number: int) -> bool:
        return number in evidence.observed

    def complete(self, root: Path, evidence: Evidence) -> bool:
        return True  # the promise is the whole demand


class Broken(_Log):
    """Appends behind whatever is there."""

    cuts_torn_tail = False


class Fixed(_Log):
    """Cuts an unterminated tail before it appends."""

    cuts_torn_tail = True
