"""
Whether a guard still owns its attempt, asked under the write lock.

Method: one query reads the attempt, its reservation and the lease of its claim, if it has one.
The checks then run in a fixed order, and the first that fails is the refusal: reservation owner,
reservation id, released, expired, revision; then owner, released and expired of the claim's
lease. Time never runs backward for an attempt: a clock behind its last transition is read as
that transition's time.

Covered: everything that decides whether this owner may write now.
Not covered: which transition it may make; `writer` asks `phases`.
"""

from dataclasses import dataclass

import apsw

from store.run_store.guard import OwnedAttempt, credentials
from store.run_store.ownership_refusals import (
    LeaseExpired,
    LeaseReleased,
    StaleRevision,
    UnknownAttempt,
    WrongLease,
    WrongOwner,
)
from store.run_store.phases import Phase
from store.sqlite import rows

__all__ = ["HeldLease", "Standing", "check_ownership", "live_staging_leases"]


@dataclass(frozen=True, slots=True)
class HeldLease:
    """
    A lease of an attempt, as the store holds it.
    """

    lease_id: str
    owner_token: str
    expires_at_ns: int
    released_at_ns: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """
    An attempt whose owner was checked, as it stands under the write lock.

    Attributes:
        phase: Its phase.
        revision: Its revision.
        changed_at_ns: The time of its last transition.
        clock_ns: The caller's time, or the last transition's when the clock went back.
        reservation: Its live reservation.
        claim_lease: The live lease of its finalization claim, if it owns one.
    """

    attempt_id: str
    phase: Phase
    revision: int
    changed_at_ns: int
    clock_ns: int
    reservation: HeldLease
    claim_lease: HeldLease | None


_STANDING = """
SELECT a.state, a.revision, a.changed_at_ns,
       r.lease_id, r.owner_token, r.expires_at_ns, r.released_at_ns,
       f.lease_id, f.owner_token, f.expires_at_ns, f.released_at_ns
FROM attempts AS a
JOIN leases AS r ON r.attempt_id = a.attempt_id AND r.purpose = 'reservation'
LEFT JOIN finalization_claims AS c ON c.attempt_id = a.attempt_id
LEFT JOIN leases AS f ON f.lease_id = c.lease_id
WHERE a.attempt_id = ?
"""

_LIVE_STAGES = """
SELECT lease_id, owner_token, expires_at_ns, released_at_ns
FROM leases
WHERE attempt_id = ? AND purpose = 'staging' AND released_at_ns IS NULL AND expires_at_ns > ?
ORDER BY lease_id
"""


def check_ownership(connection: apsw.Connection, attempt: OwnedAttempt, *, now_ns: int) -> Standing:
    """
    Return how *attempt* stands, if its guard may write now. To be called under the write lock.

    Args:
        now_ns: The caller's time, already known to be in range.
    Raises:
        UnknownAttempt, WrongOwner, WrongLease, LeaseReleased, LeaseExpired, StaleRevision: the
            first check that failed, in the order of this module's method.
    """
    lease_id, owner_token = credentials(attempt)
    found = rows(connection, _STANDING, (attempt.attempt_id,))
    if not found:
        raise UnknownAttempt(attempt.attempt_id)
    state, revision, changed_at_ns, *leases = found[0]
    reservation = HeldLease(*leases[:4])
    claim_lease = None if leases[4] is None else HeldLease(*leases[4:])
    clock_ns = max(now_ns, changed_at_ns)
    if reservation.owner_token != owner_token:
        raise WrongOwner(attempt.attempt_id, reservation.lease_id)
    if reservation.lease_id != lease_id:
        raise WrongLease(attempt.attempt_id, lease_id)
    _check_live(attempt.attempt_id, reservation, clock_ns)
    if revision != attempt.revision:
        raise StaleRevision(attempt.attempt_id, held=attempt.revision, current=revision)
    if claim_lease is not None:
        if claim_lease.owner_token != owner_token:
            raise WrongOwner(attempt.attempt_id, claim_lease.lease_id)
        _check_live(attempt.attempt_id, claim_lease, clock_ns)
    return Standing(
        attempt_id=attempt.attempt_id,
        phase=Phase(state),
        revision=revision,
        changed_at_ns=changed_at_ns,
        clock_ns=clock_ns,
        reservation=reservation,
        claim_lease=claim_lease,
    )


def live_staging_leases(connection: apsw.Connection, standing: Standing) -> list[HeldLease]:
    """
    Return the attempt's staging leases that are neither released nor expired, by lease id.

    Raises: WrongOwner: one of them belongs to another owner than the reservation.
    """
    parameters = (standing.attempt_id, standing.clock_ns)
    leases = [HeldLease(*row) for row in rows(connection, _LIVE_STAGES, parameters)]
    for lease in leases:
        if lease.owner_token != standing.reservation.owner_token:
            raise WrongOwner(standing.attempt_id, lease.lease_id)
    return leases


def _check_live(attempt_id: str, lease: HeldLease, clock_ns: int) -> None:
    if lease.released_at_ns is not None:
        raise LeaseReleased(attempt_id, lease.lease_id, lease.released_at_ns)
    if clock_ns >= lease.expires_at_ns:
        raise LeaseExpired(
            attempt_id, lease.lease_id, expires_at_ns=lease.expires_at_ns, now_ns=clock_ns
        )
