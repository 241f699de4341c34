"""
Copy, clear, compare and digest directory trees, and keep the work folder of a run.

A copy is faithful in what a store can rely on: names, kinds, contents, modes, modification times,
hard links and holes. It opens and closes files, which drops SQLite's locks on them in the process
that does it: call nothing here in a process that has a store open.

Covered: directories, regular files, symbolic links (never followed), FIFOs; names that are not
UTF-8; directories and files that their owner may not read or write.

Not covered: ownership, extended attributes and access control lists; paths longer than PATH_MAX; a
tree that changes meanwhile. Sockets and devices are refused by a copy.
"""

# One call per file at the level of the system: pathlib would double the time of a copy.
# ruff: noqa: PTH101, PTH102, PTH106, PTH108, PTH115, PTH118, PTH120, PTH211

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import hashlib
import itertools
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from harness.errors import ConfigurationError, WorkspaceError

__all__ = [
    "Workdir",
    "clear_tree",
    "copy_tree",
    "drop_volatile",
    "list_databases",
    "restore",
    "tree_difference",
    "tree_digest",
]

BYTES_PER_JOB_MIN = 32 << 20
"""Free bytes that a work folder must have for each job."""

INODES_PER_JOB_MIN = 100
"""Free inodes that a work folder must have for each job, where the file system counts them."""

MEMORY_BYTES_MIN = 256 << 20
"""Free bytes that /dev/shm must have to be chosen without being asked for."""

SQLITE_MAGIC = b"SQLite format 3\x00"
"""The first 16 bytes of an SQLite database. Source: sqlite.org/fileformat2.html, section 1.3."""

_SMALL_BYTES_MAX = 256 << 10
_PIECE_BYTES = 8 << 20
_STALE_SECONDS = 3600
_PREFIX = "crashconform-"
_OWNER_FILE = "owner.json"
_ADVICE = "use --workdir DIR to name another one"
_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


# Copying.


def copy_tree(source: Path, destination: Path) -> None:
    """
    Make *destination* a faithful copy of the directory *source*, its own mode and time included.

    Args:
        destination: Missing, or an empty directory; outside *source*.
    Durable: Nothing is synced. After an error *destination* holds a part.
    Raises: WorkspaceError: a socket or device; *destination* has entries; the copy does not fit;
        any other refusal by the system, with its path.
    Cost: About 35 us per small file on tmpfs.
    """
    with _naming("copy", source):
        top = os.lstat(source)
        if not stat.S_ISDIR(top.st_mode):
            raise WorkspaceError(f"cannot copy {source}: it is a {_kind(top)}, not a directory")
        try:
            os.mkdir(destination, 0o700)
        except FileExistsError:
            with os.scandir(destination) as entries:
                if next(entries, None) is not None:
                    raise WorkspaceError(
                        f"cannot copy {source} to {destination}: the destination is not empty"
                    ) from None
        _Copy(os.fspath(source), os.fspath(destination), top).run()


class _Copy:
    """One run of `copy_tree`: what is still to do, and what is needed to keep hard links."""

    def __init__(self, source: str, destination: str, top: os.stat_result) -> None:
        self._pending = [(source, destination, top)]
        self._links: dict[tuple[int, int], str] = {}
        inside = os.lstat(destination)
        self._destination_id = (inside.st_dev, inside.st_ino)

    def run(self) -> None:
        with contextlib.ExitStack() as unlocked:
            for source, destination, facts in self._pending:  # grows while it is walked
                if (facts.st_dev, facts.st_ino) == self._destination_id:
                    raise WorkspaceError(f"cannot copy into {source}: it is inside what is copied")
                _unlock(source, facts, unlocked)
                self._copy_directory(source, destination)
        # Last and from the leaves: a directory may become unwritable, and entries change its time.
        for _, destination, facts in reversed(self._pending):
            os.chmod(destination, stat.S_IMODE(facts.st_mode))
            os.utime(destination, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    def _copy_directory(self, source: str, destination: str) -> None:
        with os.scandir(source) as entries:
            for entry in entries:
                target = f"{destination}/{entry.name}"
                if entry.is_file(follow_symlinks=False):
                    self._copy_file(entry.path, target)
                    continue
                facts = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode):
                    os.mkdir(target, 0o700)
                    self._pending.append((entry.path, target, facts))
                elif not self._link_again(target, facts):
                    _copy_special(entry.path, target, facts)

    def _link_again(self, target: str, facts: os.stat_result) -> bool:
        """Link *target* to the copy that this inode already has, if it has one."""
        if facts.st_nlink == 1:
            return False
        first = self._links.setdefault((facts.st_dev, facts.st_ino), target)
        if first == target:
            return False
        os.link(first, target, follow_symlinks=False)
        return True

    def _copy_file(self, source: str, target: str) -> None:
        reading = _open_readable(source)
        try:
            facts = os.fstat(reading)
            if self._link_again(target, facts):
                return
            writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                _copy_contents(reading, writing, facts)
                os.fchmod(
                    writing, stat.S_IMODE(facts.st_mode)
                )  # after writing, which clears setuid
                os.utime(writing, ns=(facts.st_atime_ns, facts.st_mtime_ns))
            finally:
                os.close(writing)
        finally:
            os.close(reading)


