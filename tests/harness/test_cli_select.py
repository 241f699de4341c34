"""How campaigns are named on the command line, and what is said of a wrong name."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_project import MIGRATION, NOTHING, SAVING, SETTINGS, Project, make_project

from harness.cli.selection import EXAMPLE, select
from harness.errors import ConfigurationError

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with three modules, one with two campaigns and one in a folder."""
    project = make_project(tmp_path / "project")
    project.add("both.py", MIGRATION, NOTHING)
    project.add("run_store/transitions.py", SETTINGS.replace("Settings", "Transitions"))
    return project


ALL = ["both:Migration", "both:Nothing", "run_store/transitions", "settings"]


def names(project: Project, *arguments: str, inside: str = "") -> list[str]:
    """Return the names that arguments select."""
    selection = select(arguments, project.folder / inside)
    return [found.name for found in selection.campaigns]


def test_list_prints_every_campaign_with_its_docstring(project: Project) -> None:
    """Names come sorted, in groups by folder, and the first line of each docstring."""
    done = project.run("list")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if line] == ALL
    assert "" in lines
    assert lines[-1] == "settings               Settings are replaced as a whole."


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("settings", ["settings"]),
        ("both:Nothing", ["both:Nothing"]),
        ("both", ["both:Migration", "both:Nothing"]),
        ("run_store", ["run_store/transitions"]),
        ("run_store/", ["run_store/transitions"]),
        ("Transitions", ["run_store/transitions"]),
        ("Migr", ["both:Migration"]),
        ("campaigns/both.py", ["both:Migration", "both:Nothing"]),
        ("campaigns/both.py:Migration", ["both:Migration"]),
        ("campaigns/run_store", ["run_store/transitions"]),
        (".", ALL),
    ],
)
def test_configured_campaign_is_found(project: Project, argument: str, expected: list[str]) -> None:
    """Name, folder, class, part of a class, and path all find configured campaigns."""
    assert names(project, argument) == expected


def test_campaigns_are_found_from_a_folder_below(project: Project) -> None:
    """The nearest pyproject.toml above counts; paths are relative to the current folder."""
    assert names(project, inside="campaigns") == ALL
    assert names(project, "both.py:Nothing", inside="campaigns") == ["both:Nothing"]


def test_each_campaign_is_selected_once(project: Project) -> None:
    """Arguments that overlap do not run a campaign twice."""
    assert names(project, "settings", "Settings", "both", "Migration") == [
        "settings",
        "both:Migration",
        "both:Nothing",
    ]


def test_campaign_outside_of_the_configuration_is_found_by_path(project: Project) -> None:
    """A file, a folder and a class in a file are named so that the name finds them again."""
    extra = project.folder / "extra"
    extra.mkdir()
    (extra / "one.py").write_text(SAVING + SETTINGS + NOTHING)
    expected = ["extra/one.py:Nothing", "extra/one.py:Settings"]
    assert names(project, "extra/one.py") == expected
    assert names(project, "extra") == expected
    assert names(project, "extra/one.py:Nothing") == expected[:1]
    assert names(project, str(extra / "one.py:Nothing")) == [f"{extra}/one.py:Nothing"]


def test_campaign_outside_of_the_configuration_is_found_by_module(project: Project) -> None:
    """``module:Class`` is imported from the project's folder."""
    (project.folder / "extra_module.py").write_text(SAVING + SETTINGS + NOTHING)
    assert names(project, "extra_module:Nothing") == ["extra_module:Nothing"]


@pytest.mark.parametrize("argument", ["setings", "run_store/transition", "bth:Migration", "x.y"])
def test_wrong_name_says_what_exists(project: Project, argument: str) -> None:
    """Every campaign is listed, the closest match first."""
    with pytest.raises(ConfigurationError) as caught:
        names(project, argument)
    message = str(caught.value)
    assert all(f"\n  {name}" in message for name in ALL)
    if argument == "setings":
        assert "Did you mean 'settings'?" in message
        assert message.splitlines()[1] == "  settings"


def test_wrong_class_in_a_right_file_is_refused(project: Project) -> None:
    """A class that is not in the file is a configuration error, not a silent pass."""
    with pytest.raises(ConfigurationError):
        names(project, "campaigns/both.py:Missing")


