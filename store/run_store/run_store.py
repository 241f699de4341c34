"""
The handle on one run store: open it, and coordinate attempts through it.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self, final

import apsw

from store.run_store import writer
from store.run_store.guard import OwnedAttempt
from store.run_store.opening import open_database
from store.run_store.ownership_refusals import StoreClosed
from store.run_store.phases import Phase
from store.run_store.records import AttemptSlot, Candidate, ObservationSlot, ResolvedRun
from store.run_store.requests import Authorization, LeaseRequest

__all__ = ["RunStore"]


@final
class RunStore:
    """
    One connection to the run store under a root; several may be open on one root at once.

    The caller is the trusted orchestrator: it passes ids, tokens and the current time. One
    handle must not be used by two threads at once, nor after a fork in the child. Every write is
    one short immediate transaction, and every refusal leaves the database as it was.
    """

    def __init__(self, connection: apsw.Connection, database_path: Path) -> None:
        self._connection: apsw.Connection | None = connection
        self._database_path = database_path

    @classmethod
    def open(cls, root: Path) -> Self:
        """
        Open the store under *root*, creating it in an empty one.

        Args:
            root: An existing absolute folder on a local file system.
        Durable: after success: the schema, the database file and the root. It records no
            attempt and no event.
        Raises: RunStoreError: the root, its file system or its database cannot hold the store;
            `errors` has one type for each reason.
        """
        connection, database_path = open_database(root)
        return cls(connection, database_path)

    def database_path(self) -> Path:
        """
        Return the path of the database file; also after closing.
        """
        return self._database_path

    def close(self) -> None:
        """
        Close the connection; a second close does nothing.
        """
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def register_one_shot(
        self,
        candidate: Candidate,
        run: ResolvedRun,
        attempt_slot: AttemptSlot,
        observation_slot: ObservationSlot | None,
    ) -> None:
        """
        Register resolved one-shot records and which observation the execution owes.

        Equal records may be registered again, by anyone; then nothing changes.

        Args:
            observation_slot: None for a warm-up, and only for one.
        Durable: after success: all records. After an error: none that was not there before.
        Raises:
            MalformedRecord, MalformedId, IdentityMismatch: a record is not what its text says.
            InapplicableCandidate, NotOneShot, MembershipRefused, UnrelatedRecords: the records
                are whole, but no one-shot run.
            ConflictingIdentity: the store holds something else under one of the identities.
        """
        writer.register_one_shot(self._open(), candidate, run, attempt_slot, observation_slot)

    def reserve(
        self, slot_id: str, authorization: Authorization, lease: LeaseRequest, now_ns: int
    ) -> OwnedAttempt:
        """
        Reserve the slot's next attempt, with its lease, event and first transition.

        The attempt's id follows from slot and index. An authorized retry may overlap an active
        attempt, as after a crash, when the former guard died with its process.

        Args:
            slot_id: A registered execution slot.
            authorization: Which index the caller allows; checked under the write lock.
            lease: Must expire after *now_ns*, exclusively.
            now_ns: The current time, in nanoseconds since the Unix epoch.
        Durable: after success: the reservation, whole. After an error: nothing of it.
        Raises:
            MalformedId, MalformedAuthorization, MalformedToken, TimestampOutOfRange,
                RetryIndexOutOfRange, LeaseNeverLive: an argument is unusable by itself.
            UnknownSlot, SatisfiedSlot: the slot takes no attempt.
            RetryNotAuthorized, RetryIndexMismatch, RetryBoundExceeded: the authorization does
                not cover the next index.
            DuplicateLease: the lease id was used before.
        """
        return writer.reserve(self._open(), slot_id, authorization, lease, now_ns)

    def advance(self, attempt: OwnedAttempt, phase: Phase, now_ns: int) -> OwnedAttempt:
        """
        Make one legal transition, to an execution phase or to finalizing without a claim.

        The former guard is good for nothing afterwards. Terminal states are not reached here.

        Args:
            now_ns: The current time; one before the last transition is read as that time.
        Durable: after success: projection, event and transition. After an error: nothing new.
        Raises:
            TimestampOutOfRange: *now_ns* is no time.
            UnknownAttempt, WrongOwner, WrongLease, LeaseReleased, LeaseExpired, StaleRevision:
                the caller may not write, the first reason in this order.
            IllegalTransition: no edge leads to *phase*.
            RevisionOutOfRange: the attempt has no revision left.
        """
        return writer.advance(self._open(), attempt, phase, now_ns)

    def renew(self, attempt: OwnedAttempt, expires_at_ns: int, now_ns: int) -> OwnedAttempt:
        """
        Extend the reservation, the lease of an owned claim, and live staging leases together.

        No transition: the revision stays, and so does the former guard's worth. Staging leases
        that have expired are left for recovery.

        Args:
            expires_at_ns: The new expiration of all; no lease may lie beyond it already.
            now_ns: The current time; one before the last transition is read as that time.
        Durable: after success: every extension. After an error: none.
        Raises:
            TimestampOutOfRange: an argument is no time.
            UnknownAttempt, WrongOwner, WrongLease, LeaseReleased, LeaseExpired, StaleRevision:
                the caller may not write, the first reason in this order.
            ShortenedLease: one of the leases expires later than asked.
        """
        return writer.renew(self._open(), attempt, expires_at_ns, now_ns)

    def _open(self) -> apsw.Connection:
        if self._connection is None:
            raise StoreClosed(str(self._database_path))
        return self._connection
