"""
One run over several campaigns: nothing that was covered is lost, whatever goes wrong later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.cli.signals import uninterrupted, wait_for_children
from harness.discovery import Found
from harness.errors import ConfigurationError, HarnessError, WorkspaceError
from harness.runner import Listener, Options, Result, exit_code, run_campaign
from harness.selftest import Problem
from harness.verdict import Verdict
from harness.workdir import Workdir


@contextmanager
def work_folder(explicit: Path | None, jobs: int) -> Iterator[Workdir]:
    """
    Give the private folder of a run, and remove it whatever happens.

    Raises: WorkspaceError: it cannot be made, or not be removed.
    """
    folder: Workdir | None = None
    try:
        with uninterrupted():
            folder = Workdir.choose(explicit, jobs)
        yield folder
    finally:
        if folder is not None:
            with uninterrupted():
                folder.close()


@dataclass
class Session:
    """
    What came of the campaigns so far.

    Attributes:
        results: One per campaign that was begun.
        is_interrupted: Whether somebody, or a closed output, stopped it.
        is_unread: Whether nobody reads the output any more, which stopped it.
        is_misconfigured: Whether a campaign or the work folder was wrong.
        is_broken: Whether the harness itself failed.
    """

    results: list[Result] = field(default_factory=list)
    is_interrupted: bool = False
    is_unread: bool = False
    is_misconfigured: bool = False
    is_broken: bool = False

    @property
    def exit_code(self) -> int:
        """The first that applies: 2, 3 interrupted, 1, 3 errored, 5, 0."""
        if self.is_misconfigured:
            return 2
        if self.is_interrupted:
            return 3
        code = exit_code(self.results)
        return 3 if self.is_broken and code != 1 else code

    def explore(
        self,
        campaigns: Sequence[Found],
        workdir: Workdir,
        options: Options,
        listener: Listener,
        report_error: Callable[[str], None],
    ) -> None:
        """Run campaigns until one was interrupted or the work folder failed."""
        for found in campaigns:
            memory = _Memory(found, listener)
            try:
                self.results.append(run_campaign(found, workdir, options, memory))
                self.is_interrupted |= self.results[-1].is_interrupted
            except (KeyboardInterrupt, BrokenPipeError) as stopped:
                self.is_unread = isinstance(stopped, BrokenPipeError)
                memory.result.is_interrupted = self.is_interrupted = True
                memory.result.seconds = memory.seconds
                self.results.append(memory.result)
            except HarnessError as error:
                self._note(error, memory)
                report_error(str(error))
                if isinstance(error, WorkspaceError):
                    break
            if self.is_interrupted:
                wait_for_children()
                break

    def _note(self, error: HarnessError, memory: _Memory) -> None:
        """Keep what was covered before the error, and tell it where it is more than nothing."""
        is_wrong = isinstance(error, (ConfigurationError, WorkspaceError))
        self.is_misconfigured |= is_wrong
        self.is_broken |= not is_wrong
        result = memory.result
        message = str(error).removeprefix(f"{result.found.name}: ")
        result.problem = Problem("inconclusive", type(error).__name__, message)
        result.seconds = memory.seconds
        self.results.append(result)
        if result.verdicts:
            memory.finished(result)


class _Memory:
    """Passes on what a listener hears and keeps the result, also where running it raises."""

    def __init__(self, found: Found, listener: Listener) -> None:
        self.result = Result(found)
        self._listener = listener
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    def started(self, found: Found) -> None:
        self._listener.started(found)

    def exploring(self, result: Result) -> None:
        self.result = result
        self._listener.exploring(result)

    def judged(self, result: Result, verdict: Verdict) -> None:
        self._listener.judged(result, verdict)

    def finished(self, result: Result) -> None:
        self.result = result
        self._listener.finished(result)
