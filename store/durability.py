"""
The only place in ``store/`` that syncs a file, syncs a directory or renames without replacement.

Each call announces itself to `store.crash_points` before it acts, and after it only when it
succeeded, with absolute paths.

Covered: Linux, where ``fsync`` reaches the device and ``renameat2`` can refuse to replace.
Not covered: storage that acknowledges a sync it did not do; platforms whose ``fsync`` stops at
the drive's cache. A failed sync is reported once and never tried again: the kernel may already
have dropped the pages, and a second call would then succeed without having written them.

Closing any descriptor of a file drops all POSIX record locks that the process holds on it, and
SQLite's locks are such locks. So a database may be synced by path only while no connection of
this process, in any thread, has it open; otherwise pass a descriptor that outlives them.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from store.crash_points import reached

__all__ = [
    "DestinationExists",
    "DurabilityError",
    "NoReplaceUnsupported",
    "RenameFailed",
    "SyncFailed",
    "rename_no_replace",
    "sync_directory",
    "sync_file",
]

_Rename: TypeAlias = Callable[[bytes, bytes], int]
"""Renames source to destination and returns 0, or the error number."""

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_SYSTEM_CALL_NUMBERS = {"x86_64": 316, "aarch64": 276}
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})


class DurabilityError(Exception):
    """
    Root of what this module raises.

    Attributes:
        paths: What the operation was asked to act on, in order.
        number: The error number, as in `errno`; `errno.ENOSYS` where the call does not exist.
    """

    expected = "success"

    def __init__(self, paths: tuple[str, ...], number: int) -> None:
        super().__init__(paths, number)
        self.paths = paths
        self.number = number

    def __str__(self) -> str:
        name = errno.errorcode.get(self.number, str(self.number))
        return (
            f"paths={list(self.paths)!r} gave {name} ({os.strerror(self.number)}); "
            f"expected {self.expected}"
        )

    def __reduce__(self) -> tuple[type[DurabilityError], tuple[tuple[str, ...], int]]:
        return type(self), (self.paths, self.number)


class SyncFailed(DurabilityError):
    """
    A file or directory could not be opened for, or did not complete, its sync.
    """

    expected = "a completed sync. Do not repeat it: treat what it covers as not durable."


class RenameFailed(DurabilityError):
    """
    A rename did not happen; neither name changed.
    """

    expected = "an existing source and a free destination in a writable folder. Nothing moved."


class DestinationExists(RenameFailed):
    """
    The destination's name is taken, be it by an empty directory.
    """

    expected = "a free destination. Nothing moved; look at what is there, or choose another name."


class NoReplaceUnsupported(RenameFailed):
    """
    This kernel, C library or file system has no rename that refuses to replace.
    """

    expected = (
        "a rename that refuses to replace. Nothing moved; use a local Linux file system that "
        "supports RENAME_NOREPLACE. A replacing rename is no substitute."
    )


def sync_file(path: Path, *, descriptor: int | None = None) -> None:
    """
    Make the content of the regular file *path* durable.

    Args:
        path: The file; its final component must not be a symbolic link.
        descriptor: An open descriptor of that file, which stays open. Without it the file is
            opened and closed: never do that to a database that this process has open.
    Durable: after success: the file's bytes and size, not its name. After an error: nothing new.
    Raises: SyncFailed: opening or syncing failed.
    """
    path = path.absolute()
    reached("file_sync", "before", str(path))
    _sync(path, os.O_RDONLY, descriptor)
    reached("file_sync", "after", str(path))


def sync_directory(path: Path) -> None:
    """
    Make the entries of the directory *path* durable.

    Args:
        path: The directory; its final component must not be a symbolic link.
    Durable: after success: the names in it, not the content of its files, nor its own name.
    Raises: SyncFailed: opening or syncing failed.
    """
    path = path.absolute()
    reached("directory_sync", "before", str(path))
    _sync(path, os.O_RDONLY | os.O_DIRECTORY, None)
    reached("directory_sync", "after", str(path))


def rename_no_replace(source: Path, destination: Path) -> None:
    """
    Rename *source* to *destination* in one step, if and only if *destination* is free.

    Args:
        source: A file or directory.
        destination: A free name on the same file system.
    Durable: Nothing yet; after success sync both parents. After an error both names are as
        they were.
    Raises:
        DestinationExists: the name is taken, also by an empty directory.
        NoReplaceUnsupported: no such rename here; nothing weaker is tried.
        RenameFailed: any other refusal, as of a missing source or another file system.
    """
    source, destination = source.absolute(), destination.absolute()
    names = (str(source), str(destination))
    if any("\0" in name for name in names):
        raise ValueError(f"paths={list(names)!r} must not contain a NUL character.")
    reached("rename", "before", *names)
    rename = _no_replace()
    number = (
        errno.ENOSYS if rename is None else rename(os.fsencode(source), os.fsencode(destination))
    )
    if number == errno.EEXIST:
        raise DestinationExists(names, number)
    # EINVAL also says that a directory was to move into itself, which no file system can do.
    if number in _UNSUPPORTED and not destination.is_relative_to(source):
        raise NoReplaceUnsupported(names, number)
    if number:
        raise RenameFailed(names, number)
    reached("rename", "after", *names)


def _sync(path: Path, flags: int, descriptor: int | None) -> None:
    try:
        if descriptor is not None:
            os.fsync(descriptor)
            return
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    except OSError as error:
        raise SyncFailed((str(path),), error.errno or errno.EIO) from error


@functools.cache
def _no_replace() -> _Rename | None:
    """Return the way to rename without replacement here, or None where there is none."""
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "renameat2"):
        return _through_symbol(library)
    number = _system_call_number(os.uname().machine)
    return None if number is None else _through_system_call(library, number)


def _system_call_number(machine: str) -> int | None:
    """Return the number of renameat2 for a 64 bit process on *machine*, if it is known."""
    return _SYSTEM_CALL_NUMBERS.get(machine) if struct.calcsize("P") == 8 else None


def _through_symbol(library: ctypes.CDLL) -> _Rename:
    function = library.renameat2
    function.restype = ctypes.c_int
    function.argtypes = [
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_uint,
    ]

    def rename(source: bytes, destination: bytes) -> int:
        failed = function(_AT_FDCWD, source, _AT_FDCWD, destination, _RENAME_NOREPLACE)
        return ctypes.get_errno() if failed else 0

    return rename


def _through_system_call(library: ctypes.CDLL, number: int) -> _Rename:
    function = library.syscall
    function.restype = ctypes.c_long

    def rename(source: bytes, destination: bytes) -> int:
        failed = function(
            ctypes.c_long(number),
            ctypes.c_long(_AT_FDCWD),
            ctypes.c_char_p(source),
            ctypes.c_long(_AT_FDCWD),
            ctypes.c_char_p(destination),
            ctypes.c_long(_RENAME_NOREPLACE),
        )
        return ctypes.get_errno() if failed else 0

    return rename
