"""
Reading a folder of fixtures: every ``*.json`` in it is one case.

All files are read and checked before the first case runs, and the first thing that is wrong ends
it. Files are taken in the order of their names' bytes, so that the same thing is named each time.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from store import canonical
from store.metabolism.fixture_cases import Case, parse_case
from store.metabolism.fixture_checks import FixtureError
from store.metabolism.plain_text import printable

__all__ = ["SIZE_MAX", "read_fixture_dir"]

SIZE_MAX: Final = 2**20
"""The largest fixture that is read, in bytes."""


def read_fixture_dir(folder: Path) -> tuple[Case, ...]:
    """
    Return the cases of all ``*.json`` files in *folder*, sorted by name; none for none.

    Durable: Nothing; nothing is written.
    Raises: FixtureError: the folder is missing or is none, a file cannot be read or is no fixture,
        or two files hold cases of one name.
    """
    files: dict[str, str] = {}
    cases: list[Case] = []
    for path in _listed(folder):
        case = _read(path)
        if case.name in files:
            raise FixtureError(
                printable(str(path)),
                "case",
                f'"{case.name}" is the name of the case in {files[case.name]} too; expected one '
                "file for each.",
            )
        files[case.name] = printable(str(path))
        cases.append(case)
    return tuple(sorted(cases, key=lambda case: case.name))


def _listed(folder: Path) -> list[Path]:
    try:
        paths = [path for path in folder.iterdir() if path.name.endswith(".json")]
    except (OSError, ValueError) as error:
        raise FixtureError(
            printable(str(folder)),
            "",
            f"{_reason(error)}; expected a readable folder of fixtures.",
        ) from error
    return sorted(paths, key=os.fsencode)


def _read(path: Path) -> Case:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FixtureError(printable(str(path)), "", "expected a regular file.")
            data = file.read(SIZE_MAX + 1)
    except OSError as error:
        raise FixtureError(
            printable(str(path)), "", f"{_reason(error)}; expected a readable file."
        ) from error
    if len(data) > SIZE_MAX:
        raise FixtureError(printable(str(path)), "", f"expected at most {SIZE_MAX} bytes.")
    try:
        value = canonical.decode(data)
    except canonical.CanonicalError as error:
        place = error.place.removeprefix("$").removeprefix(".")
        raise FixtureError(printable(str(path)), printable(place), error.problem) from error
    return parse_case(value, file=printable(str(path)))


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for a writer, should the name be a pipe's."""
    return os.open(path, flags | os.O_NONBLOCK)


def _reason(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
