"""
What a reconciliation says, and what it does not.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CLAIM_CEILING", "ORGAN_ID", "SCOPE_BOUNDARIES", "UNSEEN_LOSS"]

ORGAN_ID: Final = "engine_room_metabolism_runtime"
"""The name under which records of this runtime are published."""

CLAIM_CEILING: Final = (
    "Fixed rules were applied to the rows of one local database and to the times of the launch "
    "logs that it names. The same state gives the same answer again; nothing is said about the "
    "work that the jobs stand for, nor about any other runtime."
)
"""The most that may be concluded from a result."""

UNSEEN_LOSS: Final = (
    "Cannot tell what a -wal held that was lost or cut together with its -shm: the newest commits "
    "are missing then, each wholly, and what is left contradicts nothing."
)
"""What is lost without a trace."""

SCOPE_BOUNDARIES: Final = (
    "Looks at claimed and running jobs and at the newest run of each; at no other job.",
    "Judges a launch log by its presence and its time of writing, never by its content.",
    UNSEEN_LOSS,
    "Writes nothing and repairs nothing: each finding waits for an operator.",
    "Starts no worker, calls no provider, and sees no process that is alive.",
    "One database on one host; says nothing about distributed databases.",
    "Made for databases of this runtime; knows no other runtime's private records.",
)
"""What a result leaves out, a sentence each."""
