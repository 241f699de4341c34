"""The command line: what an operator reads, what is refused and how, and that no byte changes."""

from __future__ import annotations

import json
import os
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
from store.metabolism.reconciliation.table import print_reconciliation

REPOSITORY = Path(__file__).resolve().parents[3]


def test_a_healthy_database_is_one_line(run: Run, world: HeldWorld) -> None:
    """MR-030: without a finding the exit code is 0, and one line says so."""
    world.job(state="claimed", claim_expires_at_ns=NOW - S)
    answer = run("reconcile", dead(world), "--now", NOW)
    assert answer == (
        0,
        "healthy: 1 claimed or running job, and none contradicts its runs and launch logs; "
        "1 with a lapsed lease, for requeue_expired_jobs.\n",
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
            "requeue_expired_jobs would give back 1 job: the lease has lapsed. 1 of them",
            "What this is worth",
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
    assert answer.code == bool(STATES[build])


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
    assert json.loads(first.out) == json.loads(json.dumps(expected))
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
        print_reconciliation(
            console, found.summary, found.findings(), database=world.path, folder=world.folder
        )
    lines = written.getvalue().splitlines()
    assert [line for line in lines if len(line) > width and not line.startswith("    ")] == []
    assert ("+--" in written.getvalue()) == (width >= 100)


def test_redirected_output_does_not_depend_on_the_environment(
    run: Run, world: HeldWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No colour and no other width, whatever the variables of a terminal say."""
    several(world)
    database = dead(world)
    first = run("reconcile", database, "--now", NOW)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert run("reconcile", database, "--now", NOW) == first


@pytest.mark.slow
def test_the_decision_that_is_shown_can_be_copied(run: Run, tmp_path: Path) -> None:
    """The printed commands work as they are, in a folder whose name needs quoting."""
    world = HeldWorld(tmp_path / "a 'b' \"c\" $d")
    world.job()
    answer = run("reconcile", world.close(), "--now", NOW)
    commands = [line.strip() for line in answer.out.splitlines() if line.startswith("    ")]
    for command in commands:
        if command.startswith("sqlite3 "):
            continue
        command = command.replace("python -c", f"{sys.executable} -c")
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, capture_output=True, text=True, env=environment
        )
        assert (command, done.returncode, done.stderr) == (command, 0, "")
    assert (tmp_path / "look" / world.path.name).is_file()
    connection = connect(world.path)
    assert job_by_id(connection, 1).state == "recoverable"
    connection.close()


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
    assert (failed.code, failed.out.splitlines()[-1]) == (1, "fail: 0 cases")
    missing = run("evaluate-fixtures", "--input", tmp_path / "none")
    assert (missing.code, missing.out, missing.err.count("\n")) == (2, "", 1)


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
        assert (err.strip(), stopped.returncode) == (b"interrupted", 3)
