"""
Crash-conformance harness for durable stores.

A store's user writes a :class:`Campaign`; the command ``crashconform`` kills the store at every
numbered boundary, reopens it, recovers it, and judges it against what it had acknowledged.
"""

from importlib import import_module

TYPE_CHECKING = False  # as in typing, whose import would only make the command start later
if TYPE_CHECKING:
    from harness.campaign import (
        ANYTHING,
        JSON,
        OBSERVED,
        UNCHANGED,
        Campaign,
        Check,
        Evidence,
        Expectation,
        Observer,
    )
    from harness.run import Run
    from harness.trace import Effect, Promise

__all__ = [
    "ANYTHING",
    "JSON",
    "OBSERVED",
    "UNCHANGED",
    "Campaign",
    "Check",
    "Effect",
    "Evidence",
    "Expectation",
    "Observer",
    "Promise",
    "Run",
]

_HOMES = {"Run": "harness.run", "Effect": "harness.trace", "Promise": "harness.trace"}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for: every pytest run imports this package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES.get(name, "harness.campaign")), name)
    globals()[name] = value
    return value
