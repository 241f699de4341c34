"""
Running campaigns: record, share the boundaries out to workers, gather verdicts into findings.

A front end gives a Listener and gets a Result per campaign. One process, one thread: workers are
other processes, watched through their sockets.
"""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness.client import ZygoteClient
from harness.crash import DETERMINISM
from harness.discovery import Found
from harness.errors import ConfigurationError, HarnessError
from harness.recording import differing
from harness.selftest import Problem
from harness.subset import representative
from harness.trace import Recording, Step
from harness.verdict import KINDS, Finding, Verdict, Violation, counted, group
from harness.workdir import Workdir

TAIL_LINES = 30


@dataclass(frozen=True)
class Options:
    """
    How to run.

    Attributes:
        jobs: Workers, at least 1.
        timeout_seconds: For each child.
        shard: (I, N): take every N-th boundary from the I-th on, 1-based.
        is_representative: Whether to take the representative subset only.
        import_path: Folders that come first on the campaigns' import path.
    """

    jobs: int = 1
    timeout_seconds: float = 30.0
    shard: tuple[int, int] = (1, 1)
    is_representative: bool = False
    import_path: tuple[Path, ...] = ()


@dataclass
class Result:
    """
    What came of one campaign.

    Attributes:
        found: The campaign.
        recording: None where there is none.
        chosen: The boundaries that were to be explored.
        verdicts: One per boundary explored.
        problem: Why nothing was explored, or why what was explored proves nothing.
        seconds: Real time, recording included.
        is_interrupted: Whether it was stopped before its end.
    """

    found: Found
    recording: Recording | None = None
    chosen: list[int] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    problem: Problem | None = None
    seconds: float = 0.0
    is_interrupted: bool = False

    def count(self, kind: str) -> int:
        """Return how many boundaries got a verdict."""
        return sum(1 for verdict in self.verdicts if verdict.kind == kind)

    @property
    def counts(self) -> dict[str, int]:
        """Boundaries by verdict, every verdict named."""
        return {kind: self.count(kind) for kind in KINDS}

    @property
    def inconclusive(self) -> str | None:
        """Why it proves nothing, or None."""
        if self.problem is not None and self.problem.verdict == "inconclusive":
            return self.problem.message
        diverged = self.count("diverged")
        if diverged:
            executions = counted(len(self.verdicts), "execution")
            return f"{diverged} of {executions} took another path than recorded. {DETERMINISM}"
        is_empty_shard = self.recording is not None and not self.chosen
        explored_nothing = not self.verdicts and not self.is_interrupted
        if self.problem is None and explored_nothing and not is_empty_shard:
            return "no boundary was explored"
        return None

    @property
    def subjects(self) -> Counter[str]:
        """How many subjects each invariant had, over all crash states."""
        total: Counter[str] = Counter()
        for verdict in self.verdicts:
            for name, count in verdict.subjects.items():
                total[name] += count
        return total

    @property
    def findings(self) -> list[Finding]:
        """Each cause once, in the order of its first boundary."""
        found = [] if self.problem is None else _finding_of(self.found, self.problem)
        recording = self.recording
        if recording is None:
            return found
        pairs = [(verdict, recording.step_at(verdict.boundary)) for verdict in self.verdicts]
        return found + [_finding(self.found, recording, together) for together in group(pairs)]

    @property
    def exit_code(self) -> int:
        """The exit code for this campaign alone."""
        is_wrong = self.problem is not None and self.problem.verdict in ("violated", "hung")
        if is_wrong or self.count("violated") or self.count("hung"):
            return 1
        if self.count("errored"):
            return 3
        return 5 if self.inconclusive else 0


def exit_code(results: Sequence[Result]) -> int:
    """
    Return the process's exit code.

    3: interrupted. Then the first that applies: 1 violated or hung; 3 errored; 5 inconclusive,
    diverged or nothing explored; 0 all survived.
    """
    if any(result.is_interrupted for result in results):
        return 3
    codes = {result.exit_code for result in results}
    has_explored = any(result.verdicts for result in results)
    return next((code for code in (1, 3, 5) if code in codes), 0 if has_explored else 5)


