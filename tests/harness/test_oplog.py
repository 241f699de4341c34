"""Reading oplogs: whatever stands in the file, what comes out is the log or a refusal."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import OplogError
from harness.oplog import Kind, Object, Op, Oplog
from harness.system_calls import call_name
from tests.harness.oplog_writer import ROOT, Record, base, header, log_bytes, write_log

FILE = Object(101, 5, 2)
SOME = [
    base(ROOT),
    base(FILE, b"file", mode=0o100644),
    Record(kind=Kind.STACK, stack=1, payload=b"a.py:1 f\nb.py:2 g"),
    Record(kind=Kind.WRITE, a=FILE, offset=5, length=9, result=9, payload=b"123456789", stack=1),
    Record(kind=Kind.RENAME, a=FILE, source=ROOT, target=ROOT, name=b"file", second=b"other"),
    Record(kind=Kind.FSYNC, a=FILE, result=-5),
    Record(kind=Kind.GAP, name=b"something: a/b"),
    Record(kind=Kind.WRITE, a=FILE, state=3, result=-4),
]

lenient = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
numbers = st.integers(0, 2**32 - 1)
things = st.builds(Object, st.integers(0, 2**64 - 1), numbers, numbers)
entries = st.binary(max_size=40).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
records = st.builds(
    Record,
    kind=st.sampled_from([kind for kind in Kind if kind is not Kind.STACK]),
    state=st.sampled_from([2, 3]),
    call=st.integers(0, 0xFFFF),
    process=numbers,
    thread=numbers,
    stack=numbers,
    mode=numbers,
    result=st.integers(-(2**63), 2**63 - 1),
    a=things,
    b=things,
    source=things,
    target=things,
    offset=st.integers(0, 2**64 - 1),
    length=st.integers(0, 2**64 - 1),
    flags=numbers,
    call_flags=numbers,
    name=entries,
    second=entries,
    payload=st.binary(max_size=300),
)


def read(path: Path) -> list[Op]:
    """Return everything in a log."""
    with Oplog.read(path) as log:
        return list(log)


def same(record: Record, op: Op) -> bool:
    """Say whether an op says what its record was made of."""
    pairs = [
        (record.a, op.object),
        (record.b, op.replaced),
        (record.source, op.source),
        (record.target, op.target),
    ]
    alike = all(theirs == (ours if ours.birth else None) for ours, theirs in pairs)
    plain = (
        "kind process thread stack mode result offset length flags call_flags name second payload"
    )
    return (
        alike
        and all(getattr(record, field) == getattr(op, field) for field in plain.split())
        and op.call == (None if record.call == 0xFFFF else record.call)
        and op.is_uncertain == (record.state == 3)
    )


@pytest.mark.slow
@lenient
@given(st.lists(records, max_size=12))
def test_what_was_written_is_read(tmp_path: Path, written: list[Record]) -> None:
    """Records of all kinds and values come back as they went in, in order."""
    ops = read(write_log(tmp_path / "log", written))
    assert [op.sequence for op in ops] == list(range(len(written)))
    assert all(same(record, op) for record, op in zip(written, ops, strict=True))


@pytest.mark.slow
@lenient
@given(st.data())
def test_damage_is_refused_or_changes_nothing(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes changed, lost or added anywhere: the same ops, or a refusal that names the place."""
    whole = log_bytes(SOME)
    expected = read(write_log(tmp_path / "log", SOME))
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1) | st.integers(4096, len(whole) - 1))
        if at < len(damaged):
            damaged[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.none() | st.integers(0, len(damaged)))
    path = tmp_path / "damaged"
    path.write_bytes(damaged[:cut] + data.draw(st.binary(max_size=20)))
    refusal = None
    try:
        assert read(path) == expected
    except OplogError as error:
        refusal = error
    assert refusal is None or 0 <= refusal.offset <= len(whole) + 20
    assert refusal is None or str(path) in str(refusal)


@pytest.mark.slow
@lenient
@given(st.binary(max_size=6000), st.integers(0, 6000), st.integers(0, 9))
def test_nonsense_is_refused(tmp_path: Path, body: bytes, committed: int, count: int) -> None:
    """A sound header before anything at all leads to a refusal, never to another error."""
    path = tmp_path / "log"
    path.write_bytes(header(4096 + committed, count) + body)
    try:
        assert count == len(read(path))
    except OplogError:
        return


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda log: log[:100], "the header of 4096 bytes is cut"),
        (lambda log: b"X" + log[1:], "this is no oplog"),
        (lambda log: log[:8] + b"\2" + log[9:], "version 2; this reader knows version 1"),
        (lambda log: log[:130] + b"?" + log[131:], "the header does not match its check"),
        (lambda log: log[:-8], "but the file ends"),
        (lambda log: log[:24] + b"\1" + log[25:], "1 records"),
        (lambda log: log[:4100] + b"\1" + log[4101:], "does not match its check"),
        (lambda log: log[:4103] + b"\1" + log[4104:], "in state 1 is unknown"),
    ],
)
def test_a_refusal_says_what_is_wrong(change: object, reason: str, tmp_path: Path) -> None:
    """Each kind of damage has its own words, and the error survives pickling."""
    path = tmp_path / "log"
    path.write_bytes(change(log_bytes(SOME)))  # type: ignore[operator]
    with pytest.raises(OplogError, match=reason) as caught:
        read(path)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.offset) == (str(caught.value), caught.value.offset)


@pytest.mark.parametrize(
    ("offset", "size", "cuts"),
    [
        (0, 4096, []),
        (0, 4097, [4096]),
        (100, 3996, []),
        (100, 3997, [3996]),
        (4096, 12_288, [4096, 8192]),
        (8191, 5000, [1, 4097]),
    ],
)
def test_a_killed_write_stops_at_pages(
    offset: int, size: int, cuts: list[int], tmp_path: Path
) -> None:
    """The places at which a write can be cut are the file's pages, not the write's."""
    record = Record(kind=Kind.WRITE, a=FILE, offset=offset, payload=bytes(size))
    (op,) = read(write_log(tmp_path / "log", [record]))
    assert list(op.page_cuts) == cuts


def test_calls_have_names() -> None:
    """A number is named as on the machine that recorded."""
    assert [call_name(*one) for one in ((1, 62), (64, 183), (18, 62), (999, 62), (None, 62))] == [
        "write",
        "write",
        "pwrite64",
        "system call 999",
        "none",
    ]


def test_a_growing_log_is_followed(tmp_path: Path) -> None:
    """Iterating again goes on behind what was read before."""
    path = write_log(tmp_path / "log", SOME[:3])
    with Oplog.read(path) as log:
        assert len(list(log)) == 3
        assert list(log) == []
        path.write_bytes(log_bytes(SOME))
        assert [op.kind for op in log] == [record.kind for record in SOME[3:]]
        assert log.stacks == {1: "a.py:1 f\nb.py:2 g"}


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """Reading 30,000 records takes as much memory as reading 3,000."""
    write = Record(kind=Kind.WRITE, a=FILE, payload=bytes(2000))
    peaks = []
    for count in (3000, 30_000):
        path = write_log(tmp_path / str(count), [write] * count)
        tracemalloc.start()
        with Oplog.read(path) as log:
            assert sum(1 for _ in log) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.2
