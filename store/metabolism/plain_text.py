"""
Text for a terminal: what comes from a database made safe, and counts in words.
"""

from __future__ import annotations

__all__ = ["counted", "printable"]


def printable(text: str, *, size_max: int | None = None) -> str:
    """
    Return *text* on one line, with everything escaped that a terminal might obey.

    Args:
        size_max: How many characters of it are shown; None for all.

    >>> printable("a\\x1b[2Jb"), printable("k" * 9, size_max=4)
    ('a\\\\x1b[2Jb', 'kkkk... (9 characters)')
    """
    cut = text if size_max is None else text[:size_max]
    if not cut.isprintable():
        cut = "".join(c if c.isprintable() else _escaped(c) for c in cut)
    return (
        cut if size_max is None or len(text) <= size_max else f"{cut}... ({len(text)} characters)"
    )


def counted(count: int, noun: str) -> str:
    """
    Return a count with its noun.

    >>> counted(1, "job"), counted(2, "job")
    ('1 job', '2 jobs')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
