"""The calls as they were before `install`: what the harness itself uses."""

from __future__ import annotations

import builtins
import os


class _Originals:
    """Python's own functions; a call through them is never reported."""

    open = staticmethod(builtins.open)
    fsync = staticmethod(os.fsync)
    fdatasync = staticmethod(os.fdatasync)
    rename = staticmethod(os.rename)
    replace = staticmethod(os.replace)
    write = staticmethod(os.write)
    pwrite = staticmethod(os.pwrite)
    writev = staticmethod(os.writev)
    pwritev = staticmethod(os.pwritev)
    sendfile = staticmethod(os.sendfile)
    if hasattr(os, "copy_file_range"):  # an interpreter built for an old glibc lacks it
        copy_file_range = staticmethod(os.copy_file_range)


original = _Originals()
