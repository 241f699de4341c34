"""
Guarantee: files that belong together are of one generation, always.

Bug: B17. Each file is replaced atomically on its own; after a death between the two renames the new
index names documents that the old file does not hold. Each file alone is whole.
Report: whoosh-community/whoosh#323, also the review of petuum/adaptdl#81.
"""

import json
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from harness import JSON, Campaign, Check, Evidence, Run

Generation = tuple[dict[str, list[str]], dict[str, str]]
FIRST: Generation = ({"cat": ["1"]}, {"1": "a cat"})
SECOND: Generation = ({"cat": ["1"], "dog": ["2"]}, {"1": "a cat", "2": "a dog"})


def replace(path: Path, document: object) -> None:
    """Replace one file atomically and durably."""
    new = path.with_name(path.name + ".new")
    with open(new, "w") as file:
        file.write(json.dumps(document))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


class _Index(Campaign):
    def save(self, root: Path, number: int, generation: Generation) -> None:
        raise NotImplementedError

    def suffix(self, root: Path) -> str:
        raise NotImplementedError

    def prepare(self, root: Path, run: Run) -> JSON:
        self.save(root, 1, FIRST)
        return None

    def execute(self, root: Path, run: Run) -> None:
        run.step("save", partial(self.save, root, 2, SECOND), then=SECOND)

    def observe(self, root: Path) -> JSON:
        names = [name + self.suffix(root) for name in ("postings", "documents")]
        return [json.loads((root / name).read_text()) for name in names]

    def check(self, root: Path, evidence: Evidence) -> Iterable[Check]:
        postings, documents = evidence.observed
        for word, numbers in postings.items():
            missing = [number for number in numbers if number not in documents]
            yield Check("no_dangling_posting", not missing, f"{word!r} points at {missing}")


class Broken(_Index):
    """Two renames, one after the other."""

    def save(self, root: Path, number: int, generation: Generation) -> None:
        replace(root / "postings", generation[0])
        replace(root / "documents", generation[1])

    def suffix(self, root: Path) -> str:
        return ""


class Fixed(_Index):
    """Files carry their generation in the name; one rename of a manifest flips both."""

    def save(self, root: Path, number: int, generation: Generation) -> None:
        replace(root / f"postings.{number}", generation[0])
        replace(root / f"documents.{number}", generation[1])
        replace(root / "manifest", number)

    def suffix(self, root: Path) -> str:
        return "." + (root / "manifest").read_text()
