"""
A settings file that is replaced as a whole.

Shows the shortest useful campaign: `then` says all that there is to say after each step.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from harness import Campaign, Run


def save(path: Path, value: object) -> None:
    """Write *value* under a new name, sync it, and put it in the old one's place."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


class Settings(Campaign):
    """After a crash the file holds one whole version: the last saved, or the one being saved."""

    def prepare(self, root: Path, run: Run) -> None:
        """Save the first version."""
        save(root / "settings.json", {"version": 0})

    def execute(self, root: Path, run: Run) -> None:
        """Save two more."""
        for version in (1, 2):
            settings = {"version": version}
            run.step(
                f"save {version}",
                lambda new=settings: save(root / "settings.json", new),  # type: ignore[misc]
                then=settings,
            )

    def observe(self, root: Path) -> dict[str, int]:
        """Read the file."""
        settings: dict[str, int] = json.loads((root / "settings.json").read_text())
        return settings
