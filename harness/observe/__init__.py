"""
Turn what a store under test does into calls of one sink: ``sink(kind, phase, *names)``.

Kinds: "sql" (path of the main database or "", text), "file_sync" (path), "directory_sync" (path),
"rename" (source, target), "write" (path), and whatever a store announces of itself. All paths are
absolute. `install` is called once, before any store is imported; `attach` switches.

Covered: statements of apsw and sqlite3, and files that Python code writes: see the modules.
Not covered: C extensions, stdio, subprocesses, memory maps: the recorder sees those.
"""

from __future__ import annotations

import atexit
import os

from harness.observe import apsw_trace, files, python_open, sqlite3_trace
from harness.observe.originals import original
from harness.observe.slot import (
    Sink,
    announce,
    attach,
    failures,
    is_on,
    paused,
    raise_first_failure,
    reset_in_child,
)
from harness.observe.sqlite3_trace import unavailable as sqlite3_unavailable

__all__ = [
    "Sink",
    "announce",
    "attach",
    "failures",
    "install",
    "is_on",
    "original",
    "paused",
    "raise_first_failure",
    "sqlite3_unavailable",
]

_installed = False


def install() -> None:
    """
    Put every hook in place, for this process and those forked from it; idempotent.

    Call it before a store or campaign is imported, in a process with one thread. Nothing is
    reported until `attach`. A forked child starts silent. The hooks stay until the process ends.
    """
    global _installed
    if _installed:
        return
    _installed = True
    apsw_trace.install()
    sqlite3_trace.install()
    files.install()
    python_open.install()
    os.register_at_fork(after_in_child=reset_in_child)
    # The interpreter clears its modules while it ends: hooks must not report from there.
    atexit.register(attach, None)
