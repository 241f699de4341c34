"""Registration, reservation and every edge of an attempt's state machine up to finalizing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from campaigns.run_store.base import (
    TO_FINALIZING,
    _RunStoreCampaign,
    is_resumed,
    lease,
    retry_to_finalizing,
)
from campaigns.run_store.records import ONE_SHOT, SLOT
from harness import Evidence, Run
from store.run_store import FirstAttempt, Next, OwnedAttempt, Phase, Retry, RunStore
from store.run_store.ownership_refusals import RetryNotAuthorized, StaleRevision

WHOLE_WALK = (
    Phase.MATERIALIZING,
    Phase.STARTING,
    Phase.PREPARING,
    Phase.EXECUTING,
    Phase.CHECKPOINTING,
    Phase.VALIDATING,
    Phase.EVALUATING,
    Phase.EXECUTING,
    Phase.VALIDATING,
    Phase.EVALUATING,
    Phase.FINALIZING,
)
"""Every edge between execution phases, the way back to executing included."""

EARLY_ENDS = (
    (),
    TO_FINALIZING[:1],
    TO_FINALIZING[:2],
    TO_FINALIZING[:3],
    TO_FINALIZING[:4],
    (*TO_FINALIZING[:4], Phase.CHECKPOINTING),
    TO_FINALIZING[:5],
)
"""Walks that end in finalizing early, one from each phase that WHOLE_WALK leaves otherwise."""


class _Walk(_RunStoreCampaign):
    """Attempts that are walked; a crash is followed by an authorized retry."""

    def reserve(
        self, store: RunStore, run: Run, label: str, authorization: FirstAttempt | Next | Retry
    ) -> OwnedAttempt:
        """Reserve as one step, and promise it."""
        guard = run.step(
            f"reserve {label}",
            lambda: store.reserve(SLOT.slot_id, authorization, lease(run), run.clock()),
        )
        run.promise("reserved", attempt_id=guard.attempt_id)
        return guard

    def walk(
        self, store: RunStore, run: Run, guard: OwnedAttempt, phases: tuple[Phase, ...]
    ) -> OwnedAttempt:
        """Advance through phases, each a step."""
        for phase in phases:
            guard = run.step(
                f"retry {guard.retry_index} revision {guard.revision + 1} {phase.value}",
                partial(store.advance, guard, phase, run.clock()),
            )
        return guard

    def resume(self, root: Path, run: Run) -> None:
        assert run.past is not None
        with RunStore.open(root) as store:
            store.register_one_shot(*ONE_SHOT)
            retry_to_finalizing(store, run, len(run.past.observed["attempts"]))

    def complete(self, root: Path, evidence: Evidence) -> bool:
        return is_resumed(evidence)


class Transitions(_Walk):
    """Register, reserve, the whole walk, a retry that overlaps it, and two refusals."""

    def prepare(self, root: Path, run: Run) -> None:
        RunStore.open(root).close()

    def execute(self, root: Path, run: Run) -> None:
        with RunStore.open(root) as store:
            run.step("register", lambda: store.register_one_shot(*ONE_SHOT))
            first = self.reserve(store, run, "the first attempt", FirstAttempt())
            executing = self.walk(store, run, first, WHOLE_WALK[:5])
            run.step(
                "stale guard is refused",
                lambda: store.advance(first, Phase.FINALIZING, run.clock()),
                raises=StaleRevision,
            )
            run.step(
                "second first attempt is refused",
                lambda: store.reserve(SLOT.slot_id, Next(retry=False), lease(run), run.clock()),
                raises=RetryNotAuthorized,
            )
            retry = self.reserve(
                store, run, "an overlapping retry", Retry(next_index=1, max_index=1)
            )
            self.walk(store, run, retry, (Phase.MATERIALIZING,))
            self.walk(store, run, executing, WHOLE_WALK[5:])


class EarlyFinalizing(_Walk):
    """Retries that enter finalizing from every phase that may."""

    def prepare(self, root: Path, run: Run) -> None:
        with RunStore.open(root) as store:
            store.register_one_shot(*ONE_SHOT)

    def execute(self, root: Path, run: Run) -> None:
        with RunStore.open(root) as store:
            for number, phases in enumerate(EARLY_ENDS):
                guard = self.reserve(store, run, f"retry {number}", Next(retry=True))
                self.walk(store, run, guard, (*phases, Phase.FINALIZING))
