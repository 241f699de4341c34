"""
What a person sees while campaigns run: one live line on a terminal, plain lines elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from harness.discovery import Found
from harness.explain import printable
from harness.report import campaign_lines
from harness.runner import Result
from harness.verdict import KINDS, Verdict, boundaries

_PLAIN_SECONDS = 10.0
_LIVE_SECONDS = 0.1
_STYLES = {
    "FAIL": "bold red",
    "ERROR": "bold red",
    "DIVERGED": "bold yellow",
    "INCONCLUSIVE": "bold yellow",
    "INTERRUPTED": "bold yellow",
    "PASS": "bold green",
}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command to end quietly; rich would exit with status 1."""
        raise


def open_console(stream: TextIO) -> Console:
    """Return a console that prints text as it is, coloured only where that is wanted."""
    return _Console(file=stream, highlight=False, markup=False, emoji=False)


def print_lines(console: Console, lines: Sequence[str]) -> None:
    """Print lines unwrapped, those that start with a verdict in its colour."""
    for line in lines:
        style = _STYLES.get(line.partition(" ")[0].rstrip(":"), "")
        console.print(Text(line, style=style), soft_wrap=True)


class Progress:
    """A Listener of the runner that prints; a context manager that takes its live line away."""

    def __init__(self, console: Console, count: int, *, replay_options: str = "") -> None:
        self._console = console
        self._replay_options = replay_options
        self._count = count
        self._number = 0
        self._since = 0.0
        self._shown = 0.0
        is_live = console.is_terminal and not console.is_dumb_terminal
        self._live = (
            Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            if is_live
            else None
        )

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, found: Found) -> None:
        """Recording begins."""
        self._number += 1
        self._show(f"{found.name}: recording (campaign {self._number} of {self._count})")

    def exploring(self, result: Result) -> None:
        """The recording stands."""
        self._since = time.monotonic()
        assert result.recording is not None, "exploring comes after recording"
        self._show(
            f"{result.found.name}: exploring {len(result.chosen)} of "
            f"{boundaries(len(result.recording.lines))}"
        )

    def judged(self, result: Result, verdict: Verdict) -> None:
        """One boundary is done."""
        now = time.monotonic()
        every = _PLAIN_SECONDS if self._live is None else _LIVE_SECONDS
        if now - self._shown >= every:
            self._show(progress_line(result, now - self._since))

    def finished(self, result: Result) -> None:
        """The campaign is over."""
        self._show("")
        print_lines(self._console, campaign_lines(result, replay_options=self._replay_options))

    def _show(self, line: str) -> None:
        self._shown = time.monotonic()
        if self._live is not None:
            text = Text(printable(line), no_wrap=True, overflow="ellipsis")
            self._live.update(text, refresh=True)
        elif line:
            print_lines(self._console, [printable(line)])


def progress_line(result: Result, seconds: float) -> str:
    """
    Return how far a campaign is, its rate, and the time left.

    Args:
        seconds: Since exploring began.
    """
    done, total = len(result.verdicts), len(result.chosen)
    parts = [f"{result.found.name}: {done}/{total}"]
    parts += [f"{count} {kind}" for kind in KINDS[1:] if (count := result.count(kind))]
    if done and seconds > 0:
        rate = done / seconds
        parts += [f"{rate:.1f} boundaries/s", f"{(total - done) / rate:.0f} s left"]
    return ", ".join(parts)
