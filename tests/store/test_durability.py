"""Syncs and renames without replacement: what they do, announce and refuse."""

from __future__ import annotations

import ast
import ctypes
import errno
import fcntl
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from store import crash_points, durability
from store.durability import (
    DestinationExists,
    DurabilityError,
    NoReplaceUnsupported,
    RenameFailed,
    SyncFailed,
    rename_no_replace,
    sync_directory,
    sync_file,
)

STORE = Path(durability.__file__).parent
TAKES_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(1)
"""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(crash_points, "_observer", lambda *call: calls.append(call))
    return calls


def _other_process_can_lock(path: Path) -> bool:
    done = subprocess.run([sys.executable, "-c", TAKES_LOCK, str(path)], check=False, timeout=30)
    assert done.returncode in (0, 1)
    return done.returncode == 0


@pytest.mark.parametrize(
    ("sync", "kind"), [(sync_file, "file_sync"), (sync_directory, "directory_sync")]
)
def test_a_sync_reaches_the_named_inode_between_its_announcements(
    sync: Callable[[Path], None],
    kind: str,
    tmp_path: Path,
    seen: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RS-030: fsync is called once, on the named inode, between the two announcements."""
    path = tmp_path / "it"
    path.touch() if kind == "file_sync" else path.mkdir()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        seen.append(("fsync", str(os.fstat(descriptor).st_ino)))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.chdir(tmp_path)
    sync(Path("it"))
    assert seen == [
        (kind, "before", str(path)),
        ("fsync", str(path.stat().st_ino)),
        (kind, "after", str(path)),
    ]


@pytest.mark.parametrize("sync", [sync_file, sync_directory])
def test_a_failed_sync_is_reported_once_and_not_retried(
    sync: Callable[[Path], None],
    tmp_path: Path,
    seen: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sync that the kernel fails raises its number, announces no success, and is tried once."""
    path = tmp_path / "it"
    path.touch() if sync is sync_file else path.mkdir()
    calls = []

    def fail(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(os, "fsync", fail)
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(SyncFailed) as caught:
        sync(path)
    assert (caught.value.paths, caught.value.number) == ((str(path),), errno.EIO)
    assert [call[1] for call in seen] == ["before"]
    assert len(calls) == 1
    assert sorted(Path("/proc/self/fd").iterdir()) == before, "a descriptor was left open"


def test_a_sync_follows_no_link_and_takes_no_wrong_type(tmp_path: Path) -> None:
    """A symbolic link, a missing name and a file given as a directory are refused."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for sync, name, number in (
        (sync_file, "link", errno.ELOOP),
        (sync_file, "missing", errno.ENOENT),
        (sync_directory, "file", errno.ENOTDIR),
    ):
        with pytest.raises(SyncFailed) as caught:
            sync(tmp_path / name)
        assert caught.value.number == number


