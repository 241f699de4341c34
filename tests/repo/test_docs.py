"""The documents are held to the code: links, names, options, words, and what outputs they show."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

import harness
from campaigns.metabolism import invariants as metabolism_invariants
from campaigns.run_store import invariants
from campaigns.run_store.observation import TABLES
from harness import pytest_plugin
from harness.cli.commands import crashconform
from harness.oplog import Kind
from store import metabolism, run_store
from store.metabolism.reconciliation import Rule

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted(
    [*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), *(REPOSITORY / "campaigns").rglob("*.md")]
)
GUIDES = [
    DOCS / f"{name}.md"
    for name in (
        "tutorial",
        "how-to",
        "reference",
        "explanation",
        "limitations",
        "run-store",
        "metabolism",
    )
]
LINES_MAX = 250

BANNED = {
    r"crash[- ]points? of the trace": "boundary",
    r"golden run": "recording",
    r"garbage": "orphan, or leftover",
    r"test ?case": "campaign",
    r"checkpoint file": "log checkpoint",
    r"side[- ]effect": "effect",
    r"hard crash": "process death, or power loss",
    r"persisted": "acknowledged, committed or durable",
    r"flak(?:y|iness)": "differs from run to run",
    r"simply|just|obviously|powerful|seamless(?:ly)?|blazing(?:ly)?|robust": "nothing at all",
}
"""Words that the glossary or STYLE has another word for, with that word."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_NAMED = re.compile(r"\A# ([\w.-]+\.py)(?:, (\w+))?\n")


def prose(text: str) -> str:
    """Return a page without its blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "", _FENCE.sub("", text))


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower())
    return kept.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_relative_links_resolve(page: Path) -> None:
    """Each link to a file of the repository finds it, and its heading where it names one."""
    missing = []
    for target in _LINK.findall(prose(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, heading = target.partition("#")
        file = page.parent / place if place else page
        if not file.exists():
            missing.append(target)
        elif heading:
            headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", file.read_text()), re.MULTILINE)
            if heading not in {anchor(one) for one in headings}:
                missing.append(target)
    assert missing == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_guides_are_short(page: Path) -> None:
    """A guide can be read in one go."""
    assert len(page.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("page", [*GUIDES, DOCS / "glossary.md"], ids=lambda page: page.stem)
def test_words_are_the_glossarys(page: Path) -> None:
    """One word has one meaning, in the documents too."""
    text = prose(page.read_text())
    found = {
        f"{match[0]!r}: say {instead}"
        for banned, instead in BANNED.items()
        for match in re.finditer(rf"\b(?:{banned})\b", text, re.IGNORECASE)
    }
    assert set() == found


def command_options() -> dict[str, set[str]]:
    """Return the long options of each command, those of the program under its own name."""
    options = {
        name: {
            option
            for parameter in command.params
            if isinstance(parameter, click.Option)
            for option in parameter.opts
            if option.startswith("--")
        }
        | {"--help"}
        for name, command in crashconform.commands.items()
    }
    own = {option for parameter in crashconform.params for option in parameter.opts}
    return {**options, "crashconform": own | {"--help"}}


class _Parser:
    """Takes options as pytest's parser and its groups do, and keeps their names."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def getgroup(self, *_: str) -> _Parser:
        return self

    def addoption(self, *names: str, **_: object) -> None:
        self.names |= set(names)


def plugin_options() -> set[str]:
    """Return the options that the pytest plugin adds."""
    parser = _Parser()
    pytest_plugin.pytest_addoption(parser)  # type: ignore[arg-type]
    return parser.names


def section(text: str, heading: str) -> str:
    """Return what stands under a heading, down to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    _, _, rest = text.partition(f"\n{heading}\n")
    end = re.search(rf"^#{{1,{level}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def options_in(text: str) -> set[str]:
    """Return every long option that a text names."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def test_reference_has_every_command_and_option() -> None:
    """The reference names the commands and options that exist, at their command, and no other."""
    text = section((DOCS / "reference.md").read_text(), "## Command line")
    for name, options in command_options().items():
        if name != "crashconform":
            part = section(text, f"### crashconform {name}")
            assert options == options_in(part), name
    commands = set(re.findall(r"^### crashconform (\w+)$", text, re.MULTILINE))
    assert set(crashconform.commands) == commands
    assert set().union(*command_options().values()) == options_in(text)


def test_reference_has_every_pytest_option() -> None:
    """The reference names the plugin's options, and no other."""
    text = section((DOCS / "reference.md").read_text(), "## pytest")
    named = {option for option in options_in(text) if option.startswith("--crash")}
    assert plugin_options() == named


def test_reference_has_every_public_name() -> None:
    """Whatever can be imported from the harness is in the reference, members included."""
    text = (DOCS / "reference.md").read_text()
    members = {
        member
        for name in ("Campaign", "Run", "Evidence", "Check")
        for member in [*vars(getattr(harness, name)), *_fields(getattr(harness, name))]
        if not member.startswith("_") and member not in ("notes", "finish")
    }
    code = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", text))))
    assert set() == (set(harness.__all__) | members) - code


def _fields(kind: type) -> list[str]:
    return list(getattr(kind, "__dataclass_fields__", ()))


def test_run_store_page_has_every_name() -> None:
    """The run store's page names its invariants, tables, phases and public names."""
    text = (DOCS / "run-store.md").read_text()
    assert [name for name in invariants.NAMES if name not in text] == []
    assert [name for name in TABLES if f"`{name}`" not in text] == []
    assert [phase.value for phase in run_store.Phase if f"`{phase.value}`" not in text] == []
    assert [name for name in run_store.__all__ if name not in text] == []


