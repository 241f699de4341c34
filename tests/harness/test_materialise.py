"""Trees from logs written by hand: where writes are cut, what has no name, what is impossible."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import OplogError
from harness.materialise import Materialiser
from harness.oplog import Kind, Object, Op, Oplog
from tests.harness.oplog_writer import ROOT, Record, base, write_log

FILE = Object(101, 5, 2)
FOLDER = Object(102, 5, 3)
NEW = Object(103, 5, 4)
START = [
    base(ROOT),
    base(FILE, b"file", mode=0o100644),
    base(FOLDER, b"folder", mode=0o40755),
]
Make = Callable[[list[Record]], tuple[Materialiser, list[Op], Path]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Give a function that follows START and returns what is to be applied."""

    def made(records: list[Record]) -> tuple[Materialiser, list[Op], Path]:
        root = tmp_path / "root"
        (root / "folder").mkdir(parents=True)
        (root / "file").write_bytes(b"0123456789" * 1000)
        (root / "file").chmod(0o644)
        materialiser = Materialiser(root, tmp_path / "side")
        with Oplog.read(write_log(tmp_path / "log", START + records)) as log:
            ops = list(log)
        for op in ops[: len(START)]:
            materialiser.apply(op)
        return materialiser, ops[len(START) :], root

    return made


def test_a_write_can_be_cut_and_then_completed(make: Make) -> None:
    """A cut write leaves its first bytes, and the whole may be applied over it."""
    write = Record(kind=Kind.WRITE, a=FILE, offset=9996, payload=b"A" * 4 + b"B" * 8)
    materialiser, (op,), root = make([write])
    materialiser.apply(op, cut=0)
    assert (root / "file").stat().st_size == 10_000
    materialiser.apply(op, cut=6)
    assert (root / "file").read_bytes()[9990:] == b"012345AAAABB"
    materialiser.apply(op)
    assert (root / "file").read_bytes()[9990:] == b"012345AAAABBBBBBBB"


@pytest.mark.parametrize(
    ("mode", "offset", "length", "expected"),
    [
        (0, 9990, 20, b"0123456789" + bytes(10)),
        (1, 9990, 20, b"0123456789"),
        (3, 9995, 3, b"01234\0\0\x0089"),
        (0x10, 9995, 10, b"01234" + bytes(10)),
        (0x11, 9995, 10, b"01234" + bytes(5)),
        (8, 9990, 4, b"456789"),
        (0x20, 9992, 4, b"01\0\0\0\x0023456789"),
    ],
)
def test_allocation_in_each_mode(
    mode: int, offset: int, length: int, expected: bytes, make: Make
) -> None:
    """Plain, keeping the size, punching, zeroing, collapsing and inserting."""
    record = Record(kind=Kind.ALLOCATE, a=FILE, mode=mode, offset=offset, length=length)
    materialiser, (op,), root = make([record])
    materialiser.apply(op)
    assert (root / "file").read_bytes()[9990:] == expected


def test_a_nameless_file_gets_its_name(make: Make) -> None:
    """What is written before and after linkat is in the file; nothing is left at the side."""
    materialiser, ops, root = make(
        [
            Record(kind=Kind.TMPFILE, a=NEW, mode=0o100600, target=ROOT),
            Record(kind=Kind.WRITE, a=NEW, payload=b"before"),
            Record(kind=Kind.LINK, a=NEW, target=FOLDER, name=b"named"),
            Record(kind=Kind.WRITE, a=NEW, offset=6, payload=b" after"),
        ]
    )
    for op in ops:
        materialiser.apply(op)
    assert (root / "folder" / "named").read_bytes() == b"before after"
    assert materialiser.names_of(NEW) == ["folder/named"]
    assert os.listdir(root.parent / "side") == []  # noqa: PTH208


def test_a_write_to_a_file_without_a_name_changes_nothing(make: Make) -> None:
    """An unlinked file is gone, though a process goes on writing to it."""
    materialiser, ops, root = make(
        [
            Record(kind=Kind.UNLINK, a=FILE, source=ROOT, name=b"file"),
            Record(kind=Kind.WRITE, a=FILE, payload=b"orphan"),
            Record(kind=Kind.TRUNCATE, a=FILE, length=3),
        ]
    )
    for op in ops:
        materialiser.apply(op)
    assert [path.name for path in root.iterdir()] == ["folder"]


def test_names_follow_a_renamed_folder(make: Make) -> None:
    """A file in a folder that was renamed has its name there, though no op says so."""
    materialiser, ops, root = make(
        [
            Record(kind=Kind.RENAME, a=FILE, source=ROOT, target=FOLDER, name=b"file", second=b"f"),
            Record(
                kind=Kind.RENAME,
                a=FOLDER,
                source=ROOT,
                target=ROOT,
                name=b"folder",
                second=b"moved",
                mode=0o40755,
            ),
            Record(kind=Kind.WRITE, a=FILE, payload=b"there"),
        ]
    )
    for op in ops:
        materialiser.apply(op)
    assert materialiser.names_of(FILE) == ["moved/f"]
    assert (root / "moved" / "f").read_bytes().startswith(b"there")


@pytest.mark.parametrize(
    "record",
    [
        Record(kind=Kind.CREATE, a=NEW, mode=0o100644, target=Object(9, 9, 9), name=b"x"),
        Record(kind=Kind.UNLINK, a=FILE, source=Object(9, 9, 9), name=b"x"),
        Record(kind=Kind.LINK, a=Object(9, 9, 9), target=ROOT, name=b"x"),
        Record(kind=Kind.RENAME, source=ROOT, target=ROOT, name=b"file", second=b"x"),
    ],
    ids=["create", "unlink", "link", "rename"],
)
def test_what_cannot_be_is_refused(record: Record, make: Make) -> None:
    """An op over a folder or object that the log never made is damage, told as such."""
    materialiser, (op,), _ = make([record])
    with pytest.raises(OplogError, match=f"{op.kind.name.lower()}"):
        materialiser.apply(op)