def test_missing_file_is_refused(project: Project) -> None:
    """A path that does not exist is said not to exist."""
    with pytest.raises(ConfigurationError, match=r"does not exist"):
        names(project, "missing/file.py")


def test_name_of_several_campaigns_is_refused_where_one_is_needed(project: Project) -> None:
    """``replay`` and ``trace`` take one campaign and say which there are."""
    done = project.run("trace", "both")
    assert done.returncode == 2
    assert "names several campaigns" in done.stderr
    assert "  both:Nothing" in done.stderr


def test_nothing_configured_shows_a_campaign_that_runs(tmp_path: Path) -> None:
    """
    Whoever has no campaign is shown one, and the table; both work when written down.

    Also without ``__init__.py``, here where an installed package is named campaigns as well.
    """
    done = Project(tmp_path).run("run")
    assert done.returncode == 2
    assert done.stderr.startswith("crashconform: error: no campaigns: no pyproject.toml")
    assert "[tool.crashconform]" in done.stderr
    assert all(line in done.stderr for line in EXAMPLE.splitlines())
    (tmp_path / "campaigns").mkdir()
    (tmp_path / "campaigns" / "notes.py").write_text(EXAMPLE)
    (tmp_path / "pyproject.toml").write_text('[tool.crashconform]\ncampaigns = ["campaigns"]\n')
    assert Project(tmp_path).run("run").returncode == 0


@pytest.fixture
def broken(project: Project) -> Project:
    """The project, with a module that has a syntax error."""
    project.add("run_store/broken.py", "\nclass Broken(Campaign:\n")
    return project


def test_module_that_cannot_be_imported_is_told_and_the_rest_is_listed(broken: Project) -> None:
    """A syntax error names file and line on standard error, and exits 2; nothing else is lost."""
    done = broken.run("list")
    assert done.returncode == 2
    assert [line.split()[0] for line in done.stdout.splitlines() if line] == ALL
    assert done.stderr.startswith("crashconform: error: ")
    assert 'run_store/broken.py", line ' in done.stderr
    assert "SyntaxError" in done.stderr


@pytest.mark.parametrize("argument", ["settings", "run_store/transitions", "Transitions"])
def test_other_campaigns_are_chosen_beside_a_module_that_cannot_be_imported(
    broken: Project, argument: str
) -> None:
    """Whoever names a healthy campaign does not hear of the broken module."""
    done = broken.run("run", argument, "--shard", "1/8")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [(), ("run_store",), ("settings", "campaigns/run_store")])
def test_run_over_a_module_that_cannot_be_imported_runs_the_others(
    broken: Project, arguments: tuple[str, ...]
) -> None:
    """Everything that can run is run, the error is told once, and the exit code is 2."""
    (broken.folder / "campaigns" / "both.py").unlink()
    code, report = broken.report(*arguments, "--shard", "1/8")
    assert code == 2
    assert all(one["survived"] == one["boundaries"] > 0 for one in report["campaigns"])
    assert "run_store/transitions" in [one["name"] for one in report["campaigns"]]
    done = broken.run("run", *arguments, "--shard", "1/8")
    assert done.stderr.count("SyntaxError") == 1
    assert "\nnot run, since it cannot be imported: run_store/broken\nERROR: " in done.stdout


@pytest.mark.parametrize(
    "argument", ["run_store/broken", "run_store/broken:Broken", "campaigns/run_store/broken.py"]
)
def test_module_that_cannot_be_imported_is_told_where_it_is_named(
    broken: Project, argument: str
) -> None:
    """Nothing but the broken module was asked for: the reason, and nothing is run."""
    done = broken.run("run", argument)
    assert (done.returncode, done.stdout) == (2, "")
    assert "SyntaxError" in done.stderr


def test_wrong_name_says_what_could_not_be_listed(broken: Project) -> None:
    """A class in a broken module is not found: the message says where it may be."""
    done = broken.run("run", "Broken")
    assert done.returncode == 2
    assert "Of run_store/broken nothing can be listed" in done.stderr


def test_import_that_ends_the_process_is_told(project: Project) -> None:
    """A module that calls sys.exit is reported as the end of a worker, and exits 3."""
    project.add("leaving.py", "\nimport sys; print('leaving now'); sys.exit(4)\n")
    done = project.run("list")
    assert done.returncode == 3
    assert done.stderr.startswith("crashconform: error: a worker process of the harness ended")
    assert "leaving now" in done.stderr
