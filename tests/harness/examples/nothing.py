"""A campaign whose store does nothing that could be crashed."""

from __future__ import annotations

from pathlib import Path

from harness import Campaign, Run


class Nothing(Campaign):
    """It has a step and no boundary of a store."""

    def execute(self, root: Path, run: Run) -> None:
        """Do nothing, in a step."""
        run.step("work", lambda: None)

    def observe(self, root: Path) -> list[str]:
        """Return the names of all files."""
        return sorted(path.name for path in root.iterdir())
