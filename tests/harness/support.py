"""Campaigns for tests: written to a file, run through the real runner or one real worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from harness.client import ZygoteClient
from harness.discovery import Found
from harness.runner import Options, Result, open_worker, recording_from, run_campaign
from harness.trace import Recording
from harness.verdict import Finding, Verdict, Violation
from harness.workdir import Workdir

REPOSITORY = Path(__file__).resolve().parents[2]

_PRELUDE = '''
import ctypes, json, os, random, signal, sqlite3, subprocess, sys, threading, time
from pathlib import Path
from harness import ANYTHING, OBSERVED, UNCHANGED, Campaign, Check, Evidence, Run

FLAG = Path({flag!r})   # the test makes it, and from then on the store misbehaves
NOTES = Path({notes!r})  # lines for the test to read

def note(text):
    with open(NOTES, "a") as file:
        print(text, file=file)

def save(path, value):
    fresh = Path(str(path) + ".new")
    fresh.write_text(json.dumps(value))
    os.replace(fresh, path)

def load(path):
    return json.loads(Path(path).read_text())

class _Base(Campaign):
    """A number in a file, saved twice."""
    def prepare(self, root, run):
        save(root / "s", 0)
    def execute(self, root, run):
        for n in (1, 2):
            run.step(f"save {{n}}", lambda n=n: save(root / "s", n), then=n)
    def observe(self, root):
        return load(root / "s")
'''


class Quiet:
    """A listener that says nothing."""

    def started(self, found: Found) -> None:
        """Say nothing."""

    def exploring(self, result: Result) -> None:
        """Say nothing."""

    def judged(self, result: Result, verdict: Verdict) -> None:
        """Say nothing."""

    def finished(self, result: Result) -> None:
        """Say nothing."""


def written(folder: Path, *bodies: str) -> Found:
    """
    Write a module with the class ``Tested`` and return it.

    Args:
        bodies: Parts of the body of a subclass of ``_Base``, each with an indentation of its own,
            or code that has ``class Tested`` itself.
    """
    path = folder / "tested.py"
    prelude = _PRELUDE.format(flag=str(folder / "flag"), notes=str(folder / "notes"))
    body = "\n".join(dedent(part) for part in bodies)
    if "class Tested" not in body:
        lines = "\n".join(f"    {line}" if line else line for line in body.splitlines())
        body = f"class Tested(_Base):\n{lines}\n"
    path.write_text(prelude + body)
    return Found("tested", str(path), "Tested", str(path))


def run_found(found: Found, *, jobs: int = 1, timeout_seconds: float = 20.0) -> Result:
    """Run one campaign to its end, without a front end."""
    options = Options(
        jobs=jobs,
        timeout_seconds=timeout_seconds,
        import_path=(REPOSITORY, Path(found.path).parent),
    )
    with Workdir.choose(None, max(2, jobs)) as workdir:
        return run_campaign(found, workdir, options, Quiet())


def run_body(folder: Path, *bodies: str, jobs: int = 1, timeout_seconds: float = 20.0) -> Result:
    """Run the campaign that :func:`written` writes."""
    return run_found(written(folder, *bodies), jobs=jobs, timeout_seconds=timeout_seconds)


def found_in(path: Path) -> Found:
    """Return the one campaign of a module."""
    with ZygoteClient((REPOSITORY, path.parent)) as zygote:
        (found,) = zygote.list([str(path)], REPOSITORY)
    return found


def only_finding(result: Result) -> Finding:
    """Return the one finding of a result."""
    (finding,) = result.findings
    return finding


@dataclass
class Recorded:
    """One worker that has recorded a campaign, to crash it where a test wants."""

    worker: ZygoteClient
    recording: Recording
    folder: Path
    root: Path

    def misbehave(self) -> None:
        """Let the store do what the test wants to see, from now on."""
        (self.folder / "flag").touch()

    def at(self, line: str, *, last: bool = False) -> int:
        """Return the number of the first (or last) boundary with this trace line."""
        numbers = [n for n, text in enumerate(self.recording.lines, 1) if text == line]
        return numbers[-1] if last else numbers[0]

    def verdict(self, boundary: int) -> Verdict:
        """Kill an execution there and return the verdict."""
        return Verdict.from_json(self.worker.call("examine", boundary=boundary))

    def violation(self, boundary: int, kind: str = "violated") -> Violation:
        """Kill an execution there, demand that kind of verdict, and return what was found."""
        verdict = self.verdict(boundary)
        assert verdict.violation is not None
        assert verdict.kind == kind, verdict.violation
        return verdict.violation

    def notes(self) -> list[str]:
        """Return what the campaign noted, and forget it."""
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@contextmanager
def recorded(folder: Path, *bodies: str, timeout_seconds: float = 20.0) -> Iterator[Recorded]:
    """Record the campaign that :func:`written` writes, self-tests left out, in one worker."""
    found = written(folder, *bodies)
    options = Options(timeout_seconds=timeout_seconds, import_path=(REPOSITORY, folder))
    with Workdir.choose(None, 1) as workdir:
        worker = open_worker(found, workdir, 0, options)
        try:
            worker.call("trace")
            answer: dict[str, Any] = worker.call("record")
            assert "problem" not in answer, answer
            recording = recording_from(answer["recording"])
            yield Recorded(worker, recording, folder, workdir.worker_root(0))
        finally:
            worker.close()
