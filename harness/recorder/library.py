"""The recorder's native library: where it is, whether it works here, and its functions."""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib.machinery
import os
import platform
import re
import sys
import tempfile
import zlib
from pathlib import Path

from harness.errors import RecorderError

__all__ = [
    "Config",
    "library",
    "library_path",
    "load",
    "missing",
    "missing_stacks",
    "preload_path",
    "stack_functions",
]

_MACHINES = ("x86_64", "aarch64")
_FOLDER = Path(__file__).parent
_UNLOADABLE = re.compile(r"[\s:]")


class Config(ctypes.Structure):
    """What the recorder is told; the same as ``struct config`` in native/start.c."""

    _fields_ = (
        ("root", ctypes.c_char_p),
        ("log_path", ctypes.c_char_p),
        ("library", ctypes.c_char_p),
        ("log_size_max", ctypes.c_uint64),
        ("slots", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("clock_start", ctypes.c_uint64),
        ("clock_tick", ctypes.c_uint64),
        ("disabled", ctypes.c_uint64 * 2),
        ("options", ctypes.c_uint32),
    )


def _built(name: str) -> Path | None:
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = _FOLDER / f"{name}{suffix}"
        if path.exists():
            return path
    return None


def library_path() -> Path:
    """
    Return the file of the library, which started programs load, too.

    Raises: RecorderError: it was not built.
    """
    path = _built("_native")
    if path is None:
        raise RecorderError(missing() or "the recorder's library was not built")
    return path


def preload_path() -> Path:
    """
    Return the library's file by a path that LD_PRELOAD can hold: without spaces and colons.

    Where its own path has some, that is a copy in the folder for temporary files.
    """
    path = library_path()
    if not _UNLOADABLE.search(os.fspath(path)):
        return path
    data = path.read_bytes()
    copy = Path(tempfile.gettempdir(), f"crashconform-{os.getuid()}-{zlib.crc32(data):08x}.so")
    if _UNLOADABLE.search(os.fspath(copy)):
        raise RecorderError(
            f"no program that is started can load {path}, nor a copy in {copy.parent}: their "
            "paths have spaces or colons; set TMPDIR to a folder without."
        )
    if not (copy.exists() and copy.stat().st_uid == os.getuid() and copy.read_bytes() == data):
        descriptor, made = tempfile.mkstemp(dir=copy.parent)
        with open(descriptor, "wb") as file:
            file.write(data)
        Path(made).chmod(0o755)
        Path(made).replace(copy)
    return copy


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library, loaded once."""
    loaded = ctypes.CDLL(os.fspath(library_path()))
    loaded.recorder_start.argtypes = [ctypes.POINTER(Config)]
    loaded.recorder_stage.restype = ctypes.c_char_p
    loaded.recorder_mark.argtypes = [
        ctypes.c_uint32,
        ctypes.c_uint64,
        ctypes.c_char_p,
        ctypes.c_uint32,
    ]
    loaded.recorder_set_stacks.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    loaded.recorder_set_stacks.restype = None
    return loaded


def missing() -> str | None:
    """Return what recording lacks on this machine, as a sentence; None where it works."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return f"the recorder is for Linux on {' and '.join(_MACHINES)}, not for {_here()}."
    if platform.libc_ver()[0] != "glibc":
        return "the recorder needs glibc."
    if _built("_native") is None:
        return (
            "the recorder's library was not built: install a C compiler, then install "
            "crashconform again."
        )
    try:
        code = library().recorder_supported()
    except OSError as error:
        return f"the recorder's library cannot be loaded: {error}."
    if code:
        return f"the kernel, or a sandbox, refuses seccomp filters: {os.strerror(-code)}."
    if not Path("/proc/self/fd").is_dir():
        return "the recorder needs /proc."
    return None


def missing_stacks() -> str | None:
    """Return why ops carry no Python stack here, as a sentence; None where they do."""
    if _built("_stacks") is None:
        return (
            "the part that reads Python's stack was not built: it needs a C compiler, Python's "
            "header files and CPython 3.11 to 3.13."
        )
    return None


def load() -> None:
    """Load the native parts now, so that children forked later need not; nothing where missing."""
    if missing() is None:
        stack_functions()


@functools.cache
def stack_functions() -> tuple[ctypes.c_void_p, ctypes.c_void_p] | None:
    """Return the addresses of the functions that read Python's stack, or None without them."""
    path = _built("_stacks")
    if path is None:
        return None
    loaded = ctypes.PyDLL(os.fspath(path))
    return tuple(  # type: ignore[return-value]
        ctypes.cast(function, ctypes.c_void_p)
        for function in (loaded.recorder_stack_hash, loaded.recorder_stack_text)
    )


def failure(code: int) -> str:
    """Return why starting failed, from the library's code."""
    stage = library().recorder_stage().decode()
    if -code == errno.EALREADY:
        return "this process is recorded already; fork another for each recording."
    return f"{stage} failed: {os.strerror(-code)}."


def _here() -> str:
    return f"{sys.platform} on {platform.machine()}"
