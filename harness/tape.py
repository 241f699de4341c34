"""
The tape: memory shared with forked children, in which an execution leaves its trace.

A child that dies at a boundary by ``os._exit`` writes nothing to a file or pipe. What it did
stands here all the same: the process that forked it reads the tape after the death.

Covered: trace lines, the journal of steps, promises and effects, the virtual clock, the counter
of identifiers, the reply of a child that ended by itself.
Not covered: processes that the store itself forks; they are silenced.
"""

from __future__ import annotations

import _thread
import json
import mmap
import os
from collections.abc import Callable
from typing import Any

from harness.errors import ConfigurationError
from harness.process import CRASH_STATUS
from harness.trace import Canonical

EPOCH_NS = 1_700_000_000_000_000_000
"""Where the virtual clock starts, in nanoseconds since the Unix epoch."""

TICK_NS = 1_000_000
"""How far one reading of the virtual clock moves it."""

_COUNT, _DIED_AT, _TRACE_SIZE, _JOURNAL_SIZE, _CLOCK, _NUMBER, _REPLY_SIZE, _STRANGER = range(8)
_HEADER_SIZE = 4096
TRACE_SIZE_MAX = 64 << 20
JOURNAL_SIZE_MAX = 64 << 20
REPLY_SIZE_MAX = 128 << 20
FORKED = (
    "run was used in a process that the store forked: steps, promises and effects belong to the "
    "process that execute, recover or resume was called in. Call run there, once the other process "
    "has answered."
)
"""What a fork of the executing process is told, and whoever started it."""

_NOTHING: Any = {"value": None}
_NOTHING_TEXT = b'{"value": null}'
# json.loads and json.dumps look at the text, at their arguments and at a cache first, in Python.
_decode: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]
_encode_sorted = json.JSONEncoder(sort_keys=True).encode
_TRACE_AT = _HEADER_SIZE
_JOURNAL_AT = _TRACE_AT + TRACE_SIZE_MAX
_REPLY_AT = _JOURNAL_AT + JOURNAL_SIZE_MAX


