"""Renewal of a reservation together with the leases that hang on it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import apsw

from campaigns.run_store.base import (
    LEASE_NS,
    _RunStoreCampaign,
    is_resumed,
    lease,
    retry_to_finalizing,
)
from campaigns.run_store.records import ONE_SHOT, SLOT
from harness import Evidence, Run
from store.run_store import FirstAttempt, OwnedAttempt, Phase, RunStore, layout
from store.run_store.ownership_refusals import LeaseExpired, ShortenedLease

_LEASE_BY_HAND = "INSERT INTO leases VALUES (?, 'owner', ?, ?, ?, ?, NULL, ?)"
_CLAIM_BY_HAND = "INSERT INTO finalization_claims (slot_id, attempt_id, lease_id) VALUES (?, ?, ?)"


class LeaseRenewal(_RunStoreCampaign):
    """
    Renew while executing, then with a live and an expired staging lease and an owned claim.

    Staging leases and the claim are written as rows: the operations that make them come with
    publication and finalization.
    """

    def prepare(self, root: Path, run: Run) -> None:
        with RunStore.open(root) as store:
            store.register_one_shot(*ONE_SHOT)

    def execute(self, root: Path, run: Run) -> None:
        with RunStore.open(root) as store:
            guard = run.step(
                "reserve",
                lambda: store.reserve(SLOT.slot_id, FirstAttempt(), lease(run), run.clock()),
            )
            run.promise("reserved", attempt_id=guard.attempt_id)
            guard = self._renew(store, run, guard, "at once")
            run.step(
                "shorter lease is refused",
                partial(store.renew, guard, guard.expires_at_ns - 1, run.clock()),
                raises=ShortenedLease,
            )
            run.step(
                "expired lease cannot advance",
                partial(store.advance, guard, Phase.MATERIALIZING, guard.expires_at_ns),
                raises=LeaseExpired,
            )
            guard = run.step(
                "finalizing",
                partial(store.advance, guard, Phase.FINALIZING, run.clock()),
            )
            run.step("stage and claim", lambda: self._stage_and_claim(root, run, guard))
            run.sleep(LEASE_NS / 2 / 1e9)
            guard = self._renew(store, run, guard, "with its stages and claim")
            run.sleep((guard.expires_at_ns - run.now_ns) / 1e9)
            run.step(
                "expired lease cannot be renewed",
                lambda: store.renew(guard, guard.expires_at_ns + LEASE_NS, guard.expires_at_ns),
                raises=LeaseExpired,
            )

    def _renew(self, store: RunStore, run: Run, guard: OwnedAttempt, when: str) -> OwnedAttempt:
        until = run.now_ns + LEASE_NS
        renewed = run.step(f"renew {when}", lambda: store.renew(guard, until, run.clock()))
        run.promise("leased", attempt_id=guard.attempt_id, until=until)
        return renewed

    def _stage_and_claim(self, root: Path, run: Run, guard: OwnedAttempt) -> None:
        """Give the attempt a stage that outlives the next renewal, one that does not, a claim."""
        now = run.clock()
        connection = apsw.Connection(str(layout.database_path(root)))
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE")
            for name, purpose, life_ns, path in (
                ("live-stage", "staging", LEASE_NS, "artifacts/.staging-live"),
                ("dead-stage", "staging", LEASE_NS // 4, "artifacts/.staging-dead"),
                ("claim", "finalization", LEASE_NS, None),
            ):
                row = (name, guard.attempt_id, purpose, now, now + life_ns, path)
                connection.execute(_LEASE_BY_HAND, row)
            connection.execute(_CLAIM_BY_HAND, (SLOT.slot_id, guard.attempt_id, "claim"))
            connection.execute("COMMIT")
        finally:
            connection.close()

    def promised_leased(
        self, root: Path, evidence: Evidence, *, attempt_id: str, until: int
    ) -> bool:
        """
        A renewal that returned holds until its time comes, for every lease that was live.

        The stage that had expired before the second renewal is left for recovery.
        """
        if evidence.now_ns >= until:
            return True
        expirations = {
            row["lease_id"]: row["expires_at_ns"]
            for row in evidence.observed["leases"]
            if row["attempt_id"] == attempt_id and row["lease_id"] != "dead-stage"
        }
        return bool(expirations) and min(expirations.values()) >= until

    def resume(self, root: Path, run: Run) -> None:
        assert run.past is not None
        with RunStore.open(root) as store:
            retry_to_finalizing(store, run, len(run.past.observed["attempts"]))

    def complete(self, root: Path, evidence: Evidence) -> bool:
        return is_resumed(evidence)
