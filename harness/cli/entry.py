"""
The way into the command and out of it: platform, signals, errors, exit codes.

Everything that can go wrong leaves here as one paragraph on standard error and an exit code.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from harness.cli.signals import Interruptible, wait_for_children
from harness.errors import ConfigurationError, HarnessError, WorkspaceError

EXIT_USAGE = 2
EXIT_STOPPED = 3

_PLATFORM = (
    "crashconform needs Linux and os.fork: it kills forked children at numbered boundaries, and "
    "reads /proc. On another system run it in a Linux container or virtual machine."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run the command and return its exit code.

    2 usage or configuration; 3 interrupted; 1 violated or hung; 3 errored; 5 inconclusive, diverged
    or nothing explored; 0 all survived. A command of an installed store has its own, but for
    2 and 3, which mean the same: it cannot be used, and it was stopped or failed.
    """
    _never_fail_to_print()
    if not sys.platform.startswith("linux") or not hasattr(os, "fork"):
        print_error(_PLATFORM)
        return EXIT_USAGE
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with Interruptible():
            code = _guarded(given)
            with quiet_when_unread(sys.stdout):
                sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        wait_for_children()
        print_error("interrupted", label="")
        return EXIT_STOPPED


def _guarded(arguments: list[str]) -> int:
    try:
        return _invoke(arguments)
    except HarnessError as error:
        print_error(str(error))
        wrong = isinstance(error, (ConfigurationError, WorkspaceError))
        return EXIT_USAGE if wrong else EXIT_STOPPED
    except OSError as error:
        print_error(f"the system refused: {error}")
        return EXIT_STOPPED
    except Exception:
        print_error(
            "this is a bug in crashconform, not in your store; please report it with what "
            f"follows.\n{traceback.format_exc()}"
        )
        return EXIT_STOPPED


def _invoke(arguments: list[str]) -> int:
    import click  # here: the platform is checked first, and zygotes never come here

    from harness.cli.commands import crashconform

    try:
        with crashconform.make_context("crashconform", arguments) as context:
            code = crashconform.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None  # a prompt was left by Ctrl-C, or had no input
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        hint = ""
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = f" See {error.ctx.command_path} --help."
        message = error.format_message()
        if hint and not message.endswith((".", "?", "!")):
            message += "."  # as after "(Possible options: ...)"
        print_error(message + hint)
        return error.exit_code
    return code if isinstance(code, int) else 0


def print_error(text: str, *, label: str = "error: ") -> None:
    """Write one paragraph to standard error, as far as there is one."""
    try:
        print(f"crashconform: {label}{text.rstrip()}", file=sys.stderr, flush=True)
    except OSError:
        return


@contextmanager
def quiet_when_unread(stream: TextIO) -> Iterator[None]:
    """
    Print within this block: where nobody reads *stream* any more, the rest goes nowhere.

    So ``crashconform list | head`` is quiet, and what was found keeps its exit code.
    """
    try:
        yield
    except BrokenPipeError:
        silence(stream)


def silence(stream: TextIO) -> None:
    """Send what is still to be printed nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _never_fail_to_print() -> None:
    """Write what the locale's encoding cannot say as escapes, and nowhere where it is closed."""
    # In this order, each takes the lowest free descriptor: its own.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for the whole process
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
