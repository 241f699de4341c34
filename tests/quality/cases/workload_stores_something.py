"""
Guarantee of the harness: a workload that stores nothing proves nothing, and is not called passed.

Bug: B41. The store writes only when an environment variable is set, which nobody sets.
Report: commandprompt/pgcolumnar#223 (18 of 19 checks pass with the kill removed), also
pytest-dev/pytest-xdist#814.
"""

import os
from functools import partial
from pathlib import Path
from typing import ClassVar

from harness import JSON, UNCHANGED, Campaign, Run


class _Store(Campaign):
    default: ClassVar[str]

    def save(self, root: Path) -> None:
        if os.environ.get("CASE_STORE_THAT_NOBODY_ENABLES", self.default):
            (root / "state.new").write_text("1")
            (root / "state.new").replace(root / "state")

    def execute(self, root: Path, run: Run) -> None:
        run.step("save", partial(self.save, root), then="1" if self.default else UNCHANGED)

    def observe(self, root: Path) -> JSON:
        return (root / "state").read_text() if (root / "state").exists() else None


class Broken(_Store):
    """Disabled, so no boundary is ever reached."""

    default = ""


class Fixed(_Store):
    """Enabled."""

    default = "yes"
