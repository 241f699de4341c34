"""
Guarantee: a lock whose owner died can be taken.

Bug: B15. The lock file is created first and its owner's pid written second; a lock of a dead pid is
broken, an unreadable one is believed. Also shows whether the harness reaped the dead process: a
zombie still answers kill(pid, 0).
Report: tox-dev/filelock#534, also #532, #531, #639 and #725.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import JSON, Campaign, Run


class LockTaken(Exception):
    """Somebody else has the lock."""


def is_alive(pid: int) -> bool:
    """Say whether a process answers."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def acquire(lock: Path, create: Callable[[Path], None]) -> None:
    """Take the lock, from a dead owner too. Raises: LockTaken."""
    for _ in range(2):
        try:
            return create(lock)
        except FileExistsError:
            owner = lock.read_text()
            if owner.isdigit() and not is_alive(int(owner)):
                lock.unlink()
    raise LockTaken(f"{lock.name} belongs to {owner!r}")


class _Counter(Campaign):
    def create(self, lock: Path) -> None:
        raise NotImplementedError

    def save(self, root: Path, number: int) -> None:
        acquire(root / "lock", self.create)
        (root / "count.new").write_text(str(number))
        (root / "count.new").replace(root / "count")
        (root / "lock").unlink()

    def prepare(self, root: Path, run: Run) -> JSON:
        (root / "count").write_text("0")
        return None

    def execute(self, root: Path, run: Run) -> None:
        for n in (1, 2):
            run.step(f"save {n}", partial(self.save, root, n), then=n)

    def observe(self, root: Path) -> JSON:
        return int((root / "count").read_text())


class Broken(_Counter):
    """The lock exists before it names its owner."""

    def create(self, lock: Path) -> None:
        file = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(file, b"%d" % os.getpid())
        os.close(file)


class Fixed(_Counter):
    """The pid is written to a private file, which is then linked to the lock's name."""

    def create(self, lock: Path) -> None:
        own = lock.with_name(f"lock.{os.getpid()}")
        own.write_text(str(os.getpid()))
        try:
            os.link(own, lock)
        finally:
            own.unlink()
