"""What several test modules need: a file system that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB; what can be seen without one is tested with FakeStatvfs."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=50", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"NOT TESTED, a full file system: cannot mount a small one: {mounted.stderr}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
