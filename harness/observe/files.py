"""
Syncs, renames and writes that Python code makes through `os`.

Method: `install` puts wrappers into `os` and `posix`, before any campaign is imported, so names
that a store binds at import are wrappers too. A wrapper reports before the call, and after it when
it succeeded. A descriptor's path is what /proc/self/fd says, since opening a file by its path, and
closing it, would drop a database's locks.

Covered: fsync, fdatasync, rename, replace, renames, write, pwrite, writev, pwritev, sendfile,
copy_file_range on regular files and directories.

Not covered: C extensions, stdio, subprocesses, ctypes, memory maps, O_SYNC, and calls that make no
boundary here (open, truncate, link, unlink): the recorder sees those.
"""

from __future__ import annotations

import os
import posix
import re
import stat
from typing import Any

from harness.observe.originals import original
from harness.observe.slot import is_on, note_failure, report, was_announced

_DELETED = " (deleted)"
_UNNAMED = re.compile(r"/#[0-9]+$")


def install() -> None:
    """Put the wrappers into `os` and `posix`; idempotent."""
    sets = (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks)
    for name in ObservedCalls.NAMES:
        real, wrapper = getattr(original, name, None), getattr(ObservedCalls, name)
        if real is None or getattr(os, name) is not real:
            continue
        setattr(os, name, wrapper)
        setattr(posix, name, wrapper)
        for supported in sets:
            if real in supported:
                supported.add(wrapper)


def file_path(descriptor: Any) -> str | None:
    """Return the path of an open regular file, None for anything else or an unusable one."""
    kind, path = _described(descriptor)
    return path if kind == "file_sync" else None


def _described(descriptor: Any) -> tuple[str | None, str]:
    """
    Return the kind of sync that *descriptor*, an int or an object with fileno(), asks for, and
    its path; (None, "") for a pipe, a socket, a device, or what the call itself will refuse.

    A file made by O_TMPFILE is named "#<inode>", as its number differs from run to run.
    """
    try:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, TypeError, ValueError, AttributeError, OverflowError):
        return None, ""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return None, ""
    try:
        path = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 - hot, and text
    except OSError as error:
        note_failure(f"path of descriptor {number}", error)
        return None, ""
    if path.endswith(_DELETED):
        path = _UNNAMED.sub("/#<inode>", path.removesuffix(_DELETED))
    return ("directory_sync" if stat.S_ISDIR(mode) else "file_sync"), path


def _renamed(path: Any, directory: Any) -> str:
    """Return the absolute text of one of rename's names; its last part is not resolved."""
    text: str = os.fsdecode(path)
    if directory is not None and not text.startswith("/"):
        folder = os.readlink(f"/proc/self/fd/{directory}")  # noqa: PTH115 - hot, and text
        text = f"{folder}/{text}"
    return os.path.abspath(text)


def _write(call: Any, target: Any, *arguments: Any, **named: Any) -> Any:
    path = file_path(target)
    if path is None or was_announced("write", path):
        return call(*arguments, **named)
    report("write", "before", path)
    result = call(*arguments, **named)
    report("write", "after", path)
    return result


def _sync(call: Any, descriptor: Any) -> None:
    kind, path = _described(descriptor)
    if kind is None or was_announced(kind, path):
        return call(descriptor)  # type: ignore[no-any-return]
    report(kind, "before", path)
    call(descriptor)
    report(kind, "after", path)
    return None


def _rename(call: Any, source: Any, target: Any, source_fd: Any, target_fd: Any) -> None:
    try:
        names = _renamed(source, source_fd), _renamed(target, target_fd)
    except (OSError, TypeError, ValueError):
        names = None  # the call itself says what is wrong with them
    if names is None or was_announced("rename", *names):
        return call(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)  # type: ignore[no-any-return]
    report("rename", "before", *names)
    call(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)
    report("rename", "after", *names)
    return None


class ObservedCalls:
    """
    Stand-ins for functions of `os`, same arguments, results and errors.

    They are class methods, and so bound already: a store that keeps one as a class attribute
    can call it through self, as with the built-in function, and pickle finds it by name.
    """

    NAMES = (
        "fsync",
        "fdatasync",
        "rename",
        "replace",
        "write",
        "pwrite",
        "writev",
        "pwritev",
        "sendfile",
        "copy_file_range",
    )

    @classmethod
    def fsync(cls, fd: Any) -> None:
        """Sync a file or directory: file_sync or directory_sync."""
        return _sync(original.fsync, fd) if is_on() else original.fsync(fd)

    @classmethod
    def fdatasync(cls, fd: Any) -> None:
        """Sync a file's data: reported as file_sync or directory_sync."""
        return _sync(original.fdatasync, fd) if is_on() else original.fdatasync(fd)

    @classmethod
    def rename(cls, src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
        """Rename: reported with both absolute paths."""
        if is_on():
            return _rename(original.rename, src, dst, src_dir_fd, dst_dir_fd)
        return original.rename(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    @classmethod
    def replace(cls, src: Any, dst: Any, *, src_dir_fd: Any = None, dst_dir_fd: Any = None) -> None:
        """Rename over what is there: reported as rename with both absolute paths."""
        if is_on():
            return _rename(original.replace, src, dst, src_dir_fd, dst_dir_fd)
        return original.replace(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    @classmethod
    def write(cls, fd: Any, data: Any, /) -> Any:
        """Write to a descriptor: write."""
        return _write(original.write, fd, fd, data) if is_on() else original.write(fd, data)

    @classmethod
    def pwrite(cls, fd: Any, data: Any, offset: Any, /) -> Any:
        """Write at an offset: write."""
        if is_on():
            return _write(original.pwrite, fd, fd, data, offset)
        return original.pwrite(fd, data, offset)

    @classmethod
    def writev(cls, fd: Any, buffers: Any, /) -> Any:
        """Write several buffers: one write."""
        if is_on():
            return _write(original.writev, fd, fd, buffers)
        return original.writev(fd, buffers)

    @classmethod
    def pwritev(cls, fd: Any, buffers: Any, offset: Any, flags: Any = 0, /) -> Any:
        """Write several buffers at an offset: one write."""
        if is_on():
            return _write(original.pwritev, fd, fd, buffers, offset, flags)
        return original.pwritev(fd, buffers, offset, flags)

    @classmethod
    def sendfile(cls, out_fd: Any, *arguments: Any, **named: Any) -> Any:
        """Copy from one descriptor to another (shutil.copyfile): write of the target."""
        if is_on():
            return _write(original.sendfile, out_fd, out_fd, *arguments, **named)
        return original.sendfile(out_fd, *arguments, **named)

    @classmethod
    def copy_file_range(cls, src: Any, dst: Any, *arguments: Any, **named: Any) -> Any:
        """Copy between two files in the kernel: write of the target."""
        if is_on():
            return _write(original.copy_file_range, dst, src, dst, *arguments, **named)
        return original.copy_file_range(src, dst, *arguments, **named)
