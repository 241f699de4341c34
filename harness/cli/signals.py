"""Ctrl-C and its kin: the first one stops the run, every later one is ignored."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REAP_SECONDS_MAX = 10.0
_PAUSE_SECONDS = 0.01


class Interruptible:
    """
    Turn the first stopping signal into a KeyboardInterrupt and ignore those that follow.

    So a second Ctrl-C cannot cut short the ending of children, up to the end of the process. A
    signal that was ignored when the process started (nohup, a background job) stays ignored. A
    context manager for the main thread; without a stop it leaves everything as it was.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._is_stopped = False

    def __enter__(self) -> Interruptible:
        for number in _STOPPING:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN and before is not None:
                self._before[number] = before
                signal.signal(number, self._stop)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_stopped:
            return
        for number, before in self._before.items():
            signal.signal(number, before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stopped = True
        for other in self._before:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put stopping signals off until this block is over; no process may be started in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_for_children() -> None:
    """
    Wait until this process has no children any more.

    Zygotes end when their socket does; one whose start was interrupted has nobody else who waits.
    """
    until = time.monotonic() + _REAP_SECONDS_MAX
    while time.monotonic() < until:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(_PAUSE_SECONDS)
