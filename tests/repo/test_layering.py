"""The rules that hold the repository together: layers, sizes, docstrings, no machine's traces."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from harness import Campaign

REPOSITORY = Path(__file__).resolve().parents[2]
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
TEST_LINES_MAX = 500
PACKAGES = ("harness", "store", "campaigns")
FORBIDDEN = {
    "store": ("harness", "campaigns"),
    "harness": ("store", "campaigns"),
    "campaigns": ("tests",),
}
DATA_MODULES = ("errors", "trace", "oracle", "verdict")
HEAVY = ("pytest", "_pytest", "rich", "click", "jinja2", "psutil", "xdist")

# Written in two parts, so that this file does not hold what it looks for.
MACHINE = re.compile(
    "|".join(
        [
            r"(?<![\w.])/(?:home|Users)" + r"/[a-z]",
            r"(?<![\w.])/root" + r"/\.",
            r"(?<![\w.])/work" + r"/",
            r"\.pyenv" + r"/",
            r"(?:index|index-url|registry)\s*=\s*[\"']?https?:" + r"//",
            r"https?://[^\s/]*(?:artifactory|nexus|devpi|pypi-proxy|" + r"jfrog)",
        ]
    )
)


@cache
def tracked() -> tuple[Path, ...]:
    """Return every file that git knows and that exists."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    return tuple(path for name in sorted(listed) if name and (path := REPOSITORY / name).is_file())


def modules(*folders: str) -> list[str]:
    """Return the tracked Python files under these folders, as relative names."""
    names = [path.relative_to(REPOSITORY).as_posix() for path in tracked()]
    return [name for name in names if name.endswith(".py") and name.startswith(folders)]


@cache
def tree(name: str) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse((REPOSITORY / name).read_text(encoding="utf-8"))


def imported(name: str) -> Iterator[str]:
    """Yield the dotted name of everything that a module imports, wherever in it."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative imports hide the layer"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_layers_import_downwards_only(package: str) -> None:
    """store and harness know nothing of each other; only campaigns see both."""
    names = modules(f"{package}/")
    assert names != []
    wrong = [
        f"{name} imports {target}"
        for name in names
        for target in imported(name)
        if target.split(".")[0] in FORBIDDEN[package]
    ]
    assert wrong == []


@pytest.mark.parametrize("module", DATA_MODULES)
def test_data_modules_import_data_only(module: str) -> None:
    """What a saved run is judged again with needs no engine, no store and no front end."""
    ours = {
        target.split(".")[1]
        for target in imported(f"harness/{module}.py")
        if target.startswith("harness.")
    }
    assert ours - set(DATA_MODULES) == set()


def test_the_core_imports_no_front_end() -> None:
    """Nothing that a zygote needs imports the command line, the plugin or the report."""
    front = re.compile(r"harness[./](?:cli[./]|pytest_|report\b|explain\b)")
    names = [name for name in modules("harness/") if not front.match(name)]
    assert "harness/client.py" in names
    wrong = [f"{n} imports {t}" for n in names for t in imported(n) if front.match(t)]
    assert wrong == []


def test_a_zygote_imports_nothing_heavy() -> None:
    """A zygote is forked for every child, so that each module in it costs every boundary."""
    code = "import sys, harness.zygote; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "harness" in loaded
    assert loaded & set(HEAVY) == set()


@pytest.mark.parametrize("name", modules(*(f"{package}/" for package in PACKAGES)))
def test_modules_and_functions_stay_small(name: str) -> None:
    """A module has at most 600 lines and a function at most 70, docstring left out."""
    size = len((REPOSITORY / name).read_text(encoding="utf-8").splitlines())
    long = [
        f"{node.name}: {_size(node)} lines"
        for node in ast.walk(tree(name))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and _size(node) > FUNCTION_LINES_MAX
    ]
    assert (size > MODULE_LINES_MAX, long) == (False, []), f"{name} has {size} lines"


def _size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    start = (first.end_lineno or first.lineno) + 1 if is_docstring else node.lineno
    return (node.end_lineno or start) - start + 1


@pytest.mark.parametrize("name", modules("tests/"))
def test_test_files_stay_small(name: str) -> None:
    """A test file has at most 500 lines."""
    size = len((REPOSITORY / name).read_text(encoding="utf-8").splitlines())
    assert size <= TEST_LINES_MAX, f"{name} has {size} lines"


@pytest.mark.parametrize("name", modules(*(f"{package}/" for package in PACKAGES)))
def test_every_public_name_has_a_docstring(name: str) -> None:
    """Modules, public classes, functions and methods say what they do; a campaign's own methods
    may leave that to the interface that they override."""
    interface = {method for method in vars(Campaign) if not method.startswith("_")}
    wrong = list(_undocumented(tree(name), name))
    if name.startswith("campaigns/"):
        wrong = [place for place in wrong if place.rpartition(":")[2] not in interface]
    assert wrong == []


def _undocumented(node: ast.AST, name: str) -> Iterator[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, documented) and ast.get_docstring(node) is None:
        yield name
    if not isinstance(node, (ast.Module, ast.ClassDef)):
        return
    for child in node.body:
        if isinstance(child, documented) and not child.name.startswith("_"):  # type: ignore[union-attr]
            yield from _undocumented(child, f"{name}:{child.name}")  # type: ignore[union-attr]


@pytest.mark.parametrize("name", modules("tests/"))
def test_every_test_says_what_it_expects(name: str) -> None:
    """Every test function has a docstring."""
    silent = [
        node.name
        for node in ast.walk(tree(name))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and ast.get_docstring(node) is None
    ]
    assert silent == []


def test_no_file_names_a_machine_or_a_registry() -> None:
    """Tracked files hold no path of the machine they were written on, and no private host."""
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(REPOSITORY)}:{text.count(chr(10), 0, match.start()) + 1}: "
            f"{match.group()}"
            for match in MACHINE.finditer(text)
        ]
    assert found == []
