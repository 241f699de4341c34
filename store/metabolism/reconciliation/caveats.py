"""
Reasons to doubt that what was read is all there was, or that it was judged at the right moment.

A finding needs rows, and rows can be lost without a contradiction: with its WAL a database loses
its newest commits, each wholly. So the files beside it are looked at, as `store.wal_frames` says,
and the times of what was found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from store.metabolism.plain_text import counted
from store.metabolism.reconciliation.moments import duration_text, moment_text
from store.wal_frames import WAL_HEADER_SIZE, WalReading, read_wal, read_wal_index

__all__ = ["Caveat", "CaveatKind", "time_caveats", "wal_caveats"]


class CaveatKind(StrEnum):
    """
    What gives reason to doubt.
    """

    WAL_MISSING = "wal_missing"
    WAL_EMPTY = "wal_empty"
    WAL_CUT = "wal_cut"
    WAL_HEADER_DAMAGED = "wal_header_damaged"
    WAL_FRAMES_UNREADABLE = "wal_frames_unreadable"
    ROWS_AHEAD = "rows_ahead"
    LOGS_AHEAD = "logs_ahead"


class Caveat(NamedTuple):
    """
    One reason to doubt, and what to do about it.
    """

    kind: CaveatKind
    text: str

    def to_json(self) -> dict[str, object]:
        """
        Return it as a plain JSON value.
        """
        return {"kind": self.kind.value, "text": self.text}


_MAY_LACK: Final = "so the newest commits may be missing"
_COPY: Final = (
    "Copy the database again with the -wal and the -shm beside it, from where the runtime ran"
)


def wal_caveats(database: Path) -> tuple[Caveat, ...]:
    """
    Say what the files beside *database* tell of commits that cannot be read; nothing is written.

    To be called while the database is held open at rest, so that a change is noticed.

    Raises: OSError: one of them could not be read.
    Cost: that of `store.wal_frames.read_wal`.
    """
    wal = read_wal(database.with_name(f"{database.name}-wal"))
    shm = database.with_name(f"{database.name}-shm")
    has_shm, index = os.path.lexists(shm), read_wal_index(shm)
    if wal is None or wal.size == 0:
        # After a checkpoint that truncates it, a WAL is empty and its index counts nothing.
        is_expected = wal is not None and index is not None and index.frame_count == 0
        return (_without_content(wal),) if has_shm and not is_expected else ()
    frame_count = index.frame_count if index is not None and index.salts == wal.salts else 0
    return tuple(_of_content(wal, frame_count))


def _without_content(wal: WalReading | None) -> Caveat:
    kind, found = CaveatKind.WAL_EMPTY, "an empty -wal"
    if wal is None:
        kind, found = CaveatKind.WAL_MISSING, "no -wal"
    return Caveat(
        kind,
        f"beside the database are a -shm and {found}. A runtime that died leaves both with "
        f"content, and one that ended cleanly neither, {_MAY_LACK}. {_COPY}.",
    )


def _of_content(wal: WalReading, indexed_count: int) -> Iterator[Caveat]:
    """Yield at most one doubt, the first thing that is wrong with a WAL that is not empty."""
    if wal.size < WAL_HEADER_SIZE:
        yield Caveat(
            CaveatKind.WAL_CUT,
            f"the -wal has {wal.size} bytes and a header alone has {WAL_HEADER_SIZE}: it was cut, "
            f"{_MAY_LACK}. {_COPY}.",
        )
    elif not wal.has_header:
        yield Caveat(
            CaveatKind.WAL_HEADER_DAMAGED,
            f"the header of the -wal fails its check, so nothing of its {wal.size} bytes is read: "
            f"whatever it held is missing. {_COPY}.",
        )
    elif wal.unreadable_commit_count:
        frames = counted(wal.unreadable_frame_count, "frame")
        commits = counted(wal.unreadable_commit_count, "commit frame")
        yield Caveat(
            CaveatKind.WAL_FRAMES_UNREADABLE,
            f"frame {wal.bad_frame} of the -wal fails its check, and {frames} from there on, "
            f"{commits} among them, cannot be read, {_MAY_LACK}: what is shown ends with frame "
            f"{wal.committed_frame_count}. {_COPY}.",
        )
    elif wal.committed_frame_count < indexed_count:
        yield Caveat(
            CaveatKind.WAL_CUT,
            f"the -shm counts {counted(indexed_count, 'frame')} in the -wal, and "
            f"{wal.committed_frame_count} can be read: it was cut or damaged, {_MAY_LACK}. "
            f"{_COPY}.",
        )


def time_caveats(
    *, latest_ns: int, newest_row_ns: int | None, newest_log_ns: int | None
) -> tuple[Caveat, ...]:
    """
    Say what was written after *latest_ns*, by its own time: durations cannot be right then.
    """
    newest = (
        (CaveatKind.ROWS_AHEAD, "the newest row of the database", newest_row_ns),
        (CaveatKind.LOGS_AHEAD, "the newest launch log", newest_log_ns),
    )
    return tuple(
        Caveat(
            kind,
            f"{what} was written {duration_text(at - latest_ns)} after the moment judged at "
            f"({moment_text(at)}, after {moment_text(latest_ns)}), so what is said of leases and "
            "of silence may be wrong. Judge at a later moment with --now, or leave it out; where "
            "it is, compare the clocks.",
        )
        for kind, what, at in newest
        if at is not None and at > latest_ns
    )
