"""Broken twins of the stores: the campaigns catch each, by the crash and by the right name."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from twins import metabolism_uncaught, uncaught
from twins.catalogue import METABOLISM, RUN_STORE, TWINS, UNCAUGHT
from twins.exploring import explored, near
from twins.twin import REPOSITORY, Patch, PatchRefused, Twin, plant

from harness.client import ZygoteClient
from harness.errors import ConfigurationError
from harness.runner import Options, open_worker
from harness.subset import representative
from harness.workdir import Workdir

CAUGHT_BY_THE_SUBSET = {RUN_STORE: 21, METABOLISM: 18}
"""How many twins of a store the representative subset caught when they were measured."""

CAMPAIGNS = sorted({twin.campaign for twin in TWINS.values()})

WHERE = '''
"""Tells which files were imported."""
import sys
import store.metabolism
import store.run_store
from harness import UNCHANGED, Campaign

class Where(Campaign):
    def execute(self, root, run):
        run.step("nothing", lambda: None, then=UNCHANGED)

    def observe(self, root):
        ours = ("store", "campaigns")
        return sorted(m.__file__ for n, m in sys.modules.items() if n.split(".")[0] in ours)
'''


@pytest.mark.slow
@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_twin_is_caught_only_by_crashing(twin: Twin, tmp_path: Path) -> None:
    """A twin passes its control run, and crashes beside its bug break just what it should."""
    is_harmless = twin.harmless_from is not None and (
        sqlite3.sqlite_version_info >= twin.harmless_from
    )
    with explored(plant(twin.patches, tmp_path / "tree"), twin.campaign) as exploration:
        assert exploration.result.problem is None
        recording = exploration.recording
        beside = near(recording, twin.step, twin.near)
        verdicts = exploration.examine(beside)
        findings = exploration.result.findings
        wrong = {verdict.boundary for verdict in verdicts if verdict.kind == "violated"}
        assert {v.boundary for v in verdicts if v.kind != "survived"} == wrong
        if is_harmless:
            assert findings == []
            return
        assert {finding.violation.invariant for finding in findings} == twin.invariants
        assert {finding.step for finding in findings} == {twin.step}
        assert wrong == {k for finding in findings for k in finding.boundaries}
        subset = representative(recording)
        first = exploration.first_wrong(
            sorted(subset, key=lambda k: (recording.step_at(k) != twin.step, k))
        )
        assert (first is not None) == twin.is_representative


@pytest.mark.slow
@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_untouched_store_passes_where_its_twins_fail(campaign: str, tmp_path: Path) -> None:
    """The store without a patch survives beside the same lines of the same campaigns."""
    with explored(plant((), tmp_path / "tree"), campaign) as exploration:
        assert exploration.result.problem is None
        recording = exploration.recording
        boundaries: set[int] = set()
        for twin in TWINS.values():
            if twin.campaign == campaign:
                beside = near(recording, twin.step, twin.near, otherwise="after step")
                boundaries |= set(beside)
        verdicts = exploration.examine(boundaries)
        assert len(verdicts) == len(boundaries) > 0
        assert {verdict.kind for verdict in verdicts} == {"survived"}


@pytest.mark.parametrize("twins", CAUGHT_BY_THE_SUBSET, ids=["run store", "metabolism"])
def test_representative_subset_catches_most_twins(twins: tuple[Twin, ...]) -> None:
    """Of at least fifteen twins of a store the subset catches as many as were measured."""
    assert len(twins) >= 15
    assert sum(twin.is_representative for twin in twins) >= CAUGHT_BY_THE_SUBSET[twins]


def test_names_of_twins_are_unique() -> None:
    """No twin hides another, caught or not, of either store."""
    assert len({*TWINS, *UNCAUGHT}) == len(RUN_STORE) + len(METABOLISM) + len(UNCAUGHT)
    assert len(UNCAUGHT) == len(uncaught.UNCAUGHT) + len(metabolism_uncaught.UNCAUGHT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict", "invariant"),
    [
        ("lock_file_unlinked", "violated", "promise initialized"),
        ("probe_named_at_random", "inconclusive", "same_trace"),
        ("probe_named_by_pid", "inconclusive", "same_trace"),
        ("contradiction_edits_its_assertion", "violated", "I1-07 the log only grows"),
        ("ambiguous_given_back_too", "violated", "I1-10 reconciliation changes nothing"),
        ("findings_left_in_the_folder", "violated", "I1-10 reconciliation changes nothing"),
        ("first_line_waits_for_the_second", "violated", "a run that names a log has one"),
    ],
)
def test_some_twins_need_no_crash(name: str, verdict: str, invariant: str, tmp_path: Path) -> None:
    """What is wrong at once needs no crash; a random name makes every crash worthless."""
    twin = UNCAUGHT[name]
    with explored(plant(twin.patches, tmp_path / "tree"), twin.campaign) as exploration:
        problem = exploration.result.problem
        assert problem is not None
        assert (problem.verdict, problem.invariant) == (verdict, invariant)


@pytest.mark.slow
def test_rename_that_replaces_is_refused_by_the_store(tmp_path: Path) -> None:
    """A rename that replaces does not get as far as a crash: the probe of the first open fails."""
    twin = UNCAUGHT["rename_that_replaces"]
    tree = plant(twin.patches, tmp_path / "tree")
    with (
        pytest.raises(ConfigurationError, match="ProbeFailed: probe='rename'"),
        explored(tree, twin.campaign),
    ):
        pytest.fail("the store opened")


def test_every_patch_matches_once(tmp_path: Path) -> None:
    """Each twin can be planted in the present store, the uncaught ones included."""
    for name, twin in [*TWINS.items(), *UNCAUGHT.items()]:
        assert plant(twin.patches, tmp_path / name) == (tmp_path / name).resolve()


@pytest.mark.parametrize("old", ["no such text", "import"], ids=["never", "often"])
def test_patch_that_does_not_match_once_is_refused(old: str, tmp_path: Path) -> None:
    """A patch that matches nothing, or several places, is an error and no untouched store."""
    patch = Patch("store/run_store/writer.py", old, "")
    with pytest.raises(PatchRefused, match="must hold this exactly once"):
        plant((patch,), tmp_path / "tree")


@pytest.mark.slow
def test_what_runs_is_the_planted_tree(tmp_path: Path) -> None:
    """Every module of store and campaigns that a worker imports is a file of the twin's tree."""
    tree = plant((), tmp_path / "tree")
    (tree / "campaigns" / "where.py").write_text(WHERE)
    with ZygoteClient((tree,)) as finder:
        [found] = finder.list(["campaigns.where"], tree)
    with (
        Workdir.choose(None, 1) as workdir,
        open_worker(found, workdir, 0, Options(import_path=(tree,))) as worker,
    ):
        files = worker.call("trace")["observed"]
    assert str(tree / "store" / "run_store" / "writer.py") in files
    assert [file for file in files if not file.startswith(f"{tree}/")] == []


