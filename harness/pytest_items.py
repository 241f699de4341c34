"""
Campaigns as pytest sees them: a file, in it classes, in each a self-test and its boundaries.

A campaign's self-test is an item that always exists: it passes where the campaign was shown to be
deterministic, right without a crash, and able to fail. Where it fails, it is the only item.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from harness.crash import DETERMINISM
from harness.discovery import Found
from harness.errors import HarnessError
from harness.explain import FAULT, INDENT, finding_lines, printable
from harness.pytest_plugin import TIMEOUT_SECONDS
from harness.pytest_session import CampaignSession, Recorded, Refusal
from harness.report import campaign_lines, summary_lines
from harness.runner import choose, quoted
from harness.trace import Boundary
from harness.verdict import Verdict

SESSION = pytest.StashKey[CampaignSession]()
SELF_TEST = "self-test"
CONFIGURATION = "configuration"


def session_of(node: pytest.Item | pytest.Collector) -> CampaignSession:
    """Return the campaigns of the process in which *node* was collected."""
    return node.config.stash[SESSION]


class CampaignFile(pytest.File):
    """A file with campaigns, which pytest never imports."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        """Yield its classes, or the one item that says why no campaign can be listed."""
        listing = session_of(self).listing
        path = os.path.realpath(self.path)
        refusal = listing.refusal or listing.broken.get(path)
        if refusal is None:
            for found in listing.campaigns.get(path, ()):
                yield CampaignClass.from_parent(self, name=found.class_name, found=found)
        elif _named(self, below=()):  # a class that was asked for: pytest would say "not found"
            raise self.CollectError(refusal_text("campaigns", refusal))
        elif listing.refusal is None or _is_first(self):
            yield RefusedItem.from_parent(self, name=CONFIGURATION, refusal=refusal)


class UnusedFile(pytest.File):
    """A file with campaigns where none are wanted; pytest does not import it either."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield nothing."""
        return iter(())


def _is_first(file: CampaignFile) -> bool:
    """Say whether no other file was asked before: what concerns all files is told once."""
    return file.config.stash.setdefault(_FIRST, str(file.path)) == str(file.path)


_FIRST = pytest.StashKey[str]()


