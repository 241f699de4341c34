"""
A twin: the store with one durability bug, as textual patches that a newcomer might have made.

Method: `plant` copies ``store`` and ``campaigns`` to a folder of their own and patches the copy.
The copied campaigns refuse to be imported beside any other ``store``, so what was run is what was
patched.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]

_GUARD = """

import store as _store

if _store.__file__ is None or not _store.__file__.startswith({place!r}):
    raise ImportError(f"the store of this tree was wanted, and {{_store.__file__}} was imported")
"""


class PatchRefused(Exception):
    """A patch does not match its file exactly once."""


@dataclass(frozen=True)
class Patch:
    """
    One replacement of text.

    Attributes:
        path: The file, relative to the repository.
        old: What must stand in it exactly once.
        new: What takes its place.
    """

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Twin:
    """
    One broken store, and how it must be caught.

    Attributes:
        name: Its name, in which the bug can be recognised.
        what: The bug in a sentence.
        patches: How to make it.
        campaign: ``module:Class`` of the campaign that catches it.
        step: The label of the step in which it shows first.
        near: A text of the trace lines of that step beside which it shows.
        invariants: Exactly what is reported as broken beside those lines and by the
            representative subset.
        everywhere: What else the exhaustive campaign reports.
        is_representative: Whether the representative subset catches it.
        harmless_from: The version of the standard library's SQLite that forgives the bug.
    """

    name: str
    what: str
    patches: tuple[Patch, ...]
    campaign: str
    step: str
    near: str
    invariants: frozenset[str]
    everywhere: frozenset[str] = frozenset()
    is_representative: bool = True
    harmless_from: tuple[int, ...] | None = None


def plant(patches: tuple[Patch, ...], folder: Path) -> Path:
    """
    Return the tree made in *folder*, which is created: the patched store and its campaigns.

    Raises: PatchRefused: a patch does not match exactly once.
    """
    folder = folder.resolve()
    for name in ("store", "campaigns"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored)
    for patch in patches:
        file = folder / patch.path
        text = file.read_text(encoding="utf-8")
        count = text.count(patch.old)
        if count != 1:
            raise PatchRefused(
                f"{patch.path} must hold this exactly once, and holds it {count} times; has the "
                f"store moved on?\n{patch.old}"
            )
        file.write_text(text.replace(patch.old, patch.new), encoding="utf-8")
    with (folder / "campaigns" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write(_GUARD.format(place=f"{folder}/"))
    return folder
