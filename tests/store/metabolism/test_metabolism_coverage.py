"""COVERAGE.md: each line of the checklist has tests that exist; and what the whole package is."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from campaigns.metabolism import invariants
from store.metabolism.scope import CLAIM_CEILING, SCOPE_BOUNDARIES

ROOT = Path(__file__).resolve().parents[3]
TABLE = Path(__file__).with_name("COVERAGE.md")
PACKAGE = ROOT / "store" / "metabolism"

NOT_BUILT = "MR-045"
DECIDED_IN = {"AMB-7": "MR-027", "AMB-10": "MR-032"}
"""Decisions whose tests carry the line that they are about."""

AFTER_A_CRASH = [f"I1-{number:02}" for number in range(1, 14)]
SCOPE = [
    *(f"MR-{number:03}" for number in range(1, 46)),
    *(f"AMB-{number}" for number in range(1, 11)),
]


@cache
def listed() -> dict[str, str]:
    """Return the rows of the table: an id and what stands beside it."""
    rows = re.findall(
        r"^\| ((?:MR|AMB|I1)-\d+) \| (.+) \|$", TABLE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def named(row: str) -> list[str]:
    """Return the tests that a row names."""
    return re.findall(r"`(tests/[^`]+::\w+)`", row)


@cache
def documented(path: str) -> dict[str, str]:
    """Return each test function of the file at *path* with its docstring."""
    if not (ROOT / path).is_file():
        return {}
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {
        node.name: ast.get_docstring(node) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def docstring(test: str) -> str | None:
    """Return the docstring of a test, None where there is no such test."""
    path, _, name = test.partition("::")
    return documented(path).get(name)


def test_each_id_is_listed_once_and_in_order() -> None:
    """MR-044: the table has one row for each line of the checklist, and no other."""
    assert list(listed()) == [*SCOPE, *AFTER_A_CRASH]


@pytest.mark.parametrize("identifier", SCOPE)
def test_each_named_test_exists_and_one_carries_the_id(identifier: str) -> None:
    """MR-044: a row names at least one test; all of them exist, and one says the id itself."""
    tests = named(listed()[identifier])
    found = [docstring(test) for test in tests]
    assert tests != []
    assert [test for test, words in zip(tests, found, strict=True) if words is None] == []
    carried_id = DECIDED_IN.get(identifier, identifier)
    carried = any(re.search(rf"\b{carried_id}\b", words or "") for words in found)
    assert carried or identifier == NOT_BUILT


def test_what_is_not_built_says_so() -> None:
    """MR-045: the row of the optional composition says that it is missing, and what is instead."""
    assert "not built" in listed()[NOT_BUILT]


@pytest.mark.parametrize("identifier", AFTER_A_CRASH)
def test_each_invariant_of_the_campaigns_exists(identifier: str) -> None:
    """MR-044: what must hold after a crash is an invariant, or a promise, that a campaign has."""
    row = listed()[identifier]
    _, held_by = row.split(" | ")
    for path in re.findall(r"`(campaigns/[^`]+)`", held_by):
        text = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", row):
            assert re.search(rf"\b{name}\b", text)
            value = getattr(invariants, name, f"{identifier} is a promise")
            assert str(value).startswith(f"{identifier} ")
    assert [test for test in named(row) if docstring(test) is None] == []


def test_no_id_is_carried_in_vain() -> None:
    """MR-044: no test of the runtime names an id that the checklist does not have."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for name, words in documented(path.relative_to(ROOT).as_posix()).items():
            for identifier in re.findall(r"\b(?:MR|AMB|I1)-\d+\b", words):
                assert identifier in [*SCOPE, *AFTER_A_CRASH], f"{path.name}::{name}"


def test_a_wrong_row_is_noticed() -> None:
    """MR-044: a test that does not exist, in a file that does or does not, is not found."""
    here = f"{Path(__file__).relative_to(ROOT).as_posix()}"
    row = (
        f"`{here}::test_nothing`, `tests/nowhere.py::test_a`, `{here}::test_a_wrong_row_is_noticed`"
    )
    found = [docstring(test) for test in named(row)]
    assert [words is None for words in found] == [True, True, False]


def imported() -> Iterator[tuple[str, str]]:
    """Yield every module of the package with the top of each name that it imports."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((path.name, alias.name.partition(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield path.name, (node.module or "").partition(".")[0]


def test_the_package_needs_little_beside_the_standard_library() -> None:
    """MR-001: SQLite through apsw, a command line and its tables; nothing else is imported."""
    tops = {top for _, top in imported()}
    assert "apsw" in tops
    assert tops - sys.stdlib_module_names - {"store"} <= {"apsw", "click", "rich"}


def test_the_package_starts_and_calls_nobody() -> None:
    """MR-002: no module can start a process or thread, or reach a network."""
    reaching = {"asyncio", "ftplib", "http", "multiprocessing", "smtplib", "socket", "ssl"}
    reaching |= {"subprocess", "threading", "urllib", "concurrent", "_thread", "ctypes", "pty"}
    assert [found for found in imported() if found[1] in reaching] == []


def test_what_a_pass_does_not_say_is_said() -> None:
    """MR-003: the ceiling and each boundary are whole sentences, for the record to carry."""
    assert len(SCOPE_BOUNDARIES) > 1
    for sentence in (CLAIM_CEILING, *SCOPE_BOUNDARIES):
        assert re.fullmatch(r"[A-Z].{20,}\.", sentence, re.DOTALL)
    assert any("distributed" in sentence for sentence in SCOPE_BOUNDARIES)
