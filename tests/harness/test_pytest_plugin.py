"""Campaigns as tests: which items there are, how they are chosen and shared, and what they cost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pytest_project import CAMPAIGNS, HEAD, Project

from harness.configuration import Project as Configured
from harness.pytest_places import may_hold_campaigns

slow = pytest.mark.slow
GOOD = "campaigns/good.py::Good::"
REPRESENTATIVE = [
    "self-test",
    "0002-before-write-s.json.new",
    "0005-after-file_sync-s.json.new",
    "0007-after-rename-s.json.new-s.json",
    "0008-after-step-save-1",
    "0010-before-write-s.json.new",
    "0013-after-file_sync-s.json.new",
    "0015-after-rename-s.json.new-s.json",
    "0016-after-step-save-2",
    "0017-end",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with one right campaign, and an ordinary test."""
    project = Project(tmp_path_factory.mktemp("project"), "good")
    project.write("test_ordinary.py", "def test_ordinary(): pass\n")
    return project


def collected(project: Project, *arguments: str) -> list[str]:
    """Return the node ids of a run that only collects."""
    ran = project.run("--collect-only", "-q", *arguments)
    assert ran.status == pytest.ExitCode.OK, ran.output
    return ran.collected


@slow
def test_ids_are_stable_and_readable(project: Project) -> None:
    """Path, class and boundary make an id, the same for a folder and for a file."""
    expected = [GOOD + name for name in REPRESENTATIVE]
    assert collected(project, "campaigns") == expected
    assert collected(project, "campaigns/good.py") == expected


@slow
def test_shards_of_all_boundaries_are_disjoint_and_complete(project: Project) -> None:
    """Exhaustively each boundary is in exactly one shard, and each shard has the self-test."""
    shards = [
        collected(project, "--crash=exhaustive", f"--crash-shard={index}/2", "campaigns")
        for index in (1, 2)
    ]
    counts = Counter(name.removeprefix(GOOD) for shard in shards for name in shard)
    assert counts.pop("self-test") == 2
    assert set(counts.values()) == {1}
    numbers = sorted(int(name.partition("-")[0]) for name in counts)
    assert numbers == list(range(1, 18))
    assert set(REPRESENTATIVE[1:]) < counts.keys()


@slow
def test_none_collects_no_campaign(project: Project) -> None:
    """With --crash=none a campaign is no test and not imported, not even where it is named."""
    ran = project.run("--crash=none", "campaigns/good.py", "test_ordinary.py")
    assert ran.outcomes == {"test_ordinary::test_ordinary": "passed"}


@slow
def test_a_keyword_selects_boundaries(project: Project) -> None:
    """An expression for -k matches in a boundary's id."""
    ran = project.run("-k", "rename or end")
    assert ran.outcomes == {
        "Good::0007-after-rename-s.json.new-s.json": "passed",
        "Good::0015-after-rename-s.json.new-s.json": "passed",
        "Good::0017-end": "passed",
    }
    assert ran.summary == [
        "crashconform: 3 of 17 boundaries (representative), process-death, 3 survived; "
        "this says nothing about power loss"
    ]


@slow
def test_a_boundary_is_found_by_its_id_whatever_the_subset(project: Project) -> None:
    """The id that an exhaustive run printed is a test without --crash=exhaustive as well."""
    ran = project.run(f"{GOOD}0004-before-file_sync-s.json.new")
    assert ran.outcomes == {"Good::0004-before-file_sync-s.json.new": "passed"}


@slow
def test_workers_share_one_recording_and_leave_nothing(tmp_path: Path) -> None:
    """Two workers of xdist run the items of one, record once, and compare with the recording."""
    project = Project(tmp_path, "good")
    ran = project.run("-n", "2", "--crash=exhaustive", "campaigns")
    assert Counter(ran.outcomes.values()) == {"passed": 18}
    assert len(ran.outcomes) == 18
    # Two zygotes record; the one of each worker then takes over. Without sharing it were six.
    prepared = project.prepared("Good")
    assert len(prepared) == 4
    assert len(set(prepared)) == 4
    assert ran.summary == [
        "crashconform: 17 of 17 boundaries (exhaustive), process-death, 17 survived; "
        "this says nothing about power loss"
    ]


