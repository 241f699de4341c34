"""
Recording: the golden execution, and what the files show after each of its steps.

Runs in a zygote. Two zygotes record, since two executions in one interpreter share their hash
seed and random state, and hide what differs from run to run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness import workspace
from harness.campaign import normalise, overrides
from harness.crash import Death, execution, kill_at
from harness.errors import ConfigurationError
from harness.oracle import difference
from harness.run import Run, StepNote
from harness.sqlite_check import check_databases
from harness.sqlite_settings import settings_in_force
from harness.stage import PhaseEnd, Stage
from harness.trace import Recording, Step, parse_journal


class Unrecordable(Exception):
    """
    The workload could be executed, but what it leaves is wrong or differs from run to run.

    Attributes:
        verdict: "violated", "inconclusive" or "hung".
        invariant: Name of what is broken.
    """

    def __init__(self, verdict: str, invariant: str, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict
        self.invariant = invariant


def prepare(stage: Stage) -> None:
    """
    Make the fixture: run ``prepare`` in an empty root and keep a copy of what it left.

    Raises: ConfigurationError: it raised, hung, ended itself, or left a process behind.
    """
    workspace.clear_tree(stage.root)
    run = Run(stage.campaign, stage.tape, "prepare", is_recording=True)
    end = stage.run(
        lambda: normalise(stage.campaign.prepare(stage.root, run), "the result of prepare")
    )
    _demand(end, "prepare")
    if end.ended.leftovers:
        raise ConfigurationError(f"prepare left a process behind: {_leftovers(end)}")
    workspace.drop_volatile(stage.root, stage.campaign.volatile)
    stage.fixture_value = end.value
    stage.prepared = end.journal.decode()
    stage.fixture_time = stage.tape.time
    stage.save("fixture")


def execute_once(stage: Stage) -> tuple[str, str, list[Step]]:
    """
    Execute on a fresh fixture; return trace, journal and steps.

    Raises: ConfigurationError: it raised, hung, ended itself, or has no step. Unrecordable: it
        left a process behind.
    """
    stage.restore_fixture()
    body = execution(stage, is_recording=True)
    end = stage.run(lambda: [vars(note) for note in body().notes], is_traced=True)
    _demand(end, "execute")
    if end.ended.leftovers:
        raise Unrecordable(
            "violated",
            "no_process_left",
            f"the execution returned and left a process behind: {_leftovers(end)}",
        )
    steps = [StepNote(**note).as_step() for note in end.value]
    if not steps:
        raise ConfigurationError(
            "execute has no step; wrap each operation in run.step(label, action)."
        )
    return end.trace.decode(), end.journal.decode(), steps


def _demand(end: PhaseEnd, phase: str) -> None:
    if end.has_returned:
        return
    detail = end.ended.stack if end.ended.is_hung else end.raised.traceback if end.raised else ""
    printed = f"\nprinted:\n{end.printed}" if end.printed and not end.ended.is_hung else ""
    raise ConfigurationError(f"{end.failure(phase)}\n{detail}{printed}".rstrip())


def _leftovers(end: PhaseEnd) -> str:
    return ", ".join(f"{x.command!r} (pid {x.pid})" for x in end.ended.leftovers)


def record(stage: Stage) -> Recording:
    """
    Return the whole recording; :func:`prepare` must have run.

    Raises: ConfigurationError: the campaign is wrong. Unrecordable: the store is, or differs
        from run to run, or changes outside every step.
    """
    trace, journal, steps = execute_once(stage)
    recording = Recording(stage.root.as_posix(), trace, journal, stage.prepared, steps)
    if all(boundary.is_mark for boundary in recording.boundaries):
        raise Unrecordable(
            "inconclusive",
            "observed",
            "no boundary of the store was seen: no SQLite statement, sync, rename, write or named "
            "point; nothing would be crashed. Does the store write in another process or through "
            "a C library? Then announce points through attach().",
        )
    _check_contracts(stage, recording)
    expected = [_observe_fixture(stage)]
    ended = _observe_steps(stage, recording, expected)
    _check_after_recovery(stage, [*expected, ended])
    golden = check_databases(stage)
    in_force = settings_in_force(stage, golden.journal_modes, trace)
    return replace(
        recording,
        expected=expected,
        ended=ended,
        sqlite_golden=golden.complaints,
        sqlite=in_force.sqlite,
        journal_mode=in_force.journal_mode,
        synchronous=in_force.synchronous,
    )


def _check_contracts(stage: Stage, recording: Recording) -> None:
    """Refuse an at-least-once contract that nothing promises, which could never be broken."""
    entries = [*parse_journal(recording.prepared), *recording.entries]
    promises_later = overrides(stage.campaign, "resume") or overrides(stage.campaign, "recover")
    promised = {entry.name for entry in entries if entry.act == "promise"}
    for name, contract in stage.campaign.delivery.items():
        if contract == "at-least-once" and name not in promised and not promises_later:
            raise ConfigurationError(
                f"delivery {name!r} is at-least-once, but nothing promises {name!r}: call "
                f"run.promise({name!r}, ...) when the store takes the work on."
            )


def _observation(stage: Stage) -> Callable[[], Any]:
    def body() -> Any:
        value = normalise(stage.campaign.observe(stage.root), "the observation")
        if stage.campaign.durability == "cache" and not isinstance(value, dict):
            raise ConfigurationError(
                "durability='cache' needs an observation that is an object, one key per entry; "
                f"observe returned a {type(value).__name__}."
            )
        return value

    return body


def _observe_fixture(stage: Stage) -> Any:
    stage.restore_fixture()
    once = _observation(stage)
    end = stage.run(lambda: [once(), once()])
    if not end.has_returned:
        _demand(end, "observe, on the fixture,")
    first, second = end.value
    if first != second:
        raise ConfigurationError(
            f"observe differs by itself: it returned {json.dumps(first)[:300]} and then "
            f"{json.dumps(second)[:300]} for the same files."
        )
    return first


def _observe_dead(stage: Stage, recording: Recording, boundary: int, where: str) -> Any:
    death = kill_at(stage, recording, boundary)
    _demand_death(death, boundary)
    end = stage.run(_observation(stage))
    if end.has_returned:
        return end.value
    if end.ended.is_hung:
        raise Unrecordable("hung", "observable", f"{end.failure('observe')}\n{end.ended.stack}")
    raise Unrecordable(
        "violated",
        "observable",
        f"no crash is needed: the files of a process that died {where} cannot be observed: "
        f"{end.failure('observe')}",
    )


def _demand_death(death: Death, boundary: int) -> None:
    if death.violation is None:
        return
    if death.kind == "hung":
        raise Unrecordable("hung", death.violation.invariant, death.violation.message)
    raise Unrecordable(
        "inconclusive",
        death.violation.invariant,
        f"the trace differs from run to run: killed at boundary {boundary}, "
        f"{death.violation.message}",
    )


def _observe_steps(stage: Stage, recording: Recording, expected: list[Any]) -> Any:
    """Fill *expected* with the observation after each step; return the one after the end."""
    seen = [
        (
            _observe_dead(stage, recording, step.begin, f"before step {step.label!r}"),
            _observe_dead(stage, recording, step.end, f"after step {step.label!r}"),
        )
        for step in recording.steps
    ]
    last = len(recording.lines)
    ended = _observe_dead(stage, recording, last, "after the execution returned")
    for step, (_, after) in zip(recording.steps, seen, strict=True):
        expected.append(_expectation(step, expected[-1], after))
    for step, before, (at_begin, _) in zip(recording.steps, expected, seen, strict=False):
        _demand_same(before, at_begin, f"step {step.label!r}")
    _demand_same(expected[-1], ended, "the end of the execution")
    return ended


def _demand_same(expected: Any, seen: Any, where: str) -> None:
    if expected != seen:
        raise Unrecordable(
            "inconclusive",
            "nothing_outside_steps",
            f"something outside every step changed the store before {where}: "
            f"{_both(expected, seen)}; move it into a step.",
        )


def _expectation(step: Step, before: Any, seen: Any) -> Any:
    if step.then == "observed":
        return seen
    given = before if step.then == "unchanged" else step.given
    if given != seen:
        word = "UNCHANGED" if step.then == "unchanged" else "`then`"
        raise Unrecordable(
            "violated",
            "acknowledged_step_is_stored",
            f"no crash is needed: step {step.label!r} was acknowledged, but the files of a process "
            f"that died right after it do not show what {word} says: {_both(given, seen)}. An "
            f"acknowledged step was not stored, or {word} is wrong; only you can say which.",
        )
    return given


def _both(expected: Any, seen: Any) -> str:
    return "; ".join(difference(expected, seen))


def _check_after_recovery(stage: Stage, states: list[Any]) -> None:
    def body() -> Any:
        for state in states:
            once = normalise(stage.campaign.after_recovery(state), "the result of after_recovery")
            twice = normalise(stage.campaign.after_recovery(once), "the result of after_recovery")
            if once != twice:
                raise ConfigurationError(
                    "after_recovery is not idempotent: applied to its own result it gives "
                    f"something else: {_both(once, twice)}."
                )
        return None

    _demand(stage.run(body), "after_recovery")