def test_tree_without_its_store_is_refused(tmp_path: Path) -> None:
    """Campaigns of a twin's tree do not run beside the store that is installed."""
    tree = plant((), tmp_path / "tree")
    shutil.rmtree(tree / "store")
    with (
        ZygoteClient((tree,)) as finder,
        pytest.raises(ConfigurationError, match="the store of this tree was wanted"),
    ):
        finder.list(["campaigns.run_store"], tree)


def measured_rows() -> dict[str, list[str]]:
    """Return README.md's table lines: the twin's name, then the cells after it."""
    text = (REPOSITORY / "tests" / "quality" / "twins" / "README.md").read_text()
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line] for line in lines]
    names = [row[0] for row in rows if row[0] not in ("twin", "---")]
    assert sorted([*TWINS, *UNCAUGHT]) == sorted(names)
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_measured_table_says_what_the_twin_says(twin: Twin) -> None:
    """What whole campaigns reported is what the twin is declared, and tested, to be caught by."""
    campaign, _, step, broken, subset = measured_rows()[twin.name]
    assert (twin.campaign.rpartition(":")[2], twin.step) == (campaign, step)
    assert twin.invariants | twin.everywhere == set(broken.split(", "))
    assert twin.is_representative == (subset.split(" of ")[0] != "0")


def test_measured_table_has_no_crash_of_an_uncaught_twin() -> None:
    """A twin that some crash shows has no place among the uncaught ones."""
    for name, twin in UNCAUGHT.items():
        _, violated, _, broken, _ = measured_rows()[name]
        if twin.outcome == "survives":
            assert (violated.split(" of ")[0], broken) == ("0", "nothing"), name
        else:
            told = {"no crash needed": "violated without a crash"}.get(twin.outcome, twin.outcome)
            assert violated == "-", name
            assert broken.startswith(told), name
