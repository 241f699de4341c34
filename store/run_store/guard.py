"""
The guard that proves ownership of an attempt at one revision.
"""

from typing import NoReturn, final

from store.run_store.phases import Phase

__all__ = ["OwnedAttempt", "credentials", "issue"]

_SEAL = object()


@final
class OwnedAttempt:
    """
    Opaque proof that the caller owns an attempt, good for the next operation on it.

    Only the writer makes one, after it committed. A guard cannot be changed, copied or pickled:
    it dies with its process, and who comes after a crash reserves an authorized retry. It may
    be used through any connection to the same root.

    Attributes:
        attempt_id: The attempt.
        slot_id: Its execution slot.
        retry_index: Its number in the slot, from 0.
        phase: Its phase at this revision.
        revision: The revision that this guard is good for.
        changed_at_ns: The time of that revision's transition.
        expires_at_ns: The reservation's expiration when the guard was made.
    """

    __slots__ = (
        "_lease_id",
        "_owner_token",
        "attempt_id",
        "changed_at_ns",
        "expires_at_ns",
        "phase",
        "retry_index",
        "revision",
        "slot_id",
    )

    attempt_id: str
    slot_id: str
    retry_index: int
    phase: Phase
    revision: int
    changed_at_ns: int
    expires_at_ns: int
    _lease_id: str
    _owner_token: str

    def __init__(self, seal: object, /, **facts: object) -> None:
        if seal is not _SEAL:
            raise TypeError(
                "OwnedAttempt cannot be made by hand; reserve an attempt, or advance one."
            )
        for name, fact in facts.items():
            object.__setattr__(self, name, fact)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name}: a guard cannot be changed; use the one returned last.")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{name}: a guard cannot be changed; use the one returned last.")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "OwnedAttempt cannot be copied or pickled; it dies with its process. "
            "Reserve an authorized retry instead."
        )

    def __repr__(self) -> str:
        return (
            f"<OwnedAttempt attempt_id={self.attempt_id!r} retry_index={self.retry_index} "
            f"phase={self.phase.value!r} revision={self.revision}>"
        )


def issue(
    *,
    attempt_id: str,
    slot_id: str,
    retry_index: int,
    phase: Phase,
    revision: int,
    changed_at_ns: int,
    expires_at_ns: int,
    lease_id: str,
    owner_token: str,
) -> OwnedAttempt:
    """
    Make a guard; for the writer, once the transaction that it stands for is committed.
    """
    return OwnedAttempt(
        _SEAL,
        attempt_id=attempt_id,
        slot_id=slot_id,
        retry_index=retry_index,
        phase=phase,
        revision=revision,
        changed_at_ns=changed_at_ns,
        expires_at_ns=expires_at_ns,
        _lease_id=lease_id,
        _owner_token=owner_token,
    )


def credentials(attempt: OwnedAttempt) -> tuple[str, str]:
    """
    Return the reservation's lease id and owner token that *attempt* carries; for the writer.

    Raises: TypeError: *attempt* is not a guard.
    """
    if type(attempt) is not OwnedAttempt:
        raise TypeError(f"attempt={attempt!r} must be the guard that the store returned.")
    return attempt._lease_id, attempt._owner_token
