"""
Writes of Python's file objects: `open`, `io.open`, and so pathlib, os.fdopen, tempfile.

Method: file objects write in C, through FileIO. While observation is on, and the mode can write,
`open` builds what the built-in one would build, over a FileIO whose `write` reports before and
after. The buffered and text layers are Python's own, so each real write, at a flush or close or
when the buffer is full, is one event. Everything else goes to the built-in function.

Covered: unbuffered, buffered, random access and text files, opened while observation is on.
Not covered: `io.FileIO` called directly, files opened while it was off, truncate.
Source: `_io_open_impl` in CPython's Modules/_io/_iomodule.c, 3.11 to 3.14.
"""

from __future__ import annotations

import _io
import builtins
import io
import itertools
import os
import sys
import warnings
from typing import Any, NamedTuple

from harness.observe.files import file_path
from harness.observe.originals import original
from harness.observe.slot import SLOT, is_on, report, was_announced

_raw_write = _io.FileIO.write
_BUFFER_BYTES_MAX = 8 * 1024 * 1024


def install() -> None:
    """Put `open` in the place of the built-in function wherever Python looks it up; idempotent."""
    for module in (builtins, io, _io):
        if getattr(module, "open", None) is original.open:
            setattr(module, "open", Opener.open)  # noqa: B010 - typeshed refuses the assignment


class ObservedFileIO(_io.FileIO):
    """A FileIO that reports each of its writes to a regular file."""

    __slots__ = ()

    def write(self, data: Any, /) -> Any:
        """Write, as FileIO does; write is reported before, and after when it succeeded."""
        path = file_path(self) if is_on() else None
        if path is None or was_announced("write", path):
            return _raw_write(self, data)
        report("write", "before", path)
        result = _raw_write(self, data)
        report("write", "after", path)
        return result


class _Mode(NamedTuple):
    """What a legal mode that can write means."""

    raw: str
    buffered: Any
    is_binary: bool


def _modes() -> dict[str, _Mode]:
    """Return every spelling of a mode that can write; what is not in it is the built-in's."""
    modes = {}
    for act, plus, layer in itertools.product("rwax", ("", "+"), ("", "b", "t")):
        if act == "r" and not plus:
            continue
        buffered = io.BufferedRandom if plus else io.BufferedWriter
        for letters in itertools.permutations(act + plus + layer):
            raw = "".join(letter for letter in letters if letter not in "bt")
            modes["".join(letters)] = _Mode(raw, buffered, layer == "b")
    return modes


_MODES = _modes()


class Opener:
    """Holds `open` as a class method, so that it can be a class attribute of a store."""

    @classmethod
    def open(
        cls,
        file: Any,
        mode: Any = "r",
        buffering: Any = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        closefd: Any = True,
        opener: Any = None,
    ) -> Any:
        """Open a file as the built-in `open` does, its later writes observed."""
        if SLOT.sink is not None:
            known = _MODES.get(mode) if isinstance(mode, str) else None
            text = (encoding, errors, newline)
            if known is not None and _is_plain(file, known, buffering, text):
                if known.is_binary and buffering == 1:
                    _warn_of_line_buffering()
                raw = _open_raw(file, known, closefd, opener)
                return _layered(raw, mode, known, buffering, text)
        return original.open(file, mode, buffering, encoding, errors, newline, closefd, opener)


def _is_plain(file: Any, mode: _Mode, buffering: Any, text: tuple[Any, ...]) -> bool:
    """Return whether the arguments pass the checks that `open` makes before it opens anything."""
    if not isinstance(buffering, int) or not isinstance(file, int | str | bytes | os.PathLike):
        return False
    if mode.is_binary:
        return text == (None, None, None)
    if any(value is not None and not isinstance(value, str) for value in text):
        return False
    return buffering != 0 and not any(value and "\0" in value for value in text)


def _warn_of_line_buffering() -> None:
    warnings.warn(
        "line buffering (buffering=1) isn't supported in binary mode, "
        "the default buffer size will be used",
        RuntimeWarning,
        stacklevel=3,
    )


def _open_raw(file: Any, mode: _Mode, closefd: Any, opener: Any) -> ObservedFileIO:
    path = file if isinstance(file, int) else os.fspath(file)
    return ObservedFileIO(path, mode.raw, bool(closefd), opener)


def _layered(
    raw: ObservedFileIO, mode: str, known: _Mode, buffering: int, text: tuple[Any, ...]
) -> Any:
    """Put the layers over *raw*, which is closed when one of them is refused."""
    result: Any = raw
    try:
        if buffering == 0:
            return raw
        is_line = buffering == 1 or (buffering < 0 and raw.isatty())
        size = _default_size(raw) if is_line or buffering < 0 else buffering
        result = known.buffered(raw, size)
        if known.is_binary:
            return result
        encoding, errors, newline = text
        result = io.TextIOWrapper(result, encoding, errors, newline, is_line)
        result.mode = mode
        return result
    except BaseException:
        result.close()
        raise


def _default_size(raw: ObservedFileIO) -> int:
    size: int = raw._blksize  # type: ignore[attr-defined]
    if sys.version_info >= (3, 14):
        return max(min(size, _BUFFER_BYTES_MAX), io.DEFAULT_BUFFER_SIZE)
    return size
