"""The command line: what an operator reads, what is refused and how, and that no byte changes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import click
import pytest
from metabolism_held_world import (
    FINALIZED,
    NO_RUN,
    NOW,
    STATES,
    HeldWorld,
    Run,
    S,
    dead,
    several,
    state_of,
)
from rich.console import Console

from store.metabolism import connect, job_by_id
from store.metabolism.command import metabolism
from store.metabolism.reconciliation import reconcile, survey
from store.metabolism.reconciliation.caveats import time_caveats
from store.metabolism.reconciliation.census import take_census
from store.metabolism.reconciliation.table import PLAIN, print_reconciliation
from store.metabolism.reconciliation.verdict import Verdict
from store.metabolism.records import JobState

REPOSITORY = Path(__file__).resolve().parents[3]


def test_a_healthy_database_is_two_lines(run: Run, world: HeldWorld) -> None:
    """MR-030: without a finding the exit code is 0, one line says so, and one counts all jobs."""
    world.job(state="claimed", claim_expires_at_ns=NOW - S)
    answer = run("reconcile", dead(world), "--now", NOW)
    assert answer == (
        0,
        "healthy: 1 claimed or running job, and none contradicts its runs and launch logs; "
        "1 with a lapsed lease, for requeue_expired_jobs.\n"
        "1 job in all: 1 claimed.\n",
        "",
    )


def test_an_operator_reads_what_is_wrong_why_and_what_to_do(run: Run, world: HeldWorld) -> None:
    """MR-027 to MR-030: first what is worst, then reasons, commands, counts; the exit code is 1."""
    several(world)
    answer = run("reconcile", dead(world), "--now", "2027-01-15T08:00:00Z")
    assert (answer.code, answer.err) == (1, "")
    places = [
        answer.out.index(words)
        for words in (
            "needs review: 5 findings in 5 claimed or running jobs",
            "job 1, running",
            "job 4, running",
            "return code 3",
            "job 5, running",
            "Why a person must look",
            "calling it done may leave it undone",
            "What may be done next (nothing was changed",
            "tail ",
            "update_job_state",
            f"3  {NO_RUN}",
            f"1  {FINALIZED}",
            "0  running_job_missing_launch_log",
            "5 jobs in all: 5 running.",
            "requeue_expired_jobs would give back 1 job: the lease has lapsed. 1 of them has",
            "What this is worth",
            "Cannot tell what a -wal held that was lost",
        )
    ]
    assert places == sorted(places)
    assert all(line == line.rstrip() for line in answer.out.splitlines())


@pytest.mark.parametrize("build", STATES, ids=lambda build: build.__name__.strip("_"))
def test_no_byte_and_no_time_of_the_folder_changes(
    build: Callable[[HeldWorld], None], run: Run, world: HeldWorld
) -> None:
    """MR-026, MR-029: files, contents and times of writing are as they were, whatever is found."""
    build(world)
    database = dead(world)
    before = state_of(database.parent)
    answer = run("reconcile", database, "--now", NOW, "--json")
    assert state_of(database.parent) == before
    found = json.loads(answer.out)
    assert [one["rule"] for one in found["findings"]] == STATES[build]
    assert answer.code == bool(STATES[build] or found["warnings"])


def test_the_group_answers_inside_another_command(world: HeldWorld) -> None:
    """A command line that takes the group in gets the exit code as the value of the command."""
    world.job()
    arguments = ["reconcile", str(dead(world)), "--now", str(NOW), "--json"]
    with metabolism.make_context("crashconform metabolism", arguments) as context:
        assert metabolism.invoke(context) == 1
    with (
        pytest.raises(click.ClickException, match=r"none\.sqlite3"),
        metabolism.make_context("metabolism", ["reconcile", "none.sqlite3"]) as context,
    ):
        metabolism.invoke(context)


def test_json_is_the_reconciliation_and_the_same_again(run: Run, world: HeldWorld) -> None:
    """MR-032: the streamed document is that of the library, byte for byte the same each time."""
    several(world)
    database = dead(world)
    expected = reconcile(world.connection, folder=database.parent, now_ns=NOW).to_json()
    first = run("reconcile", database, "--now", NOW, "--json")
    assert first == run("reconcile", database, "--now", NOW, "--json")
    document = json.loads(first.out)
    assert {name: document[name] for name in expected} == json.loads(json.dumps(expected))
    assert {name: document[name] for name in set(document) - set(expected)} == {
        "database": str(database),
        "judged_at_ns": NOW,
        "stale_after_ns": 600 * S,
        "job_count": 5,
        "job_counts": {**dict.fromkeys(JobState, 0), "running": 5},
        "warnings": [],
    }
    two = json.loads(run("reconcile", database, "--now", NOW, "--json", "--limit", 2).out)
    assert (len(two["findings"]), two["finding_count"]) == (2, 5)


@pytest.mark.parametrize(
    ("options", "shown", "more"),
    [((), 20, "7 more;"), (("--limit", 2), 2, "25 more;"), (("--limit", 0), 0, "27 more;")],
)
def test_only_the_first_are_shown(
    options: tuple[object, ...], shown: int, more: str, run: Run, world: HeldWorld
) -> None:
    """The table ends at the limit, says how many there are more, and counts all of them."""
    several(world, 25)
    answer = run("reconcile", dead(world), "--now", NOW, *options)
    assert answer.out.count(" finding ") == shown
    assert more in answer.out
    assert f"25  {NO_RUN}" in answer.out
    told = [len(re.findall(rf"Where {words}: ", answer.out)) for words in PLAIN.values()]
    assert told == ([2, 0, 0, 0] if shown else [0, 0, 0, 0])
    assert ("Why a person must look" in answer.out) == bool(shown)


def test_every_log_that_is_there_can_be_read_by_one_command(run: Run, world: HeldWorld) -> None:
    """Each shown finding has its own line, that of an ended run too; none is for what is gone."""
    for job_id in range(1, 7):
        world.job(job_id)
    world.run(1, log_path="ended.log", completed_at_ns=NOW - S, return_code=0)
    world.run(2, log_path="ended-gone.log", completed_at_ns=NOW - S, return_code=0)
    for job_id, log_path in ((3, "silent.log"), (4, "also silent.log"), (5, "gone.log")):
        world.run(job_id, log_path=log_path)
    for log_path in ("ended.log", "silent.log", "also silent.log"):
        world.log(log_path, age_ns=1_200 * S)
    database = dead(world)
    folder = database.parent
    answer = run("reconcile", database, "--now", NOW)
    assert [line.strip() for line in answer.out.splitlines() if line.startswith("    tail")] == [
        f"tail {folder}/ended.log",
        f"tail {folder}/silent.log",
        f"tail '{folder}/also silent.log'",
    ]
    assert "its launch log: ended.log" in answer.out
    assert "ended-gone.log" in "".join(answer.out.split())
    two = run("reconcile", database, "--now", NOW, "--limit", 2)
    assert two.out.count("    tail ") == 1


def test_what_a_log_counts_as_is_the_operators_choice(run: Run, world: HeldWorld) -> None:
    """MR-031: the threshold and the folder of the logs are options."""
    world.job()
    world.run(log_path="8.log")
    world.log("elsewhere/8.log", age_ns=1_200 * S)
    database = dead(world)
    logs = ("--logs", database.parent / "elsewhere")
    given = ("reconcile", database, "--now", NOW, "--json")
    rules = [
        [name for name, count in json.loads(run(*given, *more).out)["rule_counts"].items() if count]
        for more in ((), logs, (*logs, "--stale-after", "1200"), (*logs, "--stale-after", "1199.9"))
    ]
    stale = "running_job_stale_launch_log"
    assert rules == [["running_job_missing_launch_log"], [stale], [], [stale]]


NASTY = (
    "\x1b]0;title\x07\x1b[2J",
    "\r\n\t\x7f\x9b31m",
    "\u202egnp.\u2066\u200f",
    "東京" * 300,
    "k" * 1_000_000,
    "[red]markup[/red] :smile:",
    "' ; echo x",
)


def test_no_text_of_a_database_reaches_the_terminal_as_a_command(
    run: Run, world: HeldWorld
) -> None:
    """Control characters, escape sequences and long texts are shown escaped and cut."""
    for job_id, nasty in enumerate(NASTY, start=1):
        world.job(job_id, kind=nasty, idempotency_key=nasty, claim_owner=nasty)
        world.run(job_id, log_path=nasty)
    answer = run("reconcile", dead(world), "--now", NOW)
    assert answer.code == 1
    assert all(line.isprintable() for line in answer.out.split("\n"))
    assert len(answer.out) < 50_000
    assert "\\x1b]0;title\\x07" in answer.out
    assert "[red]markup[/red] :smile:" in answer.out
    assert "(1000000" in answer.out


@pytest.mark.parametrize("width", [20, 50, 99, 100, 200])
def test_the_answer_fits_the_terminal(width: int, world: HeldWorld) -> None:
    """Whatever the width, only commands, which are to be copied, are longer than a line."""
    several(world)
    written = StringIO()
    console = Console(file=written, width=width, markup=False, highlight=False)
    with survey(world.connection, folder=world.folder, now_ns=NOW) as found:
        verdict = Verdict(
            database=world.path,
            folder=world.folder,
            judged_at_ns=NOW,
            stale_after_ns=600 * S,
            summary=found.summary,
            census=take_census(world.connection),
            caveats=time_caveats(latest_ns=0, newest_row_ns=NOW, newest_log_ns=NOW),
        )
        print_reconciliation(console, verdict, found.findings())
    lines = written.getvalue().splitlines()
    assert [line for line in lines if len(line) > width and not line.startswith("    ")] == []
    assert ("+--" in written.getvalue()) == (width >= 100)


def test_redirected_output_does_not_depend_on_the_environment(
    run: Run, world: HeldWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No colour and no other width, whatever the variables of a terminal say, but for COLUMNS."""
    several(world)
    database = dead(world)
    first = run("reconcile", database, "--now", NOW)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    for unset in ("", "0", "-5", "wide", "9" * 99, "120"):
        monkeypatch.setenv("COLUMNS", unset)
        assert run("reconcile", database, "--now", NOW) == first
    widths = []
    for asked in ("1", "40", "160"):
        monkeypatch.setenv("COLUMNS", asked)
        lines = run("reconcile", database, "--now", NOW).out.splitlines()
        widths.append(max(len(line) for line in lines if not line.startswith("    ")))
    monkeypatch.setenv("COLUMNS", "1")
    narrow = run("reconcile", database, "--now", NOW)
    monkeypatch.setenv("COLUMNS", "20")
    assert narrow == run("reconcile", database, "--now", NOW)
    assert 10 < widths[0] <= 20 < widths[1] <= 40 < 120 < widths[2] <= 160


