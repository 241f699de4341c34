"""A process with the hooks installed that forks a child per snippet, as the harness does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]

_SERVER = """
import json, os, sys, traceback
from os import fsync as early_fsync
from sqlite3 import connect as early_connect
from harness import observe
real_open = open
observe.install()

def run(job):
    events = []
    def sink(*event):
        events.append(event)
    names = {"ROOT": job["root"], "observe": observe, "events": events, "sink": sink,
             "early_connect": early_connect, "real_open": real_open, "result": None}
    os.chdir(job["root"])
    observe.attach(sink)
    try:
        exec(compile(job["source"], "snippet", "exec"), names)
    finally:
        observe.attach(None)
    answer = {"events": events, "result": names["result"], "failures": observe.failures()}
    with open(job["answer"], "w") as file:
        json.dump(answer, file)

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            run(json.loads(line))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Outcome:
    """What a snippet left: its exit status, its events with paths relative to ROOT, its result."""

    status: int
    events: list[tuple[str, ...]]
    result: Any
    failures: list[str]


class Observed:
    """Runs snippets; ROOT is their working directory, `events` what the sink has had so far."""

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._count = 0

    def run(self, source: str) -> Outcome:
        """Run *source* in a fresh child with observation on, in the folder `root`."""
        self._count += 1
        answer = self._folder / f"answer-{self._count}"
        job = {"source": source, "root": str(self.root), "answer": str(answer)}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        status = int(self._server.stdout.readline())
        if status != 0:
            return Outcome(status, [], None, [])
        left = json.loads(answer.read_text())
        events = [tuple(self._relative(part) for part in event) for event in left["events"]]
        return Outcome(status, events, left["result"], left["failures"])

    def events(self, source: str) -> list[tuple[str, ...]]:
        """Return the events of *source*, which must end well and without a failed hook."""
        outcome = self.run(source)
        assert (outcome.status, outcome.failures) == (0, [])
        return outcome.events

    @property
    def root(self) -> Path:
        """The folder that snippets work in."""
        folder = self._folder / "root"
        folder.mkdir(exist_ok=True)
        return folder

    def _relative(self, part: str) -> str:
        return part.removeprefix(f"{self.root}/") if part != str(self.root) else "."


@contextmanager
def serving() -> Iterator[subprocess.Popen[str]]:
    """Start the process that forks for each snippet, and end it afterwards."""
    command = [sys.executable, "-W", "error", "-c", _SERVER]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        yield server
        assert server.stdin is not None
        server.stdin.close()


def both(kind: str, *names: str) -> list[tuple[str, ...]]:
    """Return the two events of one act that succeeded."""
    return [(kind, "before", *names), (kind, "after", *names)]


def statements(path: str, *texts: str) -> list[tuple[str, ...]]:
    """Return the events of statements that ran one after the other on the database *path*."""
    return [event for text in texts for event in both("sql", path, text)]
