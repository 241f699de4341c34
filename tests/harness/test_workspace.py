"""
Copies, removals and digests of real trees, and work folders that are missing, full or left behind.

Root may do everything: what an ordinary user meets with locked directories runs in a process of
its own, under another user where the tests run as root.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigurationError, WorkspaceError
from harness.workdir import Workdir
from harness.workspace import (
    SQLITE_MAGIC,
    clear_tree,
    copy_tree,
    drop_volatile,
    list_databases,
    restore,
    tree_difference,
    tree_digest,
)

HERE = Path(__file__)
NOBODY = 65534
MIB = 1 << 20


def make_tree(root: Path) -> None:
    """Make a tree with everything that a store's root may hold."""
    root.mkdir(mode=0o750)
    (root / "empty").touch()
    (root / "äöü and spaces.txt").write_text("text", encoding="utf-8")
    Path(os.fsdecode(os.fsencode(root) + b"/not-\xff-utf8")).write_bytes(b"\0\xff")
    (root / "inner" / "deeper").mkdir(parents=True)
    (root / "inner" / "secret").write_text("secret")
    (root / "inner" / "secret").chmod(0o400)
    (root / "inner" / "program").write_text("#!/bin/sh\n")
    (root / "inner" / "program").chmod(0o4755)
    (root / "inner" / "deeper" / "other").hardlink_to(root / "inner" / "secret")
    (root / "inner" / "absolute").symlink_to("/etc/passwd")
    (root / "inner" / "to-directory").symlink_to("deeper")
    (root / "broken").symlink_to("nowhere")
    (root / "loop").symlink_to(".")
    os.mkfifo(root / "queue")
    (root / "queue").chmod(0o620)
    (root / "sticky").mkdir()
    (root / "sticky").chmod(0o1777)
    (root / "locked").mkdir()
    (root / "locked" / "in-locked").write_text("x")
    (root / "locked").chmod(0o500)
    (root / "big").write_bytes(os.urandom(3 * MIB + 17))
    for number, path in enumerate([*sorted(root.rglob("*")), root]):
        moment = 1_000_000_000_123_456_789 + number * 1_000_000_007
        os.utime(path, ns=(moment, moment), follow_symlinks=False)


def facts_of(root: Path) -> dict[str, tuple[Any, ...]]:
    """Return mode, time, size and content of everything in *root*, read without our own code."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in [root, *root.rglob("*")]:
        facts = path.lstat()
        content: object = None
        if stat.S_ISREG(facts.st_mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(facts.st_mode):
            content = path.readlink()
        links = 1 if stat.S_ISDIR(facts.st_mode) else facts.st_nlink
        name = str(path.relative_to(root))
        found[name] = (oct(facts.st_mode), facts.st_mtime_ns, links, content)
    return found


# Copies.


def test_copy_keeps_names_kinds_contents_modes_times_and_links(tmp_path: Path) -> None:
    """A copy shows the same facts as its source, and is its own file, not a link to it."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    make_tree(source)
    before = facts_of(source)
    copy_tree(source, copy)
    assert before == facts_of(copy)
    assert before == facts_of(source)
    assert len(before) == 18
    inner = copy / "inner"
    assert (inner / "secret").samefile(inner / "deeper" / "other")
    assert not (inner / "secret").samefile(source / "inner" / "secret")
    assert tree_difference(source, copy) == []
    assert tree_digest(source) == tree_digest(copy)


