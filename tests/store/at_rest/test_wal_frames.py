"""What of a WAL can be read, and which commits stand in it that cannot: as SQLite reads it."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from dead_databases import beside, finish, picture, start, values

from store.wal_frames import WalReading, read_wal, read_wal_index

HEADER, FRAME = 32, 24
# Six commits of one frame each in a WAL that begins with them.
_COMMITS = """
do("PRAGMA page_size={page_size}; PRAGMA journal_mode=WAL; CREATE TABLE t(x, y)")
do("PRAGMA wal_checkpoint(TRUNCATE)")
for n in range(6): do("INSERT INTO t VALUES(%d, '')" % n)
"""
_SPILL = """
do("PRAGMA cache_size=5; BEGIN IMMEDIATE; CREATE TABLE u(y)")
for _ in range(50): do("INSERT INTO u VALUES(randomblob(3000))")
"""
_KILLED = "\nos._exit(0)\n"


def _made(path: Path, script: str = "", *, page_size: int = 4096) -> Path:
    finish(start(path, _COMMITS.format(page_size=page_size) + script + _KILLED))
    return beside(path, "-wal")


def _found(wal: Path) -> WalReading:
    found = read_wal(wal)
    assert found is not None
    return found


def _sums(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    """Sum up as the format's description says it, word by word."""
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for at in range(0, len(words), 2):
        one = (one + words[at] + two) % 2**32
        two = (two + words[at + 1] + one) % 2**32
    return one, two


def _with_order(data: bytes, order: str) -> bytes:
    """Return a WAL with its checksums in the given byte order."""
    page_size = struct.unpack_from(">I", data, 8)[0]
    head = struct.pack(">I", 0x377F0682 + (order == ">")) + data[4:24]
    sums = _sums(head, (0, 0), order)
    made = head + struct.pack(">2I", *sums)
    for at in range(HEADER, len(data), FRAME + page_size):
        page = data[at + FRAME : at + FRAME + page_size]
        sums = _sums(page, _sums(data[at : at + 8], sums, order), order)
        made += data[at : at + 16] + struct.pack(">2I", *sums) + page
    return made


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("page_size", [512, 4096, 65536])
def test_what_is_read_is_what_sqlite_reads(page_size: int, order: str, tmp_path: Path) -> None:
    """Damage in any frame ends for both at the same commit, and those behind it are counted."""
    path = tmp_path / "a.db"
    wal = _made(path, page_size=page_size)
    whole = _with_order(wal.read_bytes(), order)
    for bad in range(7):
        data = bytearray(whole)
        if bad:
            data[HEADER + (bad - 1) * (FRAME + page_size) + FRAME + page_size - 1] ^= 1
        wal.write_bytes(data)
        before = picture(tmp_path)
        found = _found(wal)
        assert picture(tmp_path) == before
        assert values(path) == list(range(found.committed_frame_count))
        lost = 7 - bad if bad else 0
        assert (found.has_header, found.bad_frame, found.tail_frame_count) == (True, bad, 0)
        assert (found.unreadable_frame_count, found.unreadable_commit_count) == (lost, lost)
        assert found.committed_frame_count == 6 - lost


@pytest.mark.parametrize("place", [0, 8, 16], ids=["page", "salt", "checksum"])
def test_a_damaged_frame_header_ends_what_is_read(place: int, tmp_path: Path) -> None:
    """Also where a frame's salts are damaged, those behind it are known by theirs."""
    path = tmp_path / "a.db"
    wal = _made(path)
    data = bytearray(wal.read_bytes())
    data[HEADER + 2 * (FRAME + 4096) + place] ^= 1
    wal.write_bytes(data)
    found = _found(wal)
    assert values(path) == [0, 1]
    assert (found.committed_frame_count, found.bad_frame) == (2, 3)
    assert found.unreadable_commit_count == 4 - (place == 8)


def test_a_transaction_that_was_cut_short_lacks_no_commit(tmp_path: Path) -> None:
    """Frames without a commit behind the last one are no commits that were lost."""
    found = _found(_made(tmp_path / "a.db", _SPILL))
    assert found.committed_frame_count == 6
    assert found.tail_frame_count + found.unreadable_frame_count > 20
    assert (found.unreadable_commit_count, found.former_frame_count) == (0, 0)


def test_what_a_rollback_left_lacks_no_commit(tmp_path: Path) -> None:
    """Frames of this generation that a later commit has cut off are told from lost commits."""
    wal = _made(tmp_path / "a.db", _SPILL + "do(\"ROLLBACK; INSERT INTO t VALUES(6, '')\")")
    found = _found(wal)
    assert (found.committed_frame_count, found.unreadable_commit_count) == (7, 0)
    assert found.unreadable_frame_count > 20


