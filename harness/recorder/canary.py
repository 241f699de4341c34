"""
The recorder's own test: every kind of call made once in a scratch folder and looked for in the log.

Method: what the completeness check cannot see, since it leaves no trace in a tree (syncs, closes,
mappings), is made here on purpose, on the file system and kernel that will be recorded on. Takes
50 ms, once per worker.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import socket
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from harness import workspace
from harness.completeness import Follower
from harness.oplog import Kind, Oplog
from harness.recorder.session import Options, recording, seal

__all__ = ["canary"]

_UNSUPPORTED = (Kind.SETXATTR, Kind.REMOVEXATTR, Kind.ALLOCATE, Kind.TMPFILE)
"""What not every file system can do; then it is not expected either."""


def canary(folder: Path, *, left_out: Collection[Kind] = (), has_sync: bool = False) -> list[str]:
    """
    Record every kind of call once under *folder*; return what was missed, one sentence each.

    Forks, and waits for the child: for a process without threads and without other children.

    Args:
        folder: Missing or empty, outside of any root; removed again.
        left_out: Kinds that are not recorded, to see that this is noticed.
        has_sync: Whether to call sync and syncfs, too, which write what others left in memory.
    Raises: RecorderError, in the child, printed there: nothing can be recorded here.
    """
    root, log_path, derived = folder / "root", folder / "log", folder / "derived"
    root.mkdir(parents=True)
    (root / "file").write_bytes(bytes(9000))
    workspace.copy_tree(root, derived)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        pid = os.fork()
        if pid == 0:
            _be_child(root, log_path, libc, left_out, has_sync)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status not in (0, _PARTLY):
            return [f"the recorder's canary died (status {status})"]
        absent = _UNSUPPORTED if status == _PARTLY else ()
        wanted = [
            kind
            for kind in Kind
            if kind >= Kind.OPEN
            and kind not in absent
            and (has_sync or kind not in (Kind.SYNC, Kind.SYNCFS))
        ]
        return _missed(root, log_path, derived, folder / "side", wanted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_PARTLY = 3


def _missed(root: Path, log_path: Path, derived: Path, side: Path, wanted: list[Kind]) -> list[str]:
    seal(log_path)
    with Oplog.read(log_path) as log:
        seen = Counter(op.kind for op in log)
    problems = [
        f"the recorder does not see calls of kind {kind.name.lower()}"
        for kind in wanted
        if not seen[kind]
    ]
    with Oplog.read(log_path) as log:
        problems += Follower(log, derived, side, ("mapped",)).problems(root)
    return problems


def _be_child(
    root: Path, log_path: Path, libc: ctypes.CDLL, left_out: Collection[Kind], has_sync: bool
) -> None:
    status = 1
    try:
        os.chdir(root)
        options = Options(stacks=False, seed=None, clock_start_ns=None, left_out=left_out)
        with recording(root, log_path, options):
            _names()
            _contents(libc)
            whole = _what_may_be_missing()
            _processes()
            if has_sync:
                os.sync()
                libc.syncfs(os.open(".", os.O_RDONLY))
        status = 0 if whole else _PARTLY
    except BaseException as error:
        os.write(2, f"canary: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def _names() -> None:
    os.close(os.open("new", os.O_CREAT | os.O_RDWR, 0o600))
    os.link("new", "second")
    os.symlink("new", "link")
    os.mkdir("folder")
    os.rename("second", "folder/second")
    os.mkdir("empty")
    os.rmdir("empty")
    os.mkfifo("fifo", 0o600)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    os.unlink("folder/second")
    os.chmod("new", 0o640)
    os.chown("new", os.getuid(), os.getgid())
    os.utime("new", ns=(10**18, 10**18))


def _contents(libc: ctypes.CDLL) -> None:
    fd = os.open("file", os.O_RDWR)
    os.write(fd, b"written")
    os.ftruncate(fd, 8000)
    os.fsync(fd)
    os.fdatasync(fd)
    libc.sync_file_range(fd, ctypes.c_long(0), ctypes.c_long(100), 2)
    os.close(os.dup(fd))
    os.close(fd)
    with open("mapped", "w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096) as shared:
            shared.flush()


def _what_may_be_missing() -> bool:
    try:
        os.setxattr("file", "user.canary", b"1")
        os.removexattr("file", "user.canary")
        fd = os.open("file", os.O_RDWR)
        os.posix_fallocate(fd, 8000, 100)
        os.close(fd)
        os.close(os.open(".", os.O_TMPFILE | os.O_RDWR))
    except OSError:
        return False
    return True


def _processes() -> None:
    pid = os.fork()
    if pid == 0:
        try:
            os.execv("/bin/true", ["true"])
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
