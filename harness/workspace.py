"""
Copy, clear, compare and digest directory trees.

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
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from harness.errors import ConfigurationError, WorkspaceError

__all__ = [
    "clear_tree",
    "copy_file",
    "copy_tree",
    "drop_volatile",
    "list_databases",
    "restore",
    "tree_difference",
    "tree_digest",
]

SQLITE_MAGIC = b"SQLite format 3\x00"
"""The first 16 bytes of an SQLite database. Source: sqlite.org/fileformat2.html, section 1.3."""

ADVICE = "use --workdir DIR to name another one"
"""What to do where there is no room."""

# Bound before a zygote puts its observed calls into os: a copy has nothing to report.
_write = os.write
_copy_file_range = os.copy_file_range
_SMALL_BYTES_MAX = 256 << 10
_PIECE_BYTES = 8 << 20
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
    Raises: ConfigurationError: a socket or device, which is the store's. WorkspaceError:
        *destination* has entries; the copy does not fit; any other refusal by the system, with its
        path.
    Cost: About 35 us per small file on tmpfs.
    """
    with naming("copy", source):
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


def copy_file(source: str, target: str) -> None:
    """
    Copy a regular file's bytes to a new file of mode 0600; anything else, or nothing, is no error.

    Raises: WorkspaceError: the copy does not fit, or the system refuses it.
    """
    with naming("copy", Path(source)):
        try:
            is_file = stat.S_ISREG(os.lstat(source).st_mode)
        except FileNotFoundError:
            return
        if not is_file:
            return
        reading = _open_readable(source)
        try:
            writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                _copy_contents(reading, writing, os.fstat(reading))
            finally:
                os.close(writing)
        finally:
            os.close(reading)


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
            count = _copy_file_range(reading, writing, min(end - at, 1 << 30), at, at)
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
    written = _write(writing, data)
    while written < len(data):
        written += _write(writing, data[written:])


def _copy_special(source: str, target: str, facts: os.stat_result) -> None:
    if stat.S_ISLNK(facts.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISFIFO(facts.st_mode):
        os.mkfifo(target, 0o600)
        os.chmod(target, stat.S_IMODE(facts.st_mode))
    else:
        raise ConfigurationError(
            f"cannot copy {source}: it is a {_kind(facts)}. A store's root may hold directories, "
            "files, symbolic links and FIFOs; what a dead process leaves besides is named in "
            "`volatile`, and removed"
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
    with naming("clear", root):
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
    with naming("restore", root):
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
    with naming("drop volatile files in", root), _walk(root) as found:
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
    import hashlib  # brings OpenSSL, and every fork of a zygote would copy its pages

    digest = hashlib.sha256()
    with naming("digest", root), _walk(root, ignore) as found:
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
    with naming("compare", a), _walk(a, ignore) as in_a, _walk(b, ignore) as in_b:
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
    with naming("look for databases in", root), _walk(root) as found:
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


def not_matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the paths relative to a root that no pattern declares volatile."""
    kept = tuple(patterns)
    return [name for name in names if not (kept and _matches(name, kept))]


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
def naming(verb: str, path: Path) -> Iterator[None]:
    """Turn what the system refuses into a WorkspaceError that says what was being done."""
    try:
        yield
    except OSError as error:
        advice = f"; {ADVICE}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise WorkspaceError(f"cannot {verb} {path}: {error}{advice}") from error