def _copy_contents(reading: int, writing: int, facts: os.stat_result) -> None:
    size = facts.st_size
    if facts.st_blocks * 512 < size:
        _copy_with_holes(reading, writing, size)
    elif size <= _SMALL_BYTES_MAX:
        data = os.read(reading, size) if size else b""
        if len(data) != size:
            raise WorkspaceError("a file became shorter while it was copied")
        _write_all(writing, data)
    else:
        _copy_range(reading, writing, 0, size)


def _copy_with_holes(reading: int, writing: int, size: int) -> None:
    os.ftruncate(writing, size)
    end = 0
    while end < size:
        try:
            start = os.lseek(reading, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                return
            raise
        end = os.lseek(reading, start, os.SEEK_HOLE)
        _copy_range(reading, writing, start, end)


def _copy_range(reading: int, writing: int, start: int, end: int) -> None:
    """Copy the bytes from *start* up to *end* in the kernel, or through memory where it refuses."""
    at = start
    try:
        while at < end:
            count = os.copy_file_range(reading, writing, min(end - at, 1 << 30), at, at)
            if count == 0:
                break
            at += count
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    os.lseek(reading, at, os.SEEK_SET)
    os.lseek(writing, at, os.SEEK_SET)
    while at < end:
        data = os.read(reading, min(end - at, _PIECE_BYTES))
        if not data:
            raise WorkspaceError("a file became shorter while it was copied")
        _write_all(writing, data)
        at += len(data)


def _write_all(writing: int, data: bytes) -> None:
    written = os.write(writing, data)
    while written < len(data):
        written += os.write(writing, data[written:])


def _copy_special(source: str, target: str, facts: os.stat_result) -> None:
    if stat.S_ISLNK(facts.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISFIFO(facts.st_mode):
        os.mkfifo(target, 0o600)
        os.chmod(target, stat.S_IMODE(facts.st_mode))
    else:
        raise WorkspaceError(
            f"cannot copy {source}: it is a {_kind(facts)}. A store's root may hold directories, "
            "files, symbolic links and FIFOs; close or remove it before the execution returns"
        )
    os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns), follow_symlinks=False)