def test_copy_into_an_empty_directory_works_and_into_a_full_one_is_refused(tmp_path: Path) -> None:
    """An existing destination is used when it is empty; else the error says that it is not."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    make_tree(source)
    copy.mkdir()
    copy_tree(source, copy)
    assert facts_of(source) == facts_of(copy)
    with pytest.raises(WorkspaceError, match="destination is not empty"):
        copy_tree(source, copy)


@pytest.mark.parametrize("file_system", ["/dev/shm", "temporary"])
def test_holes_stay_holes(tmp_path: Path, file_system: str) -> None:
    """A file of mostly holes keeps its size and bytes, and takes up no more than before."""
    parent = tmp_path if file_system == "temporary" else Path(file_system)
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        source = Path(folder, "source")
        source.mkdir()
        with (source / "holes").open("wb") as file:
            file.write(b"head")
            file.seek(8 * MIB)
            file.write(b"middle")
            file.truncate(64 * MIB)
        with (source / "only-hole").open("wb") as file:
            file.truncate(MIB + 1)
        copy_tree(source, Path(folder, "copy"))
        for name in ("holes", "only-hole"):
            old, new = source / name, Path(folder, "copy", name)
            assert old.read_bytes() == new.read_bytes()
            assert new.stat().st_blocks <= old.stat().st_blocks


def test_copy_between_file_systems_is_the_same(tmp_path: Path) -> None:
    """Where the kernel refuses to copy by itself the bytes go through memory."""
    source = tmp_path / "source"
    make_tree(source)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        assert Path(other).stat().st_dev != tmp_path.stat().st_dev
        copy_tree(source, Path(other, "copy"))
        assert facts_of(source) == facts_of(Path(other, "copy"))


def test_sockets_and_devices_are_refused_by_name(tmp_path: Path) -> None:
    """A socket in the root is an error that names it."""
    source = tmp_path / "s"
    source.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(source / "control.sock"))
        with pytest.raises(WorkspaceError, match=r"s/control\.sock: it is a socket"):
            copy_tree(source, tmp_path / "copy")


def test_copy_into_itself_ends(tmp_path: Path) -> None:
    """A destination inside the source is refused instead of copied for ever."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(WorkspaceError, match="inside what is copied"):
        copy_tree(tmp_path / "a", tmp_path / "a" / "b" / "copy")


def test_missing_or_wrong_source_is_named(tmp_path: Path) -> None:
    """What is missing, a file or a symbolic link is no tree; the error says which."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name, words in (("gone", "No such file"), ("file", "a file"), ("link", "a symbolic link")):
        with pytest.raises(WorkspaceError, match=f"cannot copy .*/{name}.*{words}"):
            copy_tree(tmp_path / name, tmp_path / "copy")


@pytest.mark.slow
def test_deep_trees_need_no_recursion(tmp_path: Path) -> None:
    """A tree deeper than Python's recursion limit is copied, compared and removed."""
    source = tmp_path / "s"
    path = source
    path.mkdir()
    for _ in range(1200):
        path = path / "d"
        path.mkdir()
    copy_tree(source, tmp_path / "c")
    assert tree_digest(source) == tree_digest(tmp_path / "c")
    clear_tree(source)
    clear_tree(tmp_path / "c")
    assert list(source.iterdir()) == []


def test_full_file_system_advises_another_folder(tiny: Path, tmp_path: Path) -> None:
    """A copy that does not fit is a WorkspaceError with the way out."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(os.urandom(2 * MIB))
    with pytest.raises(WorkspaceError, match=r"No space left.*--workdir"):
        copy_tree(source, tiny / "copy")


@pytest.mark.slow
def test_copy_is_faster_than_the_standard_library(tmp_path: Path) -> None:
    """Many small files are copied in clearly less time than by shutil.copytree."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        source = Path(folder, "source")
        source.mkdir()
        for number in range(200):
            (source / f"{number}").write_bytes(b"x" * 1000)
        times: dict[str, float] = {"ours": 9.0, "theirs": 9.0}
        for number in range(7):
            started = time.perf_counter()
            copy_tree(source, Path(folder, f"ours-{number}"))
            middle = time.perf_counter()
            shutil.copytree(source, Path(folder, f"theirs-{number}"), symlinks=True)
            times["ours"] = min(times["ours"], middle - started)
            times["theirs"] = min(times["theirs"], time.perf_counter() - middle)
        assert times["ours"] < 0.8 * times["theirs"]


# Removal and restoring.


def test_clearing_leaves_the_root_and_follows_no_link(tmp_path: Path) -> None:
    """Everything inside goes, the root stays with mode 0700, and what links pointed to is kept."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    root = tmp_path / "root"
    make_tree(root)
    (root / "escape").symlink_to(outside)
    clear_tree(root)
    assert (list(root.iterdir()), stat.S_IMODE(root.stat().st_mode)) == ([], 0o700)
    assert (outside / "keep").exists()


def test_clearing_through_a_link_is_refused(tmp_path: Path) -> None:
    """A root that is itself a symbolic link is not cleared."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "keep").touch()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(WorkspaceError, match="it is a symbolic link"):
        clear_tree(tmp_path / "link")
    assert (tmp_path / "real" / "keep").exists()


