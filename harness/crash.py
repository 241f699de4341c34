"""
The replay engine: a real child killed at one boundary, and the proof that it was.

Method: a fresh copy of the fixture, a forked child that executes the workload, ``os._exit`` inside
the hook of boundary k: no destructor, no rollback, no flush. The parent then compares what the
child left on the tape with the recording.

Covered: exit status, boundary and count of the death; trace, steps, promises and effects equal to
the recorded prefix; hung, signalled and early-ended children told apart.
Not covered: deaths inside a system call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from harness import workspace
from harness.process import CRASH_STATUS, describe
from harness.run import Run
from harness.stage import PhaseEnd, Stage
from harness.trace import Recording, parse_journal
from harness.verdict import Kind, Violation, boundaries

DETERMINISM = (
    "Boundaries are numbered, so the workload must be deterministic: take time and names from "
    "run.clock() and run.identifier(), sort sets, seed random, and join each thread in the step "
    "that starts it."
)
"""What to do where the trace differs from run to run."""


@dataclass(frozen=True)
class Death:
    """
    What came of killing one execution.

    Attributes:
        end: How the child ended.
        kind: None where it died as it should; else diverged, hung or errored.
        violation: What was wrong with the death.
    """

    end: PhaseEnd
    kind: Kind | None = None
    violation: Violation | None = None


def execution(
    stage: Stage, *, is_recording: bool = False, after_step: Callable[[], None] | None = None
) -> Callable[[], Run]:
    """Return the body of ``execute``: it runs the workload, announces the end, returns its Run."""
    run = Run(
        stage.campaign,
        stage.tape,
        "execute",
        fixture=stage.fixture_value,
        before=parse_journal(stage.prepared),
        is_recording=is_recording,
        after_step=after_step,
    )

    def body() -> Run:
        stage.campaign.execute(stage.root, run)
        run.finish()
        stage.tape.announce_end()
        return run

    return body


def kill_at(stage: Stage, recording: Recording, boundary: int) -> Death:
    """
    Execute on a fresh fixture, die at *boundary*, and check that exactly this happened.

    Args:
        boundary: 1..len(recording.lines).
    Durable: the root holds what the dead process left, volatile files removed.
    """
    stage.restore_fixture()
    body = execution(stage)
    end = stage.run(
        lambda: body() and None, is_traced=True, stop=boundary, avoided_pids=recording.numbers
    )
    stage.demand_root("execute")
    problem = _problem(end, recording, boundary)
    workspace.drop_volatile(stage.root, stage.campaign.volatile)
    if problem is None:
        return Death(end)
    kind, name, message = problem
    violation = Violation(name, message, "execution", trace_tail=end.trace_tail)
    return Death(end, kind, violation)


_Problem = tuple[Literal["diverged", "hung", "errored"], str, str]


def _problem(end: PhaseEnd, recording: Recording, boundary: int) -> _Problem | None:
    ended = end.ended
    if ended.is_hung:
        return "hung", "ends", f"{describe(ended)} before boundary {boundary}\n{ended.stack}"
    size = recording.trace_offsets[min(end.count, len(recording.lines))]
    if end.trace != recording.trace_bytes[:size] or end.count > len(recording.lines):
        return "diverged", "same_trace", _divergence(end, recording)
    died = ended.exit_status == CRASH_STATUS and end.died_at == boundary == end.count
    if not died:
        return _undead(end, boundary)
    _, journal_size = recording.journal_before(boundary)
    if end.journal != recording.journal_bytes[:journal_size]:
        return (
            "diverged",
            "same_journal",
            f"at boundary {boundary} the steps, promises or effects differ from the recording: "
            f"{first_difference(recording.journal, end.journal.decode())}",
        )
    return None


def _undead(end: PhaseEnd, boundary: int) -> _Problem:
    if end.ended.signal is not None:
        return (
            "errored",
            "dies_at_boundary",
            f"the execution {describe(end.ended)} at boundary {end.count}, before boundary "
            f"{boundary} at which it was to die",
        )
    if end.has_answered:
        how = "returned" if end.has_returned else f"raised {end.raised}"
    else:
        how = describe(end.ended)
    return (
        "diverged",
        "dies_at_boundary",
        f"the execution {how} after {boundaries(end.count)}, without reaching boundary {boundary} "
        "at which it was to die",
    )


def _divergence(end: PhaseEnd, recording: Recording) -> str:
    return "the execution took another path than the recorded one: " + first_difference(
        recording.trace, end.trace.decode(errors="replace")
    )


def first_difference(recorded: str, other: str) -> str:
    """Say where two traces part: the boundary's number and both lines."""
    left, right = recorded.split("\n")[:-1], other.split("\n")[:-1]
    for number, (one, two) in enumerate(zip(left, right, strict=False), 1):
        if one != two:
            return f"boundary {number} was recorded as {one!r} and is now {two!r}"
    number = min(len(left), len(right)) + 1
    if len(left) > len(right):
        return f"boundary {number}, {left[number - 1]!r}, does not come any more"
    if len(right) > len(left):
        return f"boundary {number}, {right[number - 1]!r}, was not recorded"
    return "no line differs"