def _finding(found: Found, recording: Recording, together: Sequence[Verdict]) -> Finding:
    first = together[0]
    assert first.violation is not None, "only what did not survive is grouped"
    where = "end" if first.boundary == len(recording.lines) else str(first.boundary)
    return Finding(
        kind=first.kind,
        boundaries=tuple(verdict.boundary for verdict in together),
        line=recording.lines[first.boundary - 1],
        step=recording.step_at(first.boundary),
        violation=first.violation,
        printed=first.printed,
        replay=f"{program()} replay {quoted(found.name)}@{where}",
        trace_tail=tuple(recording.lines[max(0, first.boundary - TAIL_LINES) : first.boundary]),
    )


def _finding_of(found: Found, problem: Problem) -> list[Finding]:
    if problem.verdict not in ("violated", "hung"):
        return []
    violation = Violation(
        problem.invariant, problem.message, problem.stage or "in the recording", problem.difference
    )
    return [
        Finding(
            kind="hung" if problem.verdict == "hung" else "violated",
            boundaries=(),
            line="",
            step=problem.step,
            violation=violation,
            printed=problem.printed,
            replay=f"{program()} run {quoted(found.name)}",
            trace_tail=(),
        )
    ]


def program() -> str:
    """Return the command as it was called, so that a command that is printed works when pasted."""
    called = sys.argv[0]
    is_ours = os.sep in called and Path(called).name == "crashconform"
    if not is_ours or shutil.which("crashconform") == os.path.abspath(called):
        return "crashconform"
    return quoted(called)


def quoted(name: str) -> str:
    """Return a campaign's name as a shell takes it."""
    return shlex.quote(name)


class Listener(Protocol):
    """What a front end wants to hear while a campaign runs."""

    def started(self, found: Found) -> None:
        """Recording begins."""

    def exploring(self, result: Result) -> None:
        """The recording stands and ``result.chosen`` will be explored."""

    def judged(self, result: Result, verdict: Verdict) -> None:
        """One boundary is done."""

    def finished(self, result: Result) -> None:
        """The campaign is over."""


def run_campaigns(
    campaigns: Iterable[Found], workdir: Workdir, options: Options, listener: Listener
) -> list[Result]:
    """
    Run campaigns one after another; stop after the one that was interrupted.

    Raises: ConfigurationError: a campaign is wrong. WorkspaceError: the work folder is.
        ZygoteDied: a worker ended by itself.
    """
    results: list[Result] = []
    for found in campaigns:
        result = run_campaign(found, workdir, options, listener)
        results.append(result)
        if result.is_interrupted:
            break
    return results


def run_campaign(found: Found, workdir: Workdir, options: Options, listener: Listener) -> Result:
    """
    Record one campaign, test it, explore its boundaries.

    Raises: as :func:`run_campaigns`; the campaign's name stands in the message.
    """
    result = Result(found)
    started = time.monotonic()
    listener.started(found)
    try:
        with ExitStack() as stack:
            workers = stack.enter_context(_recorded(result, workdir, options))
            if result.recording is not None and result.problem is None:
                result.chosen = choose(result.recording, options)
                listener.exploring(result)
                _explore(result, workers, listener)
    except KeyboardInterrupt:
        result.is_interrupted = True
    except HarnessError as error:
        raise type(error)(f"{found.name}: {error}") from None
    result.verdicts.sort(key=lambda verdict: verdict.boundary)
    result.seconds = time.monotonic() - started
    listener.finished(result)
    return result


def choose(recording: Recording, options: Options) -> list[int]:
    """Return the boundaries that the options ask for, ascending."""
    every = (
        representative(recording)
        if options.is_representative
        else list(range(1, len(recording.lines) + 1))
    )
    index, count = options.shard
    return every[index - 1 :: count]


