"""What the recorder missed is noticed: by a tree that differs, or by the canary."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from harness.oplog import Kind
from harness.recorder import Options, Session
from harness.recorder.canary import canary
from tests.harness.recorded import needs_recorder, record
from tests.harness.recorder_calls import CALLS, prepare

pytestmark = needs_recorder

OPS = [kind for kind in Kind if kind >= Kind.OPEN]
IN_THE_TREE = {
    Kind.OPEN: "truncating_open_through_links",
    Kind.CREATE: "create",
    Kind.TMPFILE: "links",
    Kind.WRITE: "vectors",
    Kind.TRUNCATE: "truncates",
    Kind.ALLOCATE: "allocates",
    Kind.RENAME: "renames",
    Kind.LINK: "links",
    Kind.SYMLINK: "names",
    Kind.UNLINK: "names",
    Kind.MKDIR: "names",
    Kind.RMDIR: "names",
    Kind.MKNOD: "names",
    Kind.CHMOD: "modes_owners_and_times",
}
"""Kinds that change a tree, with a workload in which that shows."""


def test_the_canary_finds_nothing_wrong(tmp_path: Path) -> None:
    """On a machine where the recorder works, all kinds of call are seen."""
    assert canary(tmp_path / "canary") == []
    assert not (tmp_path / "canary").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPS, ids=lambda kind: kind.name.lower())
def test_a_kind_that_is_not_recorded_is_caught(kind: Kind, tmp_path: Path) -> None:
    """A recorder without any one kind of call fails the canary, which names the kind."""
    problems = canary(
        tmp_path / "canary", left_out=[kind], has_sync=kind in (Kind.SYNC, Kind.SYNCFS)
    )
    assert f"the recorder does not see calls of kind {kind.name.lower()}" in problems


@pytest.mark.parametrize("kind", IN_THE_TREE, ids=lambda kind: kind.name.lower())
def test_a_missed_change_shows_in_the_tree(kind: Kind, tmp_path: Path) -> None:
    """Each kind that changes a tree is caught by comparing trees, whatever the canary says."""
    body, _ = CALLS[IN_THE_TREE[kind]]
    options = Options(stacks=False, seed=None, clock_start_ns=None, left_out=[kind])
    done = record(tmp_path, body, options, prepare=prepare)
    assert done.kinds[kind.name] == 0
    assert done.problems != []


def test_every_kind_that_makes_states_of_its_own_is_in_the_tree() -> None:
    """The table above has every kind that can change contents, names or permissions."""
    unseen = {Kind.CLOSE, Kind.DUP, Kind.CHOWN, Kind.UTIMES, Kind.SETXATTR, Kind.REMOVEXATTR}
    expected = {kind for kind in Kind if Kind.OPEN <= kind <= Kind.UTIMES}
    assert expected - unseen == set(IN_THE_TREE)


def test_what_is_written_through_a_mapping_is_inconclusive(tmp_path: Path) -> None:
    """A writable shared mapping is named, unless its file is declared volatile."""

    def body(root: Path, session: Session) -> None:
        with open("old", "r+b") as file, mmap.mmap(file.fileno(), 100) as shared:
            shared[:5] = b"other"

    for volatile, expected in (((), 3), (("old", "hard"), 0)):
        folder = tmp_path / f"{expected}"
        folder.mkdir()
        done = record(folder, body, prepare=prepare, volatile=volatile)
        assert len([line for line in done.problems if "old" in line or "hard" in line]) >= expected
        assert (done.problems == []) == (expected == 0), done.problems


def test_a_change_by_somebody_else_is_noticed(tmp_path: Path) -> None:
    """What a process that is not recorded writes under the root shows as missed."""
    (reading, writing), (done_reading, done_writing) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.read(reading, 1)
            (tmp_path / "root" / "foreign").write_text("by another")
            os.write(done_writing, b".")
        finally:
            os._exit(0)

    def body(root: Path, session: Session) -> None:
        os.write(writing, b".")
        os.read(done_reading, 1)

    done = record(tmp_path, body)
    os.waitpid(pid, 0)
    for descriptor in (reading, writing, done_reading, done_writing):
        os.close(descriptor)
    assert done.problems == ["the recorder missed a write to foreign: file only in truth"]
