"""
The root of what the stores raise on purpose.
"""

from __future__ import annotations

__all__ = ["StoreError"]


class StoreError(Exception):
    """
    An error that keeps its facts as attributes and survives pickling with them.

    So a worker process can hand it to its parent. A subclass may take any arguments: pickling
    copies the message and the attributes instead of calling the constructor again.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (type(self), self.args, dict(self.__dict__))


def _restored(
    kind: type[StoreError], args: tuple[object, ...], facts: dict[str, object]
) -> StoreError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error
