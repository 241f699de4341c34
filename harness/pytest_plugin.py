"""
The pytest plugin's way in: its options, and nothing more where no campaigns are configured.

pytest loads this module in every project of an environment that has the harness, so it imports
nothing of it until a pyproject.toml with our table was found.
"""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

import pytest

TABLE = "[tool.crashconform]"
TIMEOUT_SECONDS = 30.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options; a wrong value is a usage error."""
    group = parser.getgroup("crashconform", "crash campaigns")
    group.addoption(
        "--crash",
        choices=("representative", "exhaustive", "none"),
        help="Which boundaries of a campaign become tests: representative (the default: of each "
        "step the first, middle and last, every commit, rename and named point, and the end), "
        "exhaustive, or none.",
    )
    group.addoption(
        "--crash-shard",
        type=_shard,
        metavar="I/N",
        help="Take every N-th of those boundaries from the I-th on, 1-based. All shards together "
        "explore each boundary once.",
    )
    group.addoption(
        "--crash-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="How long one child may take before it counts as hung "
        f"(default: {TIMEOUT_SECONDS:g}).",
    )
    group.addoption(
        "--crash-workdir",
        metavar="DIR",
        help="Folder for the roots of the run; by default memory (/dev/shm) where there is room.",
    )


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be I/N with 1 <= I <= N, such as 2/8 for the second of eight shards"
        )
    return index, count


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds above 0")
    return seconds


def pytest_configure(config: pytest.Config) -> None:
    """
    Register the hooks that collect campaigns, where the project has some.

    Raises: pytest.UsageError: the table is wrong, an option of ours is given without one, or the
        work folder is no directory.
    """
    mode = config.getoption("--crash")
    shard = config.getoption("--crash-shard")
    seconds = config.getoption("--crash-timeout")
    workdir = config.getoption("--crash-workdir")
    place = None if workdir is None else config.invocation_params.dir / workdir
    if place is not None and not place.is_dir():
        raise pytest.UsageError(f"--crash-workdir: {place} is not a directory.")
    if _may_have_table(config.rootpath):
        from harness.pytest_hooks import Settings, register

        if register(
            config,
            Settings(
                mode=mode or "representative",
                shard=shard or (1, 1),
                timeout_seconds=seconds or TIMEOUT_SECONDS,
                workdir=place,
            ),
        ):
            return
    if mode not in (None, "none") or shard or seconds or place:
        raise pytest.UsageError(
            "--crash options need campaigns: no pyproject.toml at or above "
            f'{config.rootpath} has the table {TABLE}, such as campaigns = ["campaigns"].'
        )


def _may_have_table(start: Path) -> bool:
    """Say whether a pyproject.toml at or above *start* names us, without parsing any."""
    for folder in (start, *start.parents):
        try:
            if b"crashconform" in (folder / "pyproject.toml").read_bytes():
                return True
        except OSError:
            continue
    return False
