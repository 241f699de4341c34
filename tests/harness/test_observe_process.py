"""Switching, pausing, announcing, forks and threads: when the sink is called, and when not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from observing import Observed, both, serving


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """A process with the hooks installed, which forks a child for each snippet."""
    with serving() as process:
        yield process


@pytest.fixture
def store(server: subprocess.Popen[str], tmp_path: Path) -> Observed:
    """Runs snippets in an empty folder of their own."""
    return Observed(server, tmp_path.resolve())


OPEN = "import os\nfd = os.open('f', os.O_RDWR | os.O_CREAT)\npath = ROOT + '/f'\n"


def test_announcements_pass_unchanged(store: Observed) -> None:
    """Points, and kinds that only the store knows, reach the sink as they were said."""
    source = """
observe.announce('point', 'before', 'finalize')
observe.announce('lease', 'after', 'a', 'b')
"""
    assert store.events(source) == [
        ("point", "before", "finalize"),
        ("lease", "after", "a", "b"),
    ]


def test_announced_calls_are_counted_once(store: Observed) -> None:
    """A store that announces its sync, directory sync and rename is not counted again."""
    source = (
        OPEN
        + """
def announced(kind, names, call):
    observe.announce(kind, 'before', *names)
    call()
    observe.announce(kind, 'after', *names)
folder = os.open('.', os.O_RDONLY)
announced('file_sync', [path], lambda: os.fsync(fd))
announced('directory_sync', [ROOT], lambda: os.fsync(folder))
announced('rename', [path, ROOT + '/g'], lambda: os.rename('f', 'g'))
"""
    )
    expected = both("file_sync", "f") + both("directory_sync", ".") + both("rename", "f", "g")
    assert store.events(source) == expected


def test_announced_paths_are_compared_resolved(store: Observed) -> None:
    """An announcement through a symbolic link, a relative path or a Path means the same file."""
    (store.root / "real").mkdir()
    (store.root / "link").symlink_to("real")
    source = """
import os
from pathlib import Path
fd = os.open('link/f', os.O_RDWR | os.O_CREAT)
observe.announce('file_sync', 'before', 'link/f')
os.fsync(fd)
observe.announce('rename', 'before', Path('real/f'), Path('real/g'))
os.rename('link/f', 'link/g')
events[:] = [tuple(map(str, event)) for event in events]
"""
    assert store.events(source) == [
        ("file_sync", "before", "link/f"),
        ("rename", "before", "real/f", "real/g"),
    ]


@pytest.mark.parametrize(
    "between",
    [
        "observe.announce('point', 'before', 'p')",
        "observe.announce('file_sync', 'after', path)",
        "os.write(fd, b'x')",
        "os.fsync(fd)",
    ],
    ids=["point", "after", "write", "the announced call itself"],
)
def test_announcement_silences_only_the_call_that_follows_it(store: Observed, between: str) -> None:
    """After any other report, and after the one call that it covers, an announcement is spent."""
    source = (
        OPEN
        + f"""
observe.announce('file_sync', 'before', path)
{between}
events.clear()
os.fsync(fd)
"""
    )
    assert store.events(source) == both("file_sync", "f")


def test_announcement_of_something_else_silences_nothing(store: Observed) -> None:
    """Another file, or another kind, is another act."""
    source = (
        OPEN
        + """
observe.announce('file_sync', 'before', ROOT + '/other')
os.fsync(fd)
observe.announce('directory_sync', 'before', path)
os.fsync(fd)
events[:] = [event for event in events if event[2] == path and event[0] == 'file_sync']
"""
    )
    assert store.events(source) == both("file_sync", "f") * 2


def test_announcement_silences_its_own_thread_only(store: Observed) -> None:
    """A sync in another thread is reported although this one has announced the same."""
    source = (
        OPEN
        + """
import threading
observe.announce('file_sync', 'before', path)
events.clear()
thread = threading.Thread(target=os.fsync, args=(fd,))
thread.start()
thread.join()
"""
    )
    assert store.events(source) == both("file_sync", "f")


def test_paused_reports_nothing_of_any_kind(store: Observed) -> None:
    """Inside paused, also nested and after an exception, nothing is reported; then all is."""
    source = (
        OPEN
        + """
import apsw, sqlite3
def everything():
    os.write(fd, b'x')
    os.fsync(fd)
    os.replace('f', 'g')
    os.replace('g', 'f')
    with open('h', 'w') as file:
        file.write('x')
    apsw.Connection('a.db').execute('select 1').fetchall()
    sqlite3.connect('b.db').execute('select 1').fetchall()
    observe.announce('point', 'before', 'p')
with observe.paused():
    everything()
    try:
        with observe.paused():
            raise KeyError
    except KeyError:
        everything()
result = len(events)
everything()
"""
    )
    outcome = store.run(source)
    assert outcome.result == 0
    kinds = [event[0] for event in outcome.events]
    assert kinds == [
        *["write"] * 2,
        *["file_sync"] * 2,
        *["rename"] * 4,
        *["write"] * 2,
        *["sql"] * 4,
        "point",
    ]


def test_a_file_opened_while_paused_is_observed_afterwards(store: Observed) -> None:
    """Pausing hides writes, not the file: what is written later is reported."""
    source = """
