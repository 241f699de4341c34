"""
The torn control store: a metabolism runtime without transactions is told from the real one.

Method: a patch makes the operations' transaction do nothing, so that each statement commits by
itself, as the runtime that this one is a port of had it. Both are crashed at every boundary of the
campaign whose operations have two statements; the states that the torn one leaves are then given
to the operator's command and to the operations of the untouched store.

Covered: process death. Not covered: two writers at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from twins.exploring import Exploration, explored
from twins.twin import REPOSITORY, Patch, plant

from campaigns.metabolism.invariants import DATABASE, ENDED_TOGETHER, RUN_AND_JOB
from harness.errors import ConfigurationError
from harness.trace import Recording
from store.at_rest import open_at_rest
from store.metabolism import connect, requeue_expired_jobs

pytestmark = pytest.mark.slow

_TRANSACTIONS = "store/metabolism/transactions.py"
TORN = (
    Patch(_TRANSACTIONS, "            super().__enter__()\n", "            pass\n"),
    Patch(
        _TRANSACTIONS, "            super().__exit__(kind, error, trace)\n", "            pass\n"
    ),
)
"""Every statement of every operation commits by itself."""

RUNNING = "campaigns.metabolism.running:Running"

SURVIVING = {
    # Operations of one statement need no transaction for a crash's sake.
    "campaigns.metabolism.claiming:Claiming": ("claim urgent", "UPDATE jobs"),
    "campaigns.metabolism.requeueing:Requeueing": ("give back", "UPDATE jobs"),
}
"""Campaign -> a step of it, and what its statement begins with."""

LONG_AFTER = 2**62


@dataclass(frozen=True)
class Tear:
    """
    A place between two statements that belong together.

    Attributes:
        first, second: How they begin.
        steps: The steps that have both.
        invariant: What is broken there, besides that the step is half done.
        rule: Under which rule the operator's command shows it.
    """

    first: str
    second: str
    steps: tuple[str, ...]
    invariant: str
    rule: str

    def boundaries(self, recording: Recording) -> Iterator[int]:
        """Yield the boundaries after the first statement and before the second, of each step."""
        for step in self.steps:
            after = place(recording, step, f"after sql {DATABASE}: {self.first}")
            before = place(recording, step, f"before sql {DATABASE}: {self.second}")
            yield from range(after, before + 1)


TEARS = (
    Tear(
        "UPDATE jobs",
        "INSERT INTO runs",
        ("first starts good", "first starts bad", "first starts left"),
        RUN_AND_JOB,
        "running_job_no_run_row",
    ),
    Tear(
        "UPDATE runs",
        "UPDATE jobs",
        ("complete good", "complete bad"),
        ENDED_TOGETHER,
        "run_finalized_but_job_running",
    ),
)


def place(recording: Recording, step: str, begins: str) -> int:
    """Return the boundary of a step whose line begins so; there is one."""
    [found] = [
        number
        for number, line in enumerate(recording.lines, start=1)
        if recording.step_at(number) == step and line.startswith(begins)
    ]
    return found


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the torn store."""
    return plant(TORN, tmp_path_factory.mktemp("torn") / "tree")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of the store as it is, run in the same way."""
    return plant((), tmp_path_factory.mktemp("untouched") / "tree")


@pytest.fixture(scope="module")
def running(torn: Path) -> Iterator[Exploration]:
    """The campaign of starts and ends over the torn store, recorded."""
    with explored(torn, RUNNING) as exploration:
        assert exploration.result.problem is None
        yield exploration


def test_torn_store_fails_exactly_between_its_statements(running: Exploration) -> None:
    """Every crash between two statements breaks what belongs to it, and no other crash anything."""
    recording = running.recording
    expected = {k: tear.invariant for tear in TEARS for k in tear.boundaries(recording)}
    assert len(expected) >= 2 * sum(len(tear.steps) for tear in TEARS)
    verdicts = running.examine(range(1, len(recording.lines) + 1))
    assert {verdict.kind for verdict in verdicts} == {"survived", "violated"}
    broken = {
        verdict.boundary: {verdict.violation.invariant, *verdict.violation.also}
        for verdict in verdicts
        if verdict.violation is not None
    }
    assert broken == {k: {"step_atomicity", name} for k, name in expected.items()}


def test_untouched_store_survives_between_its_statements(untouched: Path) -> None:
    """The same places of the same operations are survived by the store that has transactions."""
    with explored(untouched, RUNNING) as exploration:
        assert exploration.result.problem is None
        places = {k for tear in TEARS for k in tear.boundaries(exploration.recording)}
        assert len(places) >= 2 * sum(len(tear.steps) for tear in TEARS)
        assert {verdict.kind for verdict in exploration.examine(places)} == {"survived"}


@pytest.mark.parametrize("campaign", SURVIVING)
def test_operations_of_one_statement_survive_in_both(
    campaign: str, torn: Path, untouched: Path
) -> None:
    """What is told is the tear between two statements, not that there is no BEGIN."""
    step, begins = SURVIVING[campaign]
    for tree in (torn, untouched):
        with explored(tree, campaign) as exploration:
            assert exploration.result.problem is None
            recording = exploration.recording
            before, after = (
                place(recording, step, f"{when} sql {DATABASE}: {begins}")
                for when in ("before", "after")
            )
            verdicts = exploration.examine(range(before - 1, after + 2))
            assert {verdict.kind for verdict in verdicts} == {"survived"}


def test_torn_refusal_needs_no_crash(torn: Path) -> None:
    """The end of a run that is refused to a late worker stays: the campaign cannot go on."""
    with (
        pytest.raises(ConfigurationError, match="RunIsCompleted"),
        explored(torn, "campaigns.metabolism.running:TooLate"),
    ):
        pytest.fail("a refused operation left nothing behind")


@pytest.mark.parametrize("tear", TEARS, ids=[tear.rule for tear in TEARS])
def test_operator_is_shown_every_torn_state_and_nothing_repairs_it(
    tear: Tear, running: Exploration, tmp_path: Path
) -> None:
    """The untouched store's command names each torn job, and neither it nor a requeue mends it."""
    for boundary in tear.boundaries(running.recording):
        keep = tmp_path / str(boundary)
        keep.mkdir()
        running.worker.call("examine", boundary=boundary, keep=str(keep))
        for name in ("crashed", "recovered"):
            is_reported_and_stays(keep / name, tear.rule)


