"""Trace lines, canonical paths and identities: equal workloads have equal, readable traces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import run_body

from harness.errors import ConfigurationError
from harness.subset import representative
from harness.trace import (
    Boundary,
    Canonical,
    Recording,
    Step,
    binding,
    effects_of,
    parse_journal,
    parse_line,
)

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
PID = 4321

kinds = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True).filter(
    lambda kind: kind not in ("step", "promise", "effect", "end")
)
phases = st.sampled_from(["before", "after"])
names = st.text(st.characters(blacklist_characters="\0/"), min_size=1, max_size=30).filter(
    lambda name: name not in (".", "..")
)


def line(kind: str, phase: str, *parts: str, root: str = "/r/oot") -> str | None:
    """Return the canonical line without its newline."""
    made = Canonical(Path(root), PID).line(kind, phase, parts)
    return None if made is None else made.decode().removesuffix("\n")


@QUICK
@given(st.integers(1, 99999), kinds, phases, st.text())
def test_a_boundary_is_read_back_from_its_line(
    number: int, kind: str, phase: str, text: str
) -> None:
    """A line that the canonical form made is parsed into a boundary with the same line."""
    made = line(kind, phase, "/r/oot/a", text) if kind == "sql" else line("point", phase, text)
    assert made is not None
    boundary = parse_line(number, made)
    assert boundary.line == made
    assert (boundary.number, boundary.phase) == (number, phase)
    assert parse_line(number, boundary.line) == boundary


def test_the_end_is_read_back_from_its_line() -> None:
    """The last boundary has a line of its own."""
    end = parse_line(7, "end")
    assert end == Boundary(7, "end", "after", "")
    assert (end.line, end.identity, end.is_mark) == ("end", "0007-end", True)


@pytest.mark.parametrize("text", ["", "during point x", "before", "sideways", "before  x"])
def test_a_line_of_another_form_is_refused(text: str) -> None:
    """What is no line of a trace is refused with its number."""
    with pytest.raises(ValueError, match=r"trace line 3 .* is not 'before"):
        parse_line(3, text)


@QUICK
@given(kinds, phases, st.lists(names, min_size=2, max_size=2))
def test_a_line_is_one_printable_line(kind: str, phase: str, parts: list[str]) -> None:
    """Whatever the names are, a line is printable UTF-8 and ends at its only newline."""
    inside = [f"/r/oot/{part}" for part in parts]
    made = Canonical(Path("/r/oot"), PID).line(kind, phase, inside)
    assert made is not None
    text = made.decode()
    assert text.count("\n") == 1
    assert text[:-1].isprintable()


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/r/oot/a b.txt", "a b.txt"),
        ("/r/oot/new\nline", "new\\x0aline"),
        ("/r/oot/tab\t\x1b[0m", "tab\\x09\\x1b[0m"),
        ("/r/oot/é漢", "é漢"),
        (os.fsdecode(b"/r/oot/bad-\xff"), "bad-\\xdcff"),
        ("/r/oot", "."),
        ("/r/oot/", "."),
        ("/r/oot/a/../b", "b"),
        ("/r/oot/./a//b", "a/b"),
        ("/r/oot/p-4321.lock", "p-<pid>.lock"),
        ("/r/oot/p-14321.lock", "p-14321.lock"),
        ("/r/oot/43210", "43210"),
        ("/r/outside", None),
        ("/r/ootx", None),
        ("/etc/passwd", None),
        ("", None),
    ],
)
def test_a_path_is_written_relative_and_printable(path: str, shown: str | None) -> None:
    """Paths inside the root lose it, others make no boundary, and nothing unprintable stays."""
    expected = None if shown is None else f"before write {shown}"
    assert line("write", "before", path) == expected


def test_a_root_behind_a_link_is_the_root(tmp_path: Path) -> None:
    """A path that leads into the root through a symbolic link is inside."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "link").symlink_to(root)
    assert line("write", "after", str(tmp_path / "link" / "a"), root=str(root)) == "after write a"
    (root / "out").symlink_to(tmp_path)
    assert line("write", "after", str(root / "out" / "a"), root=str(root)) == "after write out/a"


