"""
What the writer refuses because of where a slot, an attempt, a lease or the store stands.

Whoever catches one knows that the operation committed nothing. A message names a lease by its
id and never shows an owner token.
"""

from store.run_store.refusals import WriterRefusal

__all__ = [
    "DuplicateLease",
    "IllegalTransition",
    "LeaseExpired",
    "LeaseNeverLive",
    "LeaseReleased",
    "LostUpdate",
    "RetryBoundExceeded",
    "RetryIndexMismatch",
    "RetryNotAuthorized",
    "SatisfiedSlot",
    "ShortenedLease",
    "StaleRevision",
    "StoreBusy",
    "StoreClosed",
    "UnknownAttempt",
    "UnknownSlot",
    "WrongLease",
    "WrongOwner",
]


# Reservation -------------------------------------------------------------------------------


class UnknownSlot(WriterRefusal):
    """
    No execution slot has this id.

    Attributes:
        slot_id: The id.
    """

    def __init__(self, slot_id: str) -> None:
        super().__init__(f"slot_id={slot_id!r} is not registered; register its records first.")
        self.slot_id = slot_id


class SatisfiedSlot(WriterRefusal):
    """
    The slot has its accepted attempt and takes no other.

    Attributes:
        slot_id: The slot.
        attempt_id: The accepted attempt.
    """

    def __init__(self, slot_id: str, attempt_id: str) -> None:
        super().__init__(
            f"slot_id={slot_id!r} is satisfied by attempt_id={attempt_id!r}, expected an "
            "unsatisfied slot; use that attempt's result."
        )
        self.slot_id = slot_id
        self.attempt_id = attempt_id


class RetryNotAuthorized(WriterRefusal):
    """
    Only a first attempt was authorized, and the slot has attempts.

    Attributes:
        slot_id: The slot.
        next_index: The index that a retry would get.
    """

    def __init__(self, slot_id: str, next_index: int) -> None:
        super().__init__(
            f"slot_id={slot_id!r} would get retry_index={next_index!r}, expected 0 under this "
            "authorization; authorize a retry explicitly."
        )
        self.slot_id = slot_id
        self.next_index = next_index


class RetryIndexMismatch(WriterRefusal):
    """
    The authorized index is not the slot's next one.

    Attributes:
        slot_id: The slot.
        next_index: The slot's next index.
        authorized_index: The index that was authorized.
    """

    def __init__(self, slot_id: str, *, next_index: int, authorized_index: int) -> None:
        super().__init__(
            f"authorized next_index={authorized_index!r} for slot_id={slot_id!r}, expected "
            f"{next_index}; look at the slot again before authorizing."
        )
        self.slot_id = slot_id
        self.next_index = next_index
        self.authorized_index = authorized_index


class RetryBoundExceeded(WriterRefusal):
    """
    The slot's next index lies above the authorized maximum.

    Attributes:
        slot_id: The slot.
        next_index: The slot's next index.
        max_index: The largest index that was authorized.
    """

    def __init__(self, slot_id: str, *, next_index: int, max_index: int) -> None:
        super().__init__(
            f"slot_id={slot_id!r} would get retry_index={next_index!r}, expected at most "
            f"{max_index}; raise the bound or give the slot up."
        )
        self.slot_id = slot_id
        self.next_index = next_index
        self.max_index = max_index


class DuplicateLease(WriterRefusal):
    """
    The lease id has been used before, by whomever.

    Attributes:
        lease_id: The id.
    """

    def __init__(self, lease_id: str) -> None:
        super().__init__(f"lease_id={lease_id!r} exists, expected a new one; never reuse one.")
        self.lease_id = lease_id


class LeaseNeverLive(WriterRefusal):
    """
    A requested lease would have expired before it began.

    Attributes:
        lease_id: The requested lease.
        expires_at_ns: Its expiration.
        now_ns: The time that it must exceed.
    """

    def __init__(self, lease_id: str, *, expires_at_ns: int, now_ns: int) -> None:
        super().__init__(
            f"expires_at_ns={expires_at_ns!r} of lease_id={lease_id!r} must exceed {now_ns}; "
            "ask for a later expiration."
        )
        self.lease_id = lease_id
        self.expires_at_ns = expires_at_ns
        self.now_ns = now_ns


# Fencing -----------------------------------------------------------------------------------


class UnknownAttempt(WriterRefusal):
    """
    The guard's attempt is not in this store.

    Attributes:
        attempt_id: The attempt.
    """

    def __init__(self, attempt_id: str) -> None:
        super().__init__(
            f"attempt_id={attempt_id!r} is not in this store; use the store that reserved it."
        )
        self.attempt_id = attempt_id


class WrongOwner(WriterRefusal):
    """
    A lease that the operation needs belongs to another owner.

    Attributes:
        attempt_id: The attempt.
        lease_id: The lease.
    """

    def __init__(self, attempt_id: str, lease_id: str) -> None:
        super().__init__(
            f"lease_id={lease_id!r} of attempt_id={attempt_id!r} belongs to another owner, "
            "expected the guard's; stop working on this attempt."
        )
        self.attempt_id = attempt_id
        self.lease_id = lease_id