def _open_readable(path: str) -> int:
    """Open a regular file for reading, also where its owner may not; its mode is as before."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except PermissionError:
        mode = stat.S_IMODE(os.lstat(path).st_mode)
        os.chmod(path, mode | stat.S_IRUSR)
        try:
            return os.open(path, flags)
        finally:
            os.chmod(path, mode)


def _unlock(directory: str, facts: os.stat_result, until: contextlib.ExitStack) -> None:
    """Let the owner list and enter a directory *until* then, where it may not already."""
    mode = stat.S_IMODE(facts.st_mode)
    if mode & 0o500 != 0o500 and os.geteuid() != 0:
        os.chmod(directory, mode | 0o500)
        until.callback(os.chmod, directory, mode)


# Removing.


def clear_tree(root: Path) -> None:
    """
    Remove everything inside the directory *root*; *root* stays, with mode 0700.

    Symbolic links are removed, never followed; directories that may not be written are no
    obstacle.

    Raises: WorkspaceError: *root* is not a directory, or something in it cannot be removed.
    """
    with _naming("clear", root):
        facts = os.lstat(root)
        if not stat.S_ISDIR(facts.st_mode):
            raise WorkspaceError(f"cannot clear {root}: it is a {_kind(facts)}, not a directory")
        if stat.S_IMODE(facts.st_mode) != 0o700:
            os.chmod(root, 0o700)
        directories = [os.fspath(root)]
        for directory in directories:  # grows while it is walked
            directories.extend(_clear_directory(directory))
        for directory in reversed(directories[1:]):
            os.rmdir(directory)


def _clear_directory(directory: str) -> list[str]:
    """Remove what is no directory in *directory*; return the directories in it."""
    try:
        return _try_clear_directory(directory)
    except PermissionError:
        os.chmod(directory, 0o700)
        return _try_clear_directory(directory)


def _try_clear_directory(directory: str) -> list[str]:
    inner: list[str] = []
    with os.scandir(directory) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                inner.append(entry.path)
            else:
                os.unlink(entry.path)
    if inner and not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "its directories cannot be removed", directory)
    return inner


def restore(root: Path, saved: Path) -> None:
    """
    Make *root* a faithful copy of *saved*, whatever is there now.

    Raises: WorkspaceError: as `clear_tree` and `copy_tree`.
    """
    with _naming("restore", root):
        try:
            is_directory = stat.S_ISDIR(os.lstat(root).st_mode)
        except FileNotFoundError:
            is_directory = False
        else:
            if not is_directory:
                os.unlink(root)
    if is_directory:
        clear_tree(root)
    copy_tree(saved, root)


def drop_volatile(root: Path, patterns: Sequence[str]) -> list[str]:
    """
    Remove every file whose path from *root*, or whose name alone, matches one of *patterns*.

    Args:
        patterns: As in `fnmatch`: `*` matches `/` too. Directories stay.
    Returns: The removed paths, relative to *root*, sorted.
    Raises: WorkspaceError: something cannot be read or removed.
    """
    if not patterns:
        return []
    with _naming("drop volatile files in", root), _walk(root) as found:
        dropped = [
            relative
            for relative, facts in found
            if not stat.S_ISDIR(facts.st_mode) and _matches(relative, tuple(patterns))
        ]
        for relative in dropped:
            path = os.path.join(root, relative)
            try:
                os.unlink(path)
            except PermissionError:
                _unlink_in_locked(path)
    return dropped


def _unlink_in_locked(path: str) -> None:
    directory = os.path.dirname(path)
    mode = stat.S_IMODE(os.lstat(directory).st_mode)
    os.chmod(directory, mode | 0o700)
    try:
        os.unlink(path)
    finally:
        os.chmod(directory, mode)


# Looking.


def tree_digest(root: Path, ignore: Sequence[str] = ()) -> str:
    """
    Return a SHA-256, in hexadecimal, over what is inside *root*.

    It covers names, kinds, modes and contents; not times, not which files are links of one another,
    and not *root*'s own mode.

    Args:
        ignore: Files that `drop_volatile` would remove with these patterns are left out.
    Raises: WorkspaceError: something cannot be read.
    """
    digest = hashlib.sha256()
    with _naming("digest", root), _walk(root, ignore) as found:
        for relative, facts in found:
            name = os.fsencode(relative)
            digest.update(b"%o %d %d\n" % (facts.st_mode, len(name), _size(facts)))
            digest.update(name)
            for piece in _pieces(os.path.join(root, relative), facts):
                digest.update(piece)
    return digest.hexdigest()


def tree_difference(a: Path, b: Path, ignore: Sequence[str] = ()) -> list[str]:
    """
    Return one readable line for each path at which the trees *a* and *b* differ, sorted by path.

    Empty exactly where `tree_digest` is the same for both.

    Raises: WorkspaceError: something cannot be read.
    """
    lines = []
    with _naming("compare", a), _walk(a, ignore) as in_a, _walk(b, ignore) as in_b:
        first, second = dict(in_a), dict(in_b)
        for relative in sorted(first.keys() | second.keys()):
            if relative not in second:
                line = f"{_kind(first[relative])} only in the first"
            elif relative not in first:
                line = f"{_kind(second[relative])} only in the second"
            else:
                paths = (os.path.join(a, relative), os.path.join(b, relative))
                line = _difference(paths, (first[relative], second[relative]))
            if line:
                lines.append(f"{_printable(relative)}: {line}")
    return lines


def _difference(paths: tuple[str, str], facts: tuple[os.stat_result, os.stat_result]) -> str:
    kinds = [_kind(one) for one in facts]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} in the first, {kinds[1]} in the second"
    parts = []
    modes = [f"{stat.S_IMODE(one.st_mode):04o}" for one in facts]
    if modes[0] != modes[1]:
        parts.append(f"mode {modes[0]} and {modes[1]}")
    at = 0  # no piece is short but the last
    for one, other in itertools.zip_longest(*map(_pieces, paths, facts), fillvalue=b""):
        if one == other:
            at += len(one)
            continue
        shared = min(len(one), len(other))
        at += next((i for i in range(shared) if one[i] != other[i]), shared)
        parts.append(f"contents differ from byte {at} on")
        break
    return "; ".join(parts)


def list_databases(root: Path) -> list[Path]:
    """
    Return every file under *root* that starts with SQLite's header, sorted.

    Raises: WorkspaceError: something cannot be read.
    """
    databases: list[Path] = []
    with _naming("look for databases in", root), _walk(root) as found:
        for relative, facts in found:
            if not stat.S_ISREG(facts.st_mode) or facts.st_size < len(SQLITE_MAGIC):
                continue
            descriptor = _open_readable(os.path.join(root, relative))
            try:
                if os.read(descriptor, len(SQLITE_MAGIC)) == SQLITE_MAGIC:
                    databases.append(Path(root, relative))
            finally:
                os.close(descriptor)
    return databases


@contextlib.contextmanager
def _walk(root: Path, ignore: Sequence[str] = ()) -> Iterator[list[tuple[str, os.stat_result]]]:
    """
    Give (path relative to *root*, lstat) of everything inside *root*, sorted by path.

    Until the end of the block every directory can be entered.
    """
    patterns = tuple(ignore)
    found: list[tuple[str, os.stat_result]] = []
    pending = [(os.fspath(root), "", os.lstat(root))]
    with contextlib.ExitStack() as unlocked:
        for directory, prefix, directory_facts in pending:  # grows while it is walked
            _unlock(directory, directory_facts, unlocked)
            with os.scandir(directory) as entries:
                for entry in entries:
                    facts = entry.stat(follow_symlinks=False)
                    relative = prefix + entry.name
                    if stat.S_ISDIR(facts.st_mode):
                        pending.append((entry.path, relative + "/", facts))
                    elif patterns and _matches(relative, patterns):
                        continue
                    found.append((relative, facts))
        found.sort(key=lambda item: item[0])
        yield found


def _matches(relative: str, patterns: tuple[str, ...]) -> bool:
    match = _compiled(patterns)
    return bool(match(relative) or match(relative.rpartition("/")[2]))


@functools.lru_cache(maxsize=64)
def _compiled(patterns: tuple[str, ...]) -> Callable[[str], re.Match[str] | None]:
    return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns)).match


def _size(facts: os.stat_result) -> int:
    return facts.st_size if stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode) else 0


def _pieces(path: str, facts: os.stat_result) -> Iterator[bytes]:
    """Give the contents of a file, or the target of a symbolic link, in pieces."""
    if stat.S_ISLNK(facts.st_mode):
        yield os.fsencode(os.readlink(path))
    if not stat.S_ISREG(facts.st_mode):
        return
    descriptor = _open_readable(path)
    try:
        left = facts.st_size
        while left and (piece := os.read(descriptor, min(left, _PIECE_BYTES))):
            yield piece
            left -= len(piece)
    finally:
        os.close(descriptor)


def _kind(facts: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(facts.st_mode), "thing of unknown kind")


def _printable(text: str) -> str:
    """Return *text* with what cannot be printed, control characters included, escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


