"""
The phases of an attempt and the edges between them.
"""

from enum import StrEnum
from typing import Final

__all__ = ["LEGAL_EDGES", "TERMINAL_PHASES", "Phase"]


class Phase(StrEnum):
    """
    Where an attempt stands.
    """

    RESERVED = "reserved"
    MATERIALIZING = "materializing"
    STARTING = "starting"
    PREPARING = "preparing"
    EXECUTING = "executing"
    CHECKPOINTING = "checkpointing"
    VALIDATING = "validating"
    EVALUATING = "evaluating"
    FINALIZING = "finalizing"
    ACCEPTED = "accepted"
    CENSORED = "censored"
    SUPERSEDED = "superseded"
    FAILED = "failed"


TERMINAL_PHASES: Final = frozenset({Phase.ACCEPTED, Phase.CENSORED, Phase.SUPERSEDED, Phase.FAILED})

LEGAL_EDGES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.RESERVED: frozenset({Phase.MATERIALIZING, Phase.FINALIZING}),
    Phase.MATERIALIZING: frozenset({Phase.STARTING, Phase.FINALIZING}),
    Phase.STARTING: frozenset({Phase.PREPARING, Phase.FINALIZING}),
    Phase.PREPARING: frozenset({Phase.EXECUTING, Phase.FINALIZING}),
    Phase.EXECUTING: frozenset({Phase.CHECKPOINTING, Phase.VALIDATING, Phase.FINALIZING}),
    Phase.CHECKPOINTING: frozenset({Phase.VALIDATING, Phase.FINALIZING}),
    Phase.VALIDATING: frozenset({Phase.EVALUATING, Phase.FINALIZING}),
    Phase.EVALUATING: frozenset({Phase.EXECUTING, Phase.FINALIZING}),
    Phase.FINALIZING: TERMINAL_PHASES,
    **{phase: frozenset() for phase in sorted(TERMINAL_PHASES)},
}
"""Every edge of the state machine; the schema holds the same ones."""
