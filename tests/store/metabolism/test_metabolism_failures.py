"""A full disk, missing rights and Ctrl-C: what was asked for is not done, and can be done later."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import apsw
import pytest
from metabolism_actors import OPERATIONS, Actor, actor
from metabolism_histories import Op, op, reset, state
from metabolism_model import Model
from metabolism_world import dump

from store.metabolism import Job, Run, append_claim_event, connect
from store.metabolism.errors import LogRefused
from store.metabolism.storage import schema_problem
from store.sqlite import CannotOpen, rows

FULL = (apsw.FullError, apsw.IOError)
STEP_BYTES = 512
STEPS_MAX = 400


@pytest.fixture(scope="module")
def worker() -> Iterator[Actor]:
    with actor() as started:
        yield started


@pytest.fixture
def c(tmp_path: Path, worker: Actor) -> Iterator[apsw.Connection]:
    connection = connect(tmp_path / "a.sqlite3")
    worker.do("open", path=tmp_path / "a.sqlite3")
    yield connection
    worker.do("limit_file_size", size_bytes=None)
    worker.do("close")
    connection.close()


def _before() -> tuple[Model, Job, Run]:
    """Return a queue in which every operation has something to do, a claim and a run."""
    model = Model()
    for key in "abc":
        model.enqueue(key, 1, 0, 1)
    first, second = model.claim("w", -1, 2), model.claim("w", -1, 2)
    assert first is not None
    assert second is not None
    run = model.start(first, 3)
    assert isinstance(run, Run)
    return model, second, run


BEFORE, CLAIM, RUN = _before()

WRITES: dict[str, Op] = {
    "enqueue": op("enqueue", key="new", priority=1, not_before_ns=0, now_ns=9),
    "claim": op("claim", owner="w", lease_ns=5, now_ns=9),
    "renew": op("renew", claim=CLAIM, lease_ns=5, now_ns=9),
    "requeue": op("requeue", now_ns=9),
    "update": op("update", job_id=1, state="failed", now_ns=9),
    "start": op("start", claim=CLAIM, now_ns=9),
    "complete": op("complete", run=RUN, code=0, finalize_job=True, now_ns=9),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_disk_that_is_full_keeps_all_or_nothing(
    name: str, worker: Actor, c: apsw.Connection
) -> None:
    """AMB-2: wherever in the WAL the space ends, nothing is written, and the next try succeeds."""
    reset(c, BEFORE)
    wal = Path(f"{c.db_filename('main')}-wal")
    failures = 0
    for step in range(STEPS_MAX):
        worker.do("limit_file_size", size_bytes=wal.stat().st_size + step * STEP_BYTES)
        worker.send(name, **WRITES[name].arguments)
        message = worker.receive()
        if message.kind == "done":
            break
        assert isinstance(message.value, FULL), repr(message.value)
        assert (state(c).jobs, state(c).runs) == (BEFORE.jobs, BEFORE.runs)
        failures += 1
    worker.do("limit_file_size", size_bytes=None)
    assert failures > 1
    expected = BEFORE.copy()
    assert message.value == getattr(expected, name)(**WRITES[name].arguments)
    assert (state(c).jobs, state(c).runs) == (expected.jobs, expected.runs)
    assert rows(c, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.slow
def test_a_disk_that_is_full_at_the_first_open_is_no_end(worker: Actor, tmp_path: Path) -> None:
    """MR-004, MR-005: wherever the space ends, the next opening makes a whole database."""
    failures = 0
    for step in range(STEPS_MAX):
        path = tmp_path / f"{step}.sqlite3"
        worker.do("limit_file_size", size_bytes=step * STEP_BYTES)
        worker.send("open", path=path)
        message = worker.receive()
        worker.do("limit_file_size", size_bytes=None)
        worker.do("close")
        if message.kind == "done":
            break
        assert isinstance(message.value, FULL), repr(message.value)
        failures += 1
        connection = connect(path)
        assert schema_problem(connection) is None
        assert rows(connection, "PRAGMA integrity_check") == [("ok",)]
        connection.close()
    assert message.kind == "done"
    assert failures > 10


def test_a_log_on_a_disk_that_is_full_is_refused(worker: Actor, tmp_path: Path) -> None:
    """MR-031: a line that has no room is refused; one that was cut ends before the next."""
    worker.do("limit_file_size", size_bytes=0)
    with pytest.raises(LogRefused, match="it cannot be made: File too large"):
        worker.do("create_log", folder=tmp_path, log_path="1.log")
    worker.do("limit_file_size", size_bytes=12)
    path = worker.do("create_log", folder=tmp_path, log_path="2.log")
    with pytest.raises(LogRefused, match="it cannot be written: File too large"):
        worker.do("append_log", path=path, line="alive")
    worker.do("limit_file_size", size_bytes=None)
    assert path.read_bytes() == b"started\naliv"
    worker.do("append_log", path=path, line="alive")
    assert path.read_bytes() == b"started\naliv\nalive\n"


def test_a_database_that_may_not_grow_says_so(c: apsw.Connection) -> None:
    """MR-020: SQLite's own limit ends in its own error, and in nothing written."""
    rows(c, "PRAGMA max_page_count = 1")
    before = dump(c)
    with pytest.raises(apsw.FullError):
        append_claim_event(
            c,
            kind="claim_asserted",
            claim_id="c" * 10_000,
            subject="s",
            predicate="p",
            object="o",
            now_ns=1,
        )
    assert not c.in_transaction
    assert dump(c) == before


