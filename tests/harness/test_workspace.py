"""
Copies, removals and digests of real trees.

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
from pathlib import Path
from typing import Any

import pytest
from trees import MIB, make_tree, refusal

from harness.errors import ConfigurationError, WorkspaceError
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
        with pytest.raises(ConfigurationError, match=r"s/control\.sock: it is a socket"):
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


def _main() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    print(json.dumps(locked_scenario(Path(sys.argv[1]))))


if __name__ == "__main__":
    _main()
