"""Fixtures are read and checked wholly before any is played; what is wrong has its place named."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.metabolism.errors import MetabolismError
from store.metabolism.fixtures.cases import OPERATIONS, SECONDS_MAX, parse_case
from store.metabolism.fixtures.checks import FixtureError, Reference
from store.metabolism.fixtures.files import SIZE_MAX, read_fixture_dir
from store.metabolism.fixtures.steps import STEPS


def document(*steps: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Return a sound fixture with these steps, and with some of its keys changed."""
    sound = {
        "case": "sound",
        "about": "Nothing is wrong with it.",
        "expected_status": "pass",
        "steps": list(steps),
        "expect": {"status": "healthy"},
    }
    return {**sound, **changed}


ENQUEUE = {"do": "enqueue_job", "as": "job", "kind": "k", "idempotency_key": "key"}
CLAIM = {"do": "claim_next_job", "as": "claim", "owner": "worker"}
START = {"do": "start_run", "as": "run", "claim": "claim"}
ASSERT = {
    "do": "append_claim_event",
    "as": "event",
    "kind": "claim_asserted",
    "claim_id": "c",
    "subject": "s",
    "predicate": "p",
    "object": "o",
}
LOG = {"do": "create_log", "log_path": "a.log"}
RUN = {"do": "complete_run", "run": "run", "return_code": 0}
BACKDATE = {"do": "backdate_log", "log_path": "a.log", "seconds": 1}
APPEND = {"do": "append_log", "log_path": "a.log", "line": "x"}
REMOVE = {"do": "remove_log", "log_path": "a.log"}
STALE = "running_job_stale_launch_log"


def without(value: dict[str, Any], key: str) -> dict[str, Any]:
    """Return *value* without *key*."""
    return {name: item for name, item in value.items() if name != key}


