"""
The stage on which one worker runs the phases of one campaign, each in a child of its own.

A phase that is traced has its boundaries on the tape; a phase that is not only answers. Nothing
here decides what is right: it says what a child did and how it ended.
"""

from __future__ import annotations

import errno
import linecache
import os
import re
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from harness import observe, process, workspace
from harness.campaign import Campaign
from harness.errors import ConfigurationError, WorkspaceError
from harness.process import Ended, Output, run_child
from harness.stacks import without_own_frames
from harness.tape import EPOCH_NS, FORKED, Tape
from harness.trace import Canonical, Entry, parse_journal

_TAKEN_PID = 88
_PID_TRIES_MAX = 100
_VALUE_SIZE_MAX = 200
_TAIL_LINES = 30


@dataclass(frozen=True)
class Raised:
    """
    An exception that ended a phase.

    Attributes:
        kind: Name of its class.
        message: Its text; for an assertion without one, the source line and the values in it.
        is_configuration: Whether the campaign is at fault, whatever the store did.
        is_full: Whether it came of a full disk or a used-up quota.
        traceback: As Python prints it, without the harness's own frames.
    """

    kind: str
    message: str
    is_configuration: bool
    is_full: bool
    traceback: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True)
class PhaseEnd:
    """
    How a phase ended and what it left.

    Attributes:
        ended: The process's end.
        value: What the body returned, where it returned.
        raised: What it raised, where it raised.
        has_answered: Whether the body returned or raised, rather than the process ending itself.
        count, died_at: Boundaries announced, and the one it was killed at.
        trace, journal: What stands on the tape.
        printed: What it and its children printed.
    """

    ended: Ended
    value: Any
    raised: Raised | None
    has_answered: bool
    count: int
    died_at: int
    trace: bytes
    journal: bytes
    printed: str

    @property
    def has_returned(self) -> bool:
        """Whether the body returned."""
        return self.has_answered and self.raised is None

    @property
    def leftovers(self) -> str:
        """The processes that outlived it, by command and pid; empty where none did."""
        return ", ".join(f"{x.command!r} (pid {x.pid})" for x in self.ended.leftovers)

    @property
    def entries(self) -> list[Entry]:
        """What it promised and did."""
        return parse_journal(self.journal.decode())

    @property
    def trace_tail(self) -> tuple[str, ...]:
        """Its last trace lines."""
        return tuple(self.trace.decode(errors="replace").split("\n")[:-1][-_TAIL_LINES:])

    def failure(self, phase: str) -> str:
        """Say in a sentence why it did not return."""
        if self.raised is not None:
            return f"{phase} raised {self.raised}"
        return f"{phase} {process.describe(self.ended)}"


