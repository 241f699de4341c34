"""
Guarantee of the harness: a workload that differs from run to run proves nothing.

Bug: B46. The number of records depends on the process id: boundary k of one execution may not exist
in the next, and a child that was told to die there ends by itself.
Report: HypothesisWorks/hypothesis#3690 and #1903; reddb-io/reddb#1357.
"""

import os
from functools import partial
from pathlib import Path
from typing import ClassVar

from harness import JSON, Campaign, Run


class _Log(Campaign):
    is_constant: ClassVar[bool]

    def append(self, root: Path) -> None:
        count = 3 if self.is_constant else 1 + os.getpid() % 7
        with open(root / "log", "ab", buffering=0) as log:
            for _ in range(count):
                log.write(b"r\n")
                os.fsync(log.fileno())

    def prepare(self, root: Path, run: Run) -> JSON:
        (root / "log").touch()
        return None

    def execute(self, root: Path, run: Run) -> None:
        between = [False, True]
        run.step("append", partial(self.append, root), then=True, between=between)

    def observe(self, root: Path) -> JSON:
        return (root / "log").read_text().startswith("r\n")


class Broken(_Log):
    """As many records as the process id says."""

    is_constant = False


class Fixed(_Log):
    """Three records, always."""

    is_constant = True