REFUSED: dict[str, tuple[object, str, str]] = {
    "not an object": ([], "", "expected an object"),
    "unknown key": (document(surprise=1), "surprise", "unknown; expected case, about"),
    "key with a blank": (document(**{"a b": 1}), '"a b"', "unknown"),
    "no name": (without(document(), "case"), "case", "missing"),
    "no steps": (without(document(), "steps"), "steps", "missing"),
    "no expect": (without(document(), "expect"), "expect", "missing"),
    "no expected status": (without(document(), "expected_status"), "expected_status", "missing"),
    "case of a wrong form": (document(case="Not/a name"), "case", "small letters"),
    "case that is a number": (document(case=1), "case", "found 1"),
    "about nothing": (document(about="  "), "about", "one sentence"),
    "unknown status": (document(expected_status="passed"), "expected_status", "pass, fail"),
    "negative threshold": (
        document(stale_after_seconds=-1),
        "stale_after_seconds",
        "at least 0 and at most",
    ),
    "steps that are no array": (document(steps={}), "steps", "expected an array"),
    "step that is no object": (document(steps=["advance"]), "steps[0]", "expected an object"),
    "step without do": (document({"owner": "w"}), "steps[0].do", "missing; expected enqueue_job"),
    "unknown operation": (document({"do": "sql"}), "steps[0].do", 'found "sql"; expected one of'),
    "operation that is an object": (document({"do": {}}), "steps[0].do", "expected one of"),
    "unknown argument": (document({**ENQUEUE, "owner": "w"}), "steps[0].owner", "unknown"),
    "missing argument": (document(without(ENQUEUE, "kind")), "steps[0].kind", "missing"),
    "text that is a number": (document({**CLAIM, "owner": 7}), "steps[0].owner", "found 7"),
    "text that is null": (document({**CLAIM, "owner": None}), "steps[0].owner", "found null"),
    "integer that is a bool": (
        document({**CLAIM, "lease_seconds": True}),
        "steps[0].lease_seconds",
        "found true; expected an integer",
    ),
    "integer with a fraction": (
        document({**CLAIM, "lease_seconds": 0.5}),
        "steps[0].lease_seconds",
        "found 0.5",
    ),
    "bool that is an integer": (
        document(ENQUEUE, CLAIM, START, {**RUN, "finalize_job": 1}),
        "steps[3].finalize_job",
        "true or false",
    ),
    "params that are an array": (document({**ENQUEUE, "params": []}), "steps[0].params", "object"),
    "reference to nothing": (
        document(ENQUEUE, START),
        "steps[1].claim",
        "expected the name of a claim (there is none)",
    ),
    "reference to itself": (
        document({"do": "start_run", "as": "claim", "claim": "claim"}),
        "steps[0].claim",
        "no result of an earlier step",
    ),
    "reference to another kind": (
        document(ENQUEUE, CLAIM, {**START, "claim": "job"}),
        "steps[2].claim",
        "names the job of an earlier step; expected the name of a claim (claim)",
    ),
    "reference that is no text": (document(ENQUEUE, {**START, "claim": 1}), "steps[1].claim", "1"),
    "job where a run is meant": (
        document(ENQUEUE, {**RUN, "run": "job"}),
        "steps[1].run",
        "names the job",
    ),
    "event where a job is meant": (
        document(ASSERT, {"do": "update_job_state", "job": "event", "state": "failed"}),
        "steps[1].job",
        "names the event",
    ),
    "name given twice": (document(ENQUEUE, ENQUEUE), "steps[1].as", "expected a new one"),
    "name of a wrong form": (document({**ENQUEUE, "as": "A job"}), "steps[0].as", "small letters"),
    "name of no result": (
        document({"do": "requeue_expired_jobs", "as": "count"}),
        "steps[0].as",
        "unknown",
    ),
    "name of a result that is null": (
        document({**CLAIM, "returns": None}),
        "steps[0].as",
        "has no result",
    ),
    "name of an error": (document({**ENQUEUE, "raises": "NotText"}), "steps[0].as", "no result"),
    "returns and raises": (
        document({"do": "requeue_expired_jobs", "returns": 0, "raises": "NotText"}),
        "steps[0]",
        "both returns and raises",
    ),
    "unknown error": (
        document({"do": "requeue_expired_jobs", "raises": "ValueError"}),
        "steps[0].raises",
        "StaleClaim",
    ),
    "any error": (
        document({"do": "requeue_expired_jobs", "raises": "MetabolismError"}),
        "steps[0].raises",
        "expected one of",
    ),
    "error of the clock": (
        document({"do": "advance", "seconds": 1, "raises": "NotText"}),
        "steps[0].raises",
        "unknown",
    ),
    "returns nothing": (
        document(ENQUEUE, {**CLAIM, "returns": {}}),
        "steps[1].returns",
        "empty; expected at least one thing",
    ),
    "returns an unknown key": (
        document({**ENQUEUE, "returns": {"new": True}}),
        "steps[0].returns.new",
        "expected inserted, job, state",
    ),
    "returns of another type": (
        document({"do": "requeue_expired_jobs", "returns": {}}),
        "steps[0].returns",
        "expected an integer at least 0",
    ),
    "returns an unknown state": (
        document({**ENQUEUE, "returns": {"state": "waiting"}}),
        "steps[0].returns.state",
        "queued, claimed",
    ),
    "log outside": (document({**LOG, "log_path": "../a"}), "steps[0].log_path", "relative path"),
    "absolute log": (document({**LOG, "log_path": "/a"}), "steps[0].log_path", "relative path"),
    "log of two spellings": (document({**LOG, "log_path": "b//a"}), "steps[0].log_path", "path"),
    "log that is the folder": (document({**LOG, "log_path": "."}), "steps[0].log_path", "path"),
    "log with NUL": (document({**LOG, "log_path": "a\0b"}), "steps[0].log_path", "relative path"),
    "log that is the database": (
        document({**LOG, "log_path": "metabolism.sqlite3-wal"}),
        "steps[0].log_path",
        "does not begin with metabolism.sqlite3",
    ),
    "log that nobody made": (document(BACKDATE), "steps[0].log_path", "a step made (there is none"),
    "line for another log": (
        document(LOG, {**APPEND, "log_path": "b.log"}),
        "steps[1].log_path",
        "(a.log)",
    ),
    "log removed twice": (document(LOG, REMOVE, REMOVE), "steps[2].log_path", "is no log here"),
    "clock that stands": (document({"do": "advance", "seconds": 0}), "steps[0].seconds", "least 1"),
    "clock that runs away": (
        document({"do": "advance", "seconds": SECONDS_MAX}, {"do": "advance", "seconds": 1}),
        "steps[1].seconds",
        "in all",
    ),
    "log from the future": (document(LOG, {**BACKDATE, "seconds": -1}), "steps[1].seconds", "1"),
    "expect nothing": (document(expect={}), "expect", "at least one thing to hold (jobs"),
    "expect no object": (document(expect="pass"), "expect", "expected an object"),
    "expect an unknown key": (document(expect={"jobz": {}}), "expect.jobz", "unknown"),
    "expect no job": (document(expect={"jobs": {}}), "expect.jobs", "at least one job"),
    "expect an unknown job": (
        document(expect={"jobs": {"job": "queued"}}),
        "expect.jobs.job",
        "no result",
    ),
    "expect an unknown state": (
        document(ENQUEUE, expect={"jobs": {"job": "done"}}),
        "expect.jobs.job",
        "recoverable",
    ),
    "expect an unknown status": (document(expect={"status": "ok"}), "expect.status", "healthy"),
    "expect an unknown rule": (
        document(expect={"rule_counts": {"stale": 1}}),
        "expect.rule_counts.stale",
        STALE,
    ),
    "expect fewer than none": (
        document(expect={"rule_counts": {STALE: -1}}),
        f"expect.rule_counts.{STALE}",
        "at least 0",
    ),
    "expect a finding without rule": (
        document(ENQUEUE, expect={"findings": [{"job": "job"}]}),
        "expect.findings[0].rule",
        "missing",
    ),
    "expect a finding of nothing": (
        document(expect={"findings": [{"rule": STALE}]}),
        "expect.findings[0]",
        "either job or run",
    ),
    "expect a finding of an unknown run": (
        document(expect={"findings": [{"rule": STALE, "run": "run"}]}),
        "expect.findings[0].run",
        "no result",
    ),
    "expect an empty projection": (
        document(expect={"projection": {}}),
        "expect.projection",
        "active_count",
    ),
    "expect an unknown event": (
        document(expect={"projection": {"active": ["event"]}}),
        "expect.projection.active[0]",
        "no result",
    ),
    "expect half a job": (
        document(expect={"requeued_count": 0.5}),
        "expect.requeued_count",
        "an integer",
    ),
    "expect an unknown mode": (
        document(expect={"journal_mode": "WAL"}),
        "expect.journal_mode",
        "wal",
    ),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_unknown_is_refused_with_its_place(name: str) -> None:
    """Each unknown operation, key, reference or type raises a FixtureError that says where and
    what was expected."""
    value, place, words = REFUSED[name]
    with pytest.raises(FixtureError) as caught:
        parse_case(value, file="a.json")
    assert ("a.json", place) == (caught.value.file, caught.value.place)
    assert words in caught.value.problem
    assert str(caught.value).startswith(f"a.json: {place}: " if place else "a.json: ")


def test_a_sound_case_keeps_what_it_says() -> None:
    """The checked case holds names as references, and defaults for what was left out."""
    case = parse_case(document(ENQUEUE, {**CLAIM, "returns": {"job": "job"}}, START), file="a.json")
    assert (case.name, case.expected_status, case.stale_after_seconds) == ("sound", "pass", 600)
    assert {"returns": {"job": Reference("job", "job")}} == case.steps[1].outcome
    assert (case.steps[2].operation, case.steps[2].name) == ("start_run", "run")
    assert {"claim": Reference("job", "claim")} == case.steps[2].arguments


def test_a_refused_step_leaves_its_log_as_it_was() -> None:
    """A step that must raise may name a log that is not there, and makes none."""
    refused = {"raises": "LogRefused"}
    parse_case(document({**APPEND, **refused}), file="a.json")
    with pytest.raises(FixtureError, match="is no log here"):
        parse_case(document({**LOG, **refused}, REMOVE), file="a.json")


def test_every_operation_can_be_played() -> None:
    """What a fixture may say and what is played are the same operations."""
    assert set(OPERATIONS) == set(STEPS)


def test_a_refusal_survives_pickling() -> None:
    """A FixtureError is a MetabolismError that keeps its facts from process to process."""
    error = FixtureError("a.json", "steps[3].owner", "found 7; expected a text.")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, MetabolismError)
    assert str(error) == str(again) == "a.json: steps[3].owner: found 7; expected a text."
    assert (again.file, again.place) == ("a.json", "steps[3].owner")


