"""
How much of a WAL can be read, and whether commits stand in it that cannot.

Method: the header and the frames are read from beginning to end, as a recovery of SQLite's does:
each frame has a checksum over itself and everything before it, and the first one that fails ends
what is read. SQLite says nothing about what stands behind it; here it is counted by its salts. A
commit of the same generation cannot stand there after a process died, since frames are written in
order, but for the moment in which a transaction that outgrew its cache is being committed.

Where there is an index of the WAL (``-shm``), it says how many frames there were once.

Covered: damaged frames before the newest commit, and the newest itself where it ends the file; a
damaged or cut header; with the index, a WAL that was removed, emptied or cut.
Not covered: a WAL that was cut or removed together with its index; a damaged last commit that is
followed by frames of a former generation, which looks like one that was being written; damage that
keeps the checksum; whether the WAL belongs to the database.

Source: https://www.sqlite.org/walformat.html, for header, frames, checksum and index.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["WAL_HEADER_SIZE", "WalIndex", "WalReading", "read_wal", "read_wal_index"]

WAL_HEADER_SIZE: Final = 32
"""Bytes before the first frame."""

_FRAME_HEADER_SIZE: Final = 24
_ORDERS: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""The two magic numbers, and the byte order in which each one's checksums take the words."""
_VERSION: Final = 3_007_000
_PAGE_SIZES: Final = frozenset(2**power for power in range(9, 17))
_MASK: Final = 0xFFFF_FFFF
_BATCH_SIZE: Final = 2**20
_INDEX_VERSION: Final = 3_007_000
_INDEX_HEADER_SIZE: Final = 48


class WalReading(NamedTuple):
    """
    What was found in one WAL. All counts are of whole frames.

    Attributes:
        size: Of the file, in bytes.
        has_header: Whether the header is whole and sound; without it nothing else is counted.
        salts: As they stand in the header.
        committed_frame_count: Those up to the last commit that can be read: what SQLite takes.
        tail_frame_count: Sound ones after it: of a transaction that was cut short.
        bad_frame: The number, from 1, of the first frame that is not sound, where it or one behind
            it is of this generation; else 0.
        unreadable_frame_count: The frames of this generation from there on. Without a commit they
            are of a transaction that was cut short or rolled back.
        unreadable_commit_count: Those of them that end a transaction. The bad one is counted only
            where it was surely written to its end: it ends the file, or a commit is behind it.
        former_frame_count: Frames of former generations, or of none.
    """

    size: int
    has_header: bool = False
    salts: bytes = b""
    committed_frame_count: int = 0
    tail_frame_count: int = 0
    bad_frame: int = 0
    unreadable_frame_count: int = 0
    unreadable_commit_count: int = 0
    former_frame_count: int = 0


class WalIndex(NamedTuple):
    """
    What the ``-shm`` says of its WAL.

    Attributes:
        frame_count: How many committed frames there were.
        salts: Of the generation that they belong to.
    """

    frame_count: int
    salts: bytes


def read_wal(path: Path) -> WalReading | None:
    """
    Read the WAL at *path* and return what is in it; None where there is no such file.

    Raises: OSError: it could not be read.
    Cost: O(size of the WAL), about a second for 50 MB; some 2 MB of memory, whatever its size.
    """
    with _opened(path) as descriptor:
        if descriptor is None:
            return None
        size = os.fstat(descriptor).st_size
        header = os.pread(descriptor, WAL_HEADER_SIZE, 0)
        if len(header) < WAL_HEADER_SIZE:
            return WalReading(size)
        magic, version, page_size = struct.unpack_from(">3I", header)
        order = _ORDERS.get(magic)
        if order is None or version != _VERSION or page_size not in _PAGE_SIZES:
            return WalReading(size)
        sums = _checksum(header[:24], (0, 0), order)
        if sums != struct.unpack_from(">2I", header, 24):
            return WalReading(size)
        reading = WalReading(size, has_header=True, salts=header[16:24])
        return _read_frames(descriptor, reading, page_size, order, sums)


def read_wal_index(path: Path) -> WalIndex | None:
    """
    Return what the ``-shm`` at *path* says; None where it is missing or says nothing certain.

    Raises: OSError: it could not be read.
    """
    with _opened(path) as descriptor:
        if descriptor is None:
            return None
        data = os.pread(descriptor, 2 * _INDEX_HEADER_SIZE, 0)
    first, second = data[:_INDEX_HEADER_SIZE], data[_INDEX_HEADER_SIZE:]
    # Written twice, so that a reader sees whether it was being written. In the host's byte order.
    if first != second or len(second) != _INDEX_HEADER_SIZE:
        return None
    version, is_made, frame_count = struct.unpack_from("=I8xB3xI", first)
    sums = _checksum(first[:40], (0, 0), "=")
    if (version, is_made) != (_INDEX_VERSION, 1) or sums != struct.unpack_from("=2I", first, 40):
        return None
    return WalIndex(frame_count, first[32:40])


