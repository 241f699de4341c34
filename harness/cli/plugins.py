"""
Commands that installed stores bring for their operators, beside the built-in ones.

Method: a distribution names click commands in the entry-point group ``crashconform.commands``. They
are looked up only for a name that is not built in, and for ``--help``; each is imported only when
it is run or listed. Nothing that is wrong with one of them reaches another command.

Covered: distributions and entry points that cannot be read or imported, objects that are no
command, two distributions with one name, exceptions and results of a command that runs.
Not covered: a command that ends the process itself, or leaves threads and processes behind.
"""

from __future__ import annotations

import re
import select
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click

from harness.cli.entry import EXIT_STOPPED, silence
from harness.errors import CommandFailed, ConfigurationError, HarnessError
from harness.explain import printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "Commands"]

GROUP = "crashconform.commands"
"""The group of entry points."""

_HEADING = "Commands of installed stores"
_BROKEN = "cannot be loaded; run it to see why"
_RUNNING = f"{__name__}.running"
_EXIT_CODE_MAX = 255


@dataclass(frozen=True)
class _PlugIn:
    """
    One entry point.

    Attributes:
        distribution: Name and version of what brings it.
    """

    entry: EntryPoint
    distribution: str

    def __str__(self) -> str:
        entry = self.entry
        return printable(f"entry point {entry.name} = {entry.value} of {self.distribution}")

    def load(self) -> click.Command:
        """Import the command. Raises: ConfigurationError: it cannot be, or is none."""
        try:
            loaded = self.entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit, and what a test framework raises
            self._refuse(f"cannot be loaded: {_in_one_line(error)}")
        if not isinstance(loaded, click.Command):
            self._refuse(f"is of type {type(loaded).__qualname__}, not a click command")
        return loaded

    def _refuse(self, problem: str) -> NoReturn:
        raise ConfigurationError(
            f"command {self.entry.name!r} cannot be run: the {self}, in the group {GROUP}, "
            f"{printable(problem)}. Repair, upgrade or uninstall {self.distribution}."
        ) from None


class Commands(click.Group):
    """
    A group whose own commands come first, and those of installed stores after them.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """
        Return the command of that name, None where there is none.

        Raises: ConfigurationError: an installed store brings it, and it cannot be loaded.
        """
        built_in = super().get_command(ctx, cmd_name)
        if built_in is not None or cmd_name.startswith("-"):
            return built_in
        plug_ins, unreadable = _look_up()
        if cmd_name not in plug_ins:
            if unreadable:
                ctx.fail(
                    f"No such command {cmd_name!r}. Not every installed distribution could be "
                    f"asked for it: {'; '.join(unreadable)}."
                )
            return None
        plug_in = _only(plug_ins[cmd_name])
        command = plug_in.load()
        ctx.meta[_RUNNING] = plug_in
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """
        Run the chosen command and return what it returned.

        Raises: CommandFailed: an installed store brings it, and it raised, or returned a number
            that is no exit code.
        """
        try:
            result = super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, HarnessError):
            raise
        except Exception as error:
            plug_in = ctx.meta.get(_RUNNING)
            if plug_in is None:
                raise
            if isinstance(error, BrokenPipeError) and _is_unread():
                silence(sys.stdout)
                ctx.exit(EXIT_STOPPED)
            raise CommandFailed(_blame(plug_in, traceback.format_exc())) from error
        plug_in = ctx.meta.get(_RUNNING)
        if plug_in is None:
            return result
        if isinstance(result, int) and not 0 <= result <= _EXIT_CODE_MAX:
            problem = f"it returned {result}, and exit codes are 0 to {_EXIT_CODE_MAX}"
            raise CommandFailed(_blame(plug_in, problem))
        return 0 if isinstance(result, bool) else result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the built-in commands, and under a heading of their own the others."""
        super().format_commands(ctx, formatter)
        plug_ins, _ = _look_up()
        names = sorted(set(plug_ins) - set(self.commands))
        limit = formatter.width - 6 - max(map(len, names), default=0)
        rows = [(printable(one), text) for one in names for text in _summary(plug_ins[one], limit)]
        if rows:
            with formatter.section(_HEADING):
                formatter.write_dl(rows)


def _look_up() -> tuple[dict[str, list[_PlugIn]], list[str]]:
    """Return the entry points by name, and what cannot be read of the installed distributions."""
    # Here: built-in commands must not pay for it, and zygotes never come here.
    from importlib import metadata

    found: dict[str, list[_PlugIn]] = {}
    seen: set[str] = set()
    unreadable: list[str] = []
    for distribution in metadata.distributions():
        try:
            name = distribution.name
            normal = re.sub(r"[-_.]+", "-", name).lower()
            if normal in seen:
                continue  # as for every import, the first on the path counts
            seen.add(normal)
            entries = [entry for entry in distribution.entry_points if entry.group == GROUP]
            label = f"{name} {distribution.version}" if entries else name
        except Exception as error:
            place = distribution.locate_file("")
            unreadable.append(printable(f"one in {place} has {_in_one_line(error)}"))
            continue
        for entry in entries:
            found.setdefault(entry.name, []).append(_PlugIn(entry, label))
    return found, unreadable


def _only(plug_ins: list[_PlugIn]) -> _PlugIn:
    """Return the one plug-in of a name. Raises: ConfigurationError: there are several."""
    if len(plug_ins) > 1:
        listed = " and the ".join(str(one) for one in plug_ins)
        raise ConfigurationError(
            f"command {plug_ins[0].entry.name!r} cannot be run, since it is not clear which is "
            f"meant: the group {GROUP} has the {listed}. Uninstall all but one."
        )
    return plug_ins[0]


def _summary(plug_ins: list[_PlugIn], limit: int) -> Iterator[str]:
    """Yield what the help says of one name; nothing for a command that is hidden."""
    try:
        command = _only(plug_ins).load()
    except ConfigurationError:
        yield _BROKEN
        return
    if not command.hidden:
        yield command.get_short_help_str(limit)


def _blame(plug_in: _PlugIn, what: str) -> str:
    return (
        f"command {plug_in.entry.name!r} failed. This is a bug of the command, not of the harness "
        f"that called it and not of your data; please report it to those who wrote the {plug_in}, "
        f"with what follows.\n{what}"
    )


def _in_one_line(error: BaseException) -> str:
    """Return type and message of an error, however long, broken or empty the message is."""
    if isinstance(error, SyntaxError):
        text = f"SyntaxError: {error}"  # with file and line, in one
    else:
        text = traceback.format_exception_only(error)[0]
    return " ".join(text.split())


def _is_unread() -> bool:
    """Return whether standard output is a pipe that nobody reads any more."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(flags & select.POLLERR for _, flags in poll.poll(0))
    except (OSError, ValueError):
        return False
