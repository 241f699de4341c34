"""
The private folder that the processes of one test run share, and their places in it.

Who first needs something that is the same for all of them, a recording say, makes it under a file
lock; every other process reads it. So all collect the same items, and nothing is made twice.

Covered: a process that dies leaves its files to the one that made the folder, and its lock to the
next.
Not covered: the maker of the folder is killed; then the next run removes the folder.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.errors import WorkspaceError
from harness.workdir import Workdir

ROOTS_MAX = 1000
"""Roots in a run's folder, two for each process, so that all their paths are of one length."""

REMOVE_SECONDS_MAX = 5.0
"""How long to wait for the last children to be dead when the folder is removed."""


class RunFolder:
    """
    One process's view of the run's folder, which is made when it is first needed.

    Not to be shared between threads.
    """

    def __init__(self, parent: Path | None, shared: Mapping[str, Any] | None) -> None:
        """
        Args:
            parent: Where to make it; None: in memory, else among temporary files.
            shared: What :meth:`share` of another process returned, or None.
        """
        self.parent = parent
        self._shared = shared
        self._owned: Workdir | None = None

    def share(self, *, number: int, processes: int) -> dict[str, Any]:
        """
        Return, for process *number* of *processes*, what its folder is made of.

        Raises: WorkspaceError: there is no room for so many.
        """
        return {"folder": str(self._made(processes).folder), "number": number}

    @cached_property
    def roots(self) -> Workdir:
        """The roots of all processes. Raises: WorkspaceError: there is no room for them."""
        folder = Path(self._shared["folder"]) if self._shared else None
        if folder is None or not folder.is_dir():  # not there: a process on another machine
            folder = self._made(1).folder
        return Workdir(folder, jobs=ROOTS_MAX)

    @property
    def first_root(self) -> int:
        """The number of the first of the two roots that this process has."""
        number = int(self._shared["number"]) if self._shared else 0
        return 2 * number % ROOTS_MAX

    def _made(self, processes: int) -> Workdir:
        if self._owned is None:
            self._owned = Workdir.choose(self.parent, processes + 1)
        return self._owned

    def once(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """
        Return what the first process of the run made under *name*, as JSON gives it back.

        Raises: WorkspaceError: the folder cannot be used; and what *make* raises, which the next
            process tries again.
        """
        path = self.roots.folder / f"{name}.json"
        try:
            with _locked(path.with_suffix(".lock")):
                if not path.exists():
                    draft = path.with_suffix(".new")
                    draft.write_text(json.dumps(make()))
                    draft.replace(path)
                data: dict[str, Any] = json.loads(path.read_bytes())
                return data
        except OSError as error:
            raise WorkspaceError(f"the work folder cannot be used: {error}") from None

    def close(self) -> None:
        """Remove the folder, where this process made it."""
        owned, self._owned = self._owned, None
        deadline = time.monotonic() + REMOVE_SECONDS_MAX
        while owned is not None:
            try:
                owned.close()
            except WorkspaceError as error:
                if time.monotonic() > deadline:
                    print(f"crashconform: a work folder is left behind: {error}", file=sys.stderr)
                    return
                time.sleep(0.05)  # a child of a killed process is about to die
            else:
                return


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock, which the system releases where this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
