"""
What the runtime raises on purpose, all under `MetabolismError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import apsw

from store.errors import StoreError

__all__ = [
    "DatabaseBusy",
    "ForkedConnection",
    "JobIsTerminal",
    "JobMissing",
    "LogRefused",
    "MalformedJson",
    "MetabolismError",
    "NotAnAssertion",
    "NotAnInteger",
    "NotText",
    "OnlyByClaim",
    "OutOfRange",
    "RunIsCompleted",
    "RunMissing",
    "StaleClaim",
    "TransactionOpen",
    "UnknownClaimEventKind",
    "UnknownJobState",
    "UnknownSchema",
]

_SHOWN_MAX: Final = 200


class MetabolismError(StoreError):
    """
    Root of everything that the runtime raises on purpose. Nothing was written.
    """


class DatabaseBusy(MetabolismError, apsw.BusyError):
    """
    Another connection held the write lock for the whole busy timeout.

    Attributes:
        path: The database.
    """

    def __init__(self, path: str) -> None:
        super().__init__(
            f"path={path!r} was locked by another connection for the whole busy timeout; expected "
            "transactions of milliseconds. Nothing was written: try again, or look for a process "
            "that keeps a transaction open."
        )
        self.path = path


class TransactionOpen(MetabolismError):
    """
    An operation was called inside a transaction of its connection, which it cannot commit.

    Attributes:
        path: The database.
    """

    def __init__(self, path: str) -> None:
        super().__init__(
            f"path={path!r} has a transaction open on this connection; every operation is a "
            "transaction of its own. End the open one first, or give each thread a connection."
        )
        self.path = path


class ForkedConnection(MetabolismError):
    """
    A connection was carried into a child by a fork, where SQLite's locks do not hold.

    Attributes:
        path: The database.
        opened_by: The process that opened the connection.
    """

    def __init__(self, path: str, opened_by: int) -> None:
        super().__init__(
            f"path={path!r} was opened by process {opened_by}, of which this one is a fork; what "
            "it writes through that connection can be lost. Call connect again after each fork."
        )
        self.path = path
        self.opened_by = opened_by


class UnknownSchema(MetabolismError):
    """
    The database was not made by this runtime, or by another version of it.

    Attributes:
        problem: What was found instead.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"this is not a metabolism database of a known version: {problem}; expected an empty "
            "database or one that this runtime made. Name another file."
        )
        self.problem = problem


class NotText(MetabolismError):
    """
    A name is not a text that can be stored.

    Attributes:
        name: The argument.
        value: What was given, or its text where it is no plain value.
    """

    def __init__(self, name: str, value: object) -> None:
        super().__init__(
            f"{name}={_shown(value)} must be a non-empty text without NUL and lone surrogates."
        )
        self.name = name
        self.value = _kept(value)


class NotAnInteger(MetabolismError):
    """
    A number is not an integer of 64 bits.

    Attributes:
        name: The argument.
        value: What was given, or its text where it is no plain value.
    """

    def __init__(self, name: str, value: object) -> None:
        super().__init__(f"{name}={_shown(value)} must be an integer of 64 bits.")
        self.name = name
        self.value = _kept(value)


class OutOfRange(MetabolismError):
    """
    A number is an integer, and too small.

    Attributes:
        name: The argument.
        value: What was given.
        least: The smallest that is allowed.
    """

    def __init__(self, name: str, value: int, least: int) -> None:
        super().__init__(f"{name}={value!r} must be at least {least}.")
        self.name = name
        self.value = value
        self.least = least