with observe.paused():
    file = open('f', 'wb', 0)
    file.write(b'1')
file.write(b'2')
file.close()
"""
    assert store.events(source) == both("write", "f")


def test_pausing_one_thread_leaves_the_others_observed(store: Observed) -> None:
    """The pause belongs to the thread that asked for it."""
    source = (
        OPEN
        + """
import threading
with observe.paused():
    thread = threading.Thread(target=os.fsync, args=(fd,))
    thread.start()
    thread.join()
    os.fsync(fd)
"""
    )
    assert store.events(source) == both("file_sync", "f")


def test_threads_report_pairs_without_losing_any(store: Observed) -> None:
    """Four threads of one hundred announced and plain acts leave complete pairs."""
    source = """
import os, threading
def work(name):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    path = ROOT + '/' + name
    for n in range(100):
        os.write(fd, b'x')
        observe.announce('file_sync', 'before', path)
        os.fdatasync(fd)
        observe.announce('file_sync', 'after', path)
threads = [threading.Thread(target=work, args=(name,)) for name in 'abcd']
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    events = store.events(source)
    for name in "abcd":
        own = [event for event in events if event[2] == name]
        assert own == (both("write", name) + both("file_sync", name)) * 100


FORK = """
pid = os.fork()
if pid == 0:
    try:
        {child}
        os._exit(len(events))
    except BaseException:
        os._exit(99)
result = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_a_process_forked_by_the_store_is_silent(store: Observed) -> None:
    """A child of the store reports nothing, and the store itself goes on reporting."""
    child = FORK.format(child="os.fsync(fd); os.write(fd, b'x'); open('g', 'w').write('x')")
    outcome = store.run(OPEN + child + "os.fsync(fd)")
    assert outcome.result == 0
    assert outcome.events == both("file_sync", "f")


def test_a_forked_process_can_be_attached_again(store: Observed) -> None:
    """attach in a forked child switches it on, even when it was forked inside a pause."""
    child = FORK.format(child="observe.attach(sink); os.fsync(fd)").replace("\n", "\n    ")
    outcome = store.run(OPEN + "with observe.paused():" + child + "os.fsync(fd)")
    assert outcome.result == 2
    assert outcome.events == []


def test_subprocesses_start_without_the_sink(store: Observed) -> None:
    """A preexec function runs in a forked child, and is not reported."""
    source = (
        OPEN
        + """
import subprocess
subprocess.run(['true'], preexec_fn=lambda: os.write(fd, b'x'), check=True)
"""
    )
    assert store.events(source) == []
    assert (store.root / "f").read_bytes() == b"x"


def test_off_reports_nothing(store: Observed) -> None:
    """attach(None) ends all reports; the store's calls go on."""
    source = OPEN + "observe.attach(None)\nos.write(fd, b'x')\nobserve.announce('point', 'after')"
    assert store.events(source) == []
    assert (store.root / "f").read_bytes() == b"x"


def test_a_failing_sink_never_reaches_the_store(store: Observed) -> None:
    """An error of the sink is kept for the harness, and every call of the store succeeds."""
    source = (
        OPEN
        + """
import apsw, sqlite3
def broken(kind, phase, *names):
    raise RuntimeError('sink')
observe.attach(broken)
os.write(fd, b'x')
os.fsync(fd)
os.rename('f', 'g')
with open('h', 'w') as file:
    file.write('x')
apsw.Connection('a.db').execute('create table t(a)')
sqlite3.connect('b.db').execute('create table t(a)')
observe.announce('point', 'before', 'p')
try:
    observe.raise_first_failure()
except RuntimeError as error:
    result = str(error)
"""
    )
    outcome = store.run(source)
    assert outcome.status == 0
    assert outcome.result == "sink"
    assert len(outcome.failures) == 13
    assert outcome.failures[0] == "sink('write', 'before'): RuntimeError: sink"


def test_a_sink_that_acts_is_not_reported_to_itself(store: Observed) -> None:
    """What the sink itself does is no act of the store."""
    source = (
        OPEN
        + """
def acting(kind, phase, *names):
    sink(kind, phase, *names)
    os.write(fd, b'y')
    os.fsync(fd)
observe.attach(acting)
os.fsync(fd)
"""
    )
    assert store.events(source) == both("file_sync", "f")


def test_originals_are_never_reported(store: Observed) -> None:
    """The harness's own calls go through the originals, unseen."""
    source = (
        OPEN
        + """
observe.original.write(fd, b'x')
observe.original.fsync(fd)
observe.original.rename('f', 'g')
with observe.original.open('h', 'w') as file:
    file.write('x')
"""
    )
    assert store.events(source) == []


def test_install_twice_reports_once(store: Observed) -> None:
    """Installing again changes nothing."""
    source = (
        "observe.install()\n"
        + OPEN
        + """
import apsw
os.fsync(fd)
apsw.Connection('a.db').execute('select 1').fetchall()
"""
    )
    assert store.events(source) == both("file_sync", "f") + both("sql", "a.db", "select 1")
