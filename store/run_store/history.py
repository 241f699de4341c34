"""
How an attempt's projection, events and transitions are written, always together.

Method: the projection first, then the event, then the transition. The schema refuses a
transition that is not the projection's current one, and a commit that lacks any of the three.
The payloads are canonical JSON and their bytes are pinned by tests; they are internal to layout
version 1.

    attempt_reserved    from null, retry_index, revision 0, slot_id, to "reserved"
    attempt_transition  from, revision, to

Must be called under the write lock, by an operation that checked the ownership.
"""

from typing import Any

import apsw

from store import canonical
from store.crash_points import surrounding
from store.run_store.fencing import Standing
from store.run_store.identity import SAFE_INTEGER_MAX
from store.run_store.ownership_refusals import LostUpdate
from store.run_store.phases import Phase
from store.run_store.refusals import RevisionOutOfRange
from store.sqlite import rows

__all__ = ["append_transition", "start_history"]

_INSERT_ATTEMPT = """
INSERT INTO attempts
    (attempt_id, slot_id, retry_index, state, revision, started_at_ns, changed_at_ns)
VALUES (?, ?, ?, 'reserved', 0, ?, ?)
"""

_UPDATE_ATTEMPT = """
UPDATE attempts SET state = ?, revision = ?, changed_at_ns = ?
WHERE attempt_id = ? AND revision = ? AND state = ?
"""

_INSERT_EVENT = "INSERT INTO events (attempt_id, kind, at_ns, payload_json) VALUES (?, ?, ?, ?)"

_INSERT_TRANSITION = """
INSERT INTO attempt_transitions
    (attempt_id, revision, from_state, to_state, at_ns, previous_at_ns, event_sequence,
     event_kind)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""


def start_history(
    connection: apsw.Connection,
    *,
    attempt_id: str,
    slot_id: str,
    retry_index: int,
    at_ns: int,
) -> int:
    """
    Insert a reserved attempt with its event and its transition 0; return the event's sequence.
    """
    payload = {
        "from": None,
        "retry_index": retry_index,
        "revision": 0,
        "slot_id": slot_id,
        "to": Phase.RESERVED.value,
    }
    with surrounding("writer.append_history"):
        rows(connection, _INSERT_ATTEMPT, (attempt_id, slot_id, retry_index, at_ns, at_ns))
        sequence = _append_event(connection, attempt_id, "attempt_reserved", at_ns, payload)
        transition = (attempt_id, 0, None, Phase.RESERVED.value, at_ns, None)
        rows(connection, _INSERT_TRANSITION, (*transition, sequence, "attempt_reserved"))
    return sequence


def append_transition(connection: apsw.Connection, standing: Standing, phase: Phase) -> int:
    """
    Move the attempt one revision on, to the nonterminal *phase*; return the event's sequence.

    The transition's time is the standing's clock, so it never lies before the preceding one.

    Raises:
        RevisionOutOfRange: there is no revision left.
        LostUpdate: the projection is not what the standing says.
    """
    revision = standing.revision + 1
    if revision > SAFE_INTEGER_MAX:
        raise RevisionOutOfRange(revision)
    at_ns = standing.clock_ns
    payload = {"from": standing.phase.value, "revision": revision, "to": phase.value}
    before = (standing.attempt_id, standing.revision, standing.phase.value)
    with surrounding("writer.append_history"):
        rows(connection, _UPDATE_ATTEMPT, (phase.value, revision, at_ns, *before))
        if connection.changes() != 1:
            raise LostUpdate("attempts", standing.attempt_id, connection.changes())
        sequence = _append_event(
            connection, standing.attempt_id, "attempt_transition", at_ns, payload
        )
        transition = (standing.attempt_id, revision, standing.phase.value, phase.value, at_ns)
        rows(
            connection,
            _INSERT_TRANSITION,
            (*transition, standing.changed_at_ns, sequence, "attempt_transition"),
        )
    return sequence


def _append_event(
    connection: apsw.Connection, attempt_id: str, kind: str, at_ns: int, payload: dict[str, Any]
) -> int:
    text = canonical.encode(payload).decode("utf-8")
    rows(connection, _INSERT_EVENT, (attempt_id, kind, at_ns, text))
    return connection.last_insert_rowid()