class Interrupt:
    """Ctrl-C before the statement number *place* of a connection."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.seen = 0

    def __call__(self, cursor: object, sql: str, bindings: object) -> bool:
        self.seen += 1
        if self.seen == self.place:
            raise KeyboardInterrupt
        return True


@pytest.mark.parametrize("name", WRITES)
def test_an_interrupt_at_any_statement_leaves_nothing(name: str, c: apsw.Connection) -> None:
    """AMB-2: Ctrl-C before whichever statement rolls back, and the same call works afterwards."""
    reset(c, BEFORE)
    expected = BEFORE.copy()
    answer = getattr(expected, name)(**WRITES[name].arguments)
    operation: Callable[..., object] = OPERATIONS[name]
    for place in range(1, STEPS_MAX):
        c.exec_trace = Interrupt(place)
        try:
            found = operation(c, **WRITES[name].arguments)
        except KeyboardInterrupt:
            c.exec_trace = None
            assert not c.in_transaction
            assert (state(c).jobs, state(c).runs) == (BEFORE.jobs, BEFORE.runs)
        else:
            break
    c.exec_trace = None
    assert place > 3
    assert found == answer
    assert (state(c).jobs, state(c).runs) == (expected.jobs, expected.runs)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that a process without root's rights can reach, with a database in it."""
    made = Path(mkdtemp(prefix="metabolism-rights-"))
    made.chmod(0o755)
    connect(made / "a.sqlite3").close()
    yield made
    for path in [made, *made.rglob("*")]:
        path.chmod(0o755)
    shutil.rmtree(made)


def _unwritable_folder(folder: Path) -> Path:
    (folder / "below").mkdir(mode=0o555)
    return folder / "below" / "new.sqlite3"


def _unreachable_folder(folder: Path) -> Path:
    (folder / "below").mkdir(mode=0o000)
    return folder / "below" / "new.sqlite3"


def _unreadable_file(folder: Path) -> Path:
    folder.chmod(0o777)
    (folder / "a.sqlite3").chmod(0o000)
    return folder / "a.sqlite3"


def _read_only_file(folder: Path) -> Path:
    folder.chmod(0o777)
    (folder / "a.sqlite3").chmod(0o444)
    return folder / "a.sqlite3"


def _read_only_file_in_an_unwritable_folder(folder: Path) -> Path:
    (folder / "a.sqlite3").chmod(0o444)
    folder.chmod(0o555)
    return folder / "a.sqlite3"


def _writable_file_in_an_unwritable_folder(folder: Path) -> Path:
    (folder / "a.sqlite3").chmod(0o666)
    folder.chmod(0o555)
    return folder / "a.sqlite3"


RIGHTS = (
    _unwritable_folder,
    _unreachable_folder,
    _unreadable_file,
    _read_only_file,
    _read_only_file_in_an_unwritable_folder,
    _writable_file_in_an_unwritable_folder,
)


@pytest.fixture(scope="module")
def nobody() -> Iterator[Actor]:
    with actor() as started:
        started.do("drop_rights")
        yield started


@pytest.mark.parametrize("place", RIGHTS, ids=lambda place: place.__name__.strip("_"))
def test_where_nothing_may_be_written_is_refused(
    place: Callable[[Path], Path], folder: Path, nobody: Actor
) -> None:
    """MR-004: without the rights to write, opening names the path and changes no byte."""
    path = place(folder)
    whole = (folder / "a.sqlite3").read_bytes()
    with pytest.raises(CannotOpen) as caught:
        nobody.do("open", path=path)
    assert caught.value.path == path
    assert (folder / "a.sqlite3").read_bytes() == whole


def test_a_log_without_the_rights_is_refused(folder: Path, nobody: Actor) -> None:
    """MR-031: a folder that may not be written to gets no log, and the refusal says why."""
    with pytest.raises(LogRefused, match="Permission denied"):
        nobody.do("create_log", folder=folder, log_path="1.log")
    with pytest.raises(LogRefused, match="Permission denied"):
        nobody.do("create_log", folder=folder, log_path="deep/1.log")
    (folder / "1.log").write_bytes(b"started\n")
    with pytest.raises(LogRefused, match="Permission denied"):
        nobody.do("append_log", path=folder / "1.log", line="alive")