class WrongLease(WriterRefusal):
    """
    The guard names another lease than the attempt's reservation.

    Attributes:
        attempt_id: The attempt.
        lease_id: The guard's lease.
    """

    def __init__(self, attempt_id: str, lease_id: str) -> None:
        super().__init__(
            f"lease_id={lease_id!r} is not the reservation of attempt_id={attempt_id!r}; "
            "stop working on this attempt."
        )
        self.attempt_id = attempt_id
        self.lease_id = lease_id


class LeaseReleased(WriterRefusal):
    """
    A lease that the operation needs has been released, for good.

    Attributes:
        attempt_id: The attempt.
        lease_id: The lease.
        released_at_ns: When.
    """

    def __init__(self, attempt_id: str, lease_id: str, released_at_ns: int) -> None:
        super().__init__(
            f"lease_id={lease_id!r} of attempt_id={attempt_id!r} was released at "
            f"{released_at_ns}, expected a live lease; a retry needs a new attempt."
        )
        self.attempt_id = attempt_id
        self.lease_id = lease_id
        self.released_at_ns = released_at_ns


class LeaseExpired(WriterRefusal):
    """
    A lease that the operation needs has expired; expiration itself is already too late.

    Attributes:
        attempt_id: The attempt.
        lease_id: The lease.
        expires_at_ns: Its expiration.
        now_ns: The time it was compared with, never before the preceding transition.
    """

    def __init__(self, attempt_id: str, lease_id: str, *, expires_at_ns: int, now_ns: int) -> None:
        super().__init__(
            f"lease_id={lease_id!r} of attempt_id={attempt_id!r} expired at {expires_at_ns}, "
            f"expected later than now_ns={now_ns!r}; leave the attempt to recovery."
        )
        self.attempt_id = attempt_id
        self.lease_id = lease_id
        self.expires_at_ns = expires_at_ns
        self.now_ns = now_ns


class StaleRevision(WriterRefusal):
    """
    The attempt has moved on since the guard was returned.

    Attributes:
        attempt_id: The attempt.
        held: The guard's revision.
        current: The attempt's revision.
    """

    def __init__(self, attempt_id: str, *, held: int, current: int) -> None:
        super().__init__(
            f"revision={held!r} of attempt_id={attempt_id!r}, expected the current {current}; "
            "use the guard that the latest transition returned."
        )
        self.attempt_id = attempt_id
        self.held = held
        self.current = current


class IllegalTransition(WriterRefusal):
    """
    No edge leads from the attempt's phase to the requested one in this operation.

    Attributes:
        attempt_id: The attempt.
        current: Its phase.
        requested: The requested phase.
        legal: The phases that may follow here, sorted.
    """

    def __init__(
        self, attempt_id: str, *, current: str, requested: object, legal: tuple[str, ...]
    ) -> None:
        super().__init__(
            f"phase={requested!r} cannot follow {current!r} in attempt_id={attempt_id!r}, "
            f"expected one of {list(legal)!r}; terminal states are reached by finalization only."
        )
        self.attempt_id = attempt_id
        self.current = current
        self.requested = requested
        self.legal = legal


class ShortenedLease(WriterRefusal):
    """
    A renewal would move a lease's expiration back; none of the leases was renewed.

    Attributes:
        attempt_id: The attempt.
        lease_id: The lease.
        expires_at_ns: Its expiration.
        requested_ns: The requested expiration.
    """

    def __init__(
        self, attempt_id: str, lease_id: str, *, expires_at_ns: int, requested_ns: int
    ) -> None:
        super().__init__(
            f"expires_at_ns={requested_ns!r} would shorten lease_id={lease_id!r} of "
            f"attempt_id={attempt_id!r}, expected at least {expires_at_ns}; renew for longer."
        )
        self.attempt_id = attempt_id
        self.lease_id = lease_id
        self.expires_at_ns = expires_at_ns
        self.requested_ns = requested_ns


class LostUpdate(WriterRefusal):
    """
    An update under the write lock met another number of rows than one.

    Attributes:
        table: The table.
        key: The row's id.
        changed: How many rows changed.
    """

    def __init__(self, table: str, key: str, changed: int) -> None:
        super().__init__(
            f"update of {table} {key!r} changed {changed} rows, expected 1; "
            "the row is not what was just read. Check the database."
        )
        self.table = table
        self.key = key
        self.changed = changed


# The store itself --------------------------------------------------------------------------


class StoreBusy(WriterRefusal):
    """
    Another connection held the write lock for as long as this one may wait.

    Attributes:
        operation: What was to be done.
    """

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"operation={operation!r} did not get the write lock, expected it within the busy "
            "timeout; nothing was written, try again."
        )
        self.operation = operation


class StoreClosed(WriterRefusal):
    """
    The handle was closed.

    Attributes:
        database_path: The database that it had open, as text.
    """

    def __init__(self, database_path: str) -> None:
        super().__init__(
            f"the store on database={database_path!r} is closed, expected an open handle; "
            "open the root again."
        )
        self.database_path = database_path
