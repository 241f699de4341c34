"""States from one recording are those that real deaths leave, byte for byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.recorded import needs_recorder

PROJECT = Path(__file__).parents[2]
pytestmark = needs_recorder


@pytest.mark.slow
def test_derived_states_are_what_deaths_leave(tmp_path: Path) -> None:
    """At every boundary of every example campaign, the derived tree is the dead process's."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.campaign_states", "campaigns/examples", tmp_path],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) >= 6
    for name, count, equal, distinct in lines:
        assert int(count) == int(equal) > 10, name
        assert 1 < int(distinct) < int(count), name