@pytest.mark.parametrize("left", ["changed", "missing", "file", "link"])
def test_restoring_works_whatever_a_crash_left(tmp_path: Path, left: str) -> None:
    """A changed, missing or replaced root becomes the saved tree, which itself stays as it was."""
    saved, root = tmp_path / "saved", tmp_path / "root"
    make_tree(saved)
    before = facts_of(saved)
    if left == "changed":
        copy_tree(saved, root)
        (root / "empty").write_text("no longer")
        (root / "inner").rename(root / "moved")
    elif left == "file":
        root.touch()
    elif left == "link":
        root.symlink_to(saved)
    restore(root, saved)
    assert before == facts_of(root)
    assert before == facts_of(saved)
    assert not root.is_symlink()


def test_volatile_files_go_by_path_or_name(tmp_path: Path) -> None:
    """A pattern matches the path from the root or the name; directories are never removed."""
    for name in ("a.db-shm", "x/b.db-shm", "cache/1", "cache/deep/2", "x/cache", "keep.db"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "dir-shm").mkdir()
    digest = tree_digest(tmp_path, ["*-shm", "cache/*"])
    dropped = drop_volatile(tmp_path, ("*-shm", "cache/*"))
    assert dropped == ["a.db-shm", "cache/1", "cache/deep/2", "x/b.db-shm"]
    assert (tmp_path / "x" / "cache").exists()
    assert (tmp_path / "dir-shm").is_dir()
    assert digest == tree_digest(tmp_path)
    assert drop_volatile(tmp_path, ()) == []


