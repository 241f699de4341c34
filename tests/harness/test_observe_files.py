"""Syncs, renames and writes through `os` reach the sink, before and after, with real paths."""

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


OPEN = "import os\nfd = os.open('f', os.O_RDWR | os.O_CREAT)\n"


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("os.write(fd, b'x')", "write"),
        ("os.pwrite(fd, b'x', 0)", "write"),
        ("os.writev(fd, [b'x', b'y'])", "write"),
        ("os.pwritev(fd, [b'x'], 0)", "write"),
        ("os.sendfile(fd, os.open('f', os.O_RDONLY), 0, 1)", "write"),
        ("os.copy_file_range(os.open('f', os.O_RDONLY), dst=fd, count=1)", "write"),
        ("os.fsync(fd)", "file_sync"),
        ("os.fsync(fd=fd)", "file_sync"),
        ("os.fdatasync(fd)", "file_sync"),
        ("__import__('posix').fsync(fd)", "file_sync"),
    ],
)
def test_call_on_a_descriptor_is_reported(store: Observed, call: str, kind: str) -> None:
    """Each call on a regular file is one pair with the file's path."""
    assert store.events(OPEN + call) == both(kind, "f")


def test_sync_of_a_directory_is_a_directory_sync(store: Observed) -> None:
    """fsync of a directory's descriptor is told apart from a file's."""
    source = "import os\nos.fsync(os.open('.', os.O_RDONLY))"
    assert store.events(source) == both("directory_sync", ".")


def test_sync_accepts_file_objects(store: Observed) -> None:
    """An object with fileno() is synced and reported like its descriptor."""
    source = "import os\nwith open('f', 'wb') as file:\n    os.fsync(file)"
    assert store.events(source) == both("file_sync", "f")


@pytest.mark.parametrize(
    "call",
    [
        "os.rename('a', 'b')",
        "os.replace('a', 'b')",
        "os.renames('a', 'b')",
        "os.rename(b'a', pathlib.Path('b'))",
        "pathlib.Path('a').rename('b')",
        "pathlib.Path('a').replace(pathlib.Path('b').absolute())",
        "shutil.move('a', 'b')",
        "os.rename('./a', 'x/../b')",
    ],
)
def test_rename_is_reported_with_absolute_paths(store: Observed, call: str) -> None:
    """Every way of renaming is one pair with both names, relative ones made absolute."""
    (store.root / "x").mkdir()
    (store.root / "a").touch()
    assert store.events(f"import os, pathlib, shutil\n{call}") == both("rename", "a", "b")
    assert (store.root / "b").exists()


def test_rename_resolves_directory_descriptors(store: Observed) -> None:
    """Names relative to an open directory are reported under that directory's path."""
    for name in ("x", "y"):
        (store.root / name).mkdir()
    (store.root / "x/a").touch()
    source = """
import os
x, y = (os.open(name, os.O_RDONLY) for name in "xy")
os.rename('a', 'b', src_dir_fd=x, dst_dir_fd=y)
"""
    assert store.events(source) == both("rename", "x/a", "y/b")


def test_refused_calls_report_before_only_and_raise_unchanged(store: Observed) -> None:
    """A call that fails is reported before, and its error is the original function's."""
    source = """
import os
result = []
for call in (lambda: os.rename('missing', 'b'), lambda: os.write(os.open('f', os.O_CREAT), b'x'),
             lambda: os.fsync(-1), lambda: os.fsync('f'), lambda: os.rename('a'),
             lambda: os.rename(3.5, 'b'), lambda: os.write(1 << 80, b'')):
    try:
        call()
    except Exception as error:
        result.append(type(error).__name__)
"""
    outcome = store.run(source)
    assert outcome.events == [
        ("rename", "before", "missing", "b"),
        ("write", "before", "f"),
    ]
    assert outcome.result == [
        "FileNotFoundError",
        "OSError",
        "ValueError",
        "TypeError",
        "TypeError",
        "TypeError",
        "OverflowError",
    ]
    assert outcome.failures == []


def test_pipes_sockets_and_devices_are_passed_through(store: Observed) -> None:
    """Only regular files and directories make boundaries."""
    source = """
import os, socket
reader, writer = os.pipe()
a, b = socket.socketpair()
null = os.open('/dev/null', os.O_WRONLY)
for fd in (writer, a.fileno(), null):
    os.write(fd, b'x')
with open('/dev/null', 'w') as file:
    file.write('x')
result = os.read(reader, 9).decode() + b.recv(9).decode()
"""
    outcome = store.run(source)
    assert (outcome.events, outcome.result, outcome.failures) == ([], "xx", [])


