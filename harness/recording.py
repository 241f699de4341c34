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
from harness.crash import DETERMINISM, Death, execution, first_difference, kill_at
from harness.errors import ConfigurationError
from harness.oracle import difference
from harness.run import NotRefused, Run, StepNote
from harness.sqlite_check import check_databases
from harness.sqlite_settings import settings_in_force
from harness.stage import PhaseEnd, Stage
from harness.tape import EPOCH_NS
from harness.trace import Recording, Step, parse_journal

_FIRST_RUN = {
    "result": "the result of prepare",
    "prepared": "what prepare promised and did",
    "observed": "the observation of the fixture",
    "trace": "the trace",
    "journal": "the order of steps, promises and effects",
}


class Unrecordable(Exception):
    """
    The workload could be executed, but what it leaves is wrong or differs from run to run.

    Attributes:
        verdict: "violated", "inconclusive" or "hung".
        invariant: Name of what is broken.
        printed: What the child printed.
        step: Label of the step that the message names, or None.
    """

    def __init__(
        self,
        verdict: str,
        invariant: str,
        message: str,
        printed: str = "",
        *,
        step: str | None = None,
    ) -> None:
        super().__init__(message)
        self.verdict = verdict
        self.invariant = invariant
        self.printed = printed
        self.step = step


def prepare(stage: Stage) -> None:
    """
    Make the fixture: run ``prepare`` in an empty root and keep a copy of what it left.

    Raises: ConfigurationError: it raised, hung, ended itself, or left a process behind.
    """
    workspace.clear_tree(stage.root)
    stage.tape.set_time(EPOCH_NS, 0)
    run = Run(stage.campaign, stage.tape, "prepare", is_recording=True)
    end = stage.run(
        lambda: normalise(stage.campaign.prepare(stage.root, run), "the result of prepare")
    )
    demand_returned(end, "prepare")
    if end.leftovers:
        raise ConfigurationError(
            f"prepare left a process behind: {end.leftovers}; end it before prepare returns."
        )
    stage.demand_root("prepare")
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
    done = _execute(stage)
    # A number of the store's own may have been this process's id by chance; the next one has
    # another id, and only real ones are written <pid> again.
    return _execute(stage) if "<pid>" in done[0] else done


def _execute(stage: Stage) -> tuple[str, str, list[Step]]:
    stage.restore_fixture()
    body = execution(stage, is_recording=True)
    end = stage.run(lambda: [vars(note) for note in body().notes], is_traced=True)
    if end.raised is not None and end.raised.kind == NotRefused.__name__:
        step = [entry.name for entry in end.entries if entry.act == "begin"][-1]
        raise Unrecordable("violated", "refuses", end.raised.message, end.printed, step=step)
    demand_returned(end, "execute")
    if end.leftovers:
        raise Unrecordable(
            "violated",
            "no_process_left",
            f"the execution returned and left a process behind: {end.leftovers}",
            end.printed,
        )
    steps = [StepNote(**note).as_step() for note in end.value]
    if not steps:
        raise ConfigurationError(
            "execute has no step; wrap each operation in run.step(label, action)."
        )
    return end.trace.decode(), end.journal.decode(), steps


def demand_returned(end: PhaseEnd, phase: str) -> None:
    """Raise ConfigurationError where a phase did not return, before any crash."""
    if end.has_returned:
        return
    detail = end.ended.stack if end.ended.is_hung else end.raised.traceback if end.raised else ""
    printed = f"\nprinted:\n{end.printed}" if end.printed else ""
    raise ConfigurationError(
        f"{end.failure(phase)}. Nothing has been crashed yet, so it must return: correct the "
        f"campaign, or the store.\n{detail}{printed}".rstrip()
    )


def first_run(stage: Stage) -> dict[str, Any]:
    """
    Prepare, observe the fixture and execute, all for the first time in this interpreter.

    Returns what must be the same in every other one: ``result`` of prepare and what it
    ``prepared``, the fixture as ``observed``, ``trace`` and ``journal``.
    Raises: as :func:`execute_once`, and ConfigurationError: the fixture cannot be observed, or a
        contract can never be broken.
    """
    prepare(stage)
    observed = _observe_fixture(stage)
    trace, journal, _ = execute_once(stage)
    _check_contracts(stage, journal)
    return {
        "result": stage.fixture_value,
        "prepared": stage.prepared,
        "observed": observed,
        "trace": trace,
        "journal": journal,
    }


