"""What the command refuses to judge: one paragraph each, exit code 2, and nothing changed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from metabolism_held_world import NOW, HeldWorld, Run, dead, several, state_of

from store.metabolism.command import Refused, _explained
from store.sqlite import rows


def _no_such_file(world: HeldWorld) -> Path:
    return world.close().with_name("none.sqlite3")


def _a_folder(world: HeldWorld) -> Path:
    return world.close().parent


def _not_a_database(world: HeldWorld) -> Path:
    world.close().write_text("these are notes and no database\n" * 200)
    return world.path


def _an_empty_file(world: HeldWorld) -> Path:
    path = world.close().with_name("empty.sqlite3")
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
    return world.close()


def _without_an_index(world: HeldWorld) -> Path:
    rows(world.connection, "DROP INDEX idx_runs_job")
    return world.close()


def _with_another_table(world: HeldWorld) -> Path:
    rows(world.connection, "ALTER TABLE runs RENAME COLUMN log_path TO log")
    return world.close()


def _with_a_damaged_page(world: HeldWorld) -> Path:
    with world.connection:
        for job_id in range(2, 400):
            world.job(job_id)
    path = world.close()
    data = bytearray(path.read_bytes())
    for start in range(4096 * 12, len(data), 4096 * 3):
        data[start : start + 64] = b"\xee" * 64
    path.write_bytes(data)
    return path


def _cut_short(world: HeldWorld) -> Path:
    path = world.close()
    os.truncate(path, path.stat().st_size - 4096)
    return path


def _with_a_row_that_no_check_admits(world: HeldWorld) -> Path:
    rows(world.connection, "PRAGMA ignore_check_constraints = ON")
    world.job(2, "claimed", claim_owner=None, claim_expires_at_ns=None)
    return world.close()


def _with_a_state_that_is_none(world: HeldWorld) -> Path:
    rows(world.connection, "PRAGMA ignore_check_constraints = ON")
    world.job(2, "lost")
    return world.close()


def _with_a_run_of_no_job(world: HeldWorld) -> Path:
    world.run(5, run_id=9)
    return world.close()


def _open_in_this_process(world: HeldWorld) -> Path:
    return world.path


REFUSED = {
    _no_such_file: "none.sqlite3",
    _a_folder: "living",
    _not_a_database: "does not begin as an SQLite database does; expected",
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
    before = state_of(path.parent)
    answer = run("reconcile", path, "--now", NOW)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert path.name in answer.err
    assert REFUSED[build] in answer.err
    assert "Traceback" not in answer.err
    assert state_of(path.parent) == before


@pytest.mark.slow
def test_no_damage_ends_in_a_traceback(run: Run, world: HeldWorld) -> None:
    """Bytes changed anywhere, in the schema too, give an answer or one paragraph."""
    several(world, 60)
    path = world.close()
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
        ("--now", str(NOW // 10**9)),
        ("--lo", "/"),
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
    answer = run("reconcile", dead(world), *options)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert options[0] in answer.err
    assert answer.err.startswith("python -m store.metabolism: error: ")
    told, hint = answer.err[:-1].split(" See ")
    assert told.endswith((".", "?"))
    assert hint == "python -m store.metabolism reconcile --help."


@pytest.mark.parametrize("options", [("-h",), ("reconcile", "-h"), ("evaluate-fixtures", "--help")])
def test_help_is_asked_for_in_either_way(options: tuple[str, ...], run: Run) -> None:
    """Short and long, for the group and for each command, as in the rest of the project."""
    answer = run(*options)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(
        f"Usage: {' '.join(('python -m store.metabolism', *options[:-1]))}"
    )
    assert "-h, --help" in answer.out


@pytest.mark.parametrize("error", [MemoryError(), apsw.NoMemError("out of memory")])
def test_too_little_memory_is_told(error: Exception) -> None:
    """A value that does not fit into memory ends in a paragraph that names the database."""
    with (
        pytest.raises(Refused, match=r"runtime\.db: not enough memory"),
        _explained(Path("runtime.db")),
    ):
        raise error
