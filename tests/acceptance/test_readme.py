"""What the README tells a reader to do works as written, as far as no network is needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text under a heading of the second level."""
    found = re.search(
        rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL
    )
    assert found is not None, f"README has no section {title!r}"
    return found.group(1)


def command(title: str) -> str:
    """Return the one set-up command of a section."""
    lines = [line for line in section(title).splitlines() if line.startswith("python3 ")]
    assert len(lines) == 1
    return lines[0]


def crashconform(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in *folder* and return what it printed."""
    return subprocess.run(
        [sys.executable, "-m", "harness.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_each_set_up_command_makes_its_own_environment() -> None:
    """Both commands start from nothing but Python and pip, and say where they put it."""
    main, tests = command("Run the campaigns"), command("Run the tests")
    for line in (main, tests):
        assert line.startswith("python3 -m venv --without-pip .venv && python3 -m pip --python ")
    assert main.endswith("&& .venv/bin/crashconform run")
    assert "pytest" in tests


def test_ci_runs_the_very_test_command() -> None:
    """Continuous integration takes the command out of the README, so the two cannot part."""
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    found = re.search(r"test_command=\$\((sed .*)\)\n", script)
    assert found is not None
    taken = subprocess.run(
        ["bash", "-c", found.group(1)], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert taken.stdout.strip() == command("Run the tests")


@pytest.mark.slow
def test_the_example_survives_as_the_readme_says(tmp_path: Path) -> None:
    """The README's campaign runs as it stands and has the boundaries that the text names."""
    code = re.search(r"```python\n# crash_settings.py\n(.*?)```", README, re.DOTALL)
    assert code is not None
    (tmp_path / "crash_settings.py").write_text(code.group(1), encoding="utf-8")
    ended = crashconform(tmp_path, "run", "crash_settings.py")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = re.search(r"kills it at each of its (\d+) boundaries", README)
    assert said is not None
    assert (
        f"survived process death at {said.group(1)} of {said.group(1)} boundaries" in ended.stdout
    )


@pytest.mark.slow
def test_the_example_is_torn_without_its_care(tmp_path: Path) -> None:
    """The README's claim about a plain write_text is true: it is found torn."""
    code = re.search(r"```python\n# crash_settings.py\n(.*?)```", README, re.DOTALL)
    assert code is not None
    careless = re.sub(
        r"def save\(path, value\):\n(?:    .*\n)+",
        "def save(path, value):\n    path.write_text(json.dumps(value))\n",
        code.group(1),
    )
    assert "os.replace" not in careless
    (tmp_path / "crash_settings.py").write_text(careless, encoding="utf-8")
    ended = crashconform(tmp_path, "run", "crash_settings.py")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "broke invariant `observable`" in ended.stdout
