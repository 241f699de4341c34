"""Recording a campaign of a planted tree, and examining some of its boundaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.client import ZygoteClient
from harness.runner import Options, Result, open_worker, record_with, recording_from
from harness.selftest import Problem
from harness.trace import Recording
from harness.verdict import Verdict
from harness.workdir import Workdir

_REACH = 4
"""How many boundaries before and after a line count as near it."""


@dataclass
class Exploration:
    """
    A recorded campaign whose self-tests have run, and a worker that examines its boundaries.

    Attributes:
        result: What came of it until now, as the runner tells it.
        worker: Examines.
    """

    result: Result
    worker: ZygoteClient

    @property
    def recording(self) -> Recording:
        """The recording, which there must be."""
        assert self.result.recording is not None, self.result.problem
        return self.result.recording

    def examine(self, boundaries: Iterable[int]) -> list[Verdict]:
        """Return the verdicts over boundaries, which the result also gets; none is done twice."""
        known = {verdict.boundary: verdict for verdict in self.result.verdicts}
        asked = sorted(boundaries)
        for boundary in asked:
            if boundary not in known:
                answer = self.worker.call("examine", boundary=boundary)
                known[boundary] = Verdict.from_json(answer)
        self.result.verdicts = [known[boundary] for boundary in sorted(known)]
        return [known[boundary] for boundary in asked]

    def first_wrong(self, boundaries: Iterable[int]) -> Verdict | None:
        """Examine one after the other, until one did not survive, and return that."""
        for boundary in boundaries:
            [verdict] = self.examine([boundary])
            if verdict.kind != "survived":
                return verdict
        return None


def near(recording: Recording, step: str, text: str, *, otherwise: str | None = None) -> list[int]:
    """
    Return the boundaries of a step, its "after" included, beside the lines that hold *text*.

    Args:
        otherwise: What the lines must hold where none holds *text*.
    """
    own = [k for k in range(1, len(recording.lines) + 1) if recording.step_at(k) == step]
    marked = [k for k in own if text in recording.lines[k - 1]]
    if not marked and otherwise is not None:
        return near(recording, step, otherwise)
    assert marked, f"no line of step {step!r} holds {text!r}"
    return [k for k in own if any(abs(k - mark) <= _REACH for mark in marked)]


@contextmanager
def explored(tree: Path, campaign: str) -> Iterator[Exploration]:
    """Record ``module:Class`` as it is in *tree*, and run its self-tests."""
    options = Options(import_path=(tree,))
    with ZygoteClient((tree,)) as finder:
        [found] = finder.list([campaign], tree)
    assert Path(found.path).is_relative_to(tree), f"{found.path} is not of {tree}"
    result = Result(found)
    with Workdir.choose(None, 2) as workdir, ExitStack() as stack:
        first, second = (
            stack.enter_context(open_worker(found, workdir, number, options)) for number in (0, 1)
        )
        data = record_with(first, second, result)
        second.close()
        if data is not None:
            result.recording = recording_from(data)
            tested = first.call("self_test")
            result.problem = Problem.from_json(tested) if tested else None
        yield Exploration(result, first)
