"""
The transactional operations of the run store, as functions over its private connection.

Method: arguments are checked before the write lock is taken, everything that depends on the
store after it. Each operation is one short immediate transaction; whatever is raised inside
rolls all of it back, and a guard is made only after COMMIT. Nothing here reads a clock, draws a
number at random or touches a file.

Covered: registering one-shot records, reserving, every phase up to finalizing, renewing.
Not covered: claims, observations, terminal outcomes, publication, recovery.

Crash points: `writer.<operation>` surrounds each transaction, `writer.append_history` the three
writes of a transition.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from store.crash_points import surrounding
from store.run_store.fencing import HeldLease, check_ownership, live_staging_leases
from store.run_store.guard import OwnedAttempt, credentials, issue
from store.run_store.history import append_transition, start_history
from store.run_store.identity import check_id, check_retry_index, run_attempt_id
from store.run_store.ownership_refusals import (
    DuplicateLease,
    IllegalTransition,
    LeaseNeverLive,
    LostUpdate,
    RetryBoundExceeded,
    RetryIndexMismatch,
    RetryNotAuthorized,
    SatisfiedSlot,
    ShortenedLease,
    StoreBusy,
    UnknownSlot,
)
from store.run_store.phases import LEGAL_EDGES, TERMINAL_PHASES, Phase
from store.run_store.records import AttemptSlot, Candidate, ObservationSlot, ResolvedRun
from store.run_store.registration import check_one_shot, insert_one_shot
from store.run_store.requests import (
    Authorization,
    FirstAttempt,
    LeaseRequest,
    Next,
    Retry,
    check_authorization,
    check_lease_request,
    check_timestamp,
)
from store.sqlite import immediate, rows

__all__ = ["advance", "register_one_shot", "renew", "reserve"]

_SLOT = """
SELECT (SELECT attempt_id FROM attempts WHERE slot_id = s.slot_id AND state = 'accepted'),
       (SELECT max(retry_index) FROM attempts WHERE slot_id = s.slot_id)
FROM attempt_slots AS s
WHERE s.slot_id = ?
"""

_INSERT_RESERVATION = """
INSERT INTO leases
    (lease_id, owner_token, attempt_id, purpose, acquired_at_ns, expires_at_ns)
