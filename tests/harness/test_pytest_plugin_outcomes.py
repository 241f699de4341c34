"""How campaigns end as tests: each verdict, what is said of it, and what is left behind."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from pytest_project import CAMPAIGNS, HEAD, TABLE, Project, Ran

pytestmark = pytest.mark.slow

GIVE_UP_SECONDS = 60
ALL = ("deadly", "drifting", "good", "lossy", "nothing", "torn", "wrong")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One run over campaigns of every kind but the hanging one, and an ordinary test."""
    project = Project(tmp_path_factory.mktemp("outcomes"), *ALL)
    project.write("test_ordinary.py", "def test_ordinary(): pass\n")
    return project.run()


def outcomes(ran: Ran, name: str) -> dict[str, str]:
    """Return the outcomes of one campaign's items."""
    return {
        item.partition("::")[2]: outcome
        for item, outcome in ran.outcomes.items()
        if item.startswith(f"{name}::")
    }


def test_a_surviving_campaign_passes(ran: Ran) -> None:
    """The self-test and every chosen boundary of a right store pass."""
    expected = [
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
    assert outcomes(ran, "Good") == dict.fromkeys(expected, "passed")


def test_ordinary_tests_run_beside_campaigns(ran: Ran) -> None:
    """A test function in the same run passes as ever."""
    assert ran.outcomes["test_ordinary::test_ordinary"] == "passed"


def test_a_violation_is_told_as_the_command_line_tells_it(ran: Ran) -> None:
    """A failing boundary shows the whole finding with its replay, and no traceback of ours."""
    failed = {
        k: v for k, v in ran.cases.items() if k.startswith("Torn::") and v.outcome != "passed"
    }
    assert failed, "the torn write was not found"
    for name, case in failed.items():
        number = int(re.findall(r"::(\d+)-", name)[0])
        assert case.text.startswith("Violated: FAIL torn  broke invariant `observable`")
        assert f"boundary {number}/" in case.text
        assert 'step "overwrite"  fault process-death' in case.text
        assert "\n          1  before step overwrite\n" in case.text
        assert "\n       writing in place\n" in case.text
        assert f"replay crashconform replay torn@{number}" in case.text
        assert "pytest_items.py" not in case.text


@pytest.mark.parametrize(
    ("name", "head", "words"),
    [
        ("Nothing", "Inconclusive: INCONCLUSIVE nothing  ", "no boundary of the store was seen"),
        ("Wrong", "ConfigurationError: ERROR wrong  ", "name 'no_such_name' is not defined"),
        ("Lossy", "Violated: FAIL lossy  ", "in the recording: step 'save 1' was acknowledged"),
    ],
)
def test_what_is_not_worth_exploring_is_one_failing_item(
    ran: Ran, name: str, head: str, words: str
) -> None:
    """Inconclusive, wrongly configured or wrong without a crash: the self-test alone says why."""
    assert outcomes(ran, name) == {"self-test": "failure"}
    text = ran.cases[f"{name}::self-test"].text
    assert text.startswith(head)
    assert words in text


def test_a_zygote_that_dies_costs_one_boundary(ran: Ran) -> None:
    """The boundary at which a worker is killed fails and says so; the others have a new worker."""
    assert outcomes(ran, "Deadly") == {
        "self-test": "passed",
        "0002-before-write-s.json.new": "failure",
        "0005-after-file_sync-s.json.new": "failure",
        "0007-after-rename-s.json.new-s.json": "passed",
        "0008-after-step-save-1": "passed",
        "0010-before-write-s.json.new": "failure",
        "0013-after-file_sync-s.json.new": "failure",
        "0015-after-rename-s.json.new-s.json": "passed",
        "0016-after-step-save-2": "passed",
        "0017-end": "passed",
    }
    text = ran.cases["Deadly::0005-after-file_sync-s.json.new"].text
    assert "ended by signal 9" in text
    assert "replay crashconform replay deadly@5" in text


def test_a_path_that_changes_after_the_recording_never_passes(ran: Ran) -> None:
    """Where a worker's own execution differs from the recording, every boundary has diverged."""
    seen = outcomes(ran, "Drifting")
    assert seen.pop("self-test") == "passed"
    assert set(seen.values()) == {"failure"}
    text = ran.cases["Drifting::0002-before-write-s.json.new"].text
    assert text.startswith("Diverged: DIVERGED drifting  took another path than recorded")
    assert text.count("Boundaries are numbered, so the workload must be deterministic") == 1


def test_every_report_names_campaign_boundary_fault_and_verdict(ran: Ran) -> None:
    """JUnit properties say what was explored, under which fault model, and what came of it."""
    assert ran.cases["Good::0005-after-file_sync-s.json.new"].properties == {
        "campaign": "good",
        "boundary": "5",
        "boundaries": "17",
        "fault": "process-death",
        "verdict": "survived",
    }
    assert ran.cases["Good::self-test"].properties == {
        "campaign": "good",
        "boundaries": "17",
        "fault": "process-death",
        "verdict": "passed",
    }
    verdicts: dict[str, set[str]] = {}
    for name, case in ran.cases.items():
        owner = name.partition("::")[0]
        verdicts.setdefault(owner, set()).add(case.properties.get("verdict", ""))
    assert verdicts == {
        "test_ordinary": {""},
        "Good": {"passed", "survived"},
        "Torn": {"passed", "survived", "violated"},
        "Nothing": {"inconclusive"},
        "Wrong": {"configuration error"},
        "Lossy": {"violated"},
        "Deadly": {"passed", "survived", "errored"},
        "Drifting": {"passed", "diverged"},
    }


def test_the_summary_counts_and_names_the_fault_model(ran: Ran) -> None:
    """The last line counts boundaries and verdicts, as the properties do, and claims no more."""
    explored = [case.properties for case in ran.cases.values() if "boundary" in case.properties]
    counts = Counter(one["verdict"] for one in explored)
    in_traces = {one["campaign"]: int(one["boundaries"]) for one in explored}
    kinds = ("survived", "violated", "diverged", "errored")
    assert ran.summary == [
        f"crashconform: {len(explored)} of {sum(in_traces.values())} boundaries (representative), "
        f"process-death, {', '.join(f'{counts[kind]} {kind}' for kind in kinds)}; "
        "self-tests: 1 configuration error, 1 inconclusive, 1 violated; "
        "this says nothing about power loss"
    ]
    assert ran.status == pytest.ExitCode.TESTS_FAILED


def test_a_hanging_store_fails_within_the_timeout(tmp_path: Path) -> None:
    """A recovery that does not return is hung, shows its stack, and repeats the timeout."""
    project = Project(tmp_path, "hanging")
    ran = project.run("-k", "0005 or 0017", "--crash-timeout=3")
    assert ran.outcomes == {
        "Hanging::0005-after-file_sync-s.json.new": "failure",
        "Hanging::0017-end": "passed",
    }
    case = ran.cases["Hanging::0005-after-file_sync-s.json.new"]
    assert case.properties["verdict"] == "hung"
    assert case.text.startswith("Hung: FAIL hanging  hung in recovery (invariant `recovers`)")
    assert "in recover" in case.text
    assert f"replay hanging@5 --timeout 3 --workdir {project.workdir}" in case.text


def test_a_campaign_that_cannot_be_imported_is_one_failing_item(tmp_path: Path) -> None:
    """One item of its file says why; other campaigns and ordinary tests still run."""
    project = Project(tmp_path, "good")
    project.write("campaigns/broken.py", "import no_such_module\n")
    project.write("test_ordinary.py", "def test_ordinary(): pass\n")
    ran = project.run("-k", "configuration or 0017-end or ordinary")
    assert ran.outcomes == {
        "broken::configuration": "failure",
        "Good::0017-end": "passed",
        "test_ordinary::test_ordinary": "passed",
    }
    assert "No module named 'no_such_module'" in ran.cases["broken::configuration"].text
    asked = project.run("campaigns/broken.py::Broken::0017-end")
    assert asked.status == pytest.ExitCode.USAGE_ERROR
    assert "No module named 'no_such_module'" in asked.output


def test_an_installed_package_does_not_hide_the_projects_folder(tmp_path: Path) -> None:
    """A folder without __init__.py wins, also over a package in an environment below it."""
    project = Project(tmp_path, "good")
    (tmp_path / "campaigns" / "__init__.py").unlink()
    installed = tmp_path / "installed"
    (installed / "campaigns").mkdir(parents=True)
    (installed / "campaigns" / "__init__.py").touch()
    (installed / "campaigns" / "theirs.py").write_text(HEAD + CAMPAIGNS["good"])
    ran = project.run("campaigns", "-k", "0017-end", PYTHONPATH=str(installed))
    assert ran.outcomes == {"Good::0017-end": "passed"}


def test_campaigns_of_another_place_are_refused(tmp_path: Path) -> None:
    """A package that has modules from elsewhere is told, rather than these never run."""
    project = Project(tmp_path, "good")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "theirs.py").write_text(HEAD + CAMPAIGNS["good"])
    project.write("campaigns/__init__.py", f"__path__.append({str(elsewhere)!r})\n")
    ran = project.run("campaigns")
    assert ran.outcomes == {"__init__::configuration": "failure"}
    assert "so pytest does not collect that file" in ran.cases["__init__::configuration"].text


