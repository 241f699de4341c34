"""
Our own words on a console, and commands that are to be copied from it.

Where the output is no terminal it has no colour, and the width that COLUMNS asks for or else one
of its own, so that the same state gives the same bytes.
"""

from __future__ import annotations

import os
import shlex
import textwrap
from typing import Final, TextIO

from rich.console import Console
from rich.text import Text

from store.metabolism.plain_text import printable

__all__ = ["WIDTH_MIN", "command", "open_console", "paragraph", "quoted", "title"]

REDIRECTED_WIDTH: Final = 120
"""How wide the table is where neither a terminal nor COLUMNS says otherwise, in columns."""

WIDTH_MIN: Final = 20
"""No text is made narrower than this."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command to end quietly; rich would exit with status 1."""
        raise


def open_console(stream: TextIO) -> Console:
    """Return a console on *stream*, with colour and the terminal's width on a terminal only."""
    is_terminal = stream.isatty()
    return _Console(
        file=stream,
        force_terminal=is_terminal,
        color_system="auto" if is_terminal else None,
        width=None if is_terminal else _redirected_width(),
        highlight=False,
        markup=False,
        emoji=False,
    )


def title(console: Console, words: str) -> None:
    """Print a heading after an empty line."""
    console.print()
    console.print(Text(words, style="bold"))


def paragraph(console: Console, words: str, *, indent: str = "  ", style: str = "") -> None:
    """Print our own words, wrapped without spaces at the end of a line."""
    for line in textwrap.wrap(
        words,
        max(WIDTH_MIN, console.width),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    ):
        console.print(Text(line, style=style), soft_wrap=True)


def command(console: Console, words: str) -> None:
    """Print unwrapped, to be copied."""
    console.print(Text(f"    {words}"), soft_wrap=True)


def quoted(words: str) -> str:
    """Return one word of a shell's command line."""
    return printable(shlex.quote(words))


def _redirected_width() -> int:
    asked = os.environ.get("COLUMNS", "")
    is_width = asked.isascii() and asked.isdigit() and len(asked) < 6 and int(asked) > 0
    return max(WIDTH_MIN, int(asked)) if is_width else REDIRECTED_WIDTH