@slow
def test_the_last_failures_are_run_again(tmp_path: Path) -> None:
    """--lf runs what failed, also where that is not in the subset any more; -x stops at it."""
    project = Project(tmp_path, "good", "deadly")
    failing = "Deadly::0003-after-write-s.json.new"
    first = project.run("--crash=exhaustive", "-x", "-k", "0003 or 0004", "campaigns/deadly.py")
    assert first.outcomes == {failing: "failure"}
    assert project.run("--lf", "campaigns").outcomes == {failing: "failure"}


@slow
def test_no_other_plugin_imports_a_campaign(tmp_path: Path) -> None:
    """
    A campaign stays unimported where it looks like a test, is a doctest, or is named.

    Also: without cache and xdist, in importlib mode, with warnings as errors, coverage's settings
    in the environment, and without a byte written into the source tree.
    """
    project = Project(tmp_path)
    project.write("campaigns/test_good.py", HEAD + CAMPAIGNS["good"] + GUARD)
    before = sorted(tmp_path.rglob("*"))
    ran = project.run(
        "--import-mode=importlib",
        *("-p", "no:cacheprovider", "-p", "no:xdist", "-W", "error", "--doctest-modules"),
        "campaigns/test_good.py",
        PYTEST_ADDOPTS="-q",
        COV_CORE_SOURCE="harness",
        PYTHONDONTWRITEBYTECODE="1",
    )
    assert ran.outcomes == dict.fromkeys((f"Good::{name}" for name in REPRESENTATIVE), "passed")
    (tmp_path / "Good.prepared").unlink()
    assert sorted(tmp_path.rglob("*")) == before


GUARD = """
assert not [name for name in os.environ if name.startswith(("PYTEST_", "COV_"))]
"""


@slow
def test_a_project_without_our_table_pays_nothing(tmp_path: Path) -> None:
    """No part that runs campaigns is imported, and an option of ours is a usage error."""
    project = Project(tmp_path, table="[tool.other]\n")
    project.write("test_imports.py", IMPORTS)
    ran = project.run()
    assert ran.outcomes == {"test_imports::test_imports": "passed"}
    assert ran.summary == []
    given = project.run("--crash=exhaustive")
    assert given.status == pytest.ExitCode.USAGE_ERROR
    assert "--crash options need campaigns" in given.output


IMPORTS = """
import sys
def test_imports():
    ours = {name for name in sys.modules if name.startswith("harness.pytest_")}
    assert ours == {"harness.pytest_plugin"}
    assert not {"harness.runner", "harness.client", "harness.workspace"} & sys.modules.keys()
"""


@slow
@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--crash=everything", "invalid choice: 'everything'"),
        ("--crash-shard=9/8", "'9/8' must be I/N with 1 <= I <= N"),
        ("--crash-shard=half", "'half' must be I/N"),
        ("--crash-timeout=0", "'0' must be a number of seconds above 0"),
        ("--crash-workdir=missing", "missing is not a directory"),
    ],
)
def test_a_wrong_option_is_a_usage_error(project: Project, argument: str, words: str) -> None:
    """A wrong value stops the run at once and says what is right."""
    ran = project.run(argument)
    assert ran.status == pytest.ExitCode.USAGE_ERROR
    assert words in ran.output


@pytest.mark.parametrize(
    ("target", "path", "expected"),
    [
        ("campaigns", "campaigns/a.py", True),
        ("campaigns", "campaigns/deep/a.py", True),
        ("campaigns", "tests/campaigns/a.py", False),
        ("campaigns", "campaigns_too/a.py", False),
        ("campaigns.deep", "campaigns/deep", True),
        ("campaigns.deep", "campaigns/a.py", False),
        ("campaigns.a", "campaigns/a.py", True),
        ("campaigns.a:Class", "campaigns/a.py", True),
        ("campaigns/deep/b.py:Class", "campaigns/deep/b.py", True),
        ("./campaigns", "campaigns/a.py", True),
        ("elsewhere.a", "src/elsewhere/a.py", True),
        ("elsewhere.a", "src/elsewhere/b.py", False),
        ("elsewhere", "tests/test_a.py", False),
    ],
)
def test_only_what_a_target_names_is_looked_into(
    tmp_path: Path, target: str, path: str, expected: bool
) -> None:
    """A file that no target can mean costs no zygote."""
    for name in ("campaigns/deep/b.py", "campaigns/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    configured = Configured(tmp_path, (target,))
    assert may_hold_campaigns(configured, tmp_path / path) == expected
