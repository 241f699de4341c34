"""
Moments and durations in words for people, and read from what they type.

Inside, a moment is an integer of nanoseconds since 1970 (UTC). What a database says may be any
integer of 64 bits, so that every one of them has words.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

__all__ = ["NS_MAX", "NS_MIN", "duration_text", "moment_text", "parse_moment", "parse_seconds"]

NS_MAX: Final = 2**63 - 1
"""The last moment, and the longest duration, that the database can hold."""

NS_MIN: Final = 10**17
"""The smallest count of nanoseconds that is read as a moment, in 1973: less is another unit."""

_SECOND: Final = 10**9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_COARSER: Final = ((10**11, "seconds", 10**9), (10**14, "milliseconds", 10**6))
_FRACTIONS: Final = ((10**6, "ms"), (10**3, "us"))


def duration_text(ns: int) -> str:
    """
    Return a duration in its two largest units, rounded down.

    >>> duration_text(1_200 * 10**9), duration_text(93_784 * 10**9), duration_text(1_500_000)
    ('20 min', '1 d 2 h', '1 ms')
    """
    if ns < 0:
        return f"-{duration_text(-ns)}"
    if ns < _SECOND:
        for size, unit in _FRACTIONS:
            if ns >= size:
                return f"{ns // size} {unit}"
        return f"{ns} ns" if ns else "0 s"
    seconds = ns // _SECOND
    first = next(at for at, (size, _) in enumerate(_UNITS) if seconds >= size)
    parts = []
    for size, unit in _UNITS[first : first + 2]:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts)


def moment_text(ns: int) -> str:
    """
    Return a moment in ISO 8601, UTC, to the second.

    >>> moment_text(1_700_000_000 * 10**9), moment_text(2**63 - 1)
    ('2023-11-14T22:13:20Z', '2262-04-11T23:47:16Z')
    """
    moment = _EPOCH + timedelta(seconds=ns // _SECOND)  # 64 bits span the years 1677 to 2262
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_moment(text: str) -> int:
    """
    Return the nanoseconds that *text* names: a count of them, or an ISO 8601 date and time.

    A time without a zone is one of UTC.

    Raises: ValueError: it is neither, lies outside 1970 to 2262, or counts another unit, as
        ``date +%s`` does; says what was expected.
    """
    wanted = "expected nanoseconds since 1970, or a time like 2026-01-31T12:00:00Z"
    given = text.strip()
    if given.isascii() and given.isdigit():
        ns = int(given) if len(given) <= len(str(NS_MAX)) else NS_MAX + 1
        if ns < NS_MIN:
            raise ValueError(f"{text!r} is no count of nanoseconds; {_likely(ns)}; {wanted}.")
    else:
        try:
            moment = datetime.fromisoformat(given)
        except ValueError as error:
            raise ValueError(f"{text!r} is no moment; {wanted}.") from error
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        ns = (aware - _EPOCH) // timedelta(microseconds=1) * 1_000
    if not 0 <= ns <= NS_MAX:
        raise ValueError(f"{text!r} lies outside the years 1970 to 2262; {wanted}.")
    return ns


def _likely(count: int) -> str:
    """Say which unit a count is likely of that is too small for nanoseconds."""
    unit, size = next(
        ((unit, size) for least, unit, size in _COARSER if count < least), ("microseconds", 10**3)
    )
    meant = count * size
    return f"it looks like {unit}, which would be {meant}, that is {moment_text(meant)}"


def parse_seconds(text: str) -> int:
    """
    Return the nanoseconds of a duration that is given in seconds, as in ``0.5``.

    Raises: ValueError: it is no number, negative, or longer than 292 years.
    """
    try:
        seconds = Decimal(text.strip())
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no number of seconds.") from error
    if not seconds.is_finite() or not 0 <= seconds <= Decimal(NS_MAX) / _SECOND:
        raise ValueError(f"{text!r} must be a number of seconds from 0 to {NS_MAX // _SECOND}.")
    return int(seconds * _SECOND)
