"""
The harness tells small stores with bugs that people reported from their repaired twins.

Method: every campaign in `cases/` is run whole under process death. The tables below say what must
come of it; a repaired twin must survive at every boundary. `cases/README.md` and
`campaigns/TRACK_RECORD.md` hold the same rows for people, and are compared with the tables.

Covered: process death. Not covered: concurrency (B25), the fault models that `BLIND` names.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from harness import Campaign
from harness.client import ZygoteClient
from harness.discovery import Found
from harness.runner import Options, Result, run_campaign
from harness.verdict import Verdict
from harness.workdir import Workdir

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
CASES = Path(__file__).parent / "cases"

CAUGHT: dict[str, list[tuple[str, str | None, str]]] = {
    # campaign: each finding's invariant, step, and the first boundary at which it shows
    "backup_holds_every_commit:Broken": [("acknowledged_step_is_stored", "back up", "")],
    "early_bound_calls_are_seen:Broken": [
        ("step_atomicity", "save", "after rename left.new left"),
    ],
    "lock_of_the_dead_can_be_taken:Broken": [
        ("resumes", "save 1", "before write lock"),
        ("resumes", "save 2", "before write lock"),
    ],
    "mail_is_delivered_once:Broken": [("delivery mail", "flush", "after effect mail")],
    "migration_is_one_transaction:Broken": [
        ("recovers", "migrate", "after sql app.db: alter table item add column price integer"),
    ],
    "next_record_is_readable:Broken": [
        ("promise appended", "append 1", "after write log"),
        ("promise appended", "append 2", "after write log"),
    ],
    "repair_keeps_what_it_repairs:Broken": [("promise kept", "open", "before write ledger")],
    "synced_before_renamed:BrokenTwice": [
        ("complete", "put 1", "after write chunk"),
        ("complete", "put 2", "after write chunk"),
    ],
    "taken_rows_are_handed_back:Broken": [
        (
            "step_atomicity",
            "drain",
            "after sql queue.db: update message set status = 'processing' where id = "
            "(select min(id) from message where status = 'pending') returning id",
        ),
    ],
    "taken_task_is_not_lost:Broken": [
        ("promise accepted", "work", "after sql queue.db: delete from task where id = ?"),
    ],
    "transfer_is_one_transaction:Broken": [
        ("step_atomicity", "transfer", "after sql bank.db: COMMIT"),
    ],
    "two_files_change_together:Broken": [
        ("no_dangling_posting", "save", "after rename postings.new postings"),
    ],
}

BLIND = {
    # campaign: the fault model that would find it; process death is right to survive
    "acknowledged_commit_is_synced:Broken": "power-loss",
    "both_markers_are_there:Broken": "syscall-death",
    "failed_sync_is_not_acknowledged:Broken": "io-error",
    "index_can_be_rebuilt:Broken": "power-loss",
    "renamed_name_is_synced:Broken": "power-loss",
    "repair_keeps_what_it_repairs:BrokenInRecovery": "recovery crash",
    "rolled_back_journal_stays_deleted:Broken": "power-loss",
    "synced_before_renamed:Broken": "power-loss",
}

INCONCLUSIVE = {
    # campaign: how the reason begins
    "trace_is_reproducible:Broken": "the trace differs from run to run",
    "workload_stores_something:Broken": "no boundary of the store was seen",
}

EXIT_SURVIVED, EXIT_VIOLATED, EXIT_INCONCLUSIVE = 0, 1, 5
SURVIVED: tuple[None, list[object], int] = (None, [], EXIT_SURVIVED)
"""Why it proves nothing, findings, exit code."""

BROKEN = sorted([*CAUGHT, *BLIND, *INCONCLUSIVE])
FIXED = sorted({name.partition(":")[0] + ":Fixed" for name in BROKEN})


class _Silent:
    """A listener that has nothing to say."""

    def started(self, found: Found) -> None:
        """Say nothing."""

    def exploring(self, result: Result) -> None:
        """Say nothing."""

    def judged(self, result: Result, verdict: Verdict) -> None:
        """Say nothing."""

    def finished(self, result: Result) -> None:
        """Say nothing."""


@cache
def found_cases() -> dict[str, Found]:
    """Return every campaign in `cases/`, by module and class."""
    with ZygoteClient((PROJECT,)) as zygote:
        found = zygote.list([str(CASES)], PROJECT)
    return {f"{Path(one.path).stem}:{one.class_name}": one for one in found}


@cache
def result_of(name: str) -> Result:
    """Run one campaign whole, once in this process."""
    return run(name, Options(jobs=1, import_path=(PROJECT,)))


def run(name: str, options: Options) -> Result:
    """Run one campaign in a work folder of its own."""
    with Workdir.choose(None, 2) as workdir:
        return run_campaign(found_cases()[name], workdir, options, _Silent())


def lines_of(name: str) -> list[str]:
    """Record a campaign, explore one boundary only, and return its trace."""
    only_the_first = (1, 1_000_000)
    recording = run(name, Options(shard=only_the_first, import_path=(PROJECT,))).recording
    assert recording is not None
    return recording.lines


def test_every_case_has_a_row() -> None:
    """Each campaign in the folder is in exactly one table, and each row has its campaign."""
    assert sorted([*BROKEN, *FIXED]) == sorted(found_cases())


@pytest.mark.parametrize("name", sorted(CAUGHT))
def test_broken_store_is_caught(name: str) -> None:
    """Process death finds the bug: by this invariant, in this step, first at this boundary."""
    result = result_of(name)

    found = [
        (each.kind, each.violation.invariant, each.step, each.line) for each in result.findings
    ]
    expected = [("violated", *cause) for cause in CAUGHT[name]]
    assert expected == found
    assert result.exit_code == EXIT_VIOLATED


@pytest.mark.parametrize("name", FIXED)
def test_fixed_twin_survives(name: str) -> None:
    """The repaired store survives a death at each of its boundaries; some are not mere marks."""
    result = result_of(name)

    recording = result.recording
    assert recording is not None
    assert any(not boundary.is_mark for boundary in recording.boundaries)
    assert len(recording.lines) == result.count("survived")
    assert (result.inconclusive, result.findings, result.exit_code) == SURVIVED


@pytest.mark.parametrize("name", sorted(BLIND))
def test_what_process_death_cannot_show_survives(name: str) -> None:
    """
    A bug that only another fault model shows survives, which is right, and its checks are awake.

    Each of these campaigns has a `spoil` that makes what the named fault model may leave. The
    self-test recovers and judges that; were it judged right, the campaign would be inconclusive.
    """
    result = result_of(name)

    recording = result.recording
    assert recording is not None
    assert "spoil" in overridden(name)
    assert len(recording.lines) == result.count("survived")
    assert (result.inconclusive, result.findings, result.exit_code) == SURVIVED


@pytest.mark.parametrize(
    "name", sorted(name for name, needs in BLIND.items() if needs in ("power-loss", "io-error"))
)
def test_blind_twins_differ_in_syncs_only(name: str) -> None:
    """Without their syncs the twins make the same calls, so no process death can part them."""
    twin = name.partition(":")[0] + ":Fixed"

    assert unsynced(lines_of(twin)) == unsynced(lines_of(name))


@pytest.mark.parametrize("name", sorted(INCONCLUSIVE))
def test_what_proves_nothing_is_inconclusive(name: str) -> None:
    """A workload that stores nothing, or differs from run to run, is never called passed."""
    result = result_of(name)

    assert INCONCLUSIVE[name] == str(result.inconclusive)[: len(INCONCLUSIVE[name])]
    assert (len(result.findings), result.exit_code) == (0, EXIT_INCONCLUSIVE)


def test_survival_is_not_called_durable() -> None:
    """WAL without syncs survives process death; the report says that this is all it says."""
    command = [sys.executable, "-m", "harness.cli", "run", "--jobs", "1"]
    target = "tests/quality/cases/acknowledged_commit_is_synced.py:Broken"

    ended = subprocess.run([*command, target], cwd=PROJECT, capture_output=True, text=True)

    assert ended.returncode == EXIT_SURVIVED, ended.stderr
    assert "says nothing about power loss" in ended.stdout
    assert "durable" not in ended.stdout.lower()


def test_readme_has_the_same_rows() -> None:
    """The table for people names each broken store, what finds it, and what it needs."""
    rows = {}
    for line in (CASES / "README.md").read_text().splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if re.fullmatch(r"[a-z_]+:[A-Z]\w+", cells[0]):
            rows[cells[0]] = tuple(cells[2:4])

    assert {name: readme_cells(name) for name in BROKEN} == rows


def test_track_record_has_each_bug_that_is_found() -> None:
    """The record names each store that is caught, by what, and the command that shows it."""
    rows = []
    for line in (PROJECT / "campaigns/TRACK_RECORD.md").read_text().splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if cells[-1].startswith("crashconform run tests/quality/cases/"):
            rows.append((cells[1], cells[2], cells[-1]))

    expected = []
    for name in CAUGHT:
        module, _, class_name = name.partition(":")
        command = f"crashconform run tests/quality/cases/{module}.py:{class_name}"
        expected.append((name, CAUGHT[name][0][0], command))
    assert sorted(expected) == sorted(rows)


def readme_cells(name: str) -> tuple[str, str]:
    """Return what the table for people says of one broken store: needs, found by."""
    if name in BLIND:
        return BLIND[name], "survives"
    if name in INCONCLUSIVE:
        return "any", "inconclusive"
    invariant = CAUGHT[name][0][0]
    return ("no crash" if CAUGHT[name][0][2] == "" else "process-death"), invariant


def unsynced(lines: list[str]) -> list[str]:
    """Return a trace without its syncs, and without the pragma that asks SQLite for them."""
    return [line for line in lines if "_sync " not in line and "pragma synchronous" not in line]


def overridden(name: str) -> set[str]:
    """Return the methods of Campaign that a case replaces."""
    module, _, class_name = name.partition(":")
    spec = importlib.util.spec_from_file_location(module, CASES / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    kind = getattr(loaded, class_name)
    return {x for x in vars(Campaign) if getattr(kind, x) is not getattr(Campaign, x)}
