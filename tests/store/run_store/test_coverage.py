"""
COVERAGE.md: every checklist id in its scope has a test that exists and carries the id.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

TABLE = Path(__file__).with_name("COVERAGE.md")

LATER = {14, 78, 79, 80, 97, 98}

SCOPE = [f"RS-{number:03}" for number in range(1, 101) if number not in LATER]


@cache
def listed() -> list[tuple[str, list[str]]]:
    """Return the rows of the table: an id and its tests."""
    rows = re.findall(r"^\| (RS-\d{3}) \| (.+) \|$", TABLE.read_text(encoding="utf-8"), re.M)
    return [(identifier, re.findall(r"`([^`]+)`", tests)) for identifier, tests in rows]


@cache
def documented(path: str) -> dict[str, str]:
    """Return each test function of the file at *path* with its name and docstring."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {
        node.name: f"{node.name} {ast.get_docstring(node) or ''}"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def missing(identifier: str, tests: list[str]) -> list[str]:
    """Return those of *tests* that do not exist or do not carry *identifier*."""
    found = []
    for test in tests:
        path, _, name = test.partition("::")
        texts = documented(path) if (ROOT / path).is_file() else {}
        if re.search(rf"{identifier}\b", texts.get(name, "")) is None:
            found.append(test)
    return found


def test_each_id_in_scope_is_listed_once() -> None:
    """The table has one row for each id of sections A to E, and of F as far as it is built."""
    assert [identifier for identifier, _ in listed()] == SCOPE


@pytest.mark.parametrize("identifier", SCOPE)
def test_each_listed_test_exists_and_carries_its_id(identifier: str) -> None:
    """Each id names at least one test, which exists and says the id itself."""
    tests = dict(listed()).get(identifier, [])
    assert len(tests) >= 1
    assert missing(identifier, tests) == []


def test_a_wrong_row_is_noticed() -> None:
    """A test that does not exist, in a file that does or does not, fails its row."""
    here = "tests/store/run_store/test_coverage.py"
    wrong = [
        f"{here}::test_nothing",
        "tests/nowhere.py::test_a",
        f"{here}::test_a_wrong_row_is_noticed",
    ]
    assert wrong == missing("RS-001", wrong)
