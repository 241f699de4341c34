"""``crashconform run`` and ``replay``: verdicts, exit codes, reports and what a person reads."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from cli_project import (
    HANGING,
    LITTLE,
    LOST,
    MIGRATION,
    NOTHING,
    QUEUE,
    SETTINGS,
    SQL_FREE_LOSS,
    STEPLESS,
    Project,
    make_project,
)

pytestmark = pytest.mark.slow

CAMPAIGN_KEYS = {
    "name",
    "engine",
    "fault",
    "boundaries",
    "states_distinct",
    "survived",
    "violated",
    "diverged",
    "hung",
    "errored",
    "inconclusive",
    "sqlite",
    "journal_mode",
    "synchronous",
    "seconds",
    "findings",
}
FINDING_KEYS = {"verdict", "boundaries", "line", "invariant", "message", "replay"}
COUNTS = ("survived", "violated", "diverged", "hung", "errored")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with one campaign, which survives."""
    return make_project(tmp_path / "project")


def paste(project: Project, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a shell would take it."""
    program, *arguments = shlex.split(command)
    assert program == "crashconform"
    return project.run(*arguments)


def test_surviving_campaign_exits_0_and_names_its_fault_model(project: Project) -> None:
    """A pass says how many deaths were proved and never speaks of more than process death."""
    done = project.run("run", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("seed 0, fault model process-death, engine replay, jobs 1, work")
    assert "settings: 17 boundaries, 17 survived, 0 violated" in done.stdout
    assert "17 deaths proved: exit status 86, boundary, trace prefix" in done.stdout
    assert done.stdout.rstrip().endswith(
        "PASS: survived process death at 17 of 17 boundaries; this says nothing about power loss"
    )
    assert "durable" not in done.stdout
    assert "\x1b" not in done.stdout


def test_violated_campaign_exits_1_and_its_replay_command_too(project: Project) -> None:
    """The replay command of a finding, pasted verbatim, shows the violation again."""
    project.add("migration.py", MIGRATION)
    code, report = project.report()
    assert code == 1
    (finding,) = next(c for c in report["campaigns"] if c["name"] == "migration")["findings"]
    assert finding["verdict"] == "violated"
    assert finding["boundaries"] == [5, 6]
    assert finding["invariant"] == "recovers"
    again = paste(project, finding["replay"])
    assert again.returncode == 1, again.stderr
    assert "broke invariant `recovers`" in again.stdout


def test_finding_shows_all_its_evidence(project: Project) -> None:
    """A finding has message, trace up to the boundary, printed output, ranges and its command."""
    project.add("migration.py", MIGRATION)
    out = project.run("run", "migration").stdout
    assert (
        "FAIL migration  broke invariant `recovers`  boundary 5/9 after sql a.db: alter table t "
        'add column b  step "migrate"  fault process-death  seed 0\n' in out
    )
    assert "in recovery: recover raised OperationalError: duplicate column name: b" in out
    assert "at 2 boundaries: 5-6" in out
    assert "          5  after sql a.db: alter table t add column b" in out
    assert "       migrating\n" in out
    assert "     replay crashconform replay migration@5\n" in out


def test_json_report_is_exactly_its_schema(project: Project) -> None:
    """Every campaign has the documented keys, and its verdicts add up to its boundaries."""
    project.add("migration.py", MIGRATION)
    project.add("queue_.py", QUEUE)
    code, report = project.report()
    assert set(report) == {"schema_version", "seed", "campaigns", "exit"}
    assert (report["schema_version"], report["seed"], code) == (1, 0, 1)
    assert [c["name"] for c in report["campaigns"]] == ["migration", "queue_", "settings"]
    for campaign in report["campaigns"]:
        assert set(campaign) == CAMPAIGN_KEYS
        assert campaign["boundaries"] == sum(campaign[kind] for kind in COUNTS) > 0
        assert campaign["states_distinct"] is None
        for finding in campaign["findings"]:
            assert set(finding) == FINDING_KEYS


def test_inconclusive_campaign_exits_5_with_its_reason(project: Project) -> None:
    """A campaign without a boundary of the store never counts as passed."""
    project.add("nothing.py", NOTHING)
    code, report = project.report("nothing")
    assert code == 5
    assert "no boundary of the store was seen" in report["campaigns"][0]["inconclusive"]
    out = project.run("run", "nothing").stdout
    assert "INCONCLUSIVE nothing  no boundary of the store was seen" in out
    assert "PASS" not in out


def test_hung_recovery_exits_1_and_its_command_has_the_timeout(project: Project) -> None:
    """A recovery that never ends is found, with its stack, and replayed with the same timeout."""
    project.add("hanging.py", HANGING)
    done = project.run("run", "hanging", "--timeout", "0.5", "--jobs", "2", "--json", "r.json")
    assert done.returncode == 1, done.stderr
    assert "FAIL hanging  hung in recovery" in done.stdout
    assert re.search(r'File ".*/campaigns/hanging.py", line \d+ in recover\n', done.stdout)
    assert "/harness/verify.py" not in done.stdout
    campaign = json.loads((project.folder / "r.json").read_text())["campaigns"][0]
    assert campaign["hung"] > 0
    command = campaign["findings"][0]["replay"]
    assert command.endswith(" --timeout 0.5")
    assert paste(project, command).returncode == 1


def test_violation_without_a_crash_says_so(project: Project) -> None:
    """A store that did not store an acknowledged step is wrong at no boundary in particular."""
    project.add("loss.py", SQL_FREE_LOSS)
    done = project.run("run", "loss", "--json", "r.json")
    assert done.returncode == 1, done.stderr
    assert "without a crash:" not in done.stdout
    assert "no crash is needed" not in done.stdout
    assert 'step "write"  no crash needed  seed 0' in done.stdout
    assert "1 campaign wrong without any crash" in done.stdout
    (campaign,) = json.loads((project.folder / "r.json").read_text())["campaigns"]
    (finding,) = campaign["findings"]
    assert (campaign["boundaries"], finding["boundaries"], finding["line"]) == (0, [], "")
    assert paste(project, finding["replay"]).returncode == 1


def test_configuration_error_exits_2_and_the_others_still_run(project: Project) -> None:
    """A wrong campaign is told in one paragraph, and nothing else is lost."""
    project.add("a_stepless.py", STEPLESS)
    done = project.run("run", "--json", "r.json")
    assert done.returncode == 2
    assert done.stderr.startswith("crashconform: error: a_stepless: execute has no step;")
    assert "settings: 17 boundaries, 17 survived" in done.stdout
    report = json.loads((project.folder / "r.json").read_text())
    assert report["exit"] == 2
    assert [c["boundaries"] for c in report["campaigns"]] == [0, 17]
    assert "execute has no step" in report["campaigns"][0]["inconclusive"]


def test_error_that_only_a_crash_shows_is_told_once_and_what_was_covered_is_kept(
    project: Project,
) -> None:
    """One paragraph on standard error, one word for it everywhere else, exit 2."""
    project.add("lost.py", LOST)
    done = project.run("run", "lost", "--jobs", "1", "--json", "r.json")
    assert done.returncode == 2
    told = "the result of step 'take' was used after a crash"
    assert done.stderr.startswith(f"crashconform: error: lost: {told}")
    assert done.stderr.count("lost: ") == 1
    assert "used after a crash" not in done.stdout
    (campaign,) = json.loads((project.folder / "r.json").read_text())["campaigns"]
    covered = campaign["boundaries"]
    assert (campaign["survived"], campaign["inconclusive"].startswith(told)) == (covered, True)
    assert 0 < covered < 17
    assert f"ERROR lost  configuration error after {covered} of 17 boundaries  " in done.stdout
    assert f"lost: {covered} boundaries of 17 in the trace, {covered} survived" in done.stdout
    assert "; 1 campaign: configuration error; " in done.stdout
    assert "INCONCLUSIVE" not in done.stdout


def test_worker_that_dies_is_reported_and_the_others_still_run(project: Project) -> None:
    """A store that kills its parent costs that campaign, exits 3, and nothing else is lost."""
    project.add("killing.py", HANGING.replace("time.sleep(600)", "os.kill(os.getppid(), 9)"))
    done = project.run("run", "--json", "r.json")
    assert done.returncode == 3
    assert "a worker process of the harness ended by signal 9" in done.stderr
    assert "or did the store kill its parent process?" in done.stderr
    report = json.loads((project.folder / "r.json").read_text())
    assert [c["name"] for c in report["campaigns"]] == ["killing", "settings"]
    assert "ended by signal 9" in report["campaigns"][0]["inconclusive"]
    assert report["campaigns"][1]["survived"] == 17
    assert "1 campaign: worker died" in done.stdout
    assert project.processes() == []


def test_shards_cover_every_boundary_exactly_once(project: Project) -> None:
    """Together the shards explore what one run does."""
    counts = []
    for index in (1, 2, 3):
        code, report = project.report("--shard", f"{index}/3", "--jobs", "1")
        assert code == 0
        counts.append(report["campaigns"][0]["boundaries"])
    assert counts == [6, 6, 5]
    out = project.run("run", "--shard", "2/3").stdout
    assert "6 of 6 boundaries explored (17 are in the traces); this says nothing" in out


def test_shard_that_is_empty_for_one_of_several_campaigns_passes(project: Project) -> None:
    """A campaign with fewer boundaries than there are shards costs none of them its pass."""
    project.add("little.py", LITTLE)
    code, report = project.report("--shard", "10/10")
    assert code == 0
    assert [(c["name"], c["boundaries"]) for c in report["campaigns"]] == [
        ("little", 0),
        ("settings", 1),
    ]
    assert [c["inconclusive"] for c in report["campaigns"]] == [None, None]
    out = project.run("run", "--shard", "10/10").stdout
    assert re.search(r"^little .* none in this shard$", out, re.MULTILINE)


def test_shard_without_any_boundary_never_passes(project: Project) -> None:
    """Where every campaign is smaller than the number of shards nothing was shown: exit 5."""
    project.add("little.py", LITTLE)
    done = project.run("run", "little", "--shard", "10/10")
    assert done.returncode == 5
    assert "INCONCLUSIVE: no boundary was explored under process death" in done.stdout
    assert project.run("run", "little", "--shard", "9/10").returncode == 0


def test_representative_subset_says_what_it_left_out(project: Project) -> None:
    """The subset's claim is over the subset only."""
    code, report = project.report("--representative")
    assert code == 0
    assert 0 < report["campaigns"][0]["boundaries"] < 17
    assert "(17 are in the traces)" in project.run("run", "--representative").stdout


def test_json_to_stdout_is_nothing_but_json(project: Project) -> None:
    """With ``--json -`` people read standard error."""
    done = project.run("run", "--json", "-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["exit"] == 0
    assert "PASS: survived process death" in done.stderr


def test_json_to_a_pipe_or_device_does_not_replace_it(project: Project) -> None:
    """A device named as the report's file stays a device."""
    assert project.run("run", "--json", "/dev/null").returncode == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--jobs", "0"], "--jobs"),
        (["--shard", "9/8"], "I must be in [1, N]"),
        (["--shard", "x"], "is not I/N"),
        (["--timeout", "0"], "more than 0"),
        (["--timeout", "nan"], "must be finite"),
        (["--workdir", "missing"], "missing"),
        (["--json", "missing/report.json"], "cannot be written: No such file or directory"),
        (["--json", "campaigns"], "that is a directory"),
        (["--nonsense"], "No such option"),
    ],
)
def test_wrong_option_is_refused_before_anything_starts(
    project: Project, arguments: list[str], told: str
) -> None:
    """A usage error is one paragraph on standard error, exit 2, and nothing was run."""
    done = project.run("run", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("crashconform: error: ")
    assert told in done.stderr
    assert done.stdout == ""


def test_replay_keeps_the_crashed_and_the_recovered_root(project: Project) -> None:
    """The kept roots can be looked at, and a folder in use is refused."""
    done = project.run("replay", "settings@6", "--keep", "kept")
    assert done.returncode == 0, done.stderr
    crashed = project.folder / "kept" / "crashed"
    assert sorted(p.name for p in crashed.iterdir()) == ["s.json", "s.json.new"]
    assert f"crashed root kept in {crashed}" in done.stdout
    assert f"recovered root kept in {project.folder / 'kept' / 'recovered'}" in done.stdout
    assert "survived process death at 1 of 1 boundary explored" in done.stdout
    again = project.run("replay", "settings@6", "--keep", "kept")
    assert again.returncode == 2
    assert "is not empty" in again.stderr


@pytest.mark.parametrize("place", ["settings", "settings@0", "settings@x", "settings@99", "@3"])
def test_replay_of_no_boundary_is_refused(project: Project, place: str) -> None:
    """A boundary that does not exist is a usage error."""
    done = project.run("replay", place)
    assert done.returncode == 2
    assert done.stderr.startswith("crashconform: error: ")


def test_replay_of_the_end_survives(project: Project) -> None:
    """``@end`` is the state after the execution returned."""
    assert project.run("replay", "settings@end").returncode == 0


def test_trace_numbers_every_boundary(project: Project) -> None:
    """The trace is numbered from 1, steps are visible, and JSON says the same."""
    done = project.run("trace", "settings")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "settings: 17 boundaries, 2 steps"
    assert lines[1] == " 1  before step save 1"
    assert lines[2] == " 2    before write s.json.new"
    assert lines[-1] == "17  end"
    data = json.loads(project.run("trace", "settings", "--json").stdout)
    assert [b["number"] for b in data["boundaries"]] == list(range(1, 18))
    assert data["boundaries"][1] == {
        "number": 2,
        "id": "0002-before-write-s.json.new",
        "line": "before write s.json.new",
        "step": "save 1",
    }
    assert data["steps"][0] == {"label": "save 1", "begin": 1, "end": 8}
    project.add("little.py", LITTLE)
    assert project.run("trace", "little").stdout.startswith("little: 9 boundaries, 1 step\n")


def test_campaign_outside_of_the_configuration_is_replayed_by_its_path(project: Project) -> None:
    """What was run by a path has a replay command with that path."""
    outside = project.folder / "out side"
    outside.mkdir()
    project.add("../out side/m.py", MIGRATION, SETTINGS)
    done = project.run("run", "out side/m.py:Migration", "--json", "r.json")
    assert done.returncode == 1, done.stderr
    (campaign,) = json.loads((project.folder / "r.json").read_text())["campaigns"]
    assert campaign["name"] == "out side/m.py:Migration"
    command = campaign["findings"][0]["replay"]
    assert paste(project, command).returncode == 1
