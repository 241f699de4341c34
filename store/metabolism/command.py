"""
The command line of the metabolism runtime: two commands that change nothing.

Exit codes: 0 healthy, or every fixture passed; 1 a person must review, or a fixture failed; 2 there
was nothing that could be judged. Whatever goes wrong is one paragraph, never a traceback. Heavy
imports wait until a command needs them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click

from store.metabolism.plain_text import counted, printable

if TYPE_CHECKING:
    from store.metabolism.reconciliation import Survey
    from store.metabolism.reconciliation.verdict import Verdict

__all__ = ["EXIT_REFUSED", "Refused", "metabolism"]

_Stream = TypeVar("_Stream", bound=IO[Any])

EXIT_REFUSED: Final = 2
"""Nothing could be judged."""

_EXIT_REVIEW: Final = 1
_LIMIT: Final = 20


class Refused(click.ClickException):
    """
    Nothing could be judged; the message says why and what to do.
    """

    exit_code = EXIT_REFUSED


def _moment(context: click.Context, option: click.Parameter, given: str | None) -> int | None:
    from store.metabolism.reconciliation.moments import parse_moment

    return None if given is None else _parsed(parse_moment, given)


def _seconds(context: click.Context, option: click.Parameter, given: str) -> int:
    from store.metabolism.reconciliation.moments import parse_seconds

    return _parsed(parse_seconds, given)


def _parsed(parse: Callable[[str], int], given: str) -> int:
    try:
        return parse(given)
    except ValueError as error:
        raise click.BadParameter(printable(str(error))) from error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def metabolism() -> None:
    """Look at the durable record of a metabolism runtime; nothing is ever changed."""


@metabolism.command()
@click.argument("database", metavar="DB", type=click.Path(path_type=Path))
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object; each finding has a line."
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Show the first N findings.  [default: {_LIMIT}, and all with --json]",
)
@click.option(
    "--stale-after",
    "stale_after_ns",
    callback=_seconds,
    default="600",
    show_default=True,
    metavar="SECONDS",
    help="A launch log that was last written longer ago shows no life.",
)
@click.option(
    "--now",
    "now_ns",
    callback=_moment,
    metavar="TIME",
    help="Judge at this moment: ISO 8601 (UTC without a zone), or nanoseconds since 1970, as "
    "date +%s%N prints them.  [default: this one]",
)
@click.option(
    "--logs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Where relative log paths begin.  [default: the folder of DB]",
)
def reconcile(
    database: Path,
    as_json: bool,
    limit: int | None,
    stale_after_ns: int,
    now_ns: int | None,
    logs: Path | None,
) -> int:
    """
    Say which rows of DB, the database of a dead runtime, contradict each other.

    The worst come first, each with what was expected, what was seen and why a person must decide.
    Before them come warnings, where there is reason to doubt that DB is whole. Nothing is
    repaired, and no byte of DB is changed. Exit code 0: healthy; 1: a person must look; 2: DB
    cannot be judged, and nothing is printed but the reason.
    """
    with _explained(database), ExitStack() as stack:
        judged_at_ns = time.time_ns() if now_ns is None else now_ns
        found, verdict = _judged(
            stack,
            database,
            logs,
            judged_at_ns=judged_at_ns,
            stale_after_ns=stale_after_ns,
            is_clock=now_ns is None,
        )
        # Only now is it known that the database stayed what it was.
        if as_json:
            _write(_json_text(found, verdict, limit))
        else:
            _show(found, verdict, _LIMIT if limit is None else limit)
        return 0 if verdict.is_healthy else _EXIT_REVIEW


def _judged(
    stack: ExitStack,
    database: Path,
    logs: Path | None,
    *,
    judged_at_ns: int,
    stale_after_ns: int,
    is_clock: bool,
) -> tuple[Survey, Verdict]:
    """Read the database at rest; the findings are there until *stack* ends."""
    from store.at_rest import open_at_rest
    from store.metabolism.reconciliation import survey
    from store.metabolism.reconciliation.caveats import time_caveats, wal_caveats
    from store.metabolism.reconciliation.census import take_census
    from store.metabolism.reconciliation.soundness import require_runtime, require_sound
    from store.metabolism.reconciliation.verdict import Verdict

    real = Path(os.path.realpath(database))  # Path.resolve raises on a loop of links
    folder = real.parent if logs is None else logs.resolve()
    with open_at_rest(database) as connection:
        require_runtime(connection)
        require_sound(connection)
        census = take_census(connection)
        found = stack.enter_context(
            survey(connection, folder=folder, now_ns=judged_at_ns, stale_after_ns=stale_after_ns)
        )
        caveats = wal_caveats(real)
    ahead = time_caveats(
        # A worker may have written to its log since.
        latest_ns=max(judged_at_ns, time.time_ns()) if is_clock else judged_at_ns,
        newest_row_ns=census.newest_row_ns,
        newest_log_ns=found.summary.newest_log_ns,
    )
    return found, Verdict(
        database=real,
        folder=folder,
        judged_at_ns=judged_at_ns,
        stale_after_ns=stale_after_ns,
        summary=found.summary,
        census=census,
        caveats=(*caveats, *ahead),
    )


@metabolism.command("evaluate-fixtures")
@click.option(
    "--input",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The folder of the cases, *.json.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole record as JSON.")
def evaluate_fixtures(folder: Path, as_json: bool) -> int:
    """
    Play every case in DIR and compare what happens with what it expects.

    Exit code 0: there is a case and every one met its expectation; 1: not so; 2: DIR cannot be
    used.
    """
    from store.metabolism.errors import MetabolismError
    from store.metabolism.fixtures import evaluate_fixture_dir

    try:
        record = evaluate_fixture_dir(folder)
    except MetabolismError as error:
        raise Refused(printable(str(error))) from error
    if as_json:
        _write([json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False), "\n"])
    else:
        _write(f"{line}\n" for line in _case_lines(record, folder))
    return 0 if record["status"] == "pass" else 1


@contextmanager
def _explained(database: Path) -> Iterator[None]:
    """Turn whatever a strange database can cause into one paragraph."""
    import apsw

    from store.errors import StoreError
    from store.metabolism.errors import MetabolismError
    from store.sqlite import SqliteError

    name = printable(str(database))
    try:
        yield
    except click.ClickException:
        raise
    except MetabolismError as error:
        raise Refused(f"{name}: {printable(str(error))}") from error
    except (StoreError, SqliteError) as error:
        raise Refused(printable(str(error))) from error
    except apsw.NotADBError as error:
        raise Refused(
            f"{name} is not an SQLite database; name the file that the runtime wrote to."
        ) from error
    except apsw.CorruptError as error:
        raise Refused(
            f"{name} is damaged: {printable(str(error))}. Nothing in it can be relied on; keep it "
            "as it is, and restore it from a backup or recover a copy."
        ) from error
    except apsw.FullError as error:
        raise Refused(
            f"{name}: no room for the temporary file in which findings are sorted; name a folder "
            "with room in SQLITE_TMPDIR."
        ) from error
    except (MemoryError, apsw.NoMemError) as error:
        raise Refused(
            f"{name}: not enough memory for one of its values; allow more, it is held whole."
        ) from error
    except apsw.Error as error:
        raise Refused(f"{name} could not be read: {printable(str(error))}.") from error
    except OSError as error:
        raise Refused(
            f"{name} could not be read: {printable(error.strerror or str(error))}."
        ) from error


def _json_text(found: Survey, verdict: Verdict, limit: int | None) -> Iterator[str]:
    """Yield the document piece by piece, each member and each finding on a line of its own."""
    members = {**verdict.to_json(), "findings": None}
    for at, name in enumerate(sorted(members)):
        yield f"{',' if at else '{'}\n  {json.dumps(name)}: "
        if name != "findings":
            yield json.dumps(members[name], sort_keys=True)
            continue
        count = 0
        for count, finding in enumerate(found.findings(limit=limit), start=1):
            line = json.dumps(finding.to_json(), sort_keys=True)
            yield f"{'[' if count == 1 else ','}\n    {line}"
        yield "\n  ]" if count else "[]"
    yield "\n}\n"


def _show(found: Survey, verdict: Verdict, limit: int) -> None:
    from store.metabolism.reconciliation.table import open_console, print_reconciliation

    with _output(sys.stdout) as stream:
        console = open_console(stream)
        print_reconciliation(console, verdict, found.findings(limit=limit))


def _case_lines(record: Mapping[str, Any], folder: Path) -> Iterator[str]:
    cases = record.get("cases", [])
    for case in cases:
        verdict = "pass" if case["met"] else "FAIL"
        status = f"expected {case['expected_status']}, observed {case['observed_status']}"
        yield f"{verdict}  {printable(str(case['case']))}: {status}"
        for wrong in case["mismatches"]:
            what = f"expected {_value(wrong['expected'])}, observed {_value(wrong['observed'])}"
            yield f"      {printable(str(wrong['place']))}: {printable(what)}"
    if cases:
        yield f"{record['status']}: {counted(len(cases), 'case')}"
    else:
        yield f"{record['status']}: no *.json is in {printable(str(folder))}; expected a case."


def _value(value: Any) -> str:
    """Return a value of a fixture as a fixture says it."""
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)


def _write(pieces: Iterable[str]) -> None:
    """Print as UTF-8, whatever the locale says, since JSON is."""
    with _output(sys.stdout.buffer) as stream:
        for piece in pieces:
            stream.write(piece.encode("utf-8", "backslashreplace"))


@contextmanager
def _output(stream: _Stream) -> Iterator[_Stream]:
    """
    Print within this block to standard output, which is flushed after it.

    Where nobody reads it any more the rest goes nowhere, and what was found keeps its exit code.
    """
    try:
        yield stream
        stream.flush()
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        _silence(stream)
        raise Refused(f"the answer could not be written: {error.strerror}.") from error


def _silence(stream: IO[Any]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
