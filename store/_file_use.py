"""
Whether a living process uses a file, as the Linux kernel tells it.

Three sources, since none tells all: record locks, read leases, and the descriptors in ``/proc``.

Covered: this host; leases also show processes of other containers and descriptors without locks.
Not covered: file systems without leases, and files of other users, where only locks are seen; a
file that is only mapped into memory by a process without a descriptor is seen by leases alone.

Closing a descriptor drops all record locks that this process holds on its file. So ask `uses`
about this process before opening a file in order to ask the rest.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
from pathlib import Path
from typing import Final, TypeAlias

__all__ = ["Identity", "find_user", "is_open_for_writing", "lock_holder", "uses"]

Identity: TypeAlias = tuple[int, int]
"""Device and inode."""

_FLOCK: Final = "hhqqi0q"
"""``struct flock`` of 64-bit Linux: kind, whence, start, count, process."""


def uses(process: str, files: set[Identity]) -> bool:
    """
    Tell whether *process* has one of *files* open for writing or under a lock.

    Opens none of them. What ``/proc`` does not show is taken as not open.

    Args:
        process: Its number, or ``self``.
    Cost: One look per descriptor of the process.
    """
    try:
        entries = list(Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return False
    for entry in entries:
        try:
            opened = entry.stat()
            if (opened.st_dev, opened.st_ino) not in files:
                continue
            details = Path(f"/proc/{process}/fdinfo/{entry.name}").read_text()
        except OSError:
            continue  # It was closed meanwhile.
        flags = int(details.partition("flags:")[2].split()[0], 8)
        locks = [line for line in details.splitlines() if line.startswith("lock:")]
        # Another thread that asks `is_open_for_writing` at this moment has a lease.
        if flags & os.O_ACCMODE != os.O_RDONLY or any("LEASE" not in line for line in locks):
            return True
    return False


def find_user(files: set[Identity]) -> int | None:
    """
    Return the number of some process that `uses` one of *files*, if ``/proc`` shows it.

    Cost: One look per descriptor of every process that this one may look into.
    """
    numbers = (entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return next((int(number) for number in numbers if uses(number, files)), None)


def lock_holder(descriptor: int, start: int, count: int) -> int | None:
    """
    Return the other process that holds a record lock on some of *count* bytes from *start*.

    The number is not positive where the kernel has none. Locks of this process are not seen.
    """
    question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, count, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    return None if kind == fcntl.F_UNLCK else int(pid)


def is_open_for_writing(descriptor: int) -> bool:
    """
    Tell whether anybody could write the file, with or without a lock, where the kernel tells it.

    It gives a read lease only while nobody can, and only to the file's owner or root; the lease
    is given back at once. A signal that is ignored replaces the one that would end this process
    if somebody opened the file in between; that one waits until the lease is back.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
