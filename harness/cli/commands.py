"""The commands and their options."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import apsw
import click
from rich.console import Console

from harness import report, runner
from harness.cli.entry import EXIT_USAGE, print_error, quiet_when_unread, silence
from harness.cli.options import ReportFile, Seconds, Shard, empty_folder
from harness.cli.plugins import Commands
from harness.cli.progress import Progress, open_console, print_lines
from harness.cli.selection import Selection, docstring_of, select, select_one
from harness.cli.session import Session, work_folder
from harness.cli.tracing import record_only, trace_json, trace_lines
from harness.errors import ConfigurationError, WorkspaceError
from harness.explain import FAULT, SEED, printable
from harness.runner import Options, Result
from harness.verdict import counted
from harness.workdir import Workdir

TIMEOUT_SECONDS = 30.0
_END = "end"

_Command = Callable[..., int]


def _common(command: _Command) -> _Command:
    """Add the options that every command which executes a campaign has."""
    command = click.option(
        "--timeout",
        "timeout_seconds",
        type=Seconds(),
        default=TIMEOUT_SECONDS,
        show_default=True,
        help="How long one child may take before it counts as hung.",
    )(command)
    return click.option(
        "--workdir",
        type=click.Path(path_type=Path),
        help="Folder for the roots of the run; by default memory (/dev/shm) where there is room.",
    )(command)


@click.group(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="crashconform", prog_name="crashconform")
def crashconform() -> None:
    """
    Kill a store at every numbered boundary, recover it, and judge it.

    Campaigns are those of [tool.crashconform] in the nearest pyproject.toml. Name them as
    "crashconform list" does, by folder, or by class; or name others: FILE.py, FILE.py:Class, a
    folder, module:Class.

    Exit codes: 2 usage or configuration; 3 interrupted; 1 violated or hung; 3 errored;
    5 inconclusive, diverged or nothing explored; 0 all survived. A command of an installed store
    has exit codes of its own.
    """


@crashconform.command("list")
@click.argument("targets", nargs=-1, metavar="[CAMPAIGN]...")
def list_campaigns(targets: tuple[str, ...]) -> int:
    """Print the names of campaigns, by folder, with what each says of itself."""
    selection = select(targets, Path.cwd())
    campaigns = selection.campaigns
    width = max(len(one.name) for one in campaigns)
    lines: list[str] = []
    for number, one in enumerate(campaigns):
        if number and _folder(one.name) != _folder(campaigns[number - 1].name):
            lines.append("")
        lines.append(printable(f"{one.name:<{width}}  {docstring_of(one)}".rstrip()))
    _say(open_console(sys.stdout), lines)
    return EXIT_USAGE if _tell_unlisted(selection) else 0


def _tell_unlisted(selection: Selection) -> bool:
    """Tell what was chosen and cannot be imported; return whether there is any."""
    for one in selection.unlisted:
        print_error(one.message)
    return bool(selection.unlisted)


def _folder(name: str) -> str:
    return name.partition(":")[0].rpartition("/")[0]


@crashconform.command()
@click.argument("campaign")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@_common
def trace(campaign: str, is_json: bool, timeout_seconds: float, workdir: Path | None) -> int:
    """Record CAMPAIGN and print its numbered boundaries; steps are indented."""
    found, import_path = select_one(campaign, Path.cwd())
    options = Options(timeout_seconds=timeout_seconds, import_path=import_path)
    result = record_only(found, workdir, options)
    if result.recording is None:
        _say(open_console(sys.stderr), report.campaign_lines(result))
        return result.exit_code
    if is_json:
        lines = [json.dumps(trace_json(found.name, result.recording), indent=2)]
    else:
        lines = trace_lines(found.name, result.recording)
    _say(open_console(sys.stdout), lines)
    return 0


@crashconform.command()
@click.argument("campaigns", nargs=-1, metavar="[CAMPAIGN]...")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=lambda: len(os.sched_getaffinity(0)),
    show_default="all cores",
    help="How many executions at a time.",
)
@click.option(
    "--shard",
    type=Shard(),
    default=(1, 1),
    show_default="1/1",
    help="Explore every N-th boundary from the I-th on; all shards together explore each once.",
)
@click.option("--representative", is_flag=True, help="Explore the representative subset only.")
@click.option(
    "--json",
    "json_target",
    metavar="FILE",
    help='Write the report as JSON; "-" for standard output, what people read then goes to stderr.',
)
@_common
def run(
    campaigns: tuple[str, ...],
    jobs: int,
    shard: tuple[int, int],
    representative: bool,
    json_target: str | None,
    timeout_seconds: float,
    workdir: Path | None,
) -> int:
    """Kill campaigns at every boundary and judge what comes back; all of them by default."""
    file = ReportFile(json_target) if json_target is not None else None
    selection = select(campaigns, Path.cwd())
    options = Options(
        jobs=jobs,
        timeout_seconds=timeout_seconds,
        shard=shard,
        is_representative=representative,
        import_path=selection.import_path,
    )
    console = open_console(sys.stderr if file and file.is_stdout else sys.stdout)
    replay_options = _replay_options(timeout_seconds, workdir)
    session = Session(is_misconfigured=_tell_unlisted(selection))
    try:
        _explore(session, selection, workdir, options, console, replay_options)
    except KeyboardInterrupt:
        session.is_interrupted = True
    except WorkspaceError as error:
        if not session.results:
            raise
        print_error(str(error))
        session.is_misconfigured = True
    if session.is_unread:
        silence(console.file)  # type: ignore[arg-type]  # rich says IO[str]
    return _conclude(session, selection, console, file, replay_options)


def _explore(
    session: Session,
    selection: Selection,
    workdir: Path | None,
    options: Options,
    console: Console,
    replay_options: str,
) -> None:
    count = len(selection.campaigns)
    with work_folder(workdir, max(2, options.jobs)) as folder:
        _say(console, _header(folder, options))
        with Progress(console, count, replay_options=replay_options) as progress:
            session.explore(selection.campaigns, folder, options, progress, print_error)


def _conclude(
    session: Session,
    selection: Selection,
    console: Console,
    file: ReportFile | None,
    replay_options: str,
) -> int:
    code = session.exit_code
    data = report.report_json(session.results, exit_code=code, replay_options=replay_options)
    if file is not None and not file.is_stdout:
        try:
            file.write(data)
        except ConfigurationError as error:
            print_error(str(error))
            code = 2
    lines = ["", *report.table_lines(session.results)]
    if selection.unlisted:
        names = printable(", ".join(one.name for one in selection.unlisted))
        lines.append(f"not run, since it cannot be imported: {names}")
    missing = len(selection.campaigns) - len(session.results)
    if missing:
        lines.append(f"not started: {missing} of {counted(len(selection.campaigns), 'campaign')}")
    lines.append(report.verdict_sentence(session.results, exit_code=code))
    _say(console, lines)
    if file is not None and file.is_stdout:
        with quiet_when_unread(sys.stdout):
            file.write(data)
    return code


def _header(folder: Workdir, options: Options) -> list[str]:
    what = f"seed {SEED}, fault model {FAULT}, engine {report.ENGINE}"
    where = f"jobs {options.jobs}, work folder {printable(str(folder.folder))}"
    index, count = options.shard
    parts = [
        what,
        where,
        f"SQLite {sqlite3.sqlite_version} (sqlite3), {apsw.sqlite_lib_version()} (apsw)",
    ]
    if count > 1:
        parts.append(f"shard {index}/{count}")
    if options.is_representative:
        parts.append("representative subset")
    return [", ".join(parts)]


def _replay_options(timeout_seconds: float, workdir: Path | None) -> str:
    parts: list[str] = []
    if timeout_seconds != TIMEOUT_SECONDS:
        parts.append(f"--timeout {timeout_seconds:g}")
    if workdir is not None:
        parts.append(f"--workdir {shlex.quote(str(workdir))}")
    return " ".join(parts)


@crashconform.command()
@click.argument("place", metavar="CAMPAIGN@K")
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    help="Folder for copies of the crashed and the recovered root; new or empty.",
)
@_common
def replay(place: str, keep: Path | None, timeout_seconds: float, workdir: Path | None) -> int:
    """Kill CAMPAIGN once, at boundary K or "end", and show everything about it."""
    name, boundary = _parse_place(place)
    found, import_path = select_one(name, Path.cwd())
    kept = empty_folder(keep) if keep is not None else None
    options = Options(timeout_seconds=timeout_seconds, import_path=import_path)
    console = open_console(sys.stdout)
    with work_folder(workdir, 2) as folder:
        _say(console, _header(folder, options))
        result = runner.replay(found, boundary, folder, options, kept)
    replay_options = _replay_options(timeout_seconds, workdir)
    lines = report.campaign_lines(result, replay_options=replay_options)
    _say(console, [*lines, *_kept_lines(kept), _replay_sentence(result)])
    return result.exit_code


def _parse_place(place: str) -> tuple[str, int | None]:
    name, _, where = place.rpartition("@")
    if name and where == _END:
        return name, None
    if not name or not (where.isascii() and where.isdigit()) or len(where) > 9 or int(where) < 1:
        raise ConfigurationError(
            f"{place!r} must be CAMPAIGN@K with K from 1 on, or CAMPAIGN@{_END}; "
            "crashconform trace CAMPAIGN shows the boundaries."
        )
    return name, int(where)


def _kept_lines(keep: Path | None) -> list[str]:
    if keep is None:
        return []
    kept = [keep / name for name in ("crashed", "recovered") if (keep / name).is_dir()]
    if not kept:
        return ["nothing was kept: the execution did not die at that boundary"]
    return [printable(f"{one.name} root kept in {one}") for one in kept]


def _replay_sentence(result: Result) -> str:
    return report.verdict_sentence([result], exit_code=result.exit_code)


def _say(console: Console, lines: Iterable[str]) -> None:
    with quiet_when_unread(console.file):  # type: ignore[arg-type]  # rich says IO[str]
        print_lines(console, list(lines))
