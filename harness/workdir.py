"""
The private work folder of a run.

It belongs to front ends: a zygote works in what it is given, and imports none of this.

Covered: the choice of a place, its free space, a trial write, removal at the end, and removal of
what killed runs left behind.

Not covered: a run that is killed leaves its folder until the next one chooses the same parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from harness.errors import ConfigurationError, WorkspaceError
from harness.workspace import ADVICE, clear_tree, naming

__all__ = ["Workdir"]

BYTES_PER_JOB_MIN = 32 << 20
"""Free bytes that a work folder must have for each job."""

INODES_PER_JOB_MIN = 100
"""Free inodes that a work folder must have for each job, where the file system counts them."""

MEMORY_BYTES_MIN = 256 << 20
"""Free bytes that /dev/shm must have to be chosen without being asked for."""

_STALE_SECONDS = 3600
_PREFIX = "crashconform-"
_OWNER_FILE = "owner.json"


class Workdir:
    """
    The private folder of one run, with a part for each worker; a context manager that removes it.

    All workers' roots have paths of equal length without symbolic links, since stores remember
    their path. A folder whose run was killed is removed by the next run that chooses its parent.
    """

    def __init__(self, folder: Path, *, jobs: int) -> None:
        self.folder = folder
        self.jobs = jobs
        self._owner_pid = os.getpid()

    @classmethod
    def choose(
        cls,
        explicit: Path | None,
        jobs: int,
        *,
        memory: Path = Path("/dev/shm"),
        statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
    ) -> Workdir:
        """
        Make a run's private folder in *explicit*, else in memory, else among temporary files.

        Args:
            jobs: How many workers will use it, at least 1.
            memory: Is chosen when it is a writable tmpfs with MEMORY_BYTES_MIN free.
            statvfs: Where free space is asked for.
        Raises: WorkspaceError: the place is missing, no directory, not writable, too full; nothing
            has been made.
        """
        if jobs < 1:
            raise ConfigurationError(f"jobs={jobs!r} must be at least 1")
        if explicit is not None:
            parent = Path(os.path.realpath(explicit))
        elif _is_roomy_memory(memory, jobs, statvfs):
            parent = Path(os.path.realpath(memory))
        else:
            with naming("find a folder for", Path("temporary files")):
                parent = Path(os.path.realpath(tempfile.gettempdir()))
        with naming("use work folder", parent):
            if not stat.S_ISDIR(parent.stat().st_mode):
                raise WorkspaceError(f"work folder {parent} is not a directory; {ADVICE}")
            _remove_stale(parent)
            _check_room(parent, jobs, statvfs)
            return cls(_make_folder(parent, jobs), jobs=jobs)

    def __enter__(self) -> Workdir:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except WorkspaceError as refused:
            if error is None:
                raise
            error.add_note(f"The work folder is left behind: {refused}")

    def close(self) -> None:
        """
        Remove the folder; does nothing in a forked child, or where it is gone.

        Raises: WorkspaceError: something in it cannot be removed.
        """
        if os.getpid() == self._owner_pid and os.path.lexists(self.folder):
            _remove_folder(self.folder)

    def worker_root(self, number: int) -> Path:
        """Return the store's root of worker *number*, 0 to jobs - 1; at first it is empty."""
        return self.worker_folder(number, "root")

    def worker_folder(self, number: int, name: str) -> Path:
        """Return the directory *name* of worker *number*, beside its root; made when missing."""
        if not 0 <= number < self.jobs:
            raise ConfigurationError(f"worker number={number!r} must be in [0, {self.jobs - 1}]")
        path = self.folder / f"w{number:0{max(2, len(str(self.jobs - 1)))}d}" / name
        with naming("make", path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def free_bytes(self) -> int:
        """Return how many bytes can still be written here."""
        with naming("ask for the free space of", self.folder):
            facts = os.statvfs(self.folder)
        return facts.f_bavail * facts.f_frsize


def _is_roomy_memory(memory: Path, jobs: int, statvfs: Callable[[Path], os.statvfs_result]) -> bool:
    try:
        device = memory.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        _remove_stale(memory)
        facts = statvfs(memory)
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    # Source: proc(5): "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw"
    lines = [line.split(" ") for line in mounts.splitlines()]
    is_tmpfs = any(line[2] == number and line[line.index("-") + 1] == "tmpfs" for line in lines)
    needed = max(MEMORY_BYTES_MIN, jobs * BYTES_PER_JOB_MIN)
    return (
        is_tmpfs
        and facts.f_bavail * facts.f_frsize >= needed
        and os.access(memory, os.W_OK | os.X_OK)
    )


def _check_room(parent: Path, jobs: int, statvfs: Callable[[Path], os.statvfs_result]) -> None:
    facts = statvfs(parent)
    if facts.f_flag & os.ST_RDONLY:
        raise WorkspaceError(f"work folder {parent} is on a read-only file system; {ADVICE}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise WorkspaceError(f"work folder {parent} is not writable; {ADVICE}")
    free, needed = facts.f_bavail * facts.f_frsize, jobs * BYTES_PER_JOB_MIN
    if free < needed:
        raise WorkspaceError(
            f"work folder {parent} is too full: {free / 2**20:.1f} MiB free, "
            f"{needed / 2**20:.1f} MiB needed for {jobs} jobs; {ADVICE}, or --jobs with fewer"
        )
    inodes_needed = jobs * INODES_PER_JOB_MIN
    if facts.f_files and facts.f_favail < inodes_needed:  # 0 files: they are not counted
        raise WorkspaceError(
            f"work folder {parent} has no room for files: {facts.f_favail} inodes free, "
            f"{inodes_needed} needed for {jobs} jobs; {ADVICE}"
        )


def _make_folder(parent: Path, jobs: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        (folder / _OWNER_FILE).write_text(json.dumps(_owner(os.getpid())))
        # Quotas and failing disks show only when bytes are written and synced.
        trial, data = folder / "trial", os.urandom(1 << 16)
        with trial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if trial.read_bytes() != data:
            raise WorkspaceError(f"work folder {parent} does not keep what is written; {ADVICE}")
        trial.unlink()
    except BaseException:
        with contextlib.suppress(WorkspaceError):
            _remove_folder(folder)
        raise
    return folder


def _remove_folder(folder: Path) -> None:
    clear_tree(folder)
    with naming("remove", folder):
        folder.rmdir()


def _owner(pid: int) -> dict[str, object]:
    """
    Return what tells the process *pid* from every other one, here and after a reboot.

    Raises: OSError: there is no such process.
    Source: proc(5), /proc/PID/stat, field 22 (start time).
    """
    line = Path(f"/proc/{pid}/stat").read_bytes()
    return {
        "pid": pid,
        "start_ticks": int(line[line.rindex(b")") + 2 :].split()[19]),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "namespace": str(Path("/proc/self/ns/pid").readlink()),
        "host": os.uname().nodename,
    }


def _remove_stale(parent: Path) -> None:
    """Remove the folders of runs that were killed, as far as that works; never another user's."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError, WorkspaceError):
                    facts = entry.stat(follow_symlinks=False)
                    if facts.st_uid == os.getuid() and _is_stale(Path(entry.path), facts):
                        _remove_folder(Path(entry.path))


def _is_stale(folder: Path, facts: os.stat_result) -> bool:
    try:
        owner = json.loads((folder / _OWNER_FILE).read_bytes())
        pid, boot, host = int(owner["pid"]), owner["boot"], owner["host"]
        namespace = owner["namespace"]
    except (OSError, ValueError, KeyError, TypeError):
        # Killed, or only just made: a run writes the file at once.
        return time.time() - facts.st_mtime > _STALE_SECONDS
    here = _owner(os.getpid())
    if boot != here["boot"]:
        return bool(host == here["host"])  # another host may share this folder over a network
    if namespace != here["namespace"]:
        return False  # a container that shares this folder: its processes cannot be seen
    try:
        return bool(_owner(pid) != owner)
    except OSError:
        return True
