"""The command line where a database may not be whole, or not of the moment judged at."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from metabolism_held_world import NO_RUN, NOW, HeldWorld, Run, S, dead, several, state_of

from store.metabolism.records import JobState
from store.sqlite import rows

HEADER, FRAME = 32, 24 + 4096
Change = Callable[[Path, Path], None]


@pytest.fixture
def killed(world: HeldWorld) -> Path:
    """Return what a killed runtime left: a job in the file, three in the WAL, and the -shm."""
    world.job(1, "claimed")
    rows(world.connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    for job_id in (2, 3, 4):
        world.job(job_id, "claimed")
    database = dead(world)
    shutil.copy(f"{world.path}-shm", f"{database}-shm")
    return database


def _keep(wal: Path, shm: Path) -> None:
    pass


def _remove(wal: Path, shm: Path) -> None:
    wal.unlink()


def _empty(wal: Path, shm: Path) -> None:
    os.truncate(wal, 0)


def _empty_beside_a_strange_shm(wal: Path, shm: Path) -> None:
    os.truncate(wal, 0)
    shm.write_bytes(b"")


def _cut_in_the_header(wal: Path, shm: Path) -> None:
    os.truncate(wal, HEADER - 1)
    shm.unlink()


def _cut_between_frames(wal: Path, shm: Path) -> None:
    os.truncate(wal, wal.stat().st_size - FRAME)


def _damage_the_header(wal: Path, shm: Path) -> None:
    _change_byte(wal, 13)


def _damage_the_first_frame(wal: Path, shm: Path) -> None:
    shm.unlink()
    _change_byte(wal, HEADER + FRAME - 1)


def _damage_the_last_frame(wal: Path, shm: Path) -> None:
    shm.unlink()
    _change_byte(wal, wal.stat().st_size - 1)


def _change_byte(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


CHANGES: dict[Change, tuple[str, str]] = {
    _remove: ("wal_missing", "a -shm and no -wal"),
    _empty: ("wal_empty", "a -shm and an empty -wal"),
    _empty_beside_a_strange_shm: ("wal_empty", "a -shm and an empty -wal"),
    _cut_in_the_header: ("wal_cut", "the -wal has 31 bytes and a header alone has 32"),
    _cut_between_frames: ("wal_cut", "the -shm counts 9 frames in the -wal, and 6 can be read"),
    _damage_the_header: ("wal_header_damaged", "nothing of its 37112 bytes is read"),
    _damage_the_first_frame: (
        "wal_frames_unreadable",
        "frame 1 of the -wal fails its check, and 9 frames from there on, 3 commit frames",
    ),
    _damage_the_last_frame: (
        "wal_frames_unreadable",
        "frame 9 of the -wal fails its check, and 1 frame from there on, 1 commit frame",
    ),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_lost_or_damaged_wal_is_told_first(change: Change, killed: Path, run: Run) -> None:
    """Without a finding the exit code is 1 too, nothing is called healthy, nothing changes."""
    kind, words = CHANGES[change]
    change(Path(f"{killed}-wal"), Path(f"{killed}-shm"))
    before = state_of(killed.parent)
    answer = run("reconcile", killed, "--now", NOW)
    document = json.loads(run("reconcile", killed, "--now", NOW, "--json").out)
    assert state_of(killed.parent) == before
    assert (answer.code, answer.err) == (1, "")
    text = " ".join(answer.out.split())
    assert text.startswith(f"warning ({kind}): ")
    assert "healthy" not in text
    assert text.index(words) < text.index("nothing found in what can be read: ")
    assert text.index("nothing found") < text.index("What this is worth")
    assert (document["status"], document["finding_count"]) == ("needs_review", 0)
    [warning] = document["warnings"]
    assert warning["kind"] == kind
    assert words in warning["text"]
    assert warning["text"] in text
    read = {_cut_between_frames: 3, _damage_the_last_frame: 3}.get(change, 1)
    assert document["job_count"] == read


def _checkpointed(world: HeldWorld) -> None:
    world.job(1, "claimed")
    rows(world.connection, "PRAGMA wal_checkpoint(TRUNCATE)")


def _begun_anew(world: HeldWorld) -> None:
    for job_id in (1, 2, 3):
        world.job(job_id, "claimed")
    rows(world.connection, "PRAGMA wal_checkpoint(RESTART)")
    world.job(4, "claimed")


def _cut_short(world: HeldWorld) -> None:
    world.job(1, "claimed")
    rows(world.connection, "PRAGMA cache_size=5")
    rows(world.connection, "BEGIN IMMEDIATE")
    for job_id in range(2, 400):
        world.job(job_id, "claimed", params_json=json.dumps({"x": "y" * 500}))


def _rolled_back(world: HeldWorld) -> None:
    _cut_short(world)
    rows(world.connection, "ROLLBACK")
    world.job(2, "claimed")


@pytest.mark.parametrize(
    "build", [_checkpointed, _begun_anew, _cut_short, _rolled_back], ids=lambda one: one.__name__
)
def test_what_a_killed_runtime_may_leave_is_no_warning(
    build: Callable[[HeldWorld], None], world: HeldWorld, run: Run
) -> None:
    """An emptied WAL, old frames, and transactions that never ended are told from a loss."""
    build(world)
    folder = world.folder.parent / "left"
    shutil.copytree(world.folder, folder)
    answer = run("reconcile", folder / world.path.name, "--now", NOW)
    assert (answer.code, answer.out.split(":")[0]) == (0, "healthy")


def test_a_clean_end_and_a_kill_are_no_warning(killed: Path, world: HeldWorld, run: Run) -> None:
    """Neither what a killed runtime leaves nor a file alone is doubted."""
    assert run("reconcile", killed, "--now", NOW).code == 0
    assert run("reconcile", world.close(), "--now", NOW).code == 0


def test_warnings_come_before_findings(world: HeldWorld, run: Run) -> None:
    """A finding is shown as ever, below the warning."""
    several(world)
    rows(world.connection, "PRAGMA wal_checkpoint(TRUNCATE)")
    database = world.close()
    Path(f"{database}-shm").write_bytes(b"")
    answer = run("reconcile", database, "--now", NOW)
    assert answer.code == 1
    assert answer.out.startswith("warning (wal_missing): ")
    assert "needs review: 5 findings in 5 claimed or running jobs" in answer.out


def test_all_jobs_are_counted_by_state(world: HeldWorld, run: Run) -> None:
    """How much is in a database is said where nothing is wrong with it, and where it is empty."""
    database = world.close()
    empty = run("reconcile", database, "--now", NOW)
    assert (empty.code, empty.out.splitlines()[1]) == (
        0,
        "It holds no job at all: was its -wal file copied too?",
    )
    world.__init__(world.folder.parent / "other")  # type: ignore[misc]
    for job_id, state in enumerate(("queued", "queued", "claimed", "completed"), start=1):
        world.job(job_id, state)
    database = world.close()
    full = run("reconcile", database, "--now", NOW)
    assert full.out.splitlines()[1] == "4 jobs in all: 2 queued, 1 claimed, 1 completed."
    document = json.loads(run("reconcile", database, "--now", NOW, "--json").out)
    counts = {**dict.fromkeys(JobState, 0), "queued": 2, "claimed": 1, "completed": 1}
    assert (document["job_count"], document["job_counts"]) == (4, counts)


def _job_ahead(w: HeldWorld) -> None:
    w.job(1, "queued", updated_at_ns=NOW + S)


def _job_made_ahead(w: HeldWorld) -> None:
    w.job(1, "completed", created_at_ns=NOW + S)


def _run_ahead(w: HeldWorld) -> None:
    w.job(1, "completed")
    w.run(started_at_ns=NOW + S, completed_at_ns=NOW - S, return_code=0)


def _end_ahead(w: HeldWorld) -> None:
    w.job(1, "completed")
    w.run(completed_at_ns=NOW + S, return_code=0)


def _event_ahead(w: HeldWorld) -> None:
    names = ("claim_id", "subject", "predicate", "object")
    w.insert(
        "blackboard_claim_events",
        kind="claim_asserted",
        payload_json="{}",
        created_at_ns=NOW + S,
        **dict.fromkeys(names, "a"),
    )


def _log_ahead(w: HeldWorld) -> None:
    w.job()
    w.run(log_path="1.log")
    w.log("1.log", age_ns=-S)


@pytest.mark.parametrize(
    "build", [_job_ahead, _job_made_ahead, _run_ahead, _end_ahead, _event_ahead, _log_ahead]
)
def test_what_is_newer_than_the_moment_judged_at_is_a_warning(
    build: Callable[[HeldWorld], None], world: HeldWorld, run: Run
) -> None:
    """Rows and logs from later than --now make the answer doubtful; those of that moment do not."""
    build(world)
    database = world.close()
    kind = "logs_ahead" if build is _log_ahead else "rows_ahead"
    answer = run("reconcile", database, "--now", NOW)
    assert (answer.code, answer.out.split(":")[0]) == (1, f"warning ({kind})")
    assert "was written 1 s after the moment judged at" in " ".join(answer.out.split())
    assert run("reconcile", database, "--now", NOW + S).code == 0


def test_running_jobs_under_no_lease_are_counted(world: HeldWorld, run: Run) -> None:
    """No requeue ever gives them back, so they are told, with a finding and without one."""
    for job_id in (1, 2):
        world.job(job_id, claim_owner=None, claim_expires_at_ns=None)
        world.run(job_id)
    world.job(3, "claimed")
    database = world.close()
    answer = run("reconcile", database, "--now", NOW)
    line = "2 running jobs are under no lease at all: requeue_expired_jobs never gives them back."
    assert (answer.code, answer.out.splitlines()[2]) == (0, line)
    document = json.loads(run("reconcile", database, "--now", NOW, "--json").out)
    assert document["unleased_count"] == 2
    world.__init__(world.folder.parent / "other")  # type: ignore[misc]
    world.job(1, claim_owner=None, claim_expires_at_ns=None)
    answer = run("reconcile", world.close(), "--now", NOW)
    assert "1 running job is under no lease at all" in answer.out
    assert f"1  {NO_RUN}" in answer.out
