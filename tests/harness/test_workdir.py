"""Work folders: private, refused without room or rights, and removed when their run was killed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from trees import make_tree, refusal

from harness.errors import ConfigurationError, WorkspaceError
from harness.workdir import Workdir

HERE = Path(__file__)
NOBODY = 65534
MIB = 1 << 20


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