def written(folder: Path, name: str, value: object) -> Path:
    """Write a fixture, or bytes, and return the file."""
    file = folder / name
    file.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
    return file


UNREADABLE = {
    "malformed": (b'{"case": ', "", "Expecting value"),
    "empty": (b"", "", "Expecting value"),
    "two documents": (b"{} {}", "", "Extra data"),
    "duplicate key": (b'{"case": "a", "case": "b"}', "case", "stands twice"),
    "duplicate key within": (b'{"steps": [{"do": 1, "do": 2}]}', "steps[0].do", "stands twice"),
    "byte order mark": (b"\xef\xbb\xbf{}", "", "BOM"),
    "not UTF-8": (b'{"case": "\xff"}', "", "byte 10 is not UTF-8"),
    "UTF-16": ('{"case": "a"}'.encode("utf-16"), "", "not UTF-8"),
    "NaN": (b'{"case": NaN}', "case", "not a JSON number"),
    "lone surrogate": (b'{"case": "\\ud800"}', "case", "lone surrogate"),
    "unprintable key": (b'{"\\u001b[2J": 1, "\\u001b[2J": 2}', "\\x1b[2J", "stands twice"),
    "too deep": (b"[" * 100_000, "", "nested deeper"),
    "too large": (b" " * (SIZE_MAX + 1), "", "at most"),
}


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_a_file_that_is_no_fixture_is_refused(tmp_path: Path, name: str) -> None:
    """Bytes that are not one plain JSON document raise a FixtureError that names the file."""
    data, place, words = UNREADABLE[name]
    written(tmp_path, "a.json", document())
    file = written(tmp_path, "b.json", data)
    with pytest.raises(FixtureError) as caught:
        read_fixture_dir(tmp_path)
    assert (str(file), place) == (caught.value.file, caught.value.place)
    assert words in caught.value.problem


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("make", [_folder, _pipe, _link_to_nothing])
def test_what_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A folder, a pipe or a dead link named *.json is refused at once, and not waited for."""
    make(tmp_path / "a.json")
    with pytest.raises(FixtureError, match=r"a\.json: .*expected a (readable|regular) file"):
        read_fixture_dir(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    """A file without the right to read it raises a FixtureError that names it."""
    written(tmp_path, "a.json", document()).chmod(0)
    with pytest.raises(FixtureError, match=r"a\.json: Permission denied"):
        read_fixture_dir(tmp_path)


def test_the_input_must_be_a_folder(tmp_path: Path) -> None:
    """A missing input, and a file in its place, are refused by name."""
    for path in (tmp_path / "missing", written(tmp_path, "a.json", document())):
        with pytest.raises(FixtureError, match="expected a readable folder of fixtures") as caught:
            read_fixture_dir(path)
        assert str(path) == caught.value.file


def test_two_files_with_one_case_are_refused(tmp_path: Path) -> None:
    """A case's name stands in one file only; the error names both."""
    first = written(tmp_path, "a.json", document())
    second = written(tmp_path, "b.json", document())
    with pytest.raises(FixtureError) as caught:
        read_fixture_dir(tmp_path)
    assert (str(second), "case") == (caught.value.file, caught.value.place)
    assert str(first) in caught.value.problem


def test_every_json_file_is_read(tmp_path: Path) -> None:
    """MR-034: each *.json of the folder is a case, sorted by name; nothing else is looked at."""
    written(tmp_path, "1.json", document(case="second"))
    written(tmp_path, ".2.json", document(case="first"))
    written(tmp_path, "readme.txt", b"no fixture")
    (tmp_path / "within").mkdir()
    written(tmp_path / "within", "3.json", b"no fixture")
    assert [case.name for case in read_fixture_dir(tmp_path)] == ["first", "second"]


def test_a_name_that_is_no_text_can_be_shown(tmp_path: Path) -> None:
    """A file whose name is not UTF-8 is named with escapes, so that the message can be printed."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json"))
    path.write_bytes(b"{")
    with pytest.raises(FixtureError, match=r"udcff\.json") as caught:
        read_fixture_dir(tmp_path)
    str(caught.value).encode()
