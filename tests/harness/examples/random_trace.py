"""A workload that takes another path in every process."""

from __future__ import annotations

import os
from pathlib import Path

from harness import Campaign, Run


class RandomTrace(Campaign):
    """It saves as many files as its process id happens to say."""

    def execute(self, root: Path, run: Run) -> None:
        """Save the files."""
        run.step("work", lambda: self._save(root, 1 + os.getpid() % 7))

    def _save(self, root: Path, count: int) -> None:
        for number in range(count):
            (root / str(number)).write_text(str(number))

    def observe(self, root: Path) -> list[str]:
        """Return the names of all files."""
        return sorted(path.name for path in root.iterdir())