@contextmanager
def _recorded(result: Result, workdir: Workdir, options: Options) -> Iterator[list[ZygoteClient]]:
    """Start the workers, record with the first, compare with the second, share with the rest."""
    with ExitStack() as stack:
        workers = [
            stack.enter_context(open_worker(result.found, workdir, number, options))
            for number in range(max(2, options.jobs))
        ]
        data = record_with(workers[0], workers[1], result)
        if data is None:
            yield []
            return
        result.recording = recording_from(data)
        for worker in workers[1 : options.jobs]:
            worker.ask("adopt", recording=data)
        for worker in workers[options.jobs :]:
            worker.close()
        tested = workers[0].call("self_test")
        result.problem = Problem.from_json(tested) if tested else None
        for worker in workers[1 : options.jobs]:
            differs = worker.answer()
            if differs and result.problem is None:
                result.problem = _differing(differs)
        yield workers[: options.jobs]


def open_worker(found: Found, workdir: Workdir, number: int, options: Options) -> ZygoteClient:
    """Return a zygote that has loaded the campaign and has a root of its own."""
    worker = ZygoteClient(options.import_path)
    try:
        root = workdir.worker_root(number)
        worker.call(
            "load",
            found=vars(found),
            root=str(root),
            side=str(workdir.worker_folder(number, "side")),
            timeout_seconds=options.timeout_seconds,
        )
    except BaseException:
        worker.close()
        raise
    return worker


def record_with(first: ZygoteClient, second: ZygoteClient, result: Result) -> dict[str, Any] | None:
    """
    Record with the first of two fresh zygotes and compare with the second.

    Returns None, and sets ``result.problem``, where the two differ or the store is wrong.
    """
    for worker in (first, second):
        worker.ask("trace")
    one, two = first.answer(), second.answer()
    for trace in (one, two):
        if "problem" in trace:
            result.problem = Problem.from_json(trace["problem"])
            return None
    difference = differing(one, two)
    if difference:
        result.problem = _differing(difference)
        return None
    answer = first.call("record")
    if "problem" in answer:
        result.problem = Problem.from_json(answer["problem"])
        return None
    recording: dict[str, Any] = answer["recording"]
    return recording


def _differing(difference: str) -> Problem:
    return Problem(
        "inconclusive",
        "same_trace",
        f"{difference}. {DETERMINISM}",
    )


def recording_from(data: dict[str, Any]) -> Recording:
    """Return a recording from JSON; paths of its root stand as ``<root>``."""
    return Recording(**{**data, "steps": [Step(**step) for step in data["steps"]]})


def _explore(result: Result, workers: Sequence[ZygoteClient], listener: Listener) -> None:
    waiting = deque(result.chosen)
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            if waiting:
                worker.ask("examine", boundary=waiting.popleft())
                selector.register(worker, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                worker = key.fileobj  # type: ignore[assignment]
                verdict = Verdict.from_json(worker.answer())
                result.verdicts.append(verdict)
                listener.judged(result, verdict)
                if waiting:
                    worker.ask("examine", boundary=waiting.popleft())
                else:
                    selector.unregister(worker)


def replay(
    found: Found, boundary: int | None, workdir: Workdir, options: Options, keep: Path | None
) -> Result:
    """
    Record, then kill one execution and verify what it left.

    Args:
        boundary: 1-based, or None for the last one.
        keep: Folder that receives the crashed and the recovered root.
    Raises: as :func:`run_campaigns`, and ConfigurationError: no such boundary.
    """
    result = Result(found)
    started = time.monotonic()
    with ExitStack() as stack:
        workers = [
            stack.enter_context(open_worker(found, workdir, number, options)) for number in (0, 1)
        ]
        data = record_with(workers[0], workers[1], result)
        if data is not None:
            result.recording = recording_from(data)
            last = len(result.recording.lines)
            number = last if boundary is None else boundary
            if not 1 <= number <= last:
                raise ConfigurationError(
                    f"boundary {number} of {found.name} must be in [1, {last}]; see "
                    f"crashconform trace {quoted(found.name)}."
                )
            result.chosen = [number]
            answer = workers[0].call(
                "examine", boundary=number, keep=str(keep.resolve()) if keep else None
            )
            result.verdicts.append(Verdict.from_json(answer))
    result.seconds = time.monotonic() - started
    return result
