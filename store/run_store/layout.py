"""
What lies in a run store's root, and what a root must be before anything opens it.

Covered: symbolic links and wrong file types at the names that the store uses; network
filesystems that Linux names as such.
Not covered: links made after the check (paths and ancestors are trusted while a store is open);
network filesystems behind FUSE, which the kernel does not tell apart from local ones.
"""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

from store.run_store.errors import NetworkFilesystem, UnsafeLayout

__all__ = [
    "ARTIFACTS_NAME",
    "DATABASE_NAME",
    "INIT_LOCK_NAME",
    "RECOVERY_LOCK_NAME",
    "SIDECAR_SUFFIXES",
    "check_files",
    "checked_root",
    "database_path",
    "filesystem_type",
    "refuse_network_filesystem",
    "wal_path",
]

DATABASE_NAME = "run.sqlite3"
SIDECAR_SUFFIXES = ("-journal", "-shm", "-wal")
INIT_LOCK_NAME = ".run-store-init.lock"
RECOVERY_LOCK_NAME = ".run-store-recovery.lock"
ARTIFACTS_NAME = "artifacts"

_NETWORK_FILESYSTEMS = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x00C36400: "Ceph",
    0x73757245: "Coda",
    0x564C: "NCP",
    0x01021997: "9P",
}
"""Type numbers as in ``linux/magic.h``."""

_STATFS_SIZE = 512
"""More bytes than any Linux ``struct statfs`` has; the type is its first word."""


def checked_root(root: Path) -> Path:
    """
    Return *root* with its ancestors resolved, after checking that it may hold a store.

    Args:
        root: An existing absolute directory. Its ancestors may be symbolic links, it may not.
    Durable: Nothing; nothing is created, also not the root.
    Raises: UnsafeLayout: relative, missing, a symbolic link, not a directory, or with a name
        that is not UTF-8.
    """
    if not root.is_absolute():
        raise UnsafeLayout(root, "must be an absolute path; resolve it first.")
    mode = _mode(root)
    if mode is None:
        raise UnsafeLayout(root, "does not exist; create it and its parents durably first.")
    if stat.S_ISLNK(mode):
        raise UnsafeLayout(root, "is a symbolic link; pass the directory it points to.")
    if not stat.S_ISDIR(mode):
        raise UnsafeLayout(root, "must be a directory.")
    resolved = root.resolve(strict=True)
    try:
        str(resolved).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UnsafeLayout(root, "must have a UTF-8 name; SQLite opens no other.") from error
    return resolved


def check_files(root: Path) -> None:
    """
    Check that every file of the store that exists in *root* is a regular file in its place.

    Durable: Nothing; only looks.
    Raises: UnsafeLayout: a symbolic link, another type, or a sidecar without its database
        (SQLite would take it for part of the database that is made next).
    """
    _is_regular(root / INIT_LOCK_NAME)
    database = database_path(root)
    exists = _is_regular(database)
    for suffix in SIDECAR_SUFFIXES:
        sidecar = database.with_name(database.name + suffix)
        if _is_regular(sidecar) and not exists:
            raise UnsafeLayout(
                sidecar,
                f"stands without {database.name}; restore that file or move this one away.",
            )


def database_path(root: Path) -> Path:
    """
    Return the path of the database in *root*.
    """
    return root / DATABASE_NAME


def wal_path(root: Path) -> Path:
    """
    Return the path of the database's write-ahead log in *root*.
    """
    return root / f"{DATABASE_NAME}-wal"


def refuse_network_filesystem(root: Path) -> None:
    """
    Check that *root* does not lie on a filesystem that Linux names as a network one.

    Raises: NetworkFilesystem: it does; no local probe could show that two hosts agree.
    """
    family = _NETWORK_FILESYSTEMS.get(filesystem_type(root))
    if family is not None:
        raise NetworkFilesystem(root, family)


def filesystem_type(path: Path) -> int:
    """
    Return the kernel's 32 bit type number of the filesystem that holds *path*.

    Raises: OSError: the kernel would not tell.
    """
    library = ctypes.CDLL(None, use_errno=True)
    answer = ctypes.create_string_buffer(_STATFS_SIZE)
    if library.statfs(ctypes.c_char_p(os.fsencode(path)), answer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return ctypes.c_long.from_buffer(answer).value & 0xFFFF_FFFF


def _is_regular(path: Path) -> bool:
    """Return whether *path* exists, after checking that it is a regular file if it does."""
    mode = _mode(path)
    if mode is None:
        return False
    if stat.S_ISLNK(mode):
        raise UnsafeLayout(path, "is a symbolic link; put the file itself there.")
    if not stat.S_ISREG(mode):
        raise UnsafeLayout(path, "must be a regular file.")
    return True


def _mode(path: Path) -> int | None:
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UnsafeLayout(path, f"cannot be looked at: {error}.") from error