class Tape:
    """
    Shared memory of one zygote, rewound before each child.

    Pages are touched only as far as they are written, so the sizes are limits, not costs.
    One child writes at a time; threads of that child are serialised by a lock.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _REPLY_AT + REPLY_SIZE_MAX)
        self._header = memoryview(self._memory)[:_HEADER_SIZE].cast("q")
        self._lock = _thread.RLock()
        self._canonical: Canonical | None = None
        self._stop = 0
        self._owner = 0
        self.set_time(EPOCH_NS, 0)

    # -- the parent's side ------------------------------------------------------------------

    def rewind(self) -> None:
        """Forget trace, journal and reply; clock and identifiers go on."""
        for field in (_COUNT, _DIED_AT, _TRACE_SIZE, _JOURNAL_SIZE, _REPLY_SIZE, _STRANGER):
            self._header[field] = 0

    def set_time(self, clock_ns: int, number: int) -> None:
        """Set the virtual clock and the counter of identifiers."""
        self._header[_CLOCK] = clock_ns
        self._header[_NUMBER] = number

    @property
    def time(self) -> tuple[int, int]:
        """The virtual clock in nanoseconds, and the last identifier's number."""
        return self._header[_CLOCK], self._header[_NUMBER]

    def read(self) -> tuple[int, int, bytes, bytes]:
        """Return count, died_at, trace and journal at once."""
        count, died_at, trace_size, journal_size = self._header[:4]
        trace = self._memory[_TRACE_AT : _TRACE_AT + trace_size] if trace_size else b""
        journal = self._memory[_JOURNAL_AT : _JOURNAL_AT + journal_size] if journal_size else b""
        return count, died_at, trace, journal

    @property
    def count(self) -> int:
        """How many boundaries were announced."""
        return self._header[_COUNT]

    @property
    def died_at(self) -> int:
        """The boundary at which the child ended itself; 0 where it did not."""
        return self._header[_DIED_AT]

    @property
    def has_stranger(self) -> bool:
        """Whether a process that the owner forked tried to write a step, promise or effect."""
        return bool(self._header[_STRANGER])

    @property
    def trace(self) -> bytes:
        """The lines announced since the tape was rewound."""
        return self._memory[_TRACE_AT : _TRACE_AT + self._header[_TRACE_SIZE]]

    @property
    def journal(self) -> bytes:
        """The acts journalled since the tape was rewound."""
        return self._memory[_JOURNAL_AT : _JOURNAL_AT + self._header[_JOURNAL_SIZE]]

    @property
    def reply(self) -> Any:
        """What the child answered, or None where it ended without an answer."""
        size = self._header[_REPLY_SIZE]
        if not size:
            return None
        data = self._memory[_REPLY_AT : _REPLY_AT + size]
        return dict(_NOTHING) if data == _NOTHING_TEXT else _decode(data.decode(), 0)[0]

    # -- the child's side -------------------------------------------------------------------

    def own(self, pid: int) -> None:
        """Take acts from the process *pid* alone, and from no other that it forks."""
        self._owner = pid

    def _demand_owner(self) -> None:
        if self._owner and os.getpid() != self._owner:
            self._header[_STRANGER] = 1
            raise ConfigurationError(FORKED)

    def begin(self, canonical: Canonical, *, stop: int) -> None:
        """Take announcements from now on, and end this process at boundary *stop* (0: never)."""
        self._canonical = canonical
        self._stop = stop

    def announce(self, kind: str, phase: str, /, *names: str) -> None:
        """Write one boundary of the store; never returns where it is the one to die at."""
        canonical = self._canonical
        if canonical is None:
            return
        with self._lock:
            line = canonical.line(kind, phase, names)
            if line is not None:
                self._write(line)

    def mark(self, kind: str, phase: str, name: str) -> None:
        """Write one boundary of the harness's own; never returns where it is the one to die at."""
        canonical = self._canonical
        if canonical is not None:
            with self._lock:
                self._write(canonical.mark(kind, phase, name))

    def announce_end(self) -> None:
        """Write the last boundary, after the execution returned."""
        self._demand_owner()
        with self._lock:
            self._write(b"end\n")

    def _write(self, line: bytes) -> None:
        header = self._header
        start = header[_TRACE_SIZE]
        end = start + len(line)
        if end > TRACE_SIZE_MAX:
            raise ConfigurationError(
                f"the trace exceeds {TRACE_SIZE_MAX >> 20} MiB at boundary {header[_COUNT]}; "
                "shorten the workload, or split it into several campaigns."
            )
        self._memory[_TRACE_AT + start : _TRACE_AT + end] = line
        header[_TRACE_SIZE] = end
        number = header[_COUNT] + 1
        header[_COUNT] = number
        if number == self._stop:
            header[_DIED_AT] = number
            os._exit(CRASH_STATUS)

    def write_journal(self, act: str, name: str, facts: dict[str, Any]) -> None:
        """Write one act; the boundary announced next comes after it."""
        self._demand_owner()
        text = _encode_sorted([self._header[_COUNT], act, name, facts])
        data = text.encode() + b"\n"
        with self._lock:
            start = self._header[_JOURNAL_SIZE]
            if start + len(data) > JOURNAL_SIZE_MAX:
                raise ConfigurationError(
                    f"promises and effects exceed {JOURNAL_SIZE_MAX >> 20} MiB; "
                    "keep their facts small: names and numbers, not contents."
                )
            at = _JOURNAL_AT + start
            self._memory[at : at + len(data)] = data
            self._header[_JOURNAL_SIZE] = start + len(data)

    def tick(self, nanoseconds: int = TICK_NS) -> int:
        """Move the virtual clock and return it."""
        with self._lock:
            self._header[_CLOCK] += nanoseconds
            return self._header[_CLOCK]

    def next_number(self) -> int:
        """Return a number that no other identifier has."""
        with self._lock:
            self._header[_NUMBER] += 1
            return self._header[_NUMBER]

    def answer(self, value: dict[str, Any]) -> None:
        """Leave *value*, as JSON, for the parent."""
        # What most phases answer; a child that does not touch the encoder is 0.1 ms cheaper.
        data = _NOTHING_TEXT if value.get("value", value) is None else json.dumps(value).encode()
        if len(data) > REPLY_SIZE_MAX:
            raise ConfigurationError(
                f"an observation of {len(data) >> 20} MiB exceeds {REPLY_SIZE_MAX >> 20} MiB; "
                "observe a digest of large contents instead."
            )
        self._memory[_REPLY_AT : _REPLY_AT + len(data)] = data
        self._header[_REPLY_SIZE] = len(data)