def test_deleted_and_unnamed_files_have_stable_paths(store: Observed) -> None:
    """A deleted file keeps its last name; a file that never had one is named alike in each run."""
    source = """
import os
fd = os.open('gone', os.O_WRONLY | os.O_CREAT)
os.unlink('gone')
os.write(fd, b'x')
fd = os.open('.', os.O_WRONLY | os.O_TMPFILE)
os.write(fd, b'x')
"""
    assert store.events(source) == both("write", "gone") + both("write", "#<inode>")


def test_a_moved_file_is_reported_under_its_present_name(store: Observed) -> None:
    """A descriptor follows its file through a rename."""
    source = OPEN + "os.rename('f', 'g')\nos.fsync(fd)"
    assert store.events(source) == both("rename", "f", "g") + both("file_sync", "g")


def test_names_bound_at_import_are_observed(store: Observed) -> None:
    """A module that binds calls by name, imported after install, is seen in full."""
    (store.root / "bound.py").write_text("""
import os
from builtins import open as builtin_open
from io import open as io_open
from os import fsync, open as os_open, replace, write
from pathlib import Path
_rename = os.replace

def work():
    fd = os_open("a", os.O_CREAT | os.O_WRONLY)
    write(fd, b"1")
    fsync(fd)
    _rename("a", "b")
    Path("b").rename("c")
    replace("c", "d")
    for bound in (builtin_open, io_open):
        with bound("d", "w") as file:
            file.write("2")
""")
    source = """
import sys
sys.path.insert(0, ROOT)
sys.dont_write_bytecode = True
import bound
bound.work()
"""
    assert store.events(source) == [
        *both("write", "a"),
        *both("file_sync", "a"),
        *both("rename", "a", "b"),
        *both("rename", "b", "c"),
        *both("rename", "c", "d"),
        *both("write", "d"),
        *both("write", "d"),
    ]


def test_calls_work_as_class_attributes_and_pickle(store: Observed) -> None:
    """A store may keep the calls on a class, compare and pickle them, like the originals."""
    source = (
        OPEN
        + """
import pickle
class Disk:
    sync = os.fsync
    opened = open
Disk().sync(fd)
Disk().opened('g', 'w').close()
result = [
    pickle.loads(pickle.dumps(os.fsync)) == os.fsync,
    os.rename in os.supports_dir_fd,
    os.fsync.__name__,
]
"""
    )
    outcome = store.run(source)
    assert outcome.events == both("file_sync", "f")
    assert outcome.result == [True, True, "fsync"]


def test_shutil_copy_is_observed(store: Observed) -> None:
    """shutil.copyfile's kernel copy is a write of the target, which holds the bytes."""
    (store.root / "a").write_bytes(b"x" * 10)
    events = store.events("import shutil\nshutil.copyfile('a', 'b')")
    assert events[:2] == both("write", "b")
    assert {event[2] for event in events} == {"b"}
    assert (store.root / "b").read_bytes() == b"x" * 10


@pytest.mark.parametrize(
    ("call", "kind", "left"),
    [
        ("os.write(fd, b'x')", "write", ["f"]),
        ("os.fsync(fd)", "file_sync", ["f"]),
        ("os.fsync(os.open('.', 0))", "directory_sync", ["f"]),
        ("os.rename('f', 'g')", "rename", ["f"]),
        ("open('f', 'wb', 0).write(b'x')", "write", ["f"]),
    ],
)
def test_death_inside_a_file_hook_precedes_the_call(
    store: Observed, call: str, kind: str, left: list[str]
) -> None:
    """A sink that ends the process before a call leaves the files as they were."""
    source = (
        OPEN
        + f"""
def die(kind, phase, *names):
    if (kind, phase) == ({kind!r}, "before"):
        os._exit(9)
observe.attach(die)
{call}
"""
    )
    assert store.run(source).status == 9
    assert sorted(path.name for path in store.root.iterdir()) == left
    assert (store.root / "f").read_bytes() == b""


def test_death_after_a_rename_leaves_the_new_name(store: Observed) -> None:
    """A sink that ends the process after a rename leaves the renamed file."""
    source = (
        OPEN
        + """
observe.attach(lambda kind, phase, *names: phase == "after" and os._exit(9))
os.rename('f', 'g')
"""
    )
    assert store.run(source).status == 9
    assert [path.name for path in store.root.iterdir()] == ["g"]