class MalformedJson(MetabolismError):
    """
    A value cannot be stored as a JSON object.

    Attributes:
        name: The argument.
        problem: What is wrong with it, and where.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} must be a mapping that JSON can hold: {problem}")
        self.name = name
        self.problem = problem


class UnknownJobState(MetabolismError):
    """
    A text names no state of a job.

    Attributes:
        state: What was given, or its text where it is no plain value.
    """

    def __init__(self, state: object, known: Iterable[str]) -> None:
        super().__init__(f"state={_shown(state)} must be one of {', '.join(known)}.")
        self.state = _kept(state)


class UnknownClaimEventKind(MetabolismError):
    """
    A text names no kind of event.

    Attributes:
        kind: What was given, or its text where it is no plain value.
    """

    def __init__(self, kind: object, known: Iterable[str]) -> None:
        super().__init__(f"kind={_shown(kind)} must be one of {', '.join(known)}.")
        self.kind = _kept(kind)


class OnlyByClaim(MetabolismError):
    """
    A job was to be marked claimed by hand, which would be a lease without a holder.
    """

    def __init__(self) -> None:
        super().__init__("state='claimed' is reached through claim_next_job only, with a lease.")


class JobMissing(MetabolismError):
    """
    No job has the identifier.

    Attributes:
        job_id: What was asked for.
    """

    def __init__(self, job_id: int) -> None:
        super().__init__(f"job_id={job_id!r} names no job; expected one that enqueue_job returned.")
        self.job_id = job_id


class RunMissing(MetabolismError):
    """
    No run has the identifier.

    Attributes:
        run_id: What was asked for.
    """

    def __init__(self, run_id: int) -> None:
        super().__init__(f"run_id={run_id!r} names no run; expected one that start_run returned.")
        self.run_id = run_id


class JobIsTerminal(MetabolismError):
    """
    A job has ended, and an ended job never moves again.

    Attributes:
        job_id: The job.
        state: How it ended.
    """

    def __init__(self, job_id: int, state: str) -> None:
        super().__init__(
            f"job_id={job_id!r} is {state} and stays so; enqueue its key again for another job."
        )
        self.job_id = job_id
        self.state = state


class StaleClaim(MetabolismError):
    """
    The claim that an operation builds on is no longer the job's.

    Its lease lapsed and the job was requeued, and perhaps claimed by another since; or the
    operation was done already.

    Attributes:
        job_id: The job.
        attempt: The claim that was shown, by its number of attempts.
        found: What the job is now, in words.
    """

    def __init__(self, job_id: int, attempt: int, found: str) -> None:
        super().__init__(
            f"job_id={job_id!r} cannot be taken further under claim number {attempt}: {found}. "
            "Do no more for this claim; claim the next job."
        )
        self.job_id = job_id
        self.attempt = attempt
        self.found = found


class RunIsCompleted(MetabolismError):
    """
    A run has ended already; its end is never rewritten.

    Attributes:
        run_id: The run.
        return_code: How it ended.
    """

    def __init__(self, run_id: int, return_code: int) -> None:
        super().__init__(
            f"run_id={run_id!r} was completed with return code {return_code} and is not completed "
            "again."
        )
        self.run_id = run_id
        self.return_code = return_code


class NotAnAssertion(MetabolismError):
    """
    An event points at something other than an assertion.

    Attributes:
        assertion_id: Where it points.
        found: What is there, or None for nothing.
    """

    def __init__(self, assertion_id: int, found: str | None) -> None:
        super().__init__(
            f"assertion_id={assertion_id!r} names {found or 'no event'}; expected the event_id of "
            "a claim_asserted, and none for an assertion itself."
        )
        self.assertion_id = assertion_id
        self.found = found


class LogRefused(MetabolismError):
    """
    A launch log cannot be made or written where it was asked for.

    Attributes:
        path: The file.
        problem: What is wrong.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"launch log path={path!r}: {problem}")
        self.path = path
        self.problem = problem


def _shown(value: object) -> str:
    """Return the text of anything, however large or broken, on one line of a message."""
    try:
        text = repr(value)
    except Exception:
        # An integer of thousands of digits has no text, and another object's may raise anything.
        return f"<{type(value).__qualname__} without a text>"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def _kept(value: object) -> object:
    """Return *value* where any process can unpickle it, and its text otherwise."""
    is_plain = value is None or type(value) in (bool, int, float, str, bytes)
    return value if is_plain else _shown(value)
