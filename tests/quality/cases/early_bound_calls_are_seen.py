"""
Guarantee of the harness: calls that a store bound at import are boundaries too.

Bug: B39. Two files are replaced one after the other, through names taken from `os` at import and
through pathlib. A harness that only replaces attributes of `os` later would count no boundary.
Report: pytest-dev/pyfakefs#850 and #73, also Tinche/aiofiles#16.
"""

from functools import partial
from os import O_CREAT, O_TRUNC, O_WRONLY, close, fsync, rename, write
from os import open as open_file
from pathlib import Path

from harness import JSON, Campaign, Run


def write_synced(path: Path, text: str) -> None:
    """Write one file and sync it."""
    file = open_file(path, O_CREAT | O_TRUNC | O_WRONLY, 0o644)
    write(file, text.encode())
    fsync(file)
    close(file)


class _Pair(Campaign):
    def save(self, root: Path, text: str) -> None:
        raise NotImplementedError

    def prepare(self, root: Path, run: Run) -> JSON:
        self.save(root, "0")
        return None

    def execute(self, root: Path, run: Run) -> None:
        run.step("save", partial(self.save, root, "1"), then="1 1")

    def observe(self, root: Path) -> JSON:
        both = root / "both"
        if both.exists():
            return both.read_text()
        return f"{(root / 'left').read_text()} {(root / 'right').read_text()}"


class Broken(_Pair):
    """Two renames."""

    def save(self, root: Path, text: str) -> None:
        for name in ("left", "right"):
            write_synced(root / f"{name}.new", text)
        rename(root / "left.new", root / "left")  # noqa: PTH104 - what the case is about
        (root / "right.new").rename(root / "right")


class Fixed(_Pair):
    """Both values in one file, one rename."""

    def save(self, root: Path, text: str) -> None:
        write_synced(root / "both.new", f"{text} {text}")
        rename(root / "both.new", root / "both")  # noqa: PTH104 - what the case is about
