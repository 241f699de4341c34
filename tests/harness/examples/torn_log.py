"""A log whose records are torn by a crash, which only the next record that is written shows."""

from __future__ import annotations

import os
from functools import partial
from io import FileIO
from pathlib import Path

from harness import Campaign, Evidence, Run


def append(file: FileIO, number: int) -> None:
    """Write a record and, broken, its end in a second write."""
    file.write(str(number).encode())
    file.write(b"\n")
    os.fsync(file.fileno())


class TornLog(Campaign):
    """Every acknowledged record can be read."""

    def prepare(self, root: Path, run: Run) -> None:
        """Make an empty log."""
        (root / "log").touch()

    def execute(self, root: Path, run: Run) -> None:
        """Append two records."""
        with open(root / "log", "ab", buffering=0) as file:
            for number in (1, 2):
                run.step(
                    f"append {number}",
                    partial(append, file, number),
                    then=list(range(1, number + 1)),
                )

    def observe(self, root: Path) -> list[int]:
        """Return the records."""
        return [int(line) for line in (root / "log").read_text().split()]

    def resume(self, root: Path, run: Run) -> None:
        """Append one more after every crash, the last one too."""
        with open(root / "log", "ab", buffering=0) as file:
            append(file, 9)
            run.promise("appended", number=9)

    def promised_appended(self, root: Path, evidence: Evidence, *, number: int) -> bool:
        """A record that was appended is there."""
        return number in evidence.observed

    def complete(self, root: Path, evidence: Evidence) -> bool:
        """The promise demands all that there is."""
        return True
