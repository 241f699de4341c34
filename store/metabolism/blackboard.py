"""
The blackboard: an append-only log of claims, and what it says now.

Method: every fact is one event. What invalidates a claim is another event that points at its
assertion, so the reason stays on record. Triggers refuse every UPDATE and DELETE. What holds now
is replayed from the whole log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import apsw

from store.metabolism.arguments import integer, json_object, text
from store.metabolism.errors import NotAnAssertion, UnknownClaimEventKind
from store.metabolism.records import ClaimEvent, ClaimEventKind
from store.metabolism.transactions import immediate
from store.sqlite import rows

__all__ = ["Projection", "append_claim_event", "build_blackboard_projection"]

_INSERT: Final = """INSERT INTO blackboard_claim_events (kind, claim_id, subject, predicate, object,
 assertion_id, payload_json, created_at_ns) VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING *"""


class Projection(NamedTuple):
    """
    What the log says now.

    Attributes:
        active: The assertions that no event invalidates, in the order of the log.
        active_count: Their number.
        event_count: All events of the log.
        contradiction_count: The events that contradict, whatever they point at.
    """

    active: tuple[ClaimEvent, ...]
    active_count: int
    event_count: int
    contradiction_count: int


def append_claim_event(
    connection: apsw.Connection,
    *,
    kind: str,
    claim_id: str,
    subject: str,
    predicate: str,
    object: str,
    assertion_id: int | None = None,
    payload: Mapping[str, Any] | None = None,
    now_ns: int,
) -> ClaimEvent:
    """
    Append one event and return it; no earlier event changes.

    Args:
        kind: A value of `ClaimEventKind`.
        assertion_id: The assertion that this event invalidates. An invalidating event without
            one is kept and invalidates nothing.
    Durable: after success: the event, see `storage`. After an error: nothing.
    Raises:
        UnknownClaimEventKind: *kind* is none.
        NotAnAssertion: *assertion_id* names no assertion, or this is an assertion itself.
        NotText, NotAnInteger, OutOfRange, MalformedJson: an argument, named by the error.
    """
    if kind not in list(ClaimEventKind):
        raise UnknownClaimEventKind(kind, ClaimEventKind)
    if assertion_id is not None:
        integer("assertion_id", assertion_id)
    values = (
        str(kind),
        text("claim_id", claim_id),
        text("subject", subject),
        text("predicate", predicate),
        text("object", object),
        assertion_id,
        json_object("payload", {} if payload is None else payload),
        integer("now_ns", now_ns, least=0),
    )
    with immediate(connection):
        if assertion_id is not None:
            _must_be_invalidated(connection, kind, assertion_id)
        [row] = rows(connection, _INSERT, values)
    return ClaimEvent._make(row)


def build_blackboard_projection(connection: apsw.Connection) -> Projection:
    """
    Replay the whole log and return what was asserted and not invalidated.

    Cost: Memory and time in proportion to the log.
    """
    log = [
        ClaimEvent._make(row)
        for row in rows(connection, "SELECT * FROM blackboard_claim_events ORDER BY event_id")
    ]
    invalidated = {event.assertion_id for event in log if event.kind != ClaimEventKind.ASSERTED}
    active = tuple(
        event
        for event in log
        if event.kind == ClaimEventKind.ASSERTED and event.event_id not in invalidated
    )
    contradictions = sum(event.kind == ClaimEventKind.CONTRADICTED for event in log)
    return Projection(active, len(active), len(log), contradictions)


def _must_be_invalidated(connection: apsw.Connection, kind: str, assertion_id: int) -> None:
    found = rows(
        connection,
        "SELECT kind FROM blackboard_claim_events WHERE event_id = ?",
        (assertion_id,),
    )
    pointed = str(found[0][0]) if found else None
    if pointed != ClaimEventKind.ASSERTED:
        raise NotAnAssertion(assertion_id, f"a {pointed}" if pointed else None)
    if kind == ClaimEventKind.ASSERTED:
        raise NotAnAssertion(assertion_id, "what an assertion may not name")
