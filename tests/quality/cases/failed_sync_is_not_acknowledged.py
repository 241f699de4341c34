"""
Guarantee: a write whose sync failed is refused, and the version before it stays.

Bug: B22. The error of fsync is swallowed as "best effort" and the rename goes ahead; the kernel has
dropped the bytes, and a second fsync would report success. Only an injected error shows it: without
one, the twins make the same calls.
Report: teng-lin/notebooklm-py#1278; background in acid-state/acid-state#175 and
wiredtiger/wiredtiger#4072.
"""

import os
from functools import partial
from pathlib import Path
from typing import ClassVar

from harness import JSON, Campaign, Run


class _Token(Campaign):
    swallows_errors: ClassVar[bool]

    def save(self, root: Path, text: str) -> None:
        with open(root / "token.new", "w") as file:
            file.write(text)
            file.flush()
            try:
                os.fsync(file.fileno())
            except OSError:
                if not self.swallows_errors:
                    (root / "token.new").unlink()
                    raise
        (root / "token.new").replace(root / "token")
        folder = os.open(root, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def prepare(self, root: Path, run: Run) -> JSON:
        (root / "token").write_text("token-0")
        return None

    def execute(self, root: Path, run: Run) -> None:
        for n in (1, 2):
            run.step(f"save {n}", partial(self.save, root, f"token-{n}"), then=f"token-{n}")

    def observe(self, root: Path) -> JSON:
        return (root / "token").read_text()

    def spoil(self, root: Path) -> None:
        os.truncate(root / "token", 0)  # renamed, and its bytes dropped by the kernel


class Broken(_Token):
    """Goes on after the error."""

    swallows_errors = True


class Fixed(_Token):
    """Drops the new file and lets the error through."""

    swallows_errors = False
