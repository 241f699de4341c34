"""
The zygote: a small single-threaded process per worker that forks every child of a campaign.

It imports the campaign and the harness's core and nothing else, runs no user code beyond imports,
and never opens a store. It is started as ``python -m harness.zygote DESCRIPTOR`` in a fresh
interpreter, answers requests until its socket ends, and then leaves.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import observe
from harness.campaign import Campaign
from harness.channel import Channel
from harness.discovery import Found, find_campaigns, load
from harness.errors import ConfigurationError, Hangup, WorkspaceError
from harness.process import become_zygote, kill_all
from harness.recording import Unrecordable, differing, first_run, record
from harness.selftest import Problem, self_test
from harness.stage import Stage
from harness.trace import Recording, Step
from harness.verify import examine

_ROOT = "<root>"
_ERRORS = (ConfigurationError, WorkspaceError)


class Zygote:
    """Answers the requests of one front end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._campaign: Campaign | None = None
        self._stage: Stage | None = None
        self._recording: Recording | None = None

    def serve(self) -> None:
        """Answer until the other end is gone."""
        operations: dict[str, Callable[..., Any]] = {
            "list": self.list,
            "load": self.load,
            "trace": self.trace,
            "record": self.record,
            "self_test": self.self_test,
            "adopt": self.adopt,
            "examine": self.examine,
        }
        while True:
            try:
                request = self._channel.receive()
            except EOFError:
                return
            name = request.pop("operation")
            try:
                reply = {"value": operations[name](**request)}
            except _ERRORS as error:
                reply = {"error": type(error).__name__, "message": str(error)}
            except OSError as error:
                reply = {"error": "WorkspaceError", "message": _storage_text(error)}
            self._channel.send(reply)

    def list(self, *, targets: list[str], folder: str) -> dict[str, Any]:
        """Return every campaign that the targets name, and what cannot be listed."""
        return asdict(find_campaigns(targets, Path(folder)))

    def load(self, *, found: dict[str, str], root: str, side: str, timeout_seconds: float) -> None:
        """Import a campaign and make its stage."""
        self._campaign = load(Found(**found))
        become_zygote()  # again: an import may have changed how children are waited for
        self._stage = Stage(
            campaign=self._campaign,
            root=Path(root),
            side=Path(side),
            timeout_seconds=timeout_seconds,
            control_fd=self._channel.fileno(),
        )
        gc.collect()
        gc.freeze()
        gc.disable()

    def trace(self) -> dict[str, Any]:
        """Prepare and execute once; return what must be the same in every interpreter."""
        try:
            run = first_run(self._theirs)
        except Unrecordable as wrong:
            return {"problem": _problem(wrong).as_json()}
        return self._without_root(run)  # type: ignore[no-any-return]

    def record(self) -> dict[str, Any]:
        """Return the recording, or why there is none; the fixture must have been made."""
        try:
            self._recording = record(self._theirs)
        except Unrecordable as wrong:
            return {"problem": _problem(wrong).as_json()}
        return {"recording": self._without_root(asdict(self._recording))}

    def self_test(self) -> dict[str, Any] | None:
        """Return why exploring would be worth nothing, or None."""
        problem = self_test(self._theirs, self._known)
        return problem.as_json() if problem else None

    def adopt(self, *, recording: dict[str, Any]) -> str:
        """Take over a recording; return why this worker's own execution differs, or nothing."""
        data = self._with_root(recording)
        data["steps"] = [Step(**step) for step in data["steps"]]
        self._recording = known = Recording(**data)
        try:
            mine = first_run(self._theirs)
        except Unrecordable as wrong:
            return str(wrong)
        return differing({**vars(known), "observed": known.expected[0]}, mine)

    def examine(self, *, boundary: int, keep: str | None = None) -> dict[str, Any]:
        """Return the verdict over one boundary."""
        folder = Path(keep) if keep else None
        return examine(self._theirs, self._known, boundary, keep=folder).as_json()

    @property
    def _theirs(self) -> Stage:
        assert self._stage is not None, "load comes first"
        return self._stage

    @property
    def _known(self) -> Recording:
        assert self._recording is not None, "record or adopt comes first"
        return self._recording

    def _without_root(self, value: Any) -> Any:
        root = self._theirs.root.as_posix()
        word = _unused(_ROOT, value)
        return _replaced(value, {root: word, json.dumps(root)[1:-1]: word})

    def _with_root(self, recording: dict[str, Any]) -> dict[str, Any]:
        root = self._theirs.root.as_posix()
        word = recording["root"]
        plain: dict[str, Any] = _replaced(recording, {word: root})
        # A journal is itself JSON text, in which a path may be escaped.
        escaped = {word: json.dumps(root)[1:-1]}
        journals = {key: _replaced(recording[key], escaped) for key in ("journal", "prepared")}
        return {**plain, **journals}


def _unused(word: str, value: Any) -> str:
    """Return *word*, numbered where the store's own data have it: ``<root>`` is also XML."""
    text = json.dumps(value)
    numbered = (f"{word[:-1]}{number}>" for number in itertools.count(2))
    return next(one for one in itertools.chain([word], numbered) if one not in text)


def _replaced(value: Any, texts: dict[str, str]) -> Any:
    """Return JSON with texts replaced in every string of it."""
    if isinstance(value, str):
        for old, new in texts.items():
            value = value.replace(old, new)
        return value
    if isinstance(value, list):
        return [_replaced(item, texts) for item in value]
    if isinstance(value, dict):
        return {_replaced(key, texts): _replaced(item, texts) for key, item in value.items()}
    return value


def _problem(wrong: Unrecordable) -> Problem:
    return Problem(
        wrong.verdict, wrong.invariant, str(wrong), printed=wrong.printed, step=wrong.step
    )


def _storage_text(error: OSError) -> str:
    where = f" {error.filename!r}" if error.filename else ""
    return (
        f"the work folder cannot be used:{where} {error.strerror or error}; "
        "use --workdir DIR for one with more room."
    )


def main(arguments: list[str]) -> int:
    """Serve on the socket whose descriptor is the first argument."""
    become_zygote()
    os.umask(0o022)
    # The harness's modules, imported by now, were kept as bytecode: a zygote that compiled them
    # starts later and has more pages to copy at each fork. What it runs leaves no such files.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    observe.install()
    end = socket.socket(fileno=int(arguments[0]))
    sys.path[:0] = json.loads(os.environ.pop("CRASHCONFORM_IMPORT_PATH", "[]"))
    channel = Channel(end)
    try:
        Zygote(channel).serve()
    except (Hangup, BrokenPipeError):
        return 0
    finally:
        kill_all()  # what an import started, which is no child of any phase
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
