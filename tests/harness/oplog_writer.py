"""Oplogs written by hand: the format a second time, as docs/oplog-format.md tells it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.oplog import Kind, Object

ROOT = Object(100, 5, 1)
NOTHING = Object(0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a record is made of; the rest follows."""

    kind: int
    state: int = 2
    call: int = 0xFFFF
    process: int = 7
    thread: int = 7
    stack: int = 0
    mode: int = 0
    result: int = 0
    a: Object = NOTHING
    b: Object = NOTHING
    source: Object = NOTHING
    target: Object = NOTHING
    offset: int = 0
    length: int = 0
    flags: int = 0
    call_flags: int = 0
    name: bytes = b""
    second: bytes = b""
    payload: bytes = b""

    def packed(self, sequence: int) -> bytes:
        """Return the record's bytes."""
        names = self.name + self.second
        size = (144 + len(names) + len(self.payload) + 7) // 8 * 8
        rest = struct.pack(
            "<QIIIIq",
            sequence,
            self.process,
            self.thread,
            self.stack,
            self.mode,
            self.result,
        )
        for thing in (self.a, self.b, self.source, self.target):
            rest += struct.pack("<QII", *thing)
        rest += struct.pack("<QQII", self.offset, self.length, self.flags, self.call_flags)
        rest += struct.pack("<HHI", len(self.name), len(self.second), len(self.payload)) + names
        start = struct.pack("<IHB", size, self.call, self.kind)
        payload_check = struct.pack("<I", zlib.adler32(self.payload))
        check = zlib.crc32(start + bytes([self.state]) + bytes(4) + payload_check + rest)
        head = start + bytes([self.state]) + struct.pack("<I", check) + payload_check
        return (head + rest + self.payload).ljust(size, b"\0")


def header(committed: int, records: int, *, spooled: int | None = None, closed: int = 1) -> bytes:
    """Return a header of one page."""
    path = b"/store"
    fixed = struct.pack("<II", 144, 62) + struct.pack("<QII", *ROOT)
    tail = struct.pack("<QQQQQ", 0, 0, 0, 0, 0)
    still = b"CCOPLOG\0" + struct.pack("<II", 1, 4096) + bytes(16) + fixed
    still += struct.pack("<IIII", 0, 0, 0, len(path)) + tail + bytes(16)
    check = zlib.crc32((still + path).ljust(3200, b"\0"))
    whole = b"CCOPLOG\0" + struct.pack("<IIQQ", 1, 4096, committed, records) + fixed
    whole += struct.pack("<IIII", 0, 0, closed, len(path)) + tail
    whole += struct.pack("<QII", committed if spooled is None else spooled, check, 0) + path
    return whole.ljust(4096, b"\0")


def log_bytes(records: Sequence[Record], *, closed: int = 1) -> bytes:
    """Return a whole log."""
    body = b"".join(record.packed(number) for number, record in enumerate(records))
    return header(4096 + len(body), len(records), closed=closed) + body


def write_log(path: Path, records: Sequence[Record]) -> Path:
    """Write a whole log."""
    path.write_bytes(log_bytes(records))
    return path


def base(thing: Object, name: bytes = b"", *, mode: int = 0o40755, folder: Object = ROOT) -> Record:
    """Return the record of something that was there at the start."""
    target = folder if name else NOTHING
    return Record(kind=Kind.BASE, a=thing, mode=mode, name=name, target=target)