class CampaignClass(pytest.Collector):
    """A campaign; collecting it records it, once in a test run."""

    def __init__(self, *, found: Found, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.found = found

    def collect(self) -> Iterator[pytest.Item]:
        """
        Yield the self-test, and the boundaries where that passed.

        A boundary that is asked for by its whole id, or that failed last time under ``--lf``, is
        there whatever the subset.
        """
        recorded = session_of(self).recorded(self.found)
        named = _named(self, below=(self.name,))
        recording = recorded.recording
        if not recorded.is_explorable or recording is None:
            for name in sorted(named) or [SELF_TEST]:
                yield SelfTestItem.from_parent(self, name=name, recorded=recorded)
            return
        yield SelfTestItem.from_parent(self, name=SELF_TEST, recorded=recorded)
        chosen = set(choose(recording, session_of(self).options))
        for boundary in recording.boundaries:
            name = boundary.identity
            if boundary.number in chosen or name in named:
                yield BoundaryItem.from_parent(
                    self, name=name, recorded=recorded, boundary=boundary
                )


def _named(node: pytest.Collector, *, below: tuple[str, ...]) -> set[str]:
    """Return the names in *node* that stand in an argument, or failed last time with --lf."""
    config = node.config
    names: set[str] = set()
    for argument in config.args:
        path, *parts = argument.split("::")
        is_deeper = len(parts) > len(below) and tuple(parts[: len(below)]) == below
        if is_deeper and (config.invocation_params.dir / path).resolve() == node.path.resolve():
            names.add(parts[len(below)])
    cache = getattr(config, "cache", None)  # -p no:cacheprovider
    if below and cache is not None and config.getoption("lf", False):
        prefix = f"{node.nodeid}::"
        failed = cache.get("cache/lastfailed", {})
        names |= {one.removeprefix(prefix) for one in failed if one.startswith(prefix)}
    return names


class CampaignItem(pytest.Item):
    """One test; what it proves is also told as properties, for JUnit."""

    def reportinfo(self) -> tuple[os.PathLike[str], int | None, str]:
        """Return the file, no line, and class and name."""
        owner = f"{self.parent.name}." if isinstance(self.parent, CampaignClass) else ""
        return self.path, None, f"{owner}{self.name}"

    def note(self, **properties: str | int) -> None:
        """Add properties to the item's report."""
        self.user_properties += [(name, str(value)) for name, value in properties.items()]


class RefusedItem(CampaignItem):
    """Fails with the reason why no campaign can be listed."""

    def __init__(self, *, refusal: Refusal, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.refusal = refusal

    def runtest(self) -> None:
        """Fail."""
        _fail(self.refusal.kind, refusal_text("campaigns", self.refusal))


class SelfTestItem(CampaignItem):
    """Passes where a campaign could be right and could be wrong; else fails with the reason."""

    def __init__(self, *, recorded: Recorded, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.recorded = recorded

    def runtest(self) -> None:
        """Fail unless the boundaries are worth exploring."""
        recorded = self.recorded
        verdict = "passed"
        if recorded.refusal is not None:
            verdict = recorded.refusal.kind
        elif recorded.problem is not None:
            verdict = recorded.problem.verdict
        recording = recorded.recording
        count = len(recording.lines) if recording is not None else 0
        self.note(campaign=recorded.found.name, boundaries=count, fault=FAULT, verdict=verdict)
        if recorded.refusal is not None:
            _fail(verdict, refusal_text(recorded.found.name, recorded.refusal))
        if recorded.problem is not None:
            _fail(verdict, _problem_text(recorded, replay_options(session_of(self))))


class BoundaryItem(CampaignItem):
    """Passes where the store survived a crash at one boundary."""

    def __init__(self, *, recorded: Recorded, boundary: Boundary, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.recorded = recorded
        self.boundary = boundary

    def runtest(self) -> None:
        """Crash, recover and judge; fail with the finding, or with the error that came instead."""
        recorded = self.recorded
        assert recorded.recording is not None, "boundaries come from a recording"
        self.note(
            campaign=recorded.found.name,
            boundary=self.boundary.number,
            boundaries=len(recorded.recording.lines),
            fault=FAULT,
        )
        try:
            verdict = session_of(self).examine(recorded, self.boundary.number)
        except HarnessError as error:
            refusal = Refusal.of(error)
            self.note(verdict=refusal.kind)
            _fail(refusal.kind, self._refusal_text(refusal))
        self.note(verdict=verdict.kind)
        if verdict.kind != "survived":
            _fail(verdict.kind, self._finding_text(verdict))

    def _finding_text(self, verdict: Verdict) -> str:
        result = self.recorded.result(verdict)
        options = replay_options(session_of(self))
        lines = [
            line
            for finding in result.findings
            for line in finding_lines(finding, result, replay_options=options)
        ]
        if verdict.kind == "diverged" and DETERMINISM not in lines[1]:
            lines.append(INDENT + DETERMINISM)
        return "\n".join(lines)

    def _refusal_text(self, refusal: Refusal) -> str:
        name = self.recorded.found.name
        again = f"crashconform replay {quoted(name)}@{self.boundary.number}"
        where = f"{name}  boundary {self.boundary.number} {self.boundary.line}"
        options = replay_options(session_of(self))
        return f"{refusal_text(where, refusal)}\n     replay {again} {options}".rstrip()


def refusal_text(where: str, refusal: Refusal) -> str:
    """Say in a paragraph what came instead of a verdict."""
    return printable(f"ERROR {where}  {refusal.kind}: {refusal.message}")


def _problem_text(recorded: Recorded, options: str) -> str:
    """Return what the command line says, without the line that counts what was explored."""
    result = recorded.result()
    lines = campaign_lines(result, replay_options=options)
    return "\n".join(lines[: len(lines) - len(summary_lines(result))])


def replay_options(session: CampaignSession) -> str:
    """Return the options with which the command line does what this test run did."""
    parts: list[str] = []
    if session.options.timeout_seconds != TIMEOUT_SECONDS:
        parts.append(f"--timeout {session.options.timeout_seconds:g}")
    if session.folder.parent is not None:
        parts.append(f"--workdir {shlex.quote(str(session.folder.parent))}")
    return " ".join(parts)


def _fail(kind: str, text: str) -> NoReturn:
    """
    Fail the test with *text* alone, no traceback of ours, under the verdict's name.

    The short summary and JUnit show an exception's class before its first line.
    """
    name = "".join(word.capitalize() for word in kind.split())
    failure = type(name, (pytest.fail.Exception,), {"__module__": "builtins"})
    raise failure(text, pytrace=False)