def test_metabolism_page_has_every_name() -> None:
    """The runtime's page names its invariants, states, kinds of events, rules and operations."""
    text = (DOCS / "metabolism.md").read_text()
    assert [name for name in metabolism_invariants.NAMES if name not in text] == []
    kinds = [*metabolism.JobState, *metabolism.ClaimEventKind, *Rule]
    assert [str(name) for name in kinds if str(name) not in text] == []
    operations = [name for name in metabolism.__all__ if name.islower()]
    assert [name for name in operations if f"`{name}" not in text] == []


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, its language, its text, its first line's number."""

    page: Path
    language: str
    text: str
    line: int


def blocks(page: Path, language: str = "") -> list[Block]:
    """Return a page's blocks in order."""
    text = page.read_text()
    return [
        Block(page, match[1], match[2], text.count("\n", 0, match.start()) + 2)
        for match in _FENCE.finditer(text)
        if language in ("", match[1])
    ]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_python_blocks_compile(page: Path) -> None:
    """Every Python block is Python; a fragment may be the inside of a method."""
    for block in blocks(page, "python"):
        text = block.text
        if _NAMED.match(text) is None:
            text = f"def fragment(self, root, run):\n{textwrap.indent(text, '    ')}"
        compile(text, f"{page.name}:{block.line}", "exec")


def place_file(folder: Path, block: Block) -> None:
    """Write a block named ``# FILE.py``; one named ``# FILE.py, NAME`` replaces that function."""
    named = _NAMED.match(block.text)
    if named is None:
        return
    file = folder / named[1]
    if named[2] is None:
        file.write_text(block.text)
        return
    old = file.read_text()
    (node,) = [
        x for x in ast.parse(old).body if isinstance(x, ast.FunctionDef) and x.name == named[2]
    ]
    lines = old.splitlines(keepends=True)
    lines[node.lineno - 1 : node.end_lineno] = [block.text[named.end() :]]
    file.write_text("".join(lines))


def shell(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command line as the reader does, in *folder*, with this Python's programs first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**kept, "PATH": path, "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def comparable(line: str) -> str:
    """Return a line without what differs from machine to machine."""
    line = re.sub(r"\d+\.\d+ boundaries/s, \d+\.\d s", "RATE", line)
    line = re.sub(r"(sqlite3|apsw) [\d.]+", r"\1 VERSION", line)
    return line.rstrip()


def parts(console: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a console block, each with the output that is shown."""
    found: list[tuple[str, list[str]]] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def assert_shown(command: str, shown: list[str], printed: str) -> None:
    """Fail unless the lines shown were printed, in order; ``...`` stands for any number of them."""
    rest = [comparable(line) for line in printed.splitlines()]
    is_gap = True
    for wanted in (comparable(line) for line in shown):
        if wanted == "...":
            is_gap = True
            continue
        start = wanted.removesuffix("...").rstrip()
        is_open = start != wanted
        fits = [n for n, x in enumerate(rest) if x == wanted or (is_open and x.startswith(start))]
        assert fits, f"{command!r} does not print {wanted!r} (any more):\n{printed}"
        assert is_gap or fits[0] == 0, f"{command!r}: lines are missing before {wanted!r}"
        rest, is_gap = rest[fits[0] + 1 :], False
    assert is_gap or not shown or not rest, f"{command!r} prints more than is shown: {rest}"


@pytest.mark.slow
def test_tutorial_is_what_happens(tmp_path: Path) -> None:
    """Every command of the tutorial, run in order, prints what the tutorial shows."""
    count = 0
    for block in blocks(DOCS / "tutorial.md"):
        if block.language == "python":
            place_file(tmp_path, block)
        elif block.language == "toml":
            (tmp_path / "pyproject.toml").write_text(block.text)
        elif block.language == "console":
            for command, shown in parts(block.text):
                ended = shell(tmp_path, command)
                assert_shown(command, shown, ended.stdout)
                is_failure = any(line.startswith("FAIL:") for line in shown)
                assert int(is_failure) == ended.returncode, command
                count += 1
    assert count >= 10


@pytest.mark.slow
def test_how_to_campaigns_survive(tmp_path: Path) -> None:
    """Every whole campaign of the how-to is one that survives."""
    for block in blocks(DOCS / "how-to.md", "python"):
        place_file(tmp_path, block)
    files = sorted(path.name for path in tmp_path.glob("crash_*.py"))
    assert files
    ended = shell(tmp_path, f"crashconform run {' '.join(files)}")
    assert ended.returncode == 0, ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run-store", "metabolism"])
def test_example_of_a_store_runs(name: str, tmp_path: Path) -> None:
    """A store's example prints what its page says."""
    page = DOCS / f"{name}.md"
    (block,) = [x for x in blocks(page, "python") if _NAMED.match(x.text) is not None]
    place_file(tmp_path, block)
    for console in blocks(page, "console"):
        for command, shown in parts(console.text):
            if not command.startswith("python "):
                continue  # needs the database of a dead runtime, which a test of its own has
            ended = shell(tmp_path, command)
            assert_shown(command, shown, ended.stdout)
            assert ended.returncode == 0, command


def test_oplog_format_has_every_kind() -> None:
    """The format's page tells each kind of record by name and number."""
    rows = re.findall(
        r"^\| ([\w, ]+) \| ([\d, ]+) \|", (DOCS / "oplog-format.md").read_text(), re.M
    )
    named = {
        name: int(number)
        for names, numbers in rows
        for name, number in zip(names.split(", "), numbers.split(", "), strict=False)
    }
    assert {kind.name.lower(): int(kind) for kind in Kind}.items() <= named.items()