def test_a_relative_path_is_resolved_against_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that works with relative names is seen as well."""
    monkeypatch.chdir(tmp_path)
    assert line("write", "before", "a", root=str(tmp_path)) == "before write a"


@pytest.mark.parametrize(
    ("source", "target", "shown"),
    [
        ("/r/oot/a", "/r/oot/b", "a b"),
        ("/tmp/a", "/r/oot/b", "<outside> b"),
        ("/r/oot/a", "/tmp/b", "a <outside>"),
        ("/tmp/a", "/tmp/b", None),
    ],
)
def test_a_rename_across_the_root_is_shown(source: str, target: str, shown: str | None) -> None:
    """A rename counts where one of its names is inside."""
    expected = None if shown is None else f"after rename {shown}"
    assert line("rename", "after", source, target) == expected


def test_a_statement_is_written_on_one_line() -> None:
    """SQL keeps its words and loses its line breaks; a database in memory makes no boundary."""
    assert line("sql", "before", "/r/oot/a.db", "select\n  1,\t2") == (
        "before sql a.db: select 1, 2"
    )
    assert line("sql", "before", "", "select 1") is None


@QUICK
@given(st.lists(st.tuples(kinds, phases, st.text(max_size=200)), min_size=1, max_size=30))
def test_identities_are_unique_short_and_safe(lines: list[tuple[str, str, str]]) -> None:
    """Every boundary of a trace has an id of its own that shells and test runners take."""
    boundaries = [Boundary(n, *parts) for n, parts in enumerate(lines, 1)]
    identities = [boundary.identity for boundary in boundaries]
    assert len(set(identities)) == len(identities)
    for boundary, identity in zip(boundaries, identities, strict=True):
        assert identity.startswith(f"{boundary.number:04d}-{boundary.phase}-{boundary.kind}")
        assert set(identity) <= set(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-"
        )
        assert len(identity) <= 100
        assert identity == boundary.identity


def test_an_identity_says_the_statement() -> None:
    """The id of a statement names it and not its database."""
    assert parse_line(142, "after sql a.db: COMMIT").identity == "0142-after-sql-COMMIT"


@pytest.mark.parametrize(
    ("kind", "phase", "part"),
    [
        ("point", "during", "phase='during'"),
        ("my point", "before", "kind='my point'"),
        ("Point", "before", "kind='Point'"),
        ("step", "before", "kind='step'"),
        ("end", "after", "kind='end'"),
    ],
)
def test_a_store_that_announces_nonsense_is_told(kind: str, phase: str, part: str) -> None:
    """What could not be read back, or would pass for a mark, is refused with what to write."""
    with pytest.raises(ConfigurationError, match=part):
        line(kind, phase, "x")


def test_nonsense_of_a_store_ends_the_run_and_not_the_store(tmp_path: Path) -> None:
    """The store never sees the refusal; the run ends with it, though the store returned."""
    body = """
    class Store:
        observer = None
    def attach(self, observer): self.Store.observer = staticmethod(observer)
    def act(self, root):
        self.Store.observer('point', 'during', 'publish')
        save(root / 's', 1)
    def execute(self, root, run): run.step('one', lambda: self.act(root), then=1)
    """
    with pytest.raises(ConfigurationError, match="the store announced 'point' with phase='during'"):
        run_body(tmp_path, body)


def test_a_number_that_is_the_pid_by_chance_does_not_differ(tmp_path: Path) -> None:
    """A label that happened to be the first process's id makes no trace that differs."""
    body = """
    def execute(self, root, run):
        number = 5 if FLAG.exists() else os.getpid()
        FLAG.touch()
        run.step(f'save {number}', lambda: save(root / 's', 1), then=1)
    """
    result = run_body(tmp_path, body)
    assert (result.inconclusive, result.exit_code) == (None, 0)


JOURNAL = """[1, "promise", "kept", {"n": 1}]
[1, "promise", "kept", {"n": 2}]
[2, "promise", "kept", {"n": 1}]
[3, "effect", "sent", {"n": 1}]
[4, "withdraw", "kept", {"n": 1}]
"""


def test_a_promise_binds_once_until_it_is_withdrawn() -> None:
    """Promises of the same name and facts are one; a withdrawal ends that one only."""
    entries = parse_journal(JOURNAL)
    assert [promise.facts for promise in binding(entries[:4])] == [{"n": 1}, {"n": 2}]
    assert [promise.facts for promise in binding(entries)] == [{"n": 2}]
    assert [effect.facts for effect in effects_of(entries)] == [{"n": 1}]


def test_the_representative_subset_is_first_middle_last_commits_renames_points_and_end() -> None:
    """The default subset of a trace, boundary by boundary."""
    lines = [
        "before step one",  # 1
        "before sql a.db: BEGIN",  # 2 first
        "after sql a.db: BEGIN",
        "before sql a.db: COMMIT",
        "after sql a.db: COMMIT",  # 5 after commit, and middle
        "before write x",
        "after write x",
        "before step x",
        "after step one",  # 9 last
        "before rename a b",
        "after rename a b",  # 11
        "before point publish",
        "after point publish",  # 13
        "before write y",
        "end",  # 15
    ]
    step = Step("one", 1, 9, "value", None, [], "unless_present", None, False)
    recording = Recording("/r", "".join(f"{x}\n" for x in lines), "", "", [step])
    assert representative(recording) == [2, 5, 9, 11, 13, 15]