def _restarted(path: Path) -> Path:
    return _made(path, "do(\"PRAGMA wal_checkpoint(RESTART); INSERT INTO t VALUES(6, '')\")")


def test_frames_of_a_former_generation_are_no_lost_commits(tmp_path: Path) -> None:
    """What stood in the WAL before it began anew has other salts."""
    path = tmp_path / "a.db"
    found = _found(_restarted(path))
    assert (found.committed_frame_count, found.former_frame_count) == (1, 5)
    assert (found.bad_frame, found.unreadable_frame_count) == (0, 0)
    assert values(path) == list(range(7))


def test_a_last_commit_is_lost_only_where_it_was_whole(tmp_path: Path) -> None:
    """A process may die between a frame's header and its page, but not behind the page."""
    wal = _restarted(tmp_path / "a.db")
    data = bytearray(wal.read_bytes())
    data[HEADER + FRAME + 100] ^= 1
    wal.write_bytes(data)
    torn = _found(wal)
    assert (torn.bad_frame, torn.unreadable_frame_count, torn.unreadable_commit_count) == (1, 1, 0)
    wal.write_bytes(data[: HEADER + FRAME + 4096])
    assert _found(wal).unreadable_commit_count == 1
    wal.write_bytes(data[: HEADER + FRAME])
    assert _found(wal).unreadable_frame_count == 0


def test_a_header_is_whole_and_sound_or_nothing_is_read(tmp_path: Path) -> None:
    """A cut or changed header is told apart from one that is sound, wherever it is damaged."""
    path = tmp_path / "a.db"
    wal = _made(path)
    whole = wal.read_bytes()
    for size in (0, 1, HEADER - 1):
        wal.write_bytes(whole[:size])
        assert _found(wal) == WalReading(size)
    wal.write_bytes(whole[:HEADER])
    assert _found(wal) == WalReading(HEADER, has_header=True, salts=whole[16:24])
    for at in range(HEADER):
        data = bytearray(whole)
        data[at] ^= 4
        wal.write_bytes(data)
        assert _found(wal) == WalReading(len(whole)), at
    wal.unlink()
    assert read_wal(wal) is None
    wal.symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        read_wal(wal)


def test_the_index_says_how_many_frames_there_were(tmp_path: Path) -> None:
    """A dead runtime's -shm counts the committed frames of its WAL, and none after a truncation."""
    wal = _made(tmp_path / "a.db", _SPILL)
    shm = beside(tmp_path / "a.db", "-shm")
    index = read_wal_index(shm)
    assert index is not None
    assert (index.frame_count, index.salts) == (6, _found(wal).salts)
    whole = shm.read_bytes()
    for at in range(96):
        data = bytearray(whole)
        data[at] ^= 1
        shm.write_bytes(data)
        assert read_wal_index(shm) is None
    twice = bytearray(whole)
    for at in (16, 64):  # the same in both copies
        twice[at] ^= 1
    for damaged in (b"", whole[:95], bytes(32768), twice):
        shm.write_bytes(damaged)
        assert read_wal_index(shm) is None
    shm.unlink()
    assert read_wal_index(shm) is None
    _made(tmp_path / "b.db", 'do("PRAGMA wal_checkpoint(TRUNCATE)")')
    emptied = read_wal_index(beside(tmp_path / "b.db", "-shm"))
    assert emptied is not None
    assert emptied.frame_count == 0
    assert beside(tmp_path / "b.db", "-wal").stat().st_size == 0


@pytest.mark.slow
def test_memory_does_not_grow_with_the_wal(tmp_path: Path) -> None:
    """A WAL of 16 MB takes no more memory than a part of it does."""
    grow = "do('PRAGMA wal_autocheckpoint=0')\n" + (
        'for _ in range(400): do("INSERT INTO t VALUES(0, randomblob(40000))")'
    )
    wal = _made(tmp_path / "a.db", grow)
    assert wal.stat().st_size > 16 * 10**6
    tracemalloc.start()
    try:
        assert _found(wal).committed_frame_count > 4_000
        assert tracemalloc.get_traced_memory()[1] < 4 * 10**6
    finally:
        tracemalloc.stop()


def test_no_descriptor_is_left(dead: Callable[[str], Path]) -> None:
    """Whatever is read, its file is closed again."""
    path = dead("wal")
    before = sorted(Path("/proc/self/fd").iterdir())
    read_wal(beside(path, "-wal"))
    read_wal_index(beside(path, "-shm"))
    assert sorted(Path("/proc/self/fd").iterdir()) == before
