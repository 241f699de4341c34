"""The planner's records that campaigns over the run store register."""

from __future__ import annotations

from store.run_store import AttemptSlot, Candidate, ObservationSlot, ResolvedRun

CANDIDATE = Candidate.of(candidate={"name": "baseline"}, evidence={"checked": True})
RUN = ResolvedRun.of(
    candidate=CANDIDATE, logical={"name": "one shot"}, resolution={"image": "pinned"}
)
SLOT = AttemptSlot.of(run=RUN, logical={"execution": 1}, control={"seed": 7})
OBSERVATION = ObservationSlot.of(run=RUN, logical={"result": 1}, control={"metric": "loss"})
ONE_SHOT = (CANDIDATE, RUN, SLOT, OBSERVATION)
"""The arguments of ``RunStore.register_one_shot``."""