@contextlib.contextmanager
def _naming(verb: str, path: Path) -> Iterator[None]:
    """Turn what the system refuses into a WorkspaceError that says what was being done."""
    try:
        yield
    except OSError as error:
        advice = f"; {_ADVICE}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise WorkspaceError(f"cannot {verb} {path}: {error}{advice}") from error


# The work folder of a run.


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
            with _naming("find a folder for", Path("temporary files")):
                parent = Path(os.path.realpath(tempfile.gettempdir()))
        with _naming("use work folder", parent):
            if not stat.S_ISDIR(parent.stat().st_mode):
                raise WorkspaceError(f"work folder {parent} is not a directory; {_ADVICE}")
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
        with _naming("make", path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def free_bytes(self) -> int:
        """Return how many bytes can still be written here."""
        with _naming("ask for the free space of", self.folder):
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
        raise WorkspaceError(f"work folder {parent} is on a read-only file system; {_ADVICE}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise WorkspaceError(f"work folder {parent} is not writable; {_ADVICE}")
    free, needed = facts.f_bavail * facts.f_frsize, jobs * BYTES_PER_JOB_MIN
    if free < needed:
        raise WorkspaceError(
            f"work folder {parent} is too full: {free / 2**20:.1f} MiB free, "
            f"{needed / 2**20:.1f} MiB needed for {jobs} jobs; {_ADVICE}, or --jobs with fewer"
        )
    inodes_needed = jobs * INODES_PER_JOB_MIN
    if facts.f_files and facts.f_favail < inodes_needed:  # 0 files: they are not counted
        raise WorkspaceError(
            f"work folder {parent} has no room for files: {facts.f_favail} inodes free, "
            f"{inodes_needed} needed for {jobs} jobs; {_ADVICE}"
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
            raise WorkspaceError(f"work folder {parent} does not keep what is written; {_ADVICE}")
        trial.unlink()
    except BaseException:
        with contextlib.suppress(WorkspaceError):
            _remove_folder(folder)
        raise
    return folder


def _remove_folder(folder: Path) -> None:
    clear_tree(folder)
    with _naming("remove", folder):
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
        "namespace": os.readlink("/proc/self/ns/pid"),
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