@dataclass
class Stage:
    """
    One worker's place: the campaign, its root, and copies beside it.

    Attributes:
        root: Where the store lives; the same path in every phase.
        side: Folder for the fixture and other copies, on the same file system.
        timeout_seconds: For each child.
        control_fd: The socket on which work is asked for; its hang-up ends everything.
    """

    campaign: Campaign
    root: Path
    side: Path
    timeout_seconds: float
    control_fd: int | None = None
    tape: Tape = field(default_factory=Tape)
    output: Output = field(default_factory=Output)
    fixture_value: Any = None
    fixture_time: tuple[int, int] = (EPOCH_NS, 0)
    prepared: str = ""

    @property
    def fixture(self) -> Path:
        """The folder that holds what ``prepare`` made."""
        return self.side / "fixture"

    def run(
        self,
        body: Callable[[], Any],
        *,
        is_traced: bool = False,
        stop: int = 0,
        avoided_pids: Collection[int] = (),
    ) -> PhaseEnd:
        """
        Run *body* in a forked child in the root, and say how it ended.

        Args:
            is_traced: Whether the store's boundaries are announced to the tape.
            stop: The boundary at which the child ends itself; 0 for never.
            avoided_pids: Numbers that the child must not have as its pid, since the trace
                holds them for another reason.
        Raises: Hangup: the asking process is gone. ConfigurationError: the body found one.
            WorkspaceError: the disk is full, which says nothing about the store.
        """
        for _ in range(_PID_TRIES_MAX):
            self.tape.rewind()
            self.output.clear()
            ended = run_child(
                lambda: self._child(body, is_traced=is_traced, stop=stop, avoided=avoided_pids),
                directory=self.root,
                timeout_seconds=self.timeout_seconds,
                output=self.output,
                hangup_fd=self.control_fd,
                close_in_child=() if self.control_fd is None else (self.control_fd,),
            )
            if ended.exit_status != _TAKEN_PID:
                break
        end = self._end(ended)
        if self.tape.has_stranger:
            raise ConfigurationError(FORKED)
        if end.raised is not None and end.raised.is_configuration:
            raise ConfigurationError(_configuration_text(end.raised))
        if end.raised is not None and end.raised.is_full:
            raise WorkspaceError(
                f"the work folder of {self.root} is full: {end.raised}; give it more room with "
                "--workdir DIR, or make the workload smaller."
            )
        return end

    def _child(
        self, body: Callable[[], Any], *, is_traced: bool, stop: int, avoided: Collection[int]
    ) -> int:
        pid = os.getpid()
        if pid in avoided:
            return _TAKEN_PID
        self.tape.own(pid)
        try:
            if is_traced:
                self.tape.begin(Canonical(self.root, pid), stop=stop)
                observe.attach(self.tape.announce)
                self.campaign.attach(observe.announce)
            value = body()
            observe.attach(None)
            observe.raise_first_failure()
            if os.getpid() == pid:
                self.tape.answer({"value": value})
        except BaseException as error:
            if os.getpid() != pid:  # a fork of the store's: its end says nothing of this phase
                raise
            observe.attach(None)
            self.tape.answer({"raised": vars(describe_exception(error))})
        return 0

    def _end(self, ended: Ended) -> PhaseEnd:
        tape = self.tape
        count, died_at, trace, journal = tape.read()
        reply = tape.reply if ended.exit_status == 0 else None
        raised = reply.get("raised") if reply else None
        printed = self.output.text()
        return PhaseEnd(
            ended=ended,
            value=reply.get("value") if reply else None,
            raised=Raised(**raised) if raised else None,
            has_answered=reply is not None,
            count=count,
            died_at=died_at,
            trace=trace,
            journal=journal,
            printed=printed if ended.signal is None else without_own_frames(printed),
        )

    @property
    def has_root(self) -> bool:
        """Whether the store's folder is still one, and in its place."""
        return self.root.is_dir() and not self.root.is_symlink()

    def demand_root(self, phase: str) -> None:
        """Raise ConfigurationError where *phase* took the store's folder away."""
        if not self.has_root:
            raise ConfigurationError(
                f"{phase} removed, renamed or replaced the folder {self.root} itself, and what "
                'stands beside it is neither copied nor restored: give such a store root / "store".'
            )

    def restore_fixture(self) -> None:
        """Put a fresh copy of the fixture at the root, and clock and numbers where it left them."""
        workspace.restore(self.root, self.fixture)
        self.tape.set_time(*self.fixture_time)

    def save(self, name: str) -> Path:
        """Copy the root to a side folder, and return that."""
        saved = self.side / name
        if saved.exists():
            workspace.clear_tree(saved)
        workspace.copy_tree(self.root, saved)
        return saved

    def put_back(self, saved: Path) -> None:
        """Make a saved copy the root again, by renaming; the copy is used up."""
        if self.has_root:
            workspace.clear_tree(self.root)
            self.root.rmdir()
        else:
            self.root.unlink(missing_ok=True)
        saved.rename(self.root)


def describe_exception(error: BaseException) -> Raised:
    """Return what a person needs of an exception, as strings."""
    frames = traceback.extract_tb(error.__traceback__)
    own = str(Path(__file__).parent) + os.sep
    kept = [frame for frame in frames if not frame.filename.startswith(own)]
    text = "".join(
        [
            "Traceback (most recent call last):\n",
            *traceback.format_list(kept),
            *traceback.format_exception_only(error),
        ]
    )
    message = str(error)
    if isinstance(error, AssertionError) and not message:
        message = _asserted(error.__traceback__)
    return Raised(
        kind=type(error).__name__,
        message=message,
        is_configuration=_is_configuration(error),
        is_full=_is_full(error),
        traceback=text,
    )


def _is_configuration(error: BaseException) -> bool:
    if isinstance(error, UnboundLocalError):
        return False
    return isinstance(error, (ConfigurationError, NameError, ImportError))


def _is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "database or disk is full" in str(error):  # as SQLite says it, through any binding
            return True
        error = error.__cause__ or error.__context__
    return False


def _configuration_text(raised: Raised) -> str:
    if raised.kind == "ConfigurationError":
        place = raised.traceback.strip().splitlines()
        where = next((x.strip() for x in reversed(place) if x.strip().startswith("File ")), "")
        return f"{raised.message}\n  at {where}" if where else raised.message
    return (
        f"the campaign cannot run: {raised}. Is the name misspelled, or the module not installed?\n"
        f"{raised.traceback}"
    ).rstrip()


def _asserted(tb: TracebackType | None) -> str:
    while tb is not None and tb.tb_next is not None:
        tb = tb.tb_next
    if tb is None:
        return ""
    frame = tb.tb_frame
    line = linecache.getline(frame.f_code.co_filename, tb.tb_lineno).strip()
    values = {**frame.f_globals, **frame.f_locals}
    shown = [
        f"{name} = {_short(values[name])}"
        for name in dict.fromkeys(re.findall(r"[A-Za-z_]\w*", line))
        if name in values and not callable(values[name])
    ]
    return "; ".join([line, *shown])


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<repr raised {type(error).__name__}>"
    return text if len(text) <= _VALUE_SIZE_MAX else text[: _VALUE_SIZE_MAX - 3] + "..."