def _read_frames(
    descriptor: int, reading: WalReading, page_size: int, order: str, sums: tuple[int, int]
) -> WalReading:
    """Read every whole frame: those that verify, and by their salts those that are behind them."""
    frame_size = _FRAME_HEADER_SIZE + page_size
    frame_count = (reading.size - WAL_HEADER_SIZE) // frame_size
    batch_max = max(1, _BATCH_SIZE // frame_size)
    committed = number = 0
    is_sound = True
    while is_sound and number < frame_count:
        wanted = frame_size * min(batch_max, frame_count - number)
        batch = os.pread(descriptor, wanted, WAL_HEADER_SIZE + number * frame_size)
        if len(batch) < wanted:
            break  # It was cut meanwhile, which whoever opened the database notices.
        for at, found in enumerate(_batch_sums(batch, frame_size, sums, order)):
            page, pages_after = struct.unpack_from(">2I", batch, at * frame_size)
            salts, sums = _salts_and_sums(batch, at * frame_size)
            is_sound = bool(page) and salts == reading.salts and sums == found
            if not is_sound:
                break
            number += 1
            committed = number if pages_after else committed
    reading = reading._replace(committed_frame_count=committed, tail_frame_count=number - committed)
    offset = WAL_HEADER_SIZE + number * frame_size
    behind = (
        os.pread(descriptor, _FRAME_HEADER_SIZE, offset + at * frame_size)
        for at in range(frame_count - number)
    )
    return _count_behind(behind, reading, number + 1)


def _salts_and_sums(batch: bytes, offset: int) -> tuple[bytes, tuple[int, int]]:
    first, second = struct.unpack_from(">2I", batch, offset + 16)
    return batch[offset + 8 : offset + 16], (first, second)


def _batch_sums(
    batch: bytes, frame_size: int, sums: tuple[int, int], order: str
) -> list[tuple[int, int]]:
    """
    Return the checksum that each frame ought to have if the one before it is right.

    All frames are summed up at once, each in 64 bits of its own within one integer, of which the
    upper half takes what a sum carries. Word by word this would last five times as long.
    """
    count, stride = len(batch) // frame_size, frame_size // 8
    before = [sums, *(_salts_and_sums(batch, at * frame_size)[1] for at in range(count - 1))]
    first, second = (_lanes([pair[half] for pair in before]) for half in (0, 1))
    low = _lanes([_MASK] * count)
    words = array("Q", batch)
    if order == ">":
        words.byteswap()
    # The frame's checksum leaves out its own place and the salts.
    for at in (0, *range(_FRAME_HEADER_SIZE // 8, stride)):
        pair = int.from_bytes(words[at::stride].tobytes(), "little")
        one, two = pair & low, (pair >> 32) & low
        if order == ">":
            one, two = two, one
        first = (first + one + second) & low
        second = (second + two + first) & low
    return list(zip(_values(first, count), _values(second, count), strict=True))


def _lanes(values: list[int]) -> int:
    return int.from_bytes(struct.pack(f"<{len(values)}Q", *values), "little")


def _values(lanes: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", lanes.to_bytes(8 * count, "little"))


def _count_behind(behind: Iterator[bytes], reading: WalReading, bad_frame: int) -> WalReading:
    """Count the frames from *bad_frame*, which is not sound, to the end of the file."""
    count = own = commits = 0
    is_bad_a_commit = False
    for count, header in enumerate(behind, start=1):
        is_own = header[8:16] == reading.salts
        is_commit = is_own and header[4:8] != bytes(4)
        own += is_own
        if count == 1:
            is_bad_a_commit = is_commit
        else:
            commits += is_commit
    if is_bad_a_commit and (commits or count == 1):
        commits += 1
    return reading._replace(
        bad_frame=bad_frame if own else 0,
        unreadable_frame_count=own,
        unreadable_commit_count=commits,
        former_frame_count=count - own,
    )


def _checksum(data: bytes | memoryview, sums: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = sums
    for one, two in struct.iter_unpack(f"{order}2I", data):
        first = (first + one + second) & _MASK
        second = (second + two + first) & _MASK
    return first, second


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    descriptor = None
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)