def is_reported_and_stays(root: Path, rule: str) -> None:
    """Assert that a root has one finding, of *rule*, which no look and no requeue takes away."""
    before, rows = contents(root), stored(root / DATABASE)
    assert reported(root / DATABASE) == [(rule, "operator_review_required")]
    assert contents(root) == before
    with closing(connect(root / DATABASE)) as connection:
        assert requeue_expired_jobs(connection, now_ns=LONG_AFTER) == 0
    assert stored(root / DATABASE) == rows


def reported(database: Path) -> list[tuple[str, str]]:
    """Return rule and action of each finding of the operator's command."""
    command = (sys.executable, "-m", "store.metabolism", "reconcile", str(database), "--json")
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "")
    answer = json.loads(ran.stdout)
    assert answer["status"] == "needs_review"
    return [(finding["rule"], finding["action"]) for finding in answer["findings"]]


def contents(root: Path) -> dict[str, bytes]:
    """Return every file of a root."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def stored(database: Path) -> list[tuple[Any, ...]]:
    """Return every job and run, quoted: equal only where every byte of every value is."""
    found: list[tuple[Any, ...]] = []
    with open_at_rest(database) as connection:
        for table in ("jobs", "runs"):
            about = connection.execute(f"PRAGMA table_info({table})").fetchall()
            columns = ", ".join(f"quote({column[1]})" for column in about)
            found += connection.execute(f"SELECT {columns} FROM {table} ORDER BY rowid").fetchall()
    return found
