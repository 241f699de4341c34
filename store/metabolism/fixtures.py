"""
Playing fixtures: each case in a folder and a database of its own, and the record of all of them.

Method: a case is played through the public operations only. Its clock starts at a fixed moment and
moves when a step says so; the times of its launch logs are set to that clock. So a record depends
on the fixtures alone: the same ones give the same bytes, wherever and whenever they are played.

Covered: what the operations return and raise, the rows, the findings and the blackboard they leave.
Not covered: two processes at once, and crashes; the campaigns have those.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from store import durability, sqlite
from store.metabolism.blackboard import Projection, build_blackboard_projection
from store.metabolism.errors import MetabolismError
from store.metabolism.fixture_cases import Case, Step, parse_case
from store.metabolism.fixture_checks import DATABASE, FixtureError
from store.metabolism.fixture_files import read_fixture_dir
from store.metabolism.fixture_steps import STEPS, World
from store.metabolism.queue import job_by_id
from store.metabolism.reconciliation import Reconciliation
from store.metabolism.schema import SCHEMA_VERSION
from store.metabolism.scope import CLAIM_CEILING, ORGAN_ID, SCOPE_BOUNDARIES
from store.metabolism.storage import connect

__all__ = [
    "RECORD_VERSION",
    "Case",
    "CaseResult",
    "FixtureError",
    "Mismatch",
    "ScratchUnusable",
    "evaluate_case",
    "evaluate_fixture_dir",
    "parse_case",
    "read_fixture_dir",
]

RECORD_VERSION: Final = 1
"""Grows when a record's keys change their meaning."""

_PREFIX = "metabolism-fixtures-"
_NO_CASE = "the folder holds no *.json file, so nothing was shown; expected at least one case"

_OF_THE_FOLDER = (
    OSError,
    durability.DurabilityError,
    sqlite.SqliteError,
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.FullError,
    apsw.IOError,
    apsw.ReadOnlyError,
)
_OF_THE_MACHINE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})


class ScratchUnusable(MetabolismError):
    """
    The folder in which cases are played let one down; this says nothing about the case.

    Attributes:
        folder: Where temporary folders are made.
        case: The case that was being played; None where none was yet.
        problem: What the system said.
    """

    def __init__(self, folder: str, case: str | None, problem: str) -> None:
        subject = "the cases" if case is None else f"case {case!r}"
        super().__init__(
            f"{subject} could not be played in a temporary folder in {folder!r}: {problem}; "
            "expected a writable local folder with room in it. Name another one in TMPDIR."
        )
        self.folder = folder
        self.case = case
        self.problem = problem


class Mismatch(NamedTuple):
    """
    One expectation that did not hold.

    Attributes:
        place: Where the fixture states it, as in ``expect.rule_counts`` or ``steps[3].raises``.
        expected: What it states, as plain JSON.
        observed: What was found.
    """

    place: str
    expected: Any
    observed: Any


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """
    What became of one case.

    Attributes:
        observed_status: ``pass`` if every expectation held, else ``fail``.
        mismatches: Those that did not.
        reconciliation: Of the case's database, as it was left.
        projection: Of its blackboard.
        requeued_count: How many jobs its steps gave back, in all.
    """

    name: str
    about: str
    expected_status: str
    observed_status: str
    mismatches: tuple[Mismatch, ...]
    reconciliation: Reconciliation
    projection: Projection
    requeued_count: int

    @property
    def is_met(self) -> bool:
        """Whether the observed status is the expected one."""
        return self.observed_status == self.expected_status

    def to_json(self) -> dict[str, Any]:
        """
        Return the result as plain JSON, without times.
        """
        return {
            "case": self.name,
            "about": self.about,
            "expected_status": self.expected_status,
            "observed_status": self.observed_status,
            "met": self.is_met,
            "mismatches": [mismatch._asdict() for mismatch in self.mismatches],
            "reconciliation": {
                "status": self.reconciliation.status,
                "rule_counts": dict(self.reconciliation.rule_counts),
                "findings": [
                    {
                        "finding_id": finding.finding_id,
                        "rule": finding.rule.value,
                        "object_kind": finding.object_kind,
                        "object_id": finding.object_id,
                        "expected": finding.expected,
                        "observed": finding.observed,
                        "action": finding.action,
                    }
                    for finding in self.reconciliation.findings
                ],
            },
            "projection": {
                "active_count": self.projection.active_count,
                "event_count": self.projection.event_count,
                "contradiction_count": self.projection.contradiction_count,
            },
            "requeued_count": self.requeued_count,
        }


