"""
A cache of one file per key, written without any sync.

Shows ``durability = "cache"``: after a crash every entry may be gone, and none may be wrong.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from harness import Campaign, Run


def put(root: Path, key: str, value: int) -> None:
    """Store *value* under *key*: whole, or not at all."""
    fresh = root / f"{key}.part"
    fresh.write_text(json.dumps(value))
    fresh.replace(root / key)


class Cache(Campaign):
    """What is found under a key was once put there."""

    durability = "cache"

    def execute(self, root: Path, run: Run) -> None:
        """Put two keys, and one of them again."""
        for key, value in (("a", 1), ("b", 2), ("a", 3)):
            run.step(f"put {key}={value}", partial(put, root, key, value))

    def observe(self, root: Path) -> dict[str, int]:
        """Return every entry; parts of entries are none."""
        entries = sorted(path for path in root.iterdir() if path.suffix != ".part")
        return {path.name: json.loads(path.read_text()) for path in entries}
