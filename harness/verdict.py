"""Verdicts and findings: what came of one crash state, and what a person is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["survived", "violated", "diverged", "hung", "errored"]
KINDS: tuple[Kind, ...] = ("survived", "violated", "diverged", "hung", "errored")


def counted(count: int, noun: str, nouns: str = "") -> str:
    """
    Return a number with its noun.

    >>> counted(1, "boundary", "boundaries"), counted(2, "step")
    ('1 boundary', '2 steps')
    """
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def boundaries(count: int) -> str:
    """Return how many boundaries, in words."""
    return counted(count, "boundary", "boundaries")


@dataclass(frozen=True)
class Violation:
    """
    The first thing found wrong with one crash state, and all that there is to see of it.

    Attributes:
        invariant: Name of the broken invariant, promise or contract.
        message: What was expected and what was seen, in a sentence.
        stage: Where in the verification it showed, such as "after recovery".
        difference: Lines where expectation and observation part.
        also: Names of what else was broken at the same stage.
        trace_tail: Last trace lines of the phase that failed, where one did.
    """

    invariant: str
    message: str
    stage: str
    difference: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    trace_tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """
    What came of one crash state.

    Attributes:
        kind: survived, violated, diverged, hung or errored.
        boundary: Where the execution was killed, 1-based.
        violation: What is wrong; None where it survived.
        printed: What the children printed until then, its tail.
        exit_status: With which status the crashed child ended; None if by a signal.
        died_at: The boundary that the child itself left on the tape when it died.
        subjects: For each invariant, how many subjects were looked at.
        notes: What could not be checked, in plain words.
        seconds: Real time spent on the state.
    """

    kind: Kind
    boundary: int
    violation: Violation | None = None
    printed: str = ""
    exit_status: int | None = None
    died_at: int = 0
    subjects: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON for another process."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Verdict:
        """Return what :meth:`as_json` made."""
        violation = data.pop("violation")
        if violation is not None:
            for name in ("difference", "also", "trace_tail"):
                violation[name] = tuple(violation[name])
            violation = Violation(**violation)
        data["notes"] = tuple(data["notes"])
        return cls(violation=violation, **data)


@dataclass(frozen=True)
class Finding:
    """
    Verdicts with one cause, told once.

    Attributes:
        kind: The verdicts' kind.
        boundaries: Where it shows, ascending; empty where no crash is needed.
        line: The trace line of the first of them.
        step: Label of the step in flight there, else of the last acknowledged.
        violation: What is wrong, as the first of them showed it.
        printed: What the children printed.
        replay: The command that shows it again.
        trace_tail: The last trace lines before the first of them.
    """

    kind: Kind
    boundaries: tuple[int, ...]
    line: str
    step: str | None
    violation: Violation
    printed: str
    replay: str
    trace_tail: tuple[str, ...]


def group(verdicts: Iterable[tuple[Verdict, str | None]]) -> list[list[Verdict]]:
    """
    Return the verdicts that did not survive, those of one cause together, in order.

    Args:
        verdicts: Each with the label of its step.
    """
    causes: dict[tuple[str, str, str | None, str], list[Verdict]] = {}
    for verdict, step in sorted(verdicts, key=lambda pair: pair[0].boundary):
        wrong = verdict.violation
        if verdict.kind != "survived" and wrong is not None:
            causes.setdefault((verdict.kind, wrong.invariant, step, wrong.stage), []).append(
                verdict
            )
    return list(causes.values())
