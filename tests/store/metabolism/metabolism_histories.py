"""
What several actors did at once, and whether some order, one after the other, explains it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import apsw
from metabolism_actors import Actor, Message
from metabolism_model import Model
from metabolism_world import dump

from store.metabolism import Job, Run
from store.sqlite import immediate, rows


class Answer(NamedTuple):
    """
    Stands for what an earlier operation of the same script answered.
    """

    index: int


class Op(NamedTuple):
    """
    One operation; an `Answer` among its arguments is put in when it is done.
    """

    name: str
    arguments: dict[str, Any]


Script: TypeAlias = Sequence[Op]
"""What one actor does, in this order."""

SKIPPED = "skipped"
"""The answer of an operation whose claim or run was not had."""


def op(name: str, /, **arguments: Any) -> Op:
    return Op(name, arguments)


def resolved(operation: Op, answers: Sequence[object]) -> dict[str, Any] | None:
    """Return the arguments with earlier answers put in; None where one of them is no record."""
    found = dict(operation.arguments)
    for name, value in found.items():
        if isinstance(value, Answer):
            found[name] = answers[value.index]
            if not isinstance(found[name], (Job, Run)):
                return None
    return found


def outcome(message: Message) -> object:
    """Return an answer as the model would give it: an error is its type."""
    return type(message.value) if message.kind == "failed" else message.value


def state(connection: apsw.Connection) -> Model:
    """Return what the database holds."""
    found = dump(connection)
    return Model(map(Job._make, found["jobs"]), map(Run._make, found["runs"]))


def reset(connection: apsw.Connection, model: Model) -> None:
    """Make the database hold what the model does, and no more."""
    with immediate(connection):
        rows(connection, "DELETE FROM runs")
        rows(connection, "DELETE FROM jobs")
        for table, records in (("jobs", model.jobs), ("runs", model.runs)):
            for record in records:
                marks = ", ".join("?" for _ in record)
                rows(connection, f"INSERT INTO {table} VALUES ({marks})", record)


def is_explained(
    before: Model, scripts: Sequence[Script], answers: Sequence[Sequence[object]], after: Model
) -> bool:
    """Return whether the scripts, merged into one order, give these answers and this end."""
    return _merged(before, scripts, answers, after, [0] * len(scripts))


def _merged(
    model: Model,
    scripts: Sequence[Script],
    answers: Sequence[Sequence[object]],
    after: Model,
    done: list[int],
) -> bool:
    if all(count == len(script) for count, script in zip(done, scripts, strict=True)):
        return model.jobs == after.jobs and model.runs == after.runs
    for at, script in enumerate(scripts):
        if done[at] == len(script):
            continue
        trial = model.copy()
        arguments = resolved(script[done[at]], answers[at])
        name = script[done[at]].name
        given = SKIPPED if arguments is None else getattr(trial, name)(**arguments)
        if given == answers[at][done[at]]:
            done[at] += 1
            if _merged(trial, scripts, answers, after, done):
                return True
            done[at] -= 1
    return False


class Interleaving:
    """One run of scripts by stepped actors, in which *choices* say who goes on."""

    def __init__(self, actors: Sequence[Actor], scripts: Sequence[Script]) -> None:
        self.actors = actors
        self.scripts = scripts
        self.answers: list[list[object]] = [[] for _ in scripts]
        self.has_stopped = [False] * len(scripts)
        self.is_locked = [False] * len(scripts)
        self.locked_count = 0
        self.steps: list[str] = []

    def able(self) -> list[int]:
        """Return who has something to do, and does not wait for one of the others."""
        return [
            at
            for at, script in enumerate(self.scripts)
            if not self.is_locked[at] and len(self.answers[at]) < len(script)
        ]

    def step(self, at: int) -> None:
        """Let one actor execute one statement, and stop before the next one."""
        operation = self.scripts[at][len(self.answers[at])]
        if not self.has_stopped[at]:
            arguments = resolved(operation, self.answers[at])
            if arguments is None:
                self.answers[at].append(SKIPPED)
                return
            self.actors[at].send(operation.name, **arguments)
            message = self.actors[at].receive()
        if self.has_stopped[at] or message.kind == "before":
            message = self.actors[at].go()
        self.steps.append(f"{at} {operation.name}: {message.kind} {message.value!s:.60}")
        self.has_stopped[at] = message.kind in ("before", "locked")
        if message.kind == "locked":
            self.is_locked[at] = True
            self.locked_count += 1
        elif not self.has_stopped[at]:
            self.answers[at].append(outcome(message))
            self.is_locked = [False] * len(self.scripts)


def every_interleaving(
    actors: Sequence[Actor], scripts: Sequence[Script], before: Model, c: apsw.Connection
) -> Iterator[Interleaving]:
    """
    Yield every way in which the statements of the scripts can follow each other, each run anew.

    Who waits for a lock tries again once an operation of another actor has ended: before that
    nobody gives a lock back.
    """
    pending: list[list[int]] = [[]]
    while pending:
        choices = pending.pop()
        reset(c, before)
        run = Interleaving(actors, scripts)
        for at in choices:
            run.step(at)
        while able := run.able():
            pending += [[*choices, other] for other in able[1:]]
            choices = [*choices, able[0]]
            run.step(able[0])
        yield run