def wait_for_file(path: Path) -> int:
    """Return the number that a process wrote into a file."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)
    return int(path.read_text())


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Ctrl-C in the middle of an examination ends every process and removes the work folder."""
    project = Project(tmp_path, "hanging")
    with project.start("campaigns", *arguments) as process:
        zygote = wait_for_file(tmp_path / "hanging.pid")
        assert zygote in project.processes()
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=GIVE_UP_SECONDS)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "INTERNALERROR" not in output
    wait_for_no_process(project)
    assert project.leftovers() == []


def wait_for_no_process(project: Project) -> None:
    """Return when every process of the project is gone."""
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while project.processes():
        assert time.monotonic() < deadline, "processes are left behind"
        time.sleep(0.01)


def test_a_killed_pytest_takes_its_zygotes_along(tmp_path: Path) -> None:
    """After SIGKILL every process ends, and the next run removes the folder that was left."""
    project = Project(tmp_path, "good", "hanging")
    with project.start("campaigns/hanging.py") as process:
        wait_for_file(tmp_path / "hanging.pid")
        process.kill()
        process.communicate(timeout=GIVE_UP_SECONDS)
    wait_for_no_process(project)
    assert len(project.leftovers()) == 1
    assert project.run("-k", "Good and self-test").status == pytest.ExitCode.OK


def test_a_killed_worker_leaves_nothing_behind(tmp_path: Path) -> None:
    """A worker of xdist that ends itself is replaced, and what it had is removed."""
    project = Project(tmp_path, "good")
    kill = "import os, signal\n\ndef test_kill(): os.kill(os.getpid(), signal.SIGKILL)\n"
    project.write("test_z.py", kill)
    ran = project.run("-n", "1", "campaigns", "test_z.py")
    assert ran.outcomes.pop("test_z::test_kill") in ("failure", "error")
    assert Counter(outcomes(ran, "Good").values()) == {"passed": 10}


def test_a_wrong_table_is_a_usage_error(tmp_path: Path) -> None:
    """A table that names no campaigns stops the run and says what is wrong."""
    project = Project(tmp_path, table=TABLE.replace("campaigns =", "campaign ="))
    ran = project.run()
    assert ran.status == pytest.ExitCode.USAGE_ERROR
    assert "has the unknown keys ['campaign']" in ran.output
