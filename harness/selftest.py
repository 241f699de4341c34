"""
Self-tests of a campaign, before any crash is believed: could it be right, and could it fail?

Method: in the order of INTERFACE section 5; the first that applies decides. The golden execution
itself is checked while it is recorded.

Covered: the finished execution judged without any crash; steps that change nothing; checks that
cannot fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.campaign import overrides
from harness.crash import DETERMINISM, kill_at
from harness.errors import ConfigurationError
from harness.judge import Case, Judgement
from harness.recording import demand_returned, unpromised
from harness.stage import Stage
from harness.trace import Entry, Recording, parse_journal
from harness.verdict import Verdict
from harness.verify import control, is_judged_wrong, run_judge

_LATE = ("step_atomicity", "complete")


@dataclass(frozen=True)
class Problem:
    """
    Why no boundary is worth exploring.

    Attributes:
        verdict: "violated" or "hung" (the store is wrong without any crash), or "inconclusive".
        invariant: What is broken.
        message: In plain words.
        difference: Lines where expectation and observation part.
        printed: What the children printed.
        stage: When it showed, where that was not in the recording.
        step: Label of the step that the message names, or None.
    """

    verdict: str
    invariant: str
    message: str
    difference: tuple[str, ...] = ()
    printed: str = ""
    stage: str = ""
    step: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON for another process."""
        return {**vars(self), "difference": list(self.difference)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Problem:
        """Return what :meth:`as_json` made."""
        return cls(**{**data, "difference": tuple(data["difference"])})


def self_test(stage: Stage, recording: Recording) -> Problem | None:
    """
    Return the first reason not to explore, or None.

    Raises: ConfigurationError: the campaign's own code raises on the finished execution.
    """
    verdict, entries = control(stage, recording)
    problem = _of_control(verdict)
    if problem is None:
        _demand_promised(stage, entries)
    if problem is not None and problem.invariant not in _LATE:
        return problem
    idle = next((x for x in _idle_steps(recording)), None)
    if idle is not None:
        return Problem(
            "inconclusive",
            "steps_change_something",
            f"observe shows the same in the files of a process that died right after step "
            f"{idle!r} as before it. Either the store had not written it yet (no commit, no "
            "flush), or observe does not show what the step changes. If that is intended, say "
            "then=UNCHANGED and let a promise or check speak for it.",
        )
    return problem or _unfalsifiable(stage, recording)


def _demand_promised(stage: Stage, entries: list[Entry]) -> None:
    """Refuse an at-least-once contract that nothing promised, so that it could not be broken."""
    promised = {entry.name for entry in entries if entry.act == "promise"}
    for name, contract in stage.campaign.delivery.items():
        if contract == "at-least-once" and name not in promised:
            raise ConfigurationError(unpromised(name))


def _of_control(control: Verdict) -> Problem | None:
    wrong = control.violation
    if control.kind == "survived" or wrong is None:
        return None
    is_unobservable = control.kind == "violated" and wrong.invariant == "observable"
    if control.kind == "errored" or is_unobservable:
        said, _, more = wrong.message.partition("\n")
        detail = "\n".join([more, *wrong.difference]).strip()
        raise ConfigurationError(
            f"on the finished execution, {wrong.stage}, {said}. Nothing has been crashed, so it "
            f"must return: correct the campaign, or the store.\n{detail}".rstrip()
        )
    if control.kind == "diverged":
        return Problem(
            "inconclusive",
            wrong.invariant,
            f"the trace differs from run to run: {wrong.message}. {DETERMINISM}",
            wrong.difference,
            control.printed,
        )
    return Problem(
        control.kind,
        wrong.invariant,
        wrong.message,
        wrong.difference,
        control.printed,
        stage=f"after the finished execution, {wrong.stage}",
    )


def _idle_steps(recording: Recording) -> list[str]:
    return [
        step.label
        for index, step in enumerate(recording.steps)
        if step.then == "observed" and recording.expected[index] == recording.expected[index + 1]
    ]


def _unfalsifiable(stage: Stage, recording: Recording) -> Problem | None:
    if overrides(stage.campaign, "spoil"):
        is_caught = _catches_spoiled(stage, recording)
        what = "the golden end damaged by spoil(), recovered,"
    elif stage.campaign.durability == "cache":
        is_caught = _catches_end_as_start(stage, recording)
        what = "the finished execution, taken for one that had not begun,"
    else:
        is_caught = _catches_fixture(stage, recording)
        what = "the untouched fixture, taken for the finished execution,"
    if is_caught:
        return None
    return Problem(
        "inconclusive",
        "checks_can_fail",
        f"the checks cannot fail: {what} is judged right. Observe more, promise what is "
        "acknowledged, or write spoil() to make a state that must be judged wrong.",
    )


def _catches_fixture(stage: Stage, recording: Recording) -> bool:
    end = len(recording.lines)
    for boundary in (end, *(step.end for step in reversed(recording.steps))):
        stage.restore_fixture()
        count, _ = recording.journal_before(boundary)
        acts = [entry for entry in recording.entries[:count] if entry.act != "effect"]
        entries = [*parse_journal(recording.prepared), *acts]
        if _is_broken(stage, recording, boundary, entries, is_final=True):
            return True
    return False


def _catches_end_as_start(stage: Stage, recording: Recording) -> bool:
    kill_at(stage, recording, len(recording.lines))
    return _is_broken(stage, recording, 0, parse_journal(recording.prepared), is_final=False)


def _catches_spoiled(stage: Stage, recording: Recording) -> bool:
    end = len(recording.lines)
    kill_at(stage, recording, end)
    spoiled = stage.run(lambda: stage.campaign.spoil(stage.root))
    demand_returned(spoiled, "spoil")
    stage.demand_root("spoil")
    return is_judged_wrong(stage, recording, end)


def _is_broken(
    stage: Stage, recording: Recording, boundary: int, entries: list[Entry], *, is_final: bool
) -> bool:
    case = Case(
        boundary=boundary,
        entries=entries,
        phase="recovered",
        is_final=is_final,
        has_step_oracle=True,
        must_complete=False,
    )
    judgement = run_judge(stage, recording, case)
    return isinstance(judgement, Judgement) and bool(judgement.broken)
