"""Recording a block of code in this process: start, marks, end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import RecorderError
from harness.oplog import CLOCK, NO_CALLS, RANDOM, STACKS, STATE_SUFFIX, Kind, Mark, Oplog
from harness.recorder.library import (
    Config,
    failure,
    library,
    missing,
    preload_path,
    stack_functions,
)

__all__ = ["Options", "Session", "recording", "seal"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """
    How to record.

    Attributes:
        calls: Whether calls are recorded at all; without, the log stays empty, and only randomness
            and the clock are as in a recording: for a replay that is to leave the same bytes.
        stacks: Whether ops carry the Python stack that caused them.
        seed: Of the randomness that the processes see; None leaves it real.
        clock_start_ns: Where the wall clock starts, since the epoch; None leaves it real.
        clock_tick_ns: How far each reading moves it.
        log_size_max: Bytes of the log at which recording stops, with an error in its header.
        objects_max: How many files and folders can be met; a power of two is taken.
        left_out: Kinds of op that are not recorded: for tests of the completeness check only.
    """

    calls: bool = True
    stacks: bool = True
    seed: int | None = 0
    clock_start_ns: int | None = 1_700_000_000_000_000_000
    clock_tick_ns: int = 1_000_000
    log_size_max: int = 16 << 30
    objects_max: int = 1 << 19
    left_out: Collection[Kind] = field(default_factory=frozenset)

    @property
    def bits(self) -> int:
        """The options as the log's header has them."""
        bits = STACKS if self.stacks else 0
        bits |= 0 if self.calls else NO_CALLS
        bits |= RANDOM if self.seed is not None else 0
        return bits | (CLOCK if self.clock_start_ns is not None else 0)


class Session:
    """A recording that is under way in this process."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        self._mark = library().recorder_mark

    def mark(self, kind: Mark, number: int = 0, text: str = "") -> None:
        """
        Write a marker, behind all calls that returned and before all that come.

        Raises: RecorderError: recording stopped, as when the disk is full.
        """
        data = text.encode("utf-8", "surrogateescape")
        if self._mark(int(kind), number, data, len(data)):
            raise RecorderError("recording stopped before this marker: see the log's header")


@contextlib.contextmanager
def recording(root: Path, log_path: Path, options: Options | None = None) -> Iterator[Session]:
    """
    Record what this process and all that it starts do under *root* into a new file *log_path*.

    For use in a process that was forked for it: when the block ends, calls are no longer recorded,
    but the filter stays, and no second recording can be made in this process.

    Args:
        root: An existing folder; its tree at the start stands in the log, without contents.
        log_path: Outside of *root*, in a folder where a file with ``.state`` can stand beside it.
    Raises: RecorderError: it cannot be recorded here, or *log_path* exists.
    Cost: 1 ms to start (`load` in the parent saves half of it), and the walk over *root*.
    """
    options = options or Options()
    problem = missing()
    if problem is not None:
        raise RecorderError(problem)
    root, log_path = root.resolve(), Path(os.path.abspath(log_path))
    if log_path.is_relative_to(root):
        raise RecorderError(f"log_path={str(log_path)!r} must lie outside of the root {root}")
    _start(root, log_path, options)
    session = Session(log_path)
    try:
        yield session
    finally:
        code = library().recorder_stop()
        log_path.with_name(log_path.name + STATE_SUFFIX).unlink(missing_ok=True)
    if code:
        raise RecorderError(f"the log cannot be ended: {os.strerror(-code)}")


def seal(log_path: Path) -> None:
    """
    Complete the log of processes that died, and remove what they left beside it.

    No recorded process may be alive. Doing it twice, or to a log that was ended, does nothing.

    Raises: OplogError: the file is no oplog.
    """
    state = log_path.with_name(log_path.name + STATE_SUFFIX)
    with Oplog.read(log_path) as log:
        log.complete()
    state.unlink(missing_ok=True)


def _start(root: Path, log_path: Path, options: Options) -> None:
    config = Config(
        root=os.fsencode(root),
        log_path=os.fsencode(log_path),
        library=os.fsencode(preload_path()),
        log_size_max=options.log_size_max,
        slots=1 << max(10, (options.objects_max - 1).bit_length()),
        seed=options.seed or 0,
        clock_start=options.clock_start_ns or 0,
        clock_tick=options.clock_tick_ns,
        options=options.bits,
    )
    for kind in options.left_out:
        config.disabled[kind // 64] |= 1 << kind % 64
    functions = stack_functions() if options.stacks else None
    if functions is not None:
        library().recorder_set_stacks(*functions)
    code = library().recorder_start(config)
    if code:
        text = failure(code)
        is_ours = not text.startswith(("creating the state", "this process"))
        state = log_path.with_name(log_path.name + STATE_SUFFIX)
        for path in (state, log_path) if is_ours else ():
            if path == state or not text.startswith("creating the log"):
                path.unlink(missing_ok=True)
        raise RecorderError(text)
