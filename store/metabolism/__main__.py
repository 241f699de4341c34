"""
``python -m store.metabolism``: the commands of `command`, without the rest of the project.

Errors look as those of ``crashconform metabolism`` do: one paragraph that begins with the name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from store.metabolism.command import EXIT_REFUSED, metabolism

__all__ = ["main"]

_EXIT_STOPPED = 3
_NAME = "python -m store.metabolism"


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run one command and return its exit code; 2 for a wrong command line, 3 after Ctrl-C.
    """
    _never_fail_to_print()
    try:
        code = metabolism.main(
            None if arguments is None else list(arguments),
            prog_name=_NAME,
            standalone_mode=False,
        )
    except click.exceptions.Abort:
        click.echo(f"{_NAME}: interrupted", err=True)
        return _EXIT_STOPPED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_REFUSED
    except click.ClickException as error:
        click.echo(f"{_NAME}: error: {_message(error)}", err=True)
        return EXIT_REFUSED
    return code if isinstance(code, int) else 0


def _message(error: click.ClickException) -> str:
    message = error.format_message().rstrip()
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return message
    end = "" if message.endswith((".", "?", "!")) else "."
    return f"{message}{end} See {error.ctx.command_path} --help."


def _never_fail_to_print() -> None:
    """Write what the locale's encoding cannot say as escapes, and nowhere where it is closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the whole process
        reconfigure = getattr(getattr(sys, name), "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
