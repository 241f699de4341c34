"""
The recorder: logs every mutating call under a root, with its bytes, while a process runs.

Method: a seccomp filter turns the mutating system calls of this process, its threads and all that
it starts into a signal, whose handler makes the call and writes it down; see ``native/``. Use it in
a process that was forked for the purpose, since a filter cannot be taken back.

Covered: whatever writes, from Python, SQLite, C extensions, stdio, direct system calls, threads,
forked and started programs; randomness and the wall clock, where they are to be the same each time.
Not covered: static programs and programs of another machine (they die of SIGSYS), bytes written
through shared mappings (which are recorded as such), io_uring and Linux AIO (told to be missing).
"""

from __future__ import annotations

from harness.recorder.library import load, missing, missing_stacks
from harness.recorder.session import Options, Session, recording, seal

__all__ = ["Options", "Session", "load", "missing", "missing_stacks", "recording", "seal"]
