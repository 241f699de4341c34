"""Fixtures of the tests of reading at rest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dead_databases import DEAD, finish, start


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one dead database of each kind."""
    folder = tmp_path_factory.mktemp("dead")
    for name, script in DEAD.items():
        (folder / name).mkdir()
        finish(start(folder / name / "a.db", script))
    return folder


@pytest.fixture
def dead(templates: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that leaves a database of the given kind in a folder of its own."""
    return lambda kind: Path(shutil.copytree(templates / kind, tmp_path / kind)) / "a.db"
