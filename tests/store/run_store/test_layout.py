"""What a root must be before anything opens it."""

from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path

import pytest

from store.run_store import layout
from store.run_store.errors import NetworkFilesystem, UnsafeLayout
from store.run_store.opening import open_database

SIDECARS = ("run.sqlite3-journal", "run.sqlite3-shm", "run.sqlite3-wal")


def _listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["relative", "missing", "file", "link", "dangling link"])
def test_a_wrong_root_is_refused_and_nothing_is_made(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-022, RS-024: only an existing absolute directory, itself no link, may be a root."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "root"
    if kind == "relative":
        root.mkdir()
        root = Path("root")
    elif kind == "file":
        root.touch()
    elif kind == "link":
        (tmp_path / "real").mkdir()
        root.symlink_to(tmp_path / "real")
    elif kind == "dangling link":
        root.symlink_to(tmp_path / "real")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    with pytest.raises(UnsafeLayout) as caught:
        open_database(root)
    assert caught.value.path == root
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", [b"no\xffutf-8", b"loop/root"])
def test_a_root_that_cannot_be_named_is_refused(name: bytes, tmp_path: Path) -> None:
    """RS-022: a name that SQLite cannot be told, or that leads nowhere, is refused as such."""
    (tmp_path / "loop").symlink_to("loop")
    root = tmp_path / os.fsdecode(name)
    if name != b"loop/root":
        root.mkdir()
    with pytest.raises(UnsafeLayout) as caught:
        open_database(root)
    assert caught.value.path == root
    with pytest.raises(UnsafeLayout):
        open_database(tmp_path / "nul\0")


def test_a_link_above_the_root_is_resolved(tmp_path: Path) -> None:
    """RS-022: ancestors may be links; the path that comes back has none."""
    (tmp_path / "real" / "root").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    connection, path = open_database(tmp_path / "link" / "root")
    connection.close()
    assert path == (tmp_path / "real" / "root" / "run.sqlite3").resolve()


@pytest.mark.parametrize("name", ["run.sqlite3", ".run-store-init.lock", *SIDECARS])
@pytest.mark.parametrize("kind", ["link", "dangling link", "directory", "pipe"])
def test_a_wrong_file_is_refused_and_left_alone(name: str, kind: str, tmp_path: Path) -> None:
    """RS-024: a link or another type at any name of the store refuses the root unchanged."""
    root = tmp_path / "root"
    root.mkdir()
    if name in SIDECARS:
        (root / "run.sqlite3").touch()
    target = tmp_path / "target"
    wrong = root / name
    if kind == "directory":
        wrong.mkdir()
    elif kind == "pipe":
        os.mkfifo(wrong)
    else:
        wrong.symlink_to(target)
        if kind == "link":
            target.touch()
    before = _listing(root)
    with pytest.raises(UnsafeLayout) as caught:
        open_database(root)
    assert caught.value.path == wrong
    assert _listing(root) == before
    assert target.exists() == (kind == "link")


@pytest.mark.parametrize("name", SIDECARS)
def test_a_sidecar_without_its_database_is_refused(name: str, tmp_path: Path) -> None:
    """RS-024 (AMB-10): SQLite would take it for part of the new database, so nothing is made."""
    (tmp_path / name).write_bytes(b"left over")
    with pytest.raises(UnsafeLayout) as caught:
        open_database(tmp_path)
    assert caught.value.path == tmp_path / name
    assert _listing(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"left over"


def test_a_link_made_while_waiting_for_the_lock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-024: the files are checked again under the lock, after the probes."""
    target = tmp_path.parent / "target.sqlite3"

    def slip_in(root: Path) -> None:
        (root / "run.sqlite3").symlink_to(target)

    monkeypatch.setattr("store.run_store.probes.run", slip_in)
    with pytest.raises(UnsafeLayout):
        open_database(tmp_path)
    assert not target.exists()


NETWORK = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x00C36400: "Ceph",
    0x73757245: "Coda",
    0x564C: "NCP",
    0x01021997: "9P",
}


@pytest.mark.parametrize("number", NETWORK)
def test_a_network_filesystem_is_refused(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-037: each family that Linux names is refused before a file is made."""
    monkeypatch.setattr(layout, "filesystem_type", lambda path: number)
    with pytest.raises(NetworkFilesystem) as caught:
        open_database(tmp_path)
    assert (caught.value.path, caught.value.filesystem) == (tmp_path.resolve(), NETWORK[number])
    assert _listing(tmp_path) == []
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.filesystem, str(copy)) == (NETWORK[number], str(caught.value))


@pytest.mark.parametrize("path", ["/proc", "/", "/dev"])
def test_the_type_is_the_one_that_the_kernel_tells(path: str) -> None:
    """RS-037: the number agrees with what stat(1) prints for the same filesystem."""
    printed = subprocess.run(
        ["stat", "--file-system", "--format=%t", path],
        check=True, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert layout.filesystem_type(Path(path)) == int(printed.stdout, 16)


def test_a_filesystem_that_cannot_be_looked_up_is_an_error(tmp_path: Path) -> None:
    """RS-037: where the kernel gives no answer, the caller gets its error and no guess."""
    with pytest.raises(FileNotFoundError):
        layout.filesystem_type(tmp_path / "missing")


def test_only_the_named_files_lie_in_an_open_root(tmp_path: Path) -> None:
    """RS-023: an open store has its database, two sidecars and the lock; closed, two files."""
    connection, path = open_database(tmp_path)
    expected = [".run-store-init.lock", "run.sqlite3", "run.sqlite3-shm", "run.sqlite3-wal"]
    assert _listing(tmp_path) == expected
    connection.close()
    assert _listing(tmp_path) == expected[:2]
    assert path == layout.database_path(tmp_path.resolve())
    assert (layout.ARTIFACTS_NAME, layout.RECOVERY_LOCK_NAME) == (
        "artifacts",
        ".run-store-recovery.lock",
    )