def differing(one: dict[str, Any], two: dict[str, Any]) -> str:
    """Say where two first runs part, or nothing; keys that only one has do not count."""
    for key, name in _FIRST_RUN.items():
        if key in one and key in two and one[key] != two[key]:
            left, right = one[key], two[key]
            is_text = key in ("prepared", "trace", "journal")
            lines = (first_difference(left, right),) if is_text else difference(left, right)
            return f"{name} differs from run to run: {'; '.join(lines)}"
    return ""


def record(stage: Stage) -> Recording:
    """
    Return the whole recording; :func:`first_run` must have been called.

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
    expected = [_observe_fixture(stage)]
    ended = _observe_steps(stage, recording, expected)
    between = [state for step in steps for state in step.between or ()]
    _check_after_recovery(stage, [*expected, ended, *between])
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


def _check_contracts(stage: Stage, journal: str) -> None:
    """Refuse an at-least-once contract that nothing promises, which could never be broken."""
    entries = [*parse_journal(stage.prepared), *parse_journal(journal)]
    promises_later = overrides(stage.campaign, "resume") or overrides(stage.campaign, "recover")
    promised = {entry.name for entry in entries if entry.act == "promise"}
    for name, contract in stage.campaign.delivery.items():
        if contract == "at-least-once" and name not in promised and not promises_later:
            raise ConfigurationError(unpromised(name))


def unpromised(name: str) -> str:
    """Say that an at-least-once contract is empty."""
    return (
        f"delivery {name!r} is at-least-once, but nothing promises {name!r}, so it could never be "
        f"broken: call run.promise({name!r}, ...) when the store takes the work on."
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
    demand_returned(end, "observe, on the fixture,")
    first, second = end.value
    if first != second:
        raise ConfigurationError(
            "observe differs by itself: called twice on the fixture, it returned "
            f"{json.dumps(first)[:300]} and then {json.dumps(second)[:300]}. Leave out what "
            "changes without the store, such as times, and change nothing that is observed."
        )
    return first


def _observe_dead(stage: Stage, recording: Recording, boundary: int, where: str) -> Any:
    death = kill_at(stage, recording, boundary)
    _demand_death(death, boundary)
    end = stage.run(_observation(stage))
    if end.has_returned:
        return end.value
    step = recording.step_at(boundary)
    if end.ended.is_hung:
        message = f"{end.failure('observe')}, {where}\n{end.ended.stack}"
        raise Unrecordable("hung", "observable", message, end.printed, step=step)
    raise Unrecordable(
        "violated",
        "observable",
        f"the files of a process that died {where} cannot be observed: {end.failure('observe')}",
        end.printed,
        step=step,
    )


def _demand_death(death: Death, boundary: int) -> None:
    if death.violation is None:
        return
    if death.kind == "hung":
        raise Unrecordable("hung", death.violation.invariant, death.violation.message)
    advice = f". {DETERMINISM}" if death.kind == "diverged" else ""
    raise Unrecordable(
        "inconclusive",
        death.violation.invariant,
        f"the trace differs from run to run: killed at boundary {boundary}, "
        f"{death.violation.message}{advice}",
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
    for step, (before, after) in zip(recording.steps, seen, strict=True):
        expected.append(_expectation(step, before, after))
    for step, before, (at_begin, _) in zip(recording.steps, expected, seen, strict=False):
        _demand_same(before, at_begin, f"step {step.label!r}")
    _demand_same(expected[-1], ended, "the end of the execution")
    return ended


def _demand_same(expected: Any, seen: Any, where: str) -> None:
    if expected != seen:
        raise Unrecordable(
            "inconclusive",
            "nothing_outside_steps",
            f"something outside every step changed the store before {where}, or the store writes "
            f"something that differs from run to run (time, random, pid): {_both(expected, seen)}. "
            "Move what changes it into a step, and take time and names from run.",
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
            f"step {step.label!r} was acknowledged, but the files of a process that died right "
            f"after it do not show what {word} says: {_both(given, seen)}. An acknowledged step "
            f"was not stored, or {word} is wrong; only you can say which.",
            step=step.label,
        )
    return given


def _both(expected: Any, seen: Any) -> str:
    return "; ".join(difference(expected, seen))


def _check_after_recovery(stage: Stage, states: list[Any]) -> None:
    def model(state: Any) -> Any:
        made = stage.campaign.after_recovery(normalise(state))
        return normalise(made, "the result of after_recovery")

    def body() -> Any:
        for state in states:
            once = model(state)
            twice = model(once)
            if once != twice:
                raise ConfigurationError(
                    "after_recovery is not idempotent: applied to its own result it gives "
                    f"something else: {_both(once, twice)}. Recovering twice is recovering once."
                )
        return None

    demand_returned(stage.run(body), "after_recovery")