VALUES (?, ?, ?, 'reservation', ?, ?)
"""

_EXTEND_LEASE = """
UPDATE leases SET expires_at_ns = ?
WHERE lease_id = ? AND owner_token = ? AND expires_at_ns = ? AND released_at_ns IS NULL
"""


def register_one_shot(
    connection: apsw.Connection,
    candidate: Candidate,
    run: ResolvedRun,
    attempt_slot: AttemptSlot,
    observation_slot: ObservationSlot | None,
) -> None:
    """
    Register resolved one-shot records and their membership; see `RunStore.register_one_shot`.
    """
    check_one_shot(candidate, run, attempt_slot, observation_slot)
    with _transaction(connection, "register_one_shot"):
        insert_one_shot(connection, candidate, run, attempt_slot, observation_slot)


def reserve(
    connection: apsw.Connection,
    slot_id: str,
    authorization: Authorization,
    lease: LeaseRequest,
    now_ns: int,
) -> OwnedAttempt:
    """
    Reserve the next attempt of a slot; see `RunStore.reserve`.
    """
    check_id("attempt-slot", slot_id)
    check_authorization(authorization)
    check_lease_request(lease)
    check_timestamp("now_ns", now_ns)
    if lease.expires_at_ns <= now_ns:
        raise LeaseNeverLive(lease.lease_id, expires_at_ns=lease.expires_at_ns, now_ns=now_ns)
    with _transaction(connection, "reserve"):
        retry_index = _next_retry_index(connection, slot_id)
        _check_authorized(slot_id, authorization, retry_index)
        if rows(connection, "SELECT 1 FROM leases WHERE lease_id = ?", (lease.lease_id,)):
            raise DuplicateLease(lease.lease_id)
        attempt_id = run_attempt_id(slot_id, retry_index)
        start_history(
            connection,
            attempt_id=attempt_id,
            slot_id=slot_id,
            retry_index=retry_index,
            at_ns=now_ns,
        )
        rows(
            connection,
            _INSERT_RESERVATION,
            (lease.lease_id, lease.owner_token, attempt_id, now_ns, lease.expires_at_ns),
        )
    return issue(
        attempt_id=attempt_id,
        slot_id=slot_id,
        retry_index=retry_index,
        phase=Phase.RESERVED,
        revision=0,
        changed_at_ns=now_ns,
        expires_at_ns=lease.expires_at_ns,
        lease_id=lease.lease_id,
        owner_token=lease.owner_token,
    )


def advance(
    connection: apsw.Connection, attempt: OwnedAttempt, phase: Phase, now_ns: int
) -> OwnedAttempt:
    """
    Move an attempt to its next execution phase, or to finalizing; see `RunStore.advance`.
    """
    lease_id, owner_token = credentials(attempt)
    check_timestamp("now_ns", now_ns)
    with _transaction(connection, "advance"):
        standing = check_ownership(connection, attempt, now_ns=now_ns)
        legal = LEGAL_EDGES[standing.phase] - TERMINAL_PHASES
        if not isinstance(phase, str) or phase not in legal:
            raise IllegalTransition(
                attempt.attempt_id,
                current=standing.phase.value,
                requested=str(phase),
                legal=tuple(sorted(edge.value for edge in legal)),
            )
        entered = Phase(phase)
        append_transition(connection, standing, entered)
    return issue(
        attempt_id=attempt.attempt_id,
        slot_id=attempt.slot_id,
        retry_index=attempt.retry_index,
        phase=entered,
        revision=standing.revision + 1,
        changed_at_ns=standing.clock_ns,
        expires_at_ns=standing.reservation.expires_at_ns,
        lease_id=lease_id,
        owner_token=owner_token,
    )


def renew(
    connection: apsw.Connection, attempt: OwnedAttempt, expires_at_ns: int, now_ns: int
) -> OwnedAttempt:
    """
    Extend every live lease of an attempt together; see `RunStore.renew`.
    """
    lease_id, owner_token = credentials(attempt)
    check_timestamp("expires_at_ns", expires_at_ns)
    check_timestamp("now_ns", now_ns)
    with _transaction(connection, "renew"):
        standing = check_ownership(connection, attempt, now_ns=now_ns)
        leases = [standing.reservation]
        if standing.claim_lease is not None:
            leases.append(standing.claim_lease)
        leases += live_staging_leases(connection, standing)
        for lease in leases:
            if expires_at_ns < lease.expires_at_ns:
                raise ShortenedLease(
                    attempt.attempt_id,
                    lease.lease_id,
                    expires_at_ns=lease.expires_at_ns,
                    requested_ns=expires_at_ns,
                )
        for lease in leases:
            _extend(connection, lease, expires_at_ns)
    return issue(
        attempt_id=attempt.attempt_id,
        slot_id=attempt.slot_id,
        retry_index=attempt.retry_index,
        phase=standing.phase,
        revision=standing.revision,
        changed_at_ns=standing.changed_at_ns,
        expires_at_ns=expires_at_ns,
        lease_id=lease_id,
        owner_token=owner_token,
    )


@contextmanager
def _transaction(connection: apsw.Connection, operation: str) -> Iterator[None]:
    """
    Hold the write lock for the block, with the operation's crash point around the whole.
    """
    try:
        with surrounding(f"writer.{operation}"), immediate(connection):
            yield
    except apsw.BusyError as error:
        raise StoreBusy(operation) from error


def _next_retry_index(connection: apsw.Connection, slot_id: str) -> int:
    found = rows(connection, _SLOT, (slot_id,))
    if not found:
        raise UnknownSlot(slot_id)
    accepted_id, last_index = found[0]
    if accepted_id is not None:
        raise SatisfiedSlot(slot_id, accepted_id)
    return check_retry_index("retry_index", 0 if last_index is None else last_index + 1)


def _check_authorized(slot_id: str, authorization: Authorization, next_index: int) -> None:
    match authorization:
        case FirstAttempt() | Next(retry=False) if next_index > 0:
            raise RetryNotAuthorized(slot_id, next_index)
        case Retry(next_index=authorized_index) if next_index != authorized_index:
            raise RetryIndexMismatch(
                slot_id, next_index=next_index, authorized_index=authorized_index
            )
        case Retry(max_index=max_index) if next_index > max_index:
            raise RetryBoundExceeded(slot_id, next_index=next_index, max_index=max_index)


def _extend(connection: apsw.Connection, lease: HeldLease, expires_at_ns: int) -> None:
    rows(
        connection,
        _EXTEND_LEASE,
        (expires_at_ns, lease.lease_id, lease.owner_token, lease.expires_at_ns),
    )
    if connection.changes() != 1:
        raise LostUpdate("leases", lease.lease_id, connection.changes())
