"""Ctrl-C and its kin: the first one stops the run, every later one is ignored."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType
from typing import Any

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REAP_SECONDS_MAX = 10.0
_PAUSE_SECONDS = 0.01


class Interruptible:
    """
    Turn the first stopping signal into a KeyboardInterrupt and ignore those that follow.

    So a second Ctrl-C cannot cut short the ending of children. A signal that was ignored when the
    process started (nohup, a background job) stays ignored. A context manager for the main thread.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruptible:
        for number in _STOPPING:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN and before is not None:
                self._before[number] = before
                signal.signal(number, self._stop)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        for other in self._before:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt


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
