"""Where the command runs: odd paths, read-only trees, small disks, other encodings and systems."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cli_project import SETTINGS, Project, make_project

from harness.cli import main

HEAVY = ("pytest", "rich", "click", "jinja2", "psutil")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with one campaign, which survives."""
    return make_project(tmp_path / "project")


def test_zygote_imports_nothing_heavy(tmp_path: Path) -> None:
    """What every worker forks from holds neither front ends nor test tools."""
    code = f"import harness.zygote, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_help_and_version_need_no_project(tmp_path: Path) -> None:
    """``--version`` and ``--help`` work anywhere; no command at all is a usage error."""
    assert Project(tmp_path).run("--version").stdout.startswith("crashconform, version ")
    assert "Exit codes" in Project(tmp_path).run("--help").stdout
    done = Project(tmp_path).run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: crashconform" in done.stderr


@pytest.mark.parametrize("missing", ["fork", "linux"])
def test_other_system_is_refused_clearly(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Linux or os.fork the command says what it needs and exits 2."""
    if missing == "fork":
        monkeypatch.delattr(os, "fork")
    else:
        monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["list"]) == 2
    assert "needs Linux and os.fork" in capsys.readouterr().err


@pytest.mark.slow
def test_source_tree_stays_untouched(project: Project) -> None:
    """A run writes nothing into a tree that it may only read."""
    before = sorted(project.folder.rglob("*"))
    for folder in (project.folder, project.folder / "campaigns"):
        folder.chmod(0o555)
    try:
        assert project.run("run").returncode == 0
        assert sorted(project.folder.rglob("*")) == before
    finally:
        for folder in (project.folder, project.folder / "campaigns"):
            folder.chmod(0o755)


@pytest.mark.slow
def test_paths_with_spaces_and_other_letters_work(tmp_path: Path) -> None:
    """Project, work folder and report may have any name."""
    project = make_project(tmp_path / "mein Projekt ü 数")
    work = project.folder / "wörk folder"
    work.mkdir()
    code, report = project.report("--workdir", str(work))
    assert (code, report["campaigns"][0]["survived"]) == (0, 17)
    assert list(work.iterdir()) == []


@pytest.mark.slow
def test_output_that_cannot_say_a_letter_escapes_it(tmp_path: Path) -> None:
    """An ASCII-only standard output is no reason to fail."""
    project = make_project(tmp_path / "project")
    project.add("größe.py", SETTINGS)
    environment = {**project.environment, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = project.run("run", env=environment)
    assert done.returncode == 0, done.stderr
    assert "gr\\xf6\\xdfe: 17 boundaries, 17 survived" in done.stdout


@pytest.mark.slow
def test_work_folder_without_room_is_refused_before_anything_starts(project: Project) -> None:
    """A tiny disk is a clear error with exit 2, not a failing campaign."""
    work = project.folder / "tiny"
    work.mkdir()
    script = (
        f"mount -t tmpfs -o size=1m none {work} && exec {sys.executable} -m harness.cli run "
        f"--workdir {work}"
    )
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=project.folder,
        capture_output=True,
        text=True,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no private mount can be made here: {done.stderr.strip()}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("crashconform: error: work folder ")
    assert "too full" in done.stderr
    assert "--workdir" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["", "1"])
def test_terminal_shows_one_live_line_and_honours_no_color(project: Project, colour: str) -> None:
    """On a terminal progress is live; NO_COLOR takes the colours away."""
    ours, theirs = pty.openpty()
    environment = {**project.environment, "TERM": "xterm", "NO_COLOR": colour}
    process = project.start("run", stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait(60) == 0, shown
    assert b"exploring 17 of 17 boundaries" in shown
    assert (b"\x1b[1;32m" in shown) is (colour == "")
    assert b"PASS: survived process death" in shown


@pytest.mark.slow
@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_closed_output_changes_no_exit_code(project: Project, closed: tuple[int, ...]) -> None:
    """What nobody can read is not printed; exit code and report are as ever."""

    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    code, report = project.report(preexec_fn=close)
    assert (code, report["exit"]) == (0, 0)


def test_report_is_replaced_as_a_whole(project: Project) -> None:
    """An older report is replaced, through a symbolic link too, and no part stays behind."""
    (project.folder / "real.json").write_text("old")
    (project.folder / "link.json").symlink_to("real.json")
    assert project.run("run", "--json", "link.json").returncode == 0
    assert (project.folder / "link.json").is_symlink()
    assert json.loads((project.folder / "real.json").read_text())["exit"] == 0
    assert [p.name for p in project.folder.iterdir() if p.name.endswith(".part")] == []