def evaluate_case(case: Case, *, scratch: Path) -> CaseResult:
    """
    Play *case* in a new folder within *scratch*, and compare what happens with what it expects.

    Durable: Nothing; the new folder is removed, also after an error and after Ctrl-C.
    Raises: ScratchUnusable: the folder could not be made, written or removed.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=scratch) as name:
            folder = Path(name).resolve()
            with closing(connect(folder / DATABASE)) as connection:
                return _played(case, World(connection, folder, case.stale_after_seconds))
    except _OF_THE_FOLDER as error:
        raise ScratchUnusable(str(scratch), case.name, str(error)) from error


def evaluate_fixture_dir(input: Path) -> dict[str, Any]:
    """
    Play every fixture in the folder *input*, and return the record of all of them as plain JSON.

    Its ``status`` is ``pass`` if there is a case and each has the status that it expects.

    Durable: Nothing; nothing is written outside a temporary folder, which is removed.
    Raises:
        FixtureError: *input* or a file in it cannot be used; no case was played.
        ScratchUnusable: the folder for temporary files cannot be used.
    """
    cases = read_fixture_dir(input)
    try:
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as scratch:
            results = [evaluate_case(case, scratch=Path(scratch)) for case in cases]
    except OSError as error:
        raise ScratchUnusable(os.environ.get("TMPDIR", "/tmp"), None, str(error)) from error
    return _record(results)


def _record(results: list[CaseResult]) -> dict[str, Any]:
    reasons = [
        f"{result.name}: expected {result.expected_status}, observed {result.observed_status}"
        for result in results
        if not result.is_met
    ] or [_NO_CASE] * (not results)
    met_count = sum(result.is_met for result in results)
    return {
        "organ_id": ORGAN_ID,
        "record_version": RECORD_VERSION,
        "schema_version": SCHEMA_VERSION,
        "status": "fail" if reasons else "pass",
        "reasons": reasons,
        "counts": {
            "cases": len(results),
            "met": met_count,
            "missed": len(results) - met_count,
        },
        "cases": [result.to_json() for result in results],
        "claim_ceiling": CLAIM_CEILING,
        "scope_boundaries": list(SCOPE_BOUNDARIES),
    }


def _played(case: Case, world: World) -> CaseResult:
    mismatches: list[Mismatch] = []
    is_whole = all(
        _step(world, f"steps[{at}]", step, mismatches) for at, step in enumerate(case.steps)
    )
    reconciliation = world.reconcile(case.stale_after_seconds)
    projection = build_blackboard_projection(world.connection)
    if is_whole:
        found = _found(case, world, reconciliation)
        mismatches += _differences("expect", world.plain(case.expect), found)
    return CaseResult(
        name=case.name,
        about=case.about,
        expected_status=case.expected_status,
        observed_status="fail" if mismatches else "pass",
        mismatches=tuple(mismatches),
        reconciliation=reconciliation,
        projection=projection,
        requeued_count=world.requeued_count,
    )


def _step(world: World, place: str, step: Step, mismatches: list[Mismatch]) -> bool:
    """Do one step, note what it should not have done, and say whether the case can go on."""
    raises = step.outcome.get("raises")
    try:
        row, shown = STEPS[step.operation](world, world.given(step.arguments))
    except MetabolismError as error:
        _must_be_of_the_case(error)
        if type(error).__name__ != raises:
            mismatches.append(Mismatch(f"{place}.raises", raises, _words(world, error)))
        return raises is not None
    if raises is not None:
        mismatches.append(Mismatch(f"{place}.raises", raises, None))
        return True
    if "returns" in step.outcome:
        mismatches += _differences(f"{place}.returns", world.plain(step.outcome["returns"]), shown)
    if step.name is None:
        return True
    if row is None:
        mismatches.append(Mismatch(f"{place}.as", step.name, None))
        return False
    world.bind(step.name, row)
    return True


def _must_be_of_the_case(error: MetabolismError) -> None:
    """Raise again what a refusal hides when the machine is at fault, as for a full disk."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in _OF_THE_MACHINE:
        raise cause


def _words(world: World, error: MetabolismError) -> str:
    words = str(error).replace(f"{world.folder}{os.sep}", "")
    return f"{type(error).__name__}: {words}"


def _found(case: Case, world: World, reconciliation: Reconciliation) -> dict[str, Any]:
    """Return everything that ``expect`` may be about."""
    jobs = {
        name: job_by_id(world.connection, world.rows[name][0]).state
        for name in case.expect.get("jobs", {})
    }
    return {
        "jobs": jobs,
        **world.reconciliation(reconciliation),
        "projection": world.projection(),
        "requeued_count": world.requeued_count,
        "journal_mode": sqlite.rows(world.connection, "PRAGMA journal_mode")[0][0],
    }


def _differences(place: str, expected: Any, observed: Any) -> Iterator[Mismatch]:
    """Yield where *observed* differs from what is expected; it may hold more keys."""
    if isinstance(expected, dict) and isinstance(observed, dict):
        for key, item in expected.items():
            yield from _differences(f"{place}.{key}", item, observed[key])
    elif expected != observed:
        yield Mismatch(place, expected, observed)
