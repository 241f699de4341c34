"""
What an owner asks for: which attempt it may reserve, and the lease that proves it.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from store.run_store.identity import check_retry_index
from store.run_store.refusals import (
    MalformedAuthorization,
    MalformedToken,
    TimestampOutOfRange,
)

__all__ = [
    "TIMESTAMP_NS_MAX",
    "Authorization",
    "FirstAttempt",
    "LeaseRequest",
    "Next",
    "Retry",
    "check_authorization",
    "check_lease_request",
    "check_timestamp",
]

TIMESTAMP_NS_MAX = 2**63 - 1
"""Latest time that SQLite's integers hold, in nanoseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class FirstAttempt:
    """
    Allow retry index 0 only.
    """


@dataclass(frozen=True, slots=True)
class Next:
    """
    Allow whatever index comes next when the write lock is held.

    Attributes:
        retry: False allows a first attempt only, True any further candidate as well.
    """

    retry: bool


@dataclass(frozen=True, slots=True)
class Retry:
    """
    Allow exactly one index.

    Attributes:
        next_index: The index that must come next, from 0.
        max_index: The largest index allowed, inclusive.
    """

    next_index: int
    max_index: int


Authorization: TypeAlias = FirstAttempt | Next | Retry


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """
    A lease that the caller wants.

    Attributes:
        lease_id: Fencing token, never used before in this store.
        owner_token: The owner's private token; not shown by repr.
        expires_at_ns: Expiration, exclusive, in nanoseconds since the Unix epoch.
    """

    lease_id: str
    owner_token: str = field(repr=False)
    expires_at_ns: int


def check_timestamp(name: str, value: object) -> int:
    """
    Return *value* if it is a time that the store holds.

    Raises: TimestampOutOfRange: not an int in [0, 2**63-1].
    """
    if type(value) is not int or not 0 <= value <= TIMESTAMP_NS_MAX:
        raise TimestampOutOfRange(name, value)
    return value


def check_lease_request(lease: LeaseRequest) -> None:
    """
    Check that a lease's tokens are text and that its expiration is a time.

    Raises:
        MalformedToken: a token is empty, or holds what SQLite's text cannot carry faithfully.
        TimestampOutOfRange: the expiration is no time.
    """
    _check_token("lease_id", lease.lease_id)
    _check_token("owner_token", lease.owner_token)
    check_timestamp("expires_at_ns", lease.expires_at_ns)


def check_authorization(authorization: object) -> None:
    """
    Check that *authorization* is one of the three forms, with indices in range.

    Raises:
        MalformedAuthorization: it is none of them, or `retry` is no bool.
        RetryIndexOutOfRange: an index does not fit canonical JSON.
    """
    match authorization:
        case FirstAttempt() | Next(retry=True | False):
            pass
        case Retry(next_index=next_index, max_index=max_index):
            check_retry_index("next_index", next_index)
            check_retry_index("max_index", max_index)
        case _:
            raise MalformedAuthorization(authorization)


def _check_token(name: str, token: object) -> None:
    if type(token) is not str or token == "" or "\0" in token:
        raise MalformedToken(name)
    try:
        token.encode("utf-8")
    except UnicodeEncodeError:
        raise MalformedToken(name) from None
