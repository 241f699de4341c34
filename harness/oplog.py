"""
The oplog: every mutating call of an execution, read from the file that the recorder wrote.

Method: a header of one page, then records in one global order; every length and check is looked at
before it is used, and a log that is damaged is refused with the place. Records are read one at a
time, so that memory does not grow with the log. The format is in docs/oplog-format.md.

Covered: logs that are finished, logs of processes that were killed, logs that still grow.
Not covered: what an op means for files (``harness.materialise``) or for a disk (fault models).
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from harness.errors import OplogError

__all__ = ["Header", "Kind", "Mark", "Object", "Op", "Oplog"]

MAGIC: Final = b"CCOPLOG\0"
VERSION: Final = 1
HEADER_SIZE: Final = 4096
RECORD_SIZE: Final = 144
PAGE_SIZE: Final = 4096
WINDOW_SIZE: Final = 512 << 10
WINDOW_AT: Final = 0x107000
STATE_SUFFIX: Final = ".state"
"""Beside the log, while it is written: what the recorded processes share."""

_HEADER: Final = struct.Struct("<8sIIQQII QII IIII QQQQQ QII")
_RECORD: Final = struct.Struct("<IHBBII Q IIII q QII QII QII QII QQ II HHI")
_PATH_AT: Final = _HEADER.size
_PATH_MAX: Final = 3072
_DYNAMIC: Final = ((16, 16), (56, 4), (64, 4), (_HEADER.size - 16, 12))
_CHECK_AT: Final = 8
_SPOOLED_AT: Final = 112
_LOOKS_MAX: Final = 100
_NAME_MAX: Final = 255
_DONE, _ABANDONED, _BEGUN = 2, 3, 1
_NO_CALL: Final = 0xFFFF
_PAYLOAD_MAX: Final = 0x7FFFFFFF
_TYPE_MASK: Final = 0o170000

STACKS, RANDOM, CLOCK, NO_CALLS = 1, 2, 4, 8


class Kind(IntEnum):
    """What a record says; from OPEN to EXIT it is an op."""

    BASE = 1
    PROCESS = 2
    STACK = 3
    MARKER = 4
    GAP = 5
    ADOPT = 6
    OPEN = 10
    CREATE = 11
    TMPFILE = 12
    CLOSE = 13
    DUP = 14
    WRITE = 20
    TRUNCATE = 21
    ALLOCATE = 22
    RENAME = 30
    LINK = 31
    SYMLINK = 32
    UNLINK = 33
    MKDIR = 34
    RMDIR = 35
    MKNOD = 36
    CHMOD = 40
    CHOWN = 41
    SETXATTR = 42
    REMOVEXATTR = 43
    UTIMES = 44
    FSYNC = 50
    FDATASYNC = 51
    SYNC = 52
    SYNCFS = 53
    MSYNC = 54
    SYNC_RANGE = 55
    MAPPING = 60
    EXEC = 70
    EXIT = 71


_KINDS: Final = {int(kind): kind for kind in Kind}


class Mark(IntEnum):
    """What a marker says about the execution."""

    BOUNDARY = 1
    STEP_BEGIN = 2
    STEP_END = 3
    PROMISE = 4
    EFFECT = 5
    PHASE = 6


class Object(NamedTuple):
    """One file, folder or link: a reused inode number has another birth."""

    inode: int
    device: int
    birth: int


@dataclass(frozen=True, slots=True)
class Op:
    """
    One record of the log; docs/oplog-format.md says which fields a kind fills.

    Attributes:
        sequence: Position among all records.
        end: Offset in the log behind it: how much of the log a state needs.
        call: Number of the system call on the recording machine; None for what is no call.
        stack: Number of the Python stack that caused it, 0 for none; see `Oplog.stacks`.
        object, replaced: What it concerns; None for nothing, or what is outside of the root.
        source, target: Folders of the first and of the last name.
        is_uncertain: The process died in the call: it may have happened wholly, in part, not.
    """

    sequence: int
    end: int
    kind: Kind
    call: int | None
    process: int
    thread: int
    stack: int
    mode: int
    result: int
    object: Object | None
    replaced: Object | None
    source: Object | None
    target: Object | None
    offset: int
    length: int
    flags: int
    call_flags: int
    name: bytes
    second: bytes
    payload: bytes
    is_uncertain: bool

    @property
    def type(self) -> int:
        """The S_IF bits of the object after the call."""
        return self.mode & _TYPE_MASK

    @property
    def page_cuts(self) -> range:
        """
        Where a killed write can stop: how many of its bytes are there, none and all left out.

        Rule S3 of docs/fault-models.md: at file offsets that are multiples of the page.
        """
        if self.kind is not Kind.WRITE:
            return range(0)
        first = PAGE_SIZE - self.offset % PAGE_SIZE
        return range(first, len(self.payload), PAGE_SIZE)


@dataclass(frozen=True, slots=True)
class Header:
    """
    What is known of the whole recording.

    Attributes:
        machine: ELF number of the machine: 62 x86-64, 183 arm64.
        lost: Error for which recording stopped before its end, 0 for none.
        is_closed: Whether recording was ended, rather than the process.
        left_out: Kinds that a test build did not record.
        spooled: Up to here records stand in the file, behind it in the window of the state file.
    """

    machine: int
    root: Object
    path: bytes
    options: int
    seed: int
    clock_start_ns: int
    clock_tick_ns: int
    left_out: frozenset[int]
    committed: int
    spooled: int
    records: int
    lost: int
    is_closed: bool


class Oplog:
    """
    A log, open for reading; iterating goes on from where it stopped, so a growing log is followed.

    Attributes:
        stacks: Text of each stack met so far, by number: one frame a line, innermost first.
        uncertain: Set at the end: the op under way when the process died; None where none was.
    Raises: OplogError, from `read` and from iterating: what stands in the file is no whole log.
    """

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._at = HEADER_SIZE
        self._sequence = 0
        self.stacks: dict[int, str] = {}
        self._tail = b""
        self._look()

    @classmethod
    def read(cls, path: Path) -> Oplog:
        """Open *path*; the header is validated at once, each record when it is reached."""
        file = open(path, "rb")  # noqa: SIM115 - it lives as long as the object
        try:
            return cls(file, path)
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Oplog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Op]:
        """Yield every record that was committed since the last call, in order."""
        self._look()
        while self._at < self.header.committed:
            op = self._read_record(self.header.committed)
            self._at = op.end
            self._sequence += 1
            if op.kind is Kind.STACK:
                self.stacks[op.stack] = op.payload.decode("utf-8", "backslashreplace")
            yield op
        is_counted = self._sequence == self.header.records
        if not is_counted and (self.header.is_closed or self._sequence != self.header.records + 1):
            raise self._wrong(16, f"{self.header.records} records, {self._sequence} were found")

    @property
    def uncertain(self) -> Op | None:
        """The op that was under way when the process died, behind all others, without its bytes."""
        fixed = self._bytes(self.header.committed, RECORD_SIZE)
        if len(fixed) < RECORD_SIZE or fixed[7] not in (_BEGUN, _DONE) or fixed[6] not in _KINDS:
            return None
        fields = list(_RECORD.unpack(fixed))
        if fields[6] != self._sequence:
            return None  # left over from an earlier window
        sizes = fields[-3:-1]
        names = self._bytes(self.header.committed + RECORD_SIZE, sum(sizes))
        name, second = names[: sizes[0]], names[sizes[0] :]
        return _op(fields, name, second, b"", self.header.committed, is_uncertain=True)

    def complete(self) -> None:
        """
        Put into the file what its dead processes left in the window; twice does nothing more.

        The op that was under way, if any, stays readable behind the last record.
        """
        header = self.header
        if header.committed == header.spooled and not self._tail:
            return
        with open(self._path, "r+b") as file:
            file.seek(header.spooled)
            file.write(self._tail)
            file.flush()
            file.seek(_SPOOLED_AT)
            file.write(header.committed.to_bytes(8, "little"))
        self._look()

    def _wrong(self, offset: int, reason: str) -> OplogError:
        return OplogError(str(self._path), offset, reason)

    def _look(self) -> None:
        """Read the header, and with it what is in the window only."""
        for _ in range(_LOOKS_MAX):
            self.header = header = self._read_header()
            state = self._path.with_name(self._path.name + STATE_SUFFIX)
            self._tail = b""
            with contextlib.suppress(FileNotFoundError):
                size = header.committed - header.spooled + RECORD_SIZE + 2 * _NAME_MAX
                with open(state, "rb") as file:
                    file.seek(WINDOW_AT)
                    self._tail = file.read(size)
            if self._read_header().spooled == header.spooled:
                break
        end = os.fstat(self._file.fileno()).st_size
        if end < header.spooled or (self._tail == b"" and end < header.committed):
            raise self._wrong(end, f"records up to {header.committed}, but the file ends")

    def _bytes(self, offset: int, size: int) -> bytes:
        """Return what stands in the log at an offset, fewer bytes where it ends."""
        spooled = self.header.spooled
        if self._tail and offset >= spooled:
            return self._tail[offset - spooled : offset - spooled + size]
        self._file.seek(offset)
        return self._file.read(size)

    def _read_header(self) -> Header:
        self._file.seek(0)
        page = self._file.read(HEADER_SIZE)
        if len(page) < HEADER_SIZE:
            raise self._wrong(len(page), f"the header of {HEADER_SIZE} bytes is cut")
        fields = _HEADER.unpack_from(page)
        magic, version, header_size, committed, records, record_size, machine = fields[:7]
        if magic != MAGIC:
            raise self._wrong(0, "this is no oplog")
        if (version, header_size, record_size) != (VERSION, HEADER_SIZE, RECORD_SIZE):
            raise self._wrong(8, f"version {version}; this reader knows version {VERSION}")
        still = bytearray(page)
        for start, size in _DYNAMIC:
            still[start : start + size] = bytes(size)
        size = _PATH_AT + _PATH_MAX
        if zlib.crc32(still[:size]) != fields[-2]:
            raise self._wrong(_HEADER.size - 8, "the header does not match its check")
        lost, options, is_closed, path_size = fields[10:14]
        spooled = min(fields[19], committed)  # beyond it where a death came just before the end
        if not HEADER_SIZE <= spooled <= committed <= spooled + WINDOW_SIZE or committed % 8:
            raise self._wrong(16, f"records up to {committed}, {spooled} of it in the file")
        if is_closed > 1 or path_size >= _PATH_MAX:
            raise self._wrong(64, "the header holds impossible values")
        seed, start_ns, tick_ns, low, high = fields[14:19]
        left_out = frozenset(bit for bit in range(128) if (low | high << 64) >> bit & 1)
        return Header(
            machine=machine,
            root=Object(*fields[7:10]),
            path=page[_PATH_AT : _PATH_AT + path_size],
            options=options,
            seed=seed,
            clock_start_ns=start_ns,
            clock_tick_ns=tick_ns,
            left_out=left_out,
            committed=committed,
            spooled=spooled,
            records=records,
            lost=lost,
            is_closed=bool(is_closed),
        )

    def _read_record(self, limit: int) -> Op:
        at = self._at
        fixed = self._bytes(at, RECORD_SIZE)
        if len(fixed) < RECORD_SIZE:
            raise self._wrong(at, "the record is cut")
        fields = list(_RECORD.unpack(fixed))
        size, _, kind, state, check, payload_check, sequence = fields[:7]
        name_size, second_size, payload_size = fields[-3:]
        used = RECORD_SIZE + name_size + second_size + payload_size
        if size % 8 or not used <= size < used + 8 or at + size > limit:
            raise self._wrong(at, f"a record of {size} bytes cannot hold {used}, up to {limit}")
        if kind not in _KINDS or state not in (_DONE, _ABANDONED) or payload_size > _PAYLOAD_MAX:
            raise self._wrong(at + 6, f"kind {kind} in state {state} is unknown")
        rest = self._bytes(at + RECORD_SIZE, size - RECORD_SIZE)
        if len(rest) < size - RECORD_SIZE:
            raise self._wrong(at, "the record is cut")
        names = rest[: name_size + second_size]
        payload = rest[len(names) : len(names) + payload_size]
        still = bytearray(fixed)
        still[_CHECK_AT : _CHECK_AT + 4] = bytes(4)
        if zlib.crc32(names, zlib.crc32(still)) != check:
            raise self._wrong(at + _CHECK_AT, "the record does not match its check")
        if zlib.adler32(payload) != payload_check or any(rest[len(names) + payload_size :]):
            raise self._wrong(at + RECORD_SIZE + len(names), "the bytes do not match their check")
        if sequence != self._sequence:
            raise self._wrong(at + 16, f"record {sequence} stands where {self._sequence} should")
        name, second = names[:name_size], names[name_size:]
        if kind != Kind.GAP and not (_is_entry(name) and _is_entry(second)):
            raise self._wrong(at + RECORD_SIZE, "a name is none that a folder can hold")
        return _op(fields, name, second, payload, at + size, is_uncertain=state == _ABANDONED)


def _is_entry(name: bytes) -> bool:
    return b"/" not in name and b"\0" not in name and name not in (b".", b"..")


def _object(inode: int, device: int, birth: int) -> Object | None:
    return Object(inode, device, birth) if birth else None


def _op(
    fields: list[int], name: bytes, second: bytes, payload: bytes, end: int, *, is_uncertain: bool
) -> Op:
    return Op(
        sequence=fields[6],
        end=end,
        kind=_KINDS[fields[2]],
        call=None if fields[1] == _NO_CALL else fields[1],
        process=fields[7],
        thread=fields[8],
        stack=fields[9],
        mode=fields[10],
        result=fields[11],
        object=_object(*fields[12:15]),
        replaced=_object(*fields[15:18]),
        source=_object(*fields[18:21]),
        target=_object(*fields[21:24]),
        offset=fields[24],
        length=fields[25],
        flags=fields[26],
        call_flags=fields[27],
        name=name,
        second=second,
        payload=payload,
        is_uncertain=is_uncertain,
    )
