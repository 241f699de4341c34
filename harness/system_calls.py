"""Names of the system calls that an oplog can hold, since its records have only numbers."""

from __future__ import annotations

__all__ = ["call_name"]

X86_64, ARM64 = 62, 183

_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "write": (1, 64),
    "pwrite64": (18, 68),
    "writev": (20, 66),
    "pwritev": (296, 70),
    "pwritev2": (328, 287),
    "openat": (257, 56),
    "open": (2, None),
    "creat": (85, None),
    "openat2": (437, 437),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "copy_file_range": (326, 285),
    "sendfile": (40, 71),
    "splice": (275, 76),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "bind": (49, 200),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "sync": (162, 81),
    "syncfs": (306, 267),
    "sync_file_range": (277, 84),
    "msync": (26, 227),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "execve": (59, 221),
    "execveat": (322, 281),
    "close": (3, 57),
    "close_range": (436, 436),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "fcntl": (72, 25),
    "exit_group": (231, 94),
}
_NAMES = {
    machine: {numbers[at]: name for name, numbers in _NUMBERS.items()}
    for at, machine in enumerate((X86_64, ARM64))
}


def call_name(number: int | None, machine: int) -> str:
    """Return the name of a system call on the machine of an oplog's header, or its number."""
    if number is None:
        return "none"
    return _NAMES.get(machine, {}).get(number, f"system call {number}")