# Looking.


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("echo more >> f", "f: contents differ from byte 4 on"),
        ("printf 'teXt' > f", "f: contents differ from byte 2 on"),
        ("chmod 600 f", "f: mode 0644 and 0600"),
        ("rm f", "f: file only in the first"),
        ("touch new", "new: file only in the second"),
        ("rm f; mkdir f", "f: file in the first, directory in the second"),
        ("ln -sfn g l", "l: contents differ from byte 0 on"),
        ("rm l; mkfifo l", "l: symbolic link in the first, FIFO in the second"),
        ("chmod 700 d", "d: mode 0755 and 0700"),
        ("rm d/x", "d/x: file only in the first"),
        ("touch 'a\nb'", "a\\nb: file only in the second"),
    ],
)
def test_every_change_shows_in_digest_and_difference(
    tmp_path: Path, change: str, line: str
) -> None:
    """Names, kinds, modes and contents count; the line says what and where."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    setup = "umask 022; printf text > f; ln -s f l; mkdir d; touch d/x"
    subprocess.run(["sh", "-c", setup], cwd=first, check=True)
    copy_tree(first, second)
    assert (tree_digest(first), []) == (tree_digest(second), tree_difference(first, second))
    subprocess.run(["sh", "-c", change], cwd=second, check=True)
    assert tree_digest(first) != tree_digest(second)
    assert tree_difference(first, second) == [line]


def test_digest_does_not_depend_on_times_or_order(tmp_path: Path) -> None:
    """Trees with the same entries, made in another order at another time, have one digest."""
    for folder, names in (("a", "xyz"), ("b", "zyx")):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text(name)
    os.utime(tmp_path / "a" / "x", (1, 1))
    assert tree_digest(tmp_path / "a") == tree_digest(tmp_path / "b")


def test_digest_cannot_confuse_a_name_with_contents(tmp_path: Path) -> None:
    """Moving bytes from one file's end to the next one's start changes the digest."""
    for folder, (one, two) in {"a": ("12", "3"), "b": ("1", "23")}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1").write_text(one)
        (tmp_path / folder / "2").write_text(two)
    assert tree_digest(tmp_path / "a") != tree_digest(tmp_path / "b")


def test_databases_are_known_by_their_header(tmp_path: Path) -> None:
    """Real databases are found under any name, links and look-alikes are not."""
    root = tmp_path / "root"
    (root / "deep" / "er").mkdir(parents=True)
    for name in ("z.sqlite", "deep/er/without-suffix"):
        with contextlib.closing(sqlite3.connect(root / name)) as connection:
            connection.execute("CREATE TABLE t(x)")
            connection.commit()
    (root / "look-alike.db").write_bytes(SQLITE_MAGIC[:-1] + b"x" * 100)
    (root / "short.db").write_bytes(SQLITE_MAGIC[:-1])
    (root / "empty.db").touch()
    (root / "link.db").symlink_to("z.sqlite")
    os.mkfifo(root / "fifo.db")
    assert list_databases(root) == [root / "deep/er/without-suffix", root / "z.sqlite"]


# An ordinary user and directories that are locked.


def locked_scenario(folder: Path) -> dict[str, Any]:
    """Run as a user who is not root: what modes forbid is no obstacle, and modes stay."""
    source = folder / "source"
    (source / "closed" / "inner").mkdir(parents=True)
    (source / "closed" / "inner" / "file").write_text("x")
    (source / "closed" / "volatile-shm").write_text("x")
    (source / "unreadable").write_bytes(SQLITE_MAGIC * 2)
    (source / "unreadable").chmod(0o000)
    modes = {"closed/inner": 0o300, "closed": 0o000, ".": 0o500}
    for name, mode in modes.items():
        (source / name).chmod(mode)
    digest = tree_digest(source)
    copy_tree(source, folder / "copy")
    answer = {
        "uid": os.geteuid(),
        "same": digest == tree_digest(folder / "copy"),
        "difference": tree_difference(source, folder / "copy"),
        "databases": [path.name for path in list_databases(source)],
        "dropped": drop_volatile(folder / "copy", ["*-shm"]),
        "after_drop": tree_difference(source, folder / "copy"),
        "mode": oct(stat.S_IMODE((folder / "copy").stat().st_mode)),
    }
    restore(folder / "copy", source)
    answer["restored"] = digest == tree_digest(folder / "copy")
    for tree in (source, folder / "copy"):
        clear_tree(tree)
        answer[f"left in {tree.name}"] = os.listdir(tree)  # noqa: PTH208
    unwritable = folder / "unwritable"
    unwritable.mkdir(mode=0o500)
    answer["refused"] = refusal(unwritable)
    return answer


def refusal(explicit: Path) -> str:
    """Return the message with which a work folder is refused."""
    try:
        Workdir.choose(explicit, 1)
    except WorkspaceError as error:
        return str(error)
    return ""


def test_modes_are_no_obstacle_for_an_ordinary_user() -> None:
    """Copy, digest, drop, restore and clear work on directories that their owner locked."""
    folder = Path(tempfile.mkdtemp())
    try:
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        done = subprocess.run(
            [sys.executable, str(HERE), str(folder)],
            cwd=HERE.parents[2],
            env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        shutil.rmtree(folder)
    answer = json.loads(done.stdout)
    refused = answer.pop("refused")
    assert "unwritable is not writable; use --workdir DIR" in refused
    assert answer.pop("uid") != 0
    assert answer == {
        "same": True,
        "difference": [],
        "databases": ["unreadable"],
        "dropped": ["closed/volatile-shm"],
        "after_drop": ["closed/volatile-shm: file only in the first"],
        "mode": "0o500",
        "restored": True,
        "left in source": [],
        "left in copy": [],
    }


# The work folder.


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB; what can be seen without one is tested with FakeStatvfs."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=50", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"NOT TESTED, a full file system: cannot mount a small one: {mounted.stderr}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class FakeStatvfs:
    """Answers for a file system with the given room, whatever the path."""

    def __init__(self, *, free_bytes: int, inodes: int = 10**6, read_only: bool = False) -> None:
        flags = os.ST_RDONLY if read_only else 0
        blocks = free_bytes // 4096
        self.answer = os.statvfs_result(
            (4096, 4096, blocks, blocks, blocks, 10**6 if inodes else 0, inodes, inodes, flags, 255)
        )

    def __call__(self, path: Path) -> os.statvfs_result:
        return self.answer


def test_work_folder_is_private_and_gone_at_the_end(tmp_path: Path) -> None:
    """The folder is inside the explicit one, mode 0700, and removed with all that is in it."""
    parent = tmp_path / "with space äöü"
    parent.mkdir()
    with Workdir.choose(parent, 3) as workdir:
        assert workdir.folder.parent == parent
        assert stat.S_IMODE(workdir.folder.stat().st_mode) == 0o700
        assert workdir.free_bytes() > 0
        make_tree(workdir.worker_root(1) / "store")
        (workdir.worker_root(2) / "out").symlink_to(tmp_path)
    assert list(parent.iterdir()) == []


def test_work_folder_is_removed_after_an_error(tmp_path: Path) -> None:
    """An exception in the block passes through and leaves nothing behind."""
    workdir = Workdir.choose(tmp_path, 1)
    (workdir.worker_root(0) / "inner").mkdir(mode=0o500)
    with pytest.raises(KeyboardInterrupt), workdir:
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_roots_of_workers_have_equal_length_and_no_links(tmp_path: Path) -> None:
    """All roots are distinct, empty, resolved and equally long, also beyond a hundred workers."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with Workdir.choose(tmp_path / "link", 101) as workdir:
        roots = [workdir.worker_root(number) for number in range(101)]
        assert len(set(roots)) == 101
        assert {len(str(roots[0]))} == {len(str(root)) for root in roots}
        assert roots == [root.resolve() for root in roots]
        assert {()} == {tuple(root.iterdir()) for root in roots}
        assert workdir.worker_folder(7, "saved").parent == roots[7].parent
        with pytest.raises(ConfigurationError, match=r"number=101 must be in \[0, 100\]"):
            workdir.worker_root(101)


