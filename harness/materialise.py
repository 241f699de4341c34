"""
Trees from an oplog: the files as they were after each op, made one from the next.

Method: an inode graph as in docs/fault-models.md (objects; names that are a folder and an entry)
beside a real folder that is changed op by op. What has no name yet (O_TMPFILE, what is being
moved into the root) waits in a folder beside it; what lost its last name is gone, since no call can
give it one again.

Covered: contents, names, kinds, permissions, links, times, extended attributes where they can be
set. Not covered: owners; devices; bytes written through shared mappings (no call carries them).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import OplogError
from harness.oplog import Kind, Object, Op

__all__ = ["Materialiser"]

_KEEP_SIZE, _PUNCH, _COLLAPSE, _ZERO, _INSERT = 1, 2, 8, 16, 32
_EXCHANGE = 2
_TIMES = struct.Struct("<4q")
_PIECE = 1 << 20


@dataclass(slots=True)
class _Node:
    """An object: its names, and where its bytes are while it has none."""

    type: int
    names: dict[tuple[Object, bytes], None] = field(default_factory=dict)
    waiting: bytes | None = None
    entries: dict[bytes, Object] = field(default_factory=dict)


class Materialiser:
    """
    A folder that follows an oplog.

    Args:
        root: Holds the tree that the recording started from; changed by `apply`.
        side: An empty or missing folder on the same file system, for what has no name.
    """

    def __init__(self, root: Path, side: Path) -> None:
        self._root = os.fsencode(root)
        self._side = os.fsencode(side)
        self._top: Object | None = None
        self._nodes: dict[Object, _Node] = {}
        self._mapped: set[Object] = set()
        self._gaps: list[str] = []
        side.mkdir(exist_ok=True)
        self._actions: dict[Kind, Callable[[Op], None]] = {
            Kind.BASE: self._base,
            Kind.ADOPT: self._adopt,
            Kind.GAP: self._gap,
            Kind.OPEN: self._open,
            Kind.CREATE: self._create,
            Kind.TMPFILE: self._tmpfile,
            Kind.TRUNCATE: self._truncate,
            Kind.ALLOCATE: self._allocate,
            Kind.RENAME: self._rename,
            Kind.LINK: self._link,
            Kind.SYMLINK: self._create,
            Kind.MKDIR: self._create,
            Kind.MKNOD: self._create,
            Kind.UNLINK: self._remove,
            Kind.RMDIR: self._remove,
            Kind.CHMOD: self._chmod,
            Kind.SETXATTR: self._attribute,
            Kind.REMOVEXATTR: self._attribute,
            Kind.UTIMES: self._times,
            Kind.MAPPING: self._mapping,
        }

    def apply(self, op: Op, *, cut: int | None = None) -> None:
        """
        Bring the tree from before *op* to after it.

        Args:
            cut: For a write: only so many of its bytes, as when the process is killed in it. The
                whole write may be applied over it afterwards.
        Raises: OplogError: the op cannot follow those before it. OSError: the folder is not what
            the log started from.
        """
        if op.kind is Kind.WRITE:
            self._write(op, len(op.payload) if cut is None else cut)
            return
        action = self._actions.get(op.kind)
        if action is not None:
            action(op)

    @property
    def gaps(self) -> list[str]:
        """What the recorder could not follow, so far."""
        return self._gaps

    @property
    def mapped(self) -> list[str]:
        """Files, relative to the root, that were mapped writable and shared, and have a name."""
        found = (self._relative(name) for one in self._mapped for name in self._names(one))
        return sorted(name for name in found if name is not None)

    def names_of(self, thing: Object) -> list[str]:
        """Return the paths of an object relative to the root, sorted; none where it has no name."""
        found = (self._relative(name) for name in self._names(thing))
        return sorted(name for name in found if name is not None)

    # -- where things are ---------------------------------------------------------------------

    def _names(self, thing: Object) -> list[tuple[Object, bytes]]:
        node = self._nodes.get(thing)
        return list(node.names) if node else []

    def _relative(self, name: tuple[Object, bytes]) -> str | None:
        parts = [name[1]]
        folder = name[0]
        while folder != self._top:
            node = self._nodes.get(folder)
            if node is None or not node.names:
                return None
            folder, entry = next(iter(node.names))
            parts.append(entry)
        return os.fsdecode(b"/".join(reversed(parts)))

    def _path(self, thing: Object | None) -> bytes | None:
        """Return where an object is now; None for one that is gone, or was never seen."""
        if thing == self._top:
            return self._root
        node = self._nodes.get(thing) if thing else None
        if node is None:
            return None
        if node.waiting is not None:
            return node.waiting
        if not node.names:
            return None
        folder, entry = next(iter(node.names))
        above = self._path(folder)
        return None if above is None else above + b"/" + entry

    def _entry(self, op: Op, folder: Object | None, entry: bytes) -> bytes:
        above = self._path(folder)
        if above is None or not entry:
            raise self._impossible(op, "its folder is none that the log knows")
        return above + b"/" + entry

    def _impossible(self, op: Op, reason: str) -> OplogError:
        text = f"record {op.sequence} ({op.kind.name.lower()}): {reason}"
        return OplogError(os.fsdecode(self._root), op.end, text)

    def _waiting_path(self, op: Op) -> bytes:
        assert op.object is not None
        return self._side + b"/%d" % op.object.birth

    # -- names --------------------------------------------------------------------------------

    def _add_name(self, thing: Object, folder: Object, entry: bytes) -> None:
        self._nodes[folder].entries[entry] = thing
        self._nodes[thing].names[folder, entry] = None
        self._nodes[thing].waiting = None

    def _drop_name(self, folder: Object, entry: bytes) -> None:
        holder = self._nodes.get(folder)
        thing = holder.entries.pop(entry, None) if holder else None
        node = self._nodes.get(thing) if thing else None
        if thing is None or node is None:
            return
        node.names.pop((folder, entry), None)
        if not node.names and node.waiting is None:
            del self._nodes[thing]

    def _base(self, op: Op) -> None:
        assert op.object is not None
        node = self._nodes.setdefault(op.object, _Node(op.type))
        if op.target is None:
            self._top = op.object
            return
        if op.target not in self._nodes:
            raise self._impossible(op, "its folder is none that the log knows")
        self._nodes[op.target].entries[op.name] = op.object
        node.names[op.target, op.name] = None

    def _create(self, op: Op) -> None:
        assert op.object is not None
        path = self._entry(op, op.target, op.name)
        self._make(op, path)
        self._nodes[op.object] = _Node(op.type)
        assert op.target is not None
        self._add_name(op.object, op.target, op.name)

    def _make(self, op: Op, path: bytes) -> None:
        mode = stat.S_IMODE(op.mode)
        if op.type == stat.S_IFDIR:
            os.mkdir(path)
        elif op.type == stat.S_IFLNK:
            os.symlink(op.payload, path)
            return
        elif op.type == stat.S_IFREG:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        else:
            os.mknod(path, op.mode, op.length)
        os.chmod(path, mode)

    def _tmpfile(self, op: Op) -> None:
        assert op.object is not None
        path = self._waiting_path(op)
        self._make(op, path)
        self._nodes[op.object] = _Node(op.type, waiting=path)

    def _adopt(self, op: Op) -> None:
        """What comes from outside: waiting at the side, or in a folder that waits there."""
        assert op.object is not None
        if op.object in self._nodes:  # another link of a file that the root has already
            if op.target is not None:
                self._link(op)
            return
        is_top = op.target is None
        path = self._waiting_path(op) if is_top else self._entry(op, op.target, op.name)
        self._make(op, path)
        self._nodes[op.object] = _Node(op.type, waiting=path)
        if op.type == stat.S_IFREG:
            self._write_at(path, op.payload, 0)
        if op.target is not None:
            self._add_name(op.object, op.target, op.name)

    def _link(self, op: Op) -> None:
        path = self._path(op.object)
        if path is None or op.object is None or op.target is None:
            raise self._impossible(op, "it links what is gone")
        target = self._entry(op, op.target, op.name)
        os.link(path, target, follow_symlinks=False)
        waiting = self._nodes[op.object].waiting
        self._add_name(op.object, op.target, op.name)
        if waiting is not None:
            os.unlink(waiting)

    def _remove(self, op: Op) -> None:
        path = self._entry(op, op.source, op.name)
        if op.kind is Kind.RMDIR:
            os.rmdir(path)
        else:
            os.unlink(path)
        assert op.source is not None
        self._drop_name(op.source, op.name)

    def _rename(self, op: Op) -> None:
        if op.object is None:
            raise self._impossible(op, "it moves what the log does not know")
        if op.flags & _EXCHANGE:
            self._exchange(op)
            return
        if op.object == op.replaced:
            return  # two names of one object: the kernel does nothing
        path = self._path(op.object)
        if op.source is not None:
            path = self._entry(op, op.source, op.name)
        if path is None:
            raise self._impossible(op, "it moves what is gone")
        if op.target is None:
            self._leave(op, path)
            return
        target = self._entry(op, op.target, op.second)
        if op.replaced is not None and op.type == stat.S_IFDIR:
            os.rmdir(target)
        os.rename(path, target)
        if op.replaced is not None:
            self._drop_name(op.target, op.second)
        self._nodes[op.object].waiting = None
        self._add_name(op.object, op.target, op.second)
        if op.source is not None:
            self._nodes[op.source].entries.pop(op.name, None)
            self._nodes[op.object].names.pop((op.source, op.name), None)

    def _leave(self, op: Op, path: bytes) -> None:
        """A name goes out of the root; what it named may still have others."""
        assert op.source is not None
        if op.type == stat.S_IFDIR:
            shutil.rmtree(path)
        else:
            os.unlink(path)
        self._forget_below(op.source, op.name)

    def _forget_below(self, folder: Object, entry: bytes) -> None:
        thing = self._nodes[folder].entries.get(entry)
        if thing in self._nodes:
            for name in list(self._nodes[thing].entries):
                self._forget_below(thing, name)
        self._drop_name(folder, entry)

    def _exchange(self, op: Op) -> None:
        if op.source is None or op.target is None or op.replaced is None or op.object is None:
            return  # one of them outside: the log has a gap for it
        first = self._entry(op, op.source, op.name)
        second = self._entry(op, op.target, op.second)
        between = self._side + b"/exchange"
        os.rename(first, between)
        os.rename(second, first)
        os.rename(between, second)
        for thing, old, new in (
            (op.object, (op.source, op.name), (op.target, op.second)),
            (op.replaced, (op.target, op.second), (op.source, op.name)),
        ):
            self._nodes[thing].names.pop(old, None)
            self._nodes[thing].names[new] = None
            self._nodes[new[0]].entries[new[1]] = thing

    # -- contents -----------------------------------------------------------------------------

    def _open(self, op: Op) -> None:
        if op.flags & os.O_TRUNC:
            self._resize(op, 0)

    def _resize(self, op: Op, size: int) -> None:
        path = self._path(op.object)
        if path is not None:
            os.truncate(path, size)

    def _truncate(self, op: Op) -> None:
        self._resize(op, op.length)

    def _write(self, op: Op, size: int) -> None:
        path = self._path(op.object)
        if path is not None and size:
            self._write_at(path, op.payload[:size], op.offset)

    def _write_at(self, path: bytes, data: bytes, offset: int) -> None:
        descriptor = _writable(path)
        try:
            _write_all(descriptor, data, offset)
        finally:
            os.close(descriptor)

    def _allocate(self, op: Op) -> None:
        path = self._path(op.object)
        if path is None:
            return
        start, end, mode = op.offset, op.offset + op.length, op.mode
        size = os.stat(path).st_size
        if mode & _COLLAPSE:
            self._shift(path, end, start, size)
            os.truncate(path, size - op.length)
        elif mode & _INSERT:
            self._shift(path, start, end, size)
            self._zero(path, start, end)
        else:
            if mode & (_PUNCH | _ZERO):
                self._zero(path, start, min(end, size))
            if not mode & _KEEP_SIZE and end > size:
                os.truncate(path, end)

    def _zero(self, path: bytes, start: int, end: int) -> None:
        for at in range(start, end, _PIECE):
            self._write_at(path, bytes(min(_PIECE, end - at)), at)

    def _shift(self, path: bytes, start: int, target: int, size: int) -> None:
        """Move the bytes from *start* to the file's end to *target*; a store does this rarely."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, size - start, start)
        finally:
            os.close(descriptor)
        self._write_at(path, data, target)

    # -- what is told of objects --------------------------------------------------------------

    def _chmod(self, op: Op) -> None:
        path = self._path(op.object)
        if path is not None and op.type != stat.S_IFLNK:
            os.chmod(path, stat.S_IMODE(op.mode))

    def _attribute(self, op: Op) -> None:
        path = self._path(op.object)
        if path is None:
            return
        with contextlib.suppress(OSError):  # not every file system has them
            if op.kind is Kind.SETXATTR:
                os.setxattr(path, op.name, op.payload, follow_symlinks=False)
            else:
                os.removexattr(path, op.name, follow_symlinks=False)

    def _times(self, op: Op) -> None:
        path = self._path(op.object)
        if path is None or len(op.payload) != _TIMES.size:
            return
        seconds, rest, changed, changed_rest = _TIMES.unpack(op.payload)
        times = (seconds * 10**9 + rest, changed * 10**9 + changed_rest)
        os.utime(path, ns=times, follow_symlinks=False)

    def _mapping(self, op: Op) -> None:
        if op.object is not None:
            self._mapped.add(op.object)

    def _gap(self, op: Op) -> None:
        self._gaps.append(os.fsdecode(op.name))


def _writable(path: bytes) -> int:
    """Open a file for writing, whatever its permissions say."""
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except PermissionError:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        os.chmod(path, mode | stat.S_IWUSR)
        try:
            return os.open(path, flags)
        finally:
            os.chmod(path, mode)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
