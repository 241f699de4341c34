"""What the recorder sees: every kind of call, whoever makes it, and that nothing else happened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.oplog import Kind
from harness.recorder import Session
from harness.system_calls import ARM64, X86_64, call_name
from tests.harness.recorded import needs_recorder, record
from tests.harness.recorder_calls import CALLS, prepare

pytestmark = needs_recorder

MACHINE = X86_64 if os.uname().machine == "x86_64" else ARM64
VOLATILE = {"sqlite3_in_every_journal_mode": ("*-shm",), "apsw_in_wal_mode": ("*-shm",)}


SLOW = ("sqlite3_in_every_journal_mode", "programs", "forks_that_write_at_once", "syncs")


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in CALLS]
)
def test_a_call_is_recorded_and_the_derived_tree_is_the_real_one(name: str, tmp_path: Path) -> None:
    """Each workload leaves the expected kinds in the log, and the log gives its tree."""
    body, kinds = CALLS[name]
    volatile = VOLATILE.get(name, ())
    done = record(tmp_path, body, prepare=prepare, volatile=volatile)
    assert kinds - done.kinds.keys() == set()
    assert all(call_name(op.call, MACHINE)[:11] != "system call" for op in done.ops)
    mapped = {
        "mapping": ["folder/hard is mapped", "old is mapped"],
        "mapping_made_writable_later": ["twin is mapped"],
    }.get(name, [])
    assert [problem.partition(" writable")[0] for problem in done.problems] == mapped


def test_calls_outside_of_the_root_are_no_ops(tmp_path: Path) -> None:
    """What happens beside the root leaves no op, whether or not it has the same file system."""

    def body(root: Path, session: Session) -> None:
        (root.parent / "beside").write_text("x")
        os.rename(root.parent / "beside", root.parent / "moved")
        os.unlink(root.parent / "moved")
        Path("/dev/shm/crashconform-test").write_text("x")
        os.unlink("/dev/shm/crashconform-test")

    done = record(tmp_path, body)
    assert done.kinds == {}


def test_failed_calls_are_no_ops(tmp_path: Path) -> None:
    """A call that failed changed nothing, and is not in the log."""

    def body(root: Path, session: Session) -> None:
        attempts = (
            lambda: os.mkdir("folder"),
            lambda: os.unlink("absent"),
            lambda: os.rename("absent", "x"),
            lambda: os.rmdir("folder"),
            lambda: os.open("old", os.O_CREAT | os.O_EXCL),
            lambda: os.write(os.open("old", os.O_RDONLY), b"x"),
            lambda: os.link("old", "twin"),
            lambda: os.truncate("old", -1),
        )
        for attempt in attempts:
            with pytest.raises(OSError, match=r"Errno"):
                attempt()

    done = record(tmp_path, body, prepare=prepare)
    assert done.kinds == {}
    assert done.problems == []


def test_offsets_of_appends_are_where_the_file_ended(tmp_path: Path) -> None:
    """An op of a descriptor that appends carries the true offset, and the flag."""

    def body(root: Path, session: Session) -> None:
        fd = os.open("old", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"abc")
        os.pwrite(fd, b"de", 0)

    done = record(tmp_path, body, prepare=prepare)
    size = len(done.of(Kind.BASE)) and 16384
    writes = done.of(Kind.WRITE)
    assert [(op.offset, op.payload) for op in writes] == [(size, b"abc"), (size + 3, b"de")]
    assert all(op.flags & os.O_APPEND for op in writes)


def test_a_used_inode_number_is_another_object(tmp_path: Path) -> None:
    """Files that have one inode number, one after the other, differ in their birth."""

    def body(root: Path, session: Session) -> None:
        for _ in range(10):
            (root / "same").write_bytes(b"x")
            os.unlink("same")

    done = record(tmp_path, body)
    objects = [op.object for op in done.of(Kind.CREATE)]
    assert len(set(objects)) == 10
    assert [op.object for op in done.of(Kind.UNLINK)] == objects