def test_forked_child_does_not_remove_the_folder(tmp_path: Path) -> None:
    """Only the process that made the folder removes it."""
    with Workdir.choose(tmp_path, 1) as workdir:
        workdir._owner_pid += 1
        workdir.close()
        assert workdir.folder.is_dir()
        workdir._owner_pid -= 1
    assert not workdir.folder.exists()


@pytest.mark.parametrize(
    ("room", "jobs", "words"),
    [
        ({"free_bytes": 63 * MIB}, 2, "63.0 MiB free, 64.0 MiB needed for 2 jobs"),
        ({"free_bytes": 0}, 1, "0.0 MiB free, 32.0 MiB needed for 1 jobs"),
        ({"free_bytes": 900 * MIB, "inodes": 150}, 2, "150 inodes free, 200 needed for 2 jobs"),
        ({"free_bytes": 900 * MIB, "read_only": True}, 1, "on a read-only file system"),
    ],
)
def test_lack_of_room_is_refused_with_sizes(
    tmp_path: Path, room: dict[str, Any], jobs: int, words: str
) -> None:
    """The message has the path, what is free, what is needed and the option; nothing is made."""
    with pytest.raises(WorkspaceError) as caught:
        Workdir.choose(tmp_path, jobs, statvfs=FakeStatvfs(**room))
    for part in (str(tmp_path), words, "use --workdir DIR"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_file_systems_that_count_no_inodes_are_fine(tmp_path: Path) -> None:
    """btrfs reports 0 inodes in all, which is no lack of them."""
    room = FakeStatvfs(free_bytes=900 * MIB, inodes=0)
    with Workdir.choose(tmp_path, 1, statvfs=room) as workdir:
        assert workdir.folder.is_dir()


def test_disk_that_fills_up_is_found_by_the_write_test(tiny: Path) -> None:
    """A file system that promises room and has none is refused, and left as it was."""
    (tiny / "filler").write_bytes(b"x" * MIB)
    with pytest.raises(WorkspaceError) as caught:
        Workdir.choose(tiny, 1)
    assert "use --workdir DIR" in str(caught.value)
    with pytest.raises(WorkspaceError, match=r"No space left.*--workdir"):
        Workdir.choose(tiny, 1, statvfs=FakeStatvfs(free_bytes=900 * MIB))
    assert [path.name for path in tiny.iterdir()] == ["filler"]


def test_missing_folder_and_file_are_refused(tmp_path: Path) -> None:
    """A work folder is never made by itself, and a file is not one."""
    (tmp_path / "file").touch()
    assert "No such file" in refusal(tmp_path / "missing")
    assert "file is not a directory; use --workdir DIR" in refusal(tmp_path / "file")
    assert not (tmp_path / "missing").exists()
    with pytest.raises(ConfigurationError, match="jobs=0 must be at least 1"):
        Workdir.choose(tmp_path, 0)


def test_memory_is_preferred_only_with_room(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --workdir a roomy tmpfs is taken; a small or different one is passed over."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Workdir.choose(None, 1, statvfs=FakeStatvfs(free_bytes=256 * MIB)) as workdir:
        assert workdir.folder.parent == Path("/dev/shm")
    with Workdir.choose(None, 1, statvfs=FakeStatvfs(free_bytes=255 * MIB)) as workdir:
        assert workdir.folder.parent == tmp_path
    for memory in (tiny, tmp_path / "missing", HERE.parent):
        with Workdir.choose(None, 1, memory=memory) as workdir:
            assert workdir.folder.parent == tmp_path


# Folders that killed runs left behind.


def abandon(parent: Path) -> Path:
    """Make a work folder in a process that is then killed; return the folder."""
    code = (
        "import os, sys; from pathlib import Path; from harness.workdir import Workdir;"
        "folder = Workdir.choose(Path(sys.argv[1]), 1).worker_root(0);"
        "(folder / 'locked').mkdir(); (folder / 'locked' / 'x').touch();"
        "(folder / 'locked').chmod(0o500); print(folder.parents[1], flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(parent)],
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (-9, "")
    return Path(done.stdout.strip())


def test_folder_of_a_killed_run_is_removed_by_the_next(tmp_path: Path) -> None:
    """What a killed process left goes; a living run's folder and foreign names stay."""
    stale = abandon(tmp_path)
    assert stale.is_dir()
    (tmp_path / "crashconform-link").symlink_to(HERE.parent)
    (tmp_path / "other").mkdir()
    with Workdir.choose(tmp_path, 1) as living, Workdir.choose(tmp_path, 1):
        assert not stale.exists()
        assert living.folder.exists()
        assert (tmp_path / "crashconform-link").is_symlink()
        assert (tmp_path / "other").exists()
    assert HERE.exists()


@pytest.mark.parametrize(
    ("change", "is_removed"),
    [
        ({}, False),
        ({"start_ticks": 1}, True),
        ({"pid": 2**22 + 1}, True),
        ({"boot": "before"}, True),
        ({"boot": "elsewhere", "host": "elsewhere"}, False),
        ({"pid": 2**22 + 1, "namespace": "pid:[1]"}, False),
    ],
)
def test_owner_is_gone_only_when_this_system_can_tell(
    tmp_path: Path, change: dict[str, object], is_removed: bool
) -> None:
    """A reused pid and a reboot do not keep a folder; another host's or container's is kept."""
    with Workdir.choose(tmp_path, 1) as workdir:
        path = workdir.folder / "owner.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        Workdir.choose(tmp_path, 1).close()
        assert is_removed is not workdir.folder.exists()


@pytest.mark.parametrize(("text", "age_seconds"), [(None, 7200), ("", 7200), ("[1]", 7200)])
def test_folder_without_owner_goes_only_when_old(
    tmp_path: Path, text: str | None, age_seconds: int
) -> None:
    """A run that was killed before it wrote its owner leaves a folder that is removed later."""
    folder = tmp_path / "crashconform-abcd"
    folder.mkdir()
    if text is not None:
        (folder / "owner.json").write_text(text)
    Workdir.choose(tmp_path, 1).close()
    assert folder.exists()
    moment = time.time() - age_seconds
    os.utime(folder, (moment, moment))
    Workdir.choose(tmp_path, 1).close()
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_another_users_folder_is_never_touched(tmp_path: Path) -> None:
    """A stale folder of another user stays, even for root."""
    stale = abandon(tmp_path)
    os.chown(stale, NOBODY, NOBODY)
    Workdir.choose(tmp_path, 1).close()
    assert stale.exists()


def _main() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    print(json.dumps(locked_scenario(Path(sys.argv[1]))))


if __name__ == "__main__":
    _main()
