"""What every campaign over the run store has in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from campaigns.run_store import invariants
from campaigns.run_store.observation import observe
from campaigns.run_store.records import SLOT
from harness import JSON, Campaign, Check, Evidence, Observer, Run
from store import crash_points
from store.run_store import FirstAttempt, LeaseRequest, OwnedAttempt, Phase, Retry, RunStore
from store.run_store.ownership_refusals import RetryIndexMismatch, RetryNotAuthorized

LEASE_NS = 60 * 10**9
"""How long a lease of these campaigns lives, in nanoseconds."""

TO_FINALIZING = (
    Phase.MATERIALIZING,
    Phase.STARTING,
    Phase.PREPARING,
    Phase.EXECUTING,
    Phase.VALIDATING,
    Phase.EVALUATING,
    Phase.FINALIZING,
)
"""The shortest whole path from a reservation to finalizing."""


class _RunStoreCampaign(Campaign):
    """
    A run store that is reopened after a crash, observed as all its tables, held to all invariants.

    A client resumes as its guards demand, which died with the process: it registers again and
    reserves the next retry, explicitly authorized, although the former attempt may be active.
    """

    invariants: ClassVar[tuple[str, ...]] = invariants.NAMES

    def attach(self, observer: Observer) -> None:
        crash_points._observer = observer

    def recover(self, root: Path, run: Run) -> None:
        RunStore.open(root).close()

    def observe(self, root: Path) -> JSON:
        return observe(root)

    def check(self, root: Path, evidence: Evidence) -> Iterator[Check]:
        yield from invariants.all_of(root, evidence)

    def promised_reserved(self, root: Path, evidence: Evidence, *, attempt_id: str) -> bool:
        """A reservation that returned has its attempt and its lease."""
        leased = [x for x in evidence.observed["leases"] if x["attempt_id"] == attempt_id]
        known = [x for x in evidence.observed["attempts"] if x["attempt_id"] == attempt_id]
        return len(known) == 1 and "reservation" in [x["purpose"] for x in leased]

    def promised_reached(
        self, root: Path, evidence: Evidence, *, attempt_id: str, revision: int, state: str
    ) -> bool:
        """A transition that returned stands in the history for ever."""
        return any(
            (row["attempt_id"], row["revision"], row["to_state"]) == (attempt_id, revision, state)
            for row in evidence.observed["attempt_transitions"]
        )


def lease(run: Run, owner: str = "owner") -> LeaseRequest:
    """Return a request for a lease of its own name that lives LEASE_NS from now."""
    return LeaseRequest(run.identifier("lease"), owner, run.now_ns + LEASE_NS)


def retry_to_finalizing(store: RunStore, run: Run, next_index: int) -> OwnedAttempt:
    """
    Reserve exactly the retry *next_index* and walk it to finalizing, promising each transition.

    The index cannot be taken twice, and a first attempt is not to be had once there is one.
    """
    authorization = Retry(next_index=next_index, max_index=next_index)
    guard = store.reserve(SLOT.slot_id, authorization, lease(run, "resumer"), run.clock())
    run.promise("reserved", attempt_id=guard.attempt_id)
    for refused, reason in (
        (authorization, RetryIndexMismatch),
        (FirstAttempt(), RetryNotAuthorized),
    ):
        try:
            store.reserve(SLOT.slot_id, refused, lease(run, "greedy"), run.clock())
        except reason:
            continue
        raise AssertionError(f"{refused} was granted although retry {next_index} is taken")
    for phase in TO_FINALIZING:
        guard = store.advance(guard, phase, run.clock())
        run.promise(
            "reached", attempt_id=guard.attempt_id, revision=guard.revision, state=phase.value
        )
    return guard


def is_resumed(evidence: Evidence) -> bool:
    """Say whether the newest retry of the slot stands in finalizing."""
    attempts = [x for x in evidence.observed["attempts"] if x["slot_id"] == SLOT.slot_id]
    newest = max(attempts, key=lambda row: int(row["retry_index"]))
    return bool(newest["state"] == "finalizing")
