"""
The lock that lets one initialiser at a time work in a root.

The lock is ``flock`` on a file that stays for ever. A file that came and went would let two
initialisers hold locks on two inodes of one name. ``flock`` belongs to the open file, so it
also excludes two threads of one process, and it ends with the process that held it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.run_store.errors import (
    InitializationFailed,
    InitLockBusy,
    InitLockReplaced,
    UnsafeLayout,
)
from store.run_store.layout import INIT_LOCK_NAME

__all__ = ["POLL_S", "TIMEOUT_S", "held"]

TIMEOUT_S = 5.0
"""How long an initialiser waits for another one, in seconds."""

POLL_S = 0.005
"""How long it sleeps between two tries; nobody sleeps when the lock is free."""

_BUSY = frozenset({errno.EWOULDBLOCK, errno.EACCES})
_MODE = 0o644


@contextmanager
def held(root: Path) -> Iterator[None]:
    """
    Run the block while holding the init lock of *root*.

    Threads and processes may call this at once; one at a time runs its block.

    Args:
        root: The resolved root.
    Durable: Nothing; the lock file is created if missing and never removed, not even after an
        error or a crash.
    Raises:
        InitLockBusy: somebody else held the lock for `TIMEOUT_S`.
        InitLockReplaced: the locked file is not the one that the path names.
        UnsafeLayout: the lock file is a symbolic link or not a regular file.
        InitializationFailed: the lock file cannot be opened or locked.
    """
    path = root / INIT_LOCK_NAME
    descriptor = _opened(path)
    try:
        _acquire(descriptor, path)
        try:
            _check_in_place(descriptor, path)
            yield
        finally:
            # Closing is not enough to release: a child forked meanwhile shares the open file.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags, _MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafeLayout(path, "is a symbolic link; the lock must be a file.") from error
        raise InitializationFailed("open_init_lock", path, str(error)) from error


def _acquire(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _BUSY:
                raise InitializationFailed("take_init_lock", path, str(error)) from error
        else:
            return
        if time.monotonic() >= deadline:
            raise InitLockBusy(path, TIMEOUT_S)
        time.sleep(POLL_S)


def _check_in_place(descriptor: int, path: Path) -> None:
    locked = os.fstat(descriptor)
    if not stat.S_ISREG(locked.st_mode):
        raise UnsafeLayout(path, "must be a regular file.")
    try:
        named = path.lstat()
    except FileNotFoundError as error:
        raise InitLockReplaced(path) from error
    if (locked.st_dev, locked.st_ino) != (named.st_dev, named.st_ino):
        raise InitLockReplaced(path)
