"""Where a project's campaigns may be, told from its configuration alone: nothing is imported."""

from __future__ import annotations

import os
from pathlib import Path

from harness.configuration import Project
from harness.discovery import is_path


def may_hold_campaigns(project: Project, path: Path) -> bool:
    """
    Say without importing anything whether a file or folder may belong to a project's campaigns.

    A module that is not below the project's folder may be anywhere, so there a path that has its
    name in it is enough.
    """
    real = Path(os.path.realpath(path))
    return any(_covers(target, project.folder, real) for target in project.targets)


def _covers(target: str, folder: Path, path: Path) -> bool:
    place = target.partition(":")[0]
    if is_path(place):
        return path.is_relative_to(os.path.realpath(folder / place))
    parts = tuple(place.split("."))
    base = Path(os.path.realpath(folder.joinpath(*parts)))
    file = base.parent / f"{base.name}.py"
    if base.is_dir() or file.is_file():
        return path == file or path.is_relative_to(base)
    names = path.with_suffix("").parts
    return any(names[i : i + len(parts)] == parts for i in range(len(names)))
