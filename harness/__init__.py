"""
Crash-conformance harness for durable stores.

A store's user writes a :class:`Campaign`; the command ``crashconform`` kills the store at every
numbered boundary, reopens it, recovers it, and judges it against what it had acknowledged.
"""

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
