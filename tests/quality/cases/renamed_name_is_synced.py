"""
Guarantee: a file that was replaced atomically is the new one, also after a power loss.

Bug: B06. The new file is synced and renamed, but its directory is never synced, so the old name may
be back. Process death cannot show it.
Report: untitaker/python-atomicwrites#12, also daintreehq/daintree#6053.
"""

import os
from functools import partial
from pathlib import Path
from typing import ClassVar

from harness import JSON, Campaign, Run


class _Settings(Campaign):
    syncs_directory: ClassVar[bool]

    def save(self, root: Path, text: str) -> None:
        with open(root / "settings.new", "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        (root / "settings.new").replace(root / "settings")
        if self.syncs_directory:
            folder = os.open(root, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    def prepare(self, root: Path, run: Run) -> JSON:
        (root / "settings").write_text("0")
        return None

    def execute(self, root: Path, run: Run) -> None:
        for text in ("1", "2"):
            run.step(f"save {text}", partial(self.save, root, text), then=text)

    def observe(self, root: Path) -> JSON:
        return (root / "settings").read_text()

    def spoil(self, root: Path) -> None:
        (root / "settings").write_text("1")  # the last rename lost


class Broken(_Settings):
    """Syncs the file only."""

    syncs_directory = False


class Fixed(_Settings):
    """Syncs the directory before it acknowledges."""

    syncs_directory = True