@pytest.mark.slow
def test_the_decision_that_is_shown_can_be_copied(run: Run, tmp_path: Path) -> None:
    """The printed commands work as they are, in a folder whose name needs quoting, but for the
    decision: it needs a job and a state, changes nothing without, and is printed once."""
    world = HeldWorld(tmp_path / "a 'b' \"c\" $d")
    world.job(7)
    world.job(8)
    world.run(8, log_path="8.log")
    world.log("8.log", age_ns=1_200 * S)
    answer = run("reconcile", world.close(), "--now", NOW)
    commands = [line.strip() for line in answer.out.splitlines() if line.startswith("    ")]
    assert [command.split()[0] for command in commands] == [
        "mkdir",
        "sqlite3",
        "sqlite3",
        "tail",
        sys.executable,
    ]

    def done(command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        return subprocess.run(
            command, shell=True, cwd=tmp_path, capture_output=True, text=True, env=environment
        )

    for command in commands[:4]:
        if shutil.which(command.split()[0]):
            ended = done(command)
            assert (command, ended.returncode, ended.stderr) == (command, 0, "")
    assert (tmp_path / "look" / world.path.name).is_file()
    decision = commands[4]
    assert "name 'JOB' is not defined" in done(decision).stderr
    assert "UnknownJobState" in done(decision.replace("JOB", "7")).stderr
    ended = done(decision.replace("JOB", "7").replace("STATE", "failed"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Job(job_id=7" in ended.stdout
    assert "state='failed'" in ended.stdout
    connection = connect(world.path)
    assert [job_by_id(connection, job_id).state for job_id in (7, 8)] == ["failed", "running"]
    connection.close()
    world.path.unlink()
    assert "CannotOpen" in done(decision.replace("JOB", "7")).stderr
    assert not world.path.exists()


@pytest.mark.slow
def test_fixtures_that_pass_or_fail_or_cannot_be_read(run: Run, tmp_path: Path) -> None:
    """MR-035: 0 for a pass, 1 for a fail, 2 for a folder that is none; the record is stable."""
    fixtures = REPOSITORY / "store" / "metabolism" / "fixtures" / "shipped"
    passed = run("evaluate-fixtures", "--input", fixtures, "--json")
    assert passed.code == 0
    assert passed == run("evaluate-fixtures", "--input", fixtures, "--json")
    record = json.loads(passed.out)
    assert passed.out == json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    for case in record["cases"]:
        assert case["case"] in run("evaluate-fixtures", "--input", fixtures).out
    failed = run("evaluate-fixtures", "--input", tmp_path)
    told = f"fail: no *.json is in {tmp_path}; expected a case.\n"
    assert (failed.code, failed.out) == (1, told)
    missing = run("evaluate-fixtures", "--input", tmp_path / "none")
    assert (missing.code, missing.out, missing.err.count("\n")) == (2, "", 1)


def test_a_mismatch_is_told_in_the_words_of_a_fixture(run: Run, tmp_path: Path) -> None:
    """What is not there is called nothing, and other values look as they do in the file."""
    claim = {"do": "claim_next_job", "owner": "w", "as": "claim"}
    steps = [
        {"do": "enqueue_job", "kind": "a", "idempotency_key": "a", "returns": {"inserted": False}},
        {**claim, "as": "first"},
        {"do": "renew_claim", "claim": "first", "raises": "StaleClaim"},
        claim,
    ]
    case: dict[str, object] = {"case": "a", "about": "A case.", "expected_status": "pass"}
    case["expect"] = {"status": "healthy"}
    (tmp_path / "a.json").write_text(json.dumps({**case, "steps": steps}))
    answer = run("evaluate-fixtures", "--input", tmp_path)
    assert (answer.code, answer.out.splitlines()) == (
        1,
        [
            "FAIL  a: expected pass, observed fail",
            "      steps[0].returns.inserted: expected false, observed true",
            '      steps[2].raises: expected "StaleClaim", observed nothing',
            '      steps[3].as: expected "claim", observed nothing',
            "fail: 1 case",
        ],
    )


def _start(database: Path, **streams: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "store.metabolism", "reconcile", str(database), "--json"],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        **streams,  # type: ignore[call-overload]
    )


@pytest.mark.slow
def test_an_answer_that_is_not_read_or_cannot_be_written(world: HeldWorld) -> None:
    """A reader that leaves is no error; a full disk is one, with one line; Ctrl-C ends quietly."""
    with world.connection:
        for job_id in range(1, 501):
            world.job(job_id)
    database = dead(world)
    with _start(database, stdout=subprocess.PIPE) as left:
        assert left.stdout is not None
        assert left.stdout.read(1) == b"{"
        left.stdout.close()
        assert (left.stderr.read(), left.wait()) == (b"", 1)  # type: ignore[union-attr]
    with Path("/dev/full").open("wb") as full, _start(database, stdout=full) as unwritable:
        _, err = unwritable.communicate()
        assert (err.count(b"\n"), unwritable.returncode) == (1, 2)
        assert b"No space left" in err
    with _start(database, stdout=subprocess.PIPE) as stopped:
        assert stopped.stdout is not None
        assert stopped.stdout.read(1) == b"{"
        stopped.send_signal(signal.SIGINT)
        _, err = stopped.communicate()
        assert (err.strip(), stopped.returncode) == (b"python -m store.metabolism: interrupted", 3)
