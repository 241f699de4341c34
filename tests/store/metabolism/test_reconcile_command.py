"""The command line: what an operator reads, what is refused and how, and that no byte changes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import apsw
import click
import pytest
from metabolism_held_world import FINALIZED, NO_RUN, NOW, STATES, HeldWorld, S
from rich.console import Console

from store.metabolism import connect, job_by_id
from store.metabolism.__main__ import main
from store.metabolism.command import metabolism
from store.metabolism.findings_table import print_reconciliation
from store.metabolism.reconciliation import reconcile, survey
from store.sqlite import rows

REPOSITORY = Path(__file__).resolve().parents[3]


class Answer(NamedTuple):
    """What one command printed, and its exit code."""

    code: int
    out: str
    err: str


Run = Callable[..., Answer]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    def command(*arguments: object) -> Answer:
        with monkeypatch.context() as patched:
            for name in ("stdout", "stderr"):
                number = getattr(sys, f"__{name}__").fileno()
                stream = open(os.dup(number), "w", encoding="utf-8")  # noqa: SIM115
                patched.setattr(sys, name, stream)
            code = main([str(one) for one in arguments])
            sys.stdout.close()
            sys.stderr.close()
        out, err = capfdbinary.readouterr()
        return Answer(code, out.decode(), err.decode())

    return command


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HeldWorld]:
    made = HeldWorld(tmp_path / "living")
    yield made
    made.connection.close()


def _dead(world: HeldWorld) -> Path:
    """Return the database as a runtime leaves it that was killed: with a WAL, and no process."""
    folder = world.folder.parent / "dead"
    shutil.copytree(world.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("*-shm"))
    assert (folder / "metabolism.sqlite3-wal").stat().st_size > 0
    return folder / "metabolism.sqlite3"


def _several(world: HeldWorld, count: int = 3) -> None:
    for job_id in range(1, count + 1):
        world.job(job_id, claim_expires_at_ns=NOW - 60 * S)
    world.job(count + 1)
    world.run(count + 1, run_id=7, completed_at_ns=NOW - 60 * S, return_code=3)
    world.job(count + 2, claim_expires_at_ns=NOW - 60 * S)
    world.run(count + 2, run_id=8, log_path="logs/8.log")
    world.log("logs/8.log", age_ns=1_200 * S)


def test_a_healthy_database_is_one_line(run: Run, world: HeldWorld) -> None:
    """MR-030: without a finding the exit code is 0, and one line says so."""
    world.job(state="claimed", claim_expires_at_ns=NOW - S)
    answer = run("reconcile", _dead(world), "--now", NOW)
    assert answer == (
        0,
        "healthy: 1 claimed or running job, and none contradicts its runs and launch logs; "
        "1 with a lapsed lease, for requeue_expired_jobs.\n",
        "",
    )


def test_an_operator_reads_what_is_wrong_why_and_what_to_do(run: Run, world: HeldWorld) -> None:
    """MR-027 to MR-030: first what is worst, then reasons, commands, counts; the exit code is 1."""
    _several(world)
    answer = run("reconcile", _dead(world), "--now", "2027-01-15T08:00:00Z")
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
    database = _dead(world)
    before = _state(database.parent)
    answer = run("reconcile", database, "--now", NOW, "--json")
    assert _state(database.parent) == before
    found = json.loads(answer.out)
    assert [one["rule"] for one in found["findings"]] == STATES[build]
    assert answer.code == bool(STATES[build])


def _state(folder: Path) -> dict[str, object]:
    paths = [folder, *sorted(folder.rglob("*"))]
    return {
        str(path): (
            path.lstat().st_mtime_ns,
            path.lstat().st_ino,
            path.read_bytes() if path.is_file() else None,
        )
        for path in paths
    }


def test_the_group_answers_inside_another_command(world: HeldWorld) -> None:
    """A command line that takes the group in gets the exit code as the value of the command."""
    world.job()
    arguments = ["reconcile", str(_dead(world)), "--now", str(NOW), "--json"]
    with metabolism.make_context("crashconform metabolism", arguments) as context:
        assert metabolism.invoke(context) == 1
    with (
        pytest.raises(click.ClickException, match=r"none\.sqlite3"),
        metabolism.make_context("metabolism", ["reconcile", "none.sqlite3"]) as context,
    ):
        metabolism.invoke(context)


def test_json_is_the_reconciliation_and_the_same_again(run: Run, world: HeldWorld) -> None:
    """MR-032: the streamed document is that of the library, byte for byte the same each time."""
    _several(world)
    database = _dead(world)
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
    _several(world, 25)
    answer = run("reconcile", _dead(world), "--now", NOW, *options)
    assert answer.out.count(" finding ") == shown
    assert more in answer.out
    assert f"25  {NO_RUN}" in answer.out


def test_what_a_log_counts_as_is_the_operators_choice(run: Run, world: HeldWorld) -> None:
    """MR-031: the threshold and the folder of the logs are options."""
    world.job()
    world.run(log_path="8.log")
    world.log("elsewhere/8.log", age_ns=1_200 * S)
    database = _dead(world)
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
    "' ; rm -rf x",
)


def test_no_text_of_a_database_reaches_the_terminal_as_a_command(
    run: Run, world: HeldWorld
) -> None:
    """Control characters, escape sequences and long texts are shown escaped and cut."""
    for job_id, nasty in enumerate(NASTY, start=1):
        world.job(job_id, kind=nasty, idempotency_key=nasty, claim_owner=nasty)
        world.run(job_id, log_path=nasty)
    answer = run("reconcile", _dead(world), "--now", NOW)
    assert answer.code == 1
    assert all(line.isprintable() for line in answer.out.split("\n"))
    assert len(answer.out) < 50_000
    assert "\\x1b]0;title\\x07" in answer.out
    assert "[red]markup[/red] :smile:" in answer.out
    assert "(1000000" in answer.out


@pytest.mark.parametrize("width", [20, 50, 99, 100, 200])
def test_the_answer_fits_the_terminal(width: int, world: HeldWorld) -> None:
    """Whatever the width, only commands, which are to be copied, are longer than a line."""
    _several(world)
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
    _several(world)
    database = _dead(world)
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
    answer = run("reconcile", _closed(world), "--now", NOW)
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


def _closed(world: HeldWorld) -> Path:
    world.connection.close()
    return world.path


def _no_such_file(world: HeldWorld) -> Path:
    return _closed(world).with_name("none.sqlite3")


def _a_folder(world: HeldWorld) -> Path:
    return _closed(world).parent


def _not_a_database(world: HeldWorld) -> Path:
    _closed(world).write_text("these are notes and no database\n" * 200)
    return world.path


def _an_empty_file(world: HeldWorld) -> Path:
    path = _closed(world).with_name("empty.sqlite3")
    path.write_bytes(b"")
    return path


def _without_a_table(world: HeldWorld) -> Path:
    path = world.path.with_name("bare.sqlite3")
    bare = apsw.Connection(str(path))
    rows(bare, "PRAGMA journal_mode = WAL")
    bare.close()
    return path


def _of_something_else(world: HeldWorld) -> Path:
    path = world.path.with_name("else.sqlite3")
    other = apsw.Connection(str(path))
    rows(other, "CREATE TABLE notes (body TEXT)")
    other.close()
    return path


def _of_a_later_version(world: HeldWorld) -> Path:
    rows(world.connection, "PRAGMA user_version = 2")
    return _closed(world)


def _without_an_index(world: HeldWorld) -> Path:
    rows(world.connection, "DROP INDEX idx_runs_job")
    return _closed(world)


def _with_another_table(world: HeldWorld) -> Path:
    rows(world.connection, "ALTER TABLE runs RENAME COLUMN log_path TO log")
    return _closed(world)


def _with_a_damaged_page(world: HeldWorld) -> Path:
    with world.connection:
        for job_id in range(2, 400):
            world.job(job_id)
    path = _closed(world)
    data = bytearray(path.read_bytes())
    for start in range(4096 * 12, len(data), 4096 * 3):
        data[start : start + 64] = b"\xee" * 64
    path.write_bytes(data)
    return path


def _cut_short(world: HeldWorld) -> Path:
    path = _closed(world)
    os.truncate(path, path.stat().st_size - 4096)
    return path


def _with_a_row_that_no_check_admits(world: HeldWorld) -> Path:
    rows(world.connection, "PRAGMA ignore_check_constraints = ON")
    world.job(2, "claimed", claim_owner=None, claim_expires_at_ns=None)
    return _closed(world)


def _with_a_state_that_is_none(world: HeldWorld) -> Path:
    rows(world.connection, "PRAGMA ignore_check_constraints = ON")
    world.job(2, "lost")
    return _closed(world)


def _with_a_run_of_no_job(world: HeldWorld) -> Path:
    world.run(5, run_id=9)
    return _closed(world)


def _open_in_this_process(world: HeldWorld) -> Path:
    return world.path


REFUSED = {
    _no_such_file: "none.sqlite3",
    _a_folder: "living",
    _not_a_database: "not",
    _an_empty_file: "is empty",
    _without_a_table: "the database is empty",
    _of_something_else: "notes",
    _of_a_later_version: "user_version is 2",
    _without_an_index: "idx_runs_job",
    _with_another_table: "it defines runs otherwise",
    _with_a_damaged_page: "damaged",
    _cut_short: "",
    _with_a_row_that_no_check_admits: "row 2 of jobs breaks jobs_claimed_is_leased",
    _with_a_state_that_is_none: "row 2 of jobs breaks jobs_state",
    _with_a_run_of_no_job: "row 9 of runs belongs to a row of jobs that is missing",
    _open_in_this_process: "",
}


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__.strip("_"))
def test_what_cannot_be_judged_is_one_paragraph(
    build: Callable[[HeldWorld], Path], run: Run, world: HeldWorld
) -> None:
    """The exit code is 2, standard error has one line that names the file, and nothing changes."""
    world.job()
    path = build(world)
    before = _state(path.parent)
    answer = run("reconcile", path, "--now", NOW)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert path.name in answer.err
    assert REFUSED[build] in answer.err
    assert "Traceback" not in answer.err
    assert _state(path.parent) == before


@pytest.mark.slow
def test_no_damage_ends_in_a_traceback(run: Run, world: HeldWorld) -> None:
    """Bytes changed anywhere, in the schema too, give an answer or one paragraph."""
    _several(world, 60)
    path = _closed(world)
    whole = path.read_bytes()
    codes = []
    chance = random.Random(7)
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 3, 20))):
            data[chance.randrange(100, len(data))] = chance.randrange(256)
        path.write_bytes(data)
        answer = run("reconcile", path, "--now", NOW)
        codes.append(answer.code)
        assert answer.err.count("\n") == (answer.code == 2)
        assert "Traceback" not in answer.err
    assert set(codes) == {1, 2}
    path.write_bytes(whole.replace(b"CONSTRAINT jobs_kind", b"CONSTRAINT job\xff_kind"))
    damaged = run("reconcile", path, "--now", NOW)
    assert (damaged.code, "is no text" in damaged.err) == (2, True)


@pytest.mark.parametrize(
    "options",
    [
        ("--now", "soon"),
        ("--now", "1900-01-01"),
        ("--stale-after", "-1"),
        ("--stale-after", "nan"),
        ("--limit", "-1"),
        ("--logs", "/nowhere"),
        ("--none",),
        ("another",),
    ],
)
def test_a_wrong_command_line_is_refused(
    options: tuple[str, ...], run: Run, world: HeldWorld
) -> None:
    """The exit code is 2, and the option is named."""
    answer = run("reconcile", _dead(world), *options)
    assert (answer.code, answer.out) == (2, "")
    assert options[0] in answer.err


@pytest.mark.slow
def test_fixtures_that_pass_or_fail_or_cannot_be_read(run: Run, tmp_path: Path) -> None:
    """MR-035: 0 for a pass, 1 for a fail, 2 for a folder that is none; the record is stable."""
    fixtures = REPOSITORY / "store" / "metabolism" / "fixtures"
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
    database = _dead(world)
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