def test_syncing_through_a_descriptor_keeps_this_process_locks(tmp_path: Path) -> None:
    """A record lock outlives a sync through a descriptor; syncing by path is what drops it."""
    path = tmp_path / "locked"
    with path.open("w+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        sync_file(path, descriptor=file.fileno())
        os.fstat(file.fileno())  # raises if the sync closed it
        assert not _other_process_can_lock(path)
        sync_file(path)
        assert _other_process_can_lock(path), "if locks survive now, the module's warning is stale"


def _tree(source: Path, taken: Path) -> None:
    source.mkdir()
    (source / "payload").write_bytes(b"payload")
    taken.mkdir()


@pytest.fixture(params=["symbol", "system call"])
def _mechanism(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if request.param == "symbol":
        rename = durability._through_symbol(library)
    else:
        number = durability._system_call_number(os.uname().machine)
        assert number is not None, "this machine has no known system call number"
        rename = durability._through_system_call(library, number)
    monkeypatch.setattr(durability, "_no_replace", lambda: rename)


@pytest.mark.usefixtures("_mechanism")
class TestRename:
    """Both ways to the kernel: the C library's symbol, and the bare system call."""

    def test_a_free_name_is_taken(self, tmp_path: Path, seen: list[tuple[str, ...]]) -> None:
        """RS-031: a folder moves with its content, announced before and after."""
        _tree(tmp_path / "a", tmp_path / "other")
        rename_no_replace(tmp_path / "a", tmp_path / "b")
        assert (tmp_path / "b" / "payload").read_bytes() == b"payload"
        assert not (tmp_path / "a").exists()
        names = (str(tmp_path / "a"), str(tmp_path / "b"))
        assert seen == [("rename", "before", *names), ("rename", "after", *names)]

    @pytest.mark.parametrize("kind", ["full", "empty", "file", "dangling link"])
    def test_a_taken_name_is_refused(
        self, kind: str, tmp_path: Path, seen: list[tuple[str, ...]]
    ) -> None:
        """RS-031: a full folder, an empty one, a file and a dead link are all left alone."""
        source, taken = tmp_path / "a", tmp_path / "b"
        _tree(source, taken)
        if kind == "full":
            (taken / "other").touch()
        elif kind != "empty":
            taken.rmdir()
            taken.touch() if kind == "file" else taken.symlink_to("nowhere")
        inode = taken.lstat().st_ino
        with pytest.raises(DestinationExists) as caught:
            rename_no_replace(source, taken)
        assert caught.value.number == errno.EEXIST
        assert taken.lstat().st_ino == inode
        assert (source / "payload").read_bytes() == b"payload"
        assert [call[1] for call in seen] == ["before"], "a refused rename announces no success"

    def test_other_refusals_say_that_nothing_moved(self, tmp_path: Path) -> None:
        """A missing source, and a folder moved into itself, are failures of this call only."""
        _tree(tmp_path / "a", tmp_path / "b")
        for source, destination, number in (
            ("missing", "free", errno.ENOENT),
            ("a", "a/inside", errno.EINVAL),
        ):
            with pytest.raises(RenameFailed) as caught:
                rename_no_replace(tmp_path / source, tmp_path / destination)
            assert (type(caught.value), caught.value.number) == (RenameFailed, number)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_without_the_rename_is_told_apart(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-036: a kernel or file system that lacks the flag gives an error of its own."""
    monkeypatch.setattr(durability, "_no_replace", lambda: lambda source, destination: number)
    (tmp_path / "a").mkdir()
    with pytest.raises(NoReplaceUnsupported) as caught:
        rename_no_replace(tmp_path / "a", tmp_path / "b")
    assert caught.value.number == number


def test_a_platform_without_the_rename_falls_back_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-036: with neither symbol nor known system call nothing is renamed in a weaker way."""
    assert durability._system_call_number("riscv-unheard-of") is None
    monkeypatch.setattr(durability, "_no_replace", lambda: None)
    (tmp_path / "a").mkdir()
    with pytest.raises(NoReplaceUnsupported):
        rename_no_replace(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_library_without_the_symbol_uses_the_system_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on musl: where the C library lacks the function, the system call still does it."""

    class Library:
        def __init__(self, name: None, *, use_errno: bool) -> None:
            self.syscall = real(name, use_errno=use_errno).syscall

    real = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", Library)
    monkeypatch.setattr(durability, "_no_replace", durability._no_replace.__wrapped__)
    (tmp_path / "a").mkdir()
    rename_no_replace(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_name_that_c_would_cut_short_is_refused(tmp_path: Path) -> None:
    """A NUL in a path is refused instead of naming another file."""
    with pytest.raises(ValueError, match="NUL"):
        rename_no_replace(tmp_path / "a", tmp_path / "b\0c")


@pytest.mark.parametrize(
    "error",
    [SyncFailed(("/a",), errno.EIO), DestinationExists(("/a", "/b"), errno.EEXIST)],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_their_facts_across_processes(error: DurabilityError) -> None:
    """Pickling keeps type, paths, number and message."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (copy.paths, copy.number, str(copy)) == (error.paths, error.number, str(error))
    assert errno.errorcode[error.number] in str(error)


def test_no_other_module_syncs_or_renames() -> None:
    """Every sync and rename in store/ goes through this module, so each one is announced."""
    direct = {"fsync", "fdatasync", "rename", "renames", "renameat2", "sync"}
    found = [
        f"{path.relative_to(STORE)}:{node.lineno} {node.attr}"
        for path in sorted(STORE.rglob("*.py"))
        if path != STORE / "durability.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and (
            node.attr in direct
            or (
                node.attr == "replace"
                and isinstance(node.value, ast.Name)
                and node.value.id in ("os", "shutil")
            )
        )
    ]
    assert found == []
