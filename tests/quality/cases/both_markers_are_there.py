"""
Guarantee: of two marker files there are both or none.

Bug: planted, no report; it shows what process death leaves out. The markers are empty files:
nothing between their creation is a boundary, so no execution dies there. A death at each mutating
system call (syscall-death) does.
"""

import os
from functools import partial
from pathlib import Path

from harness import JSON, Campaign, Run


class _Markers(Campaign):
    def mark(self, root: Path) -> None:
        raise NotImplementedError

    def mark_durably(self, root: Path) -> None:
        self.mark(root)
        folder = os.open(root, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def execute(self, root: Path, run: Run) -> None:
        run.step("mark", partial(self.mark_durably, root), then=["left", "right"])

    def observe(self, root: Path) -> JSON:
        return [name for name in ("left", "right") if list(root.glob(f"marks/{name}"))]


class Broken(_Markers):
    """Two creates under their own names."""

    def mark(self, root: Path) -> None:
        (root / "marks").mkdir(exist_ok=True)
        (root / "marks/left").touch()
        (root / "marks/right").touch()

    def spoil(self, root: Path) -> None:
        (root / "marks/right").unlink()  # what a death between the two creates leaves


class Fixed(_Markers):
    """Two creates in a folder that no one looks into, and one rename of it."""

    def mark(self, root: Path) -> None:
        (root / "marks.new").mkdir(exist_ok=True)
        (root / "marks.new/left").touch()
        (root / "marks.new/right").touch()
        (root / "marks.new").rename(root / "marks")
