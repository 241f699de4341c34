"""The blackboard: one event of each kind, refused ones, and what the log says in between."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import apsw

from campaigns.metabolism.base import _MetabolismCampaign, as_json, assert_claim
from harness import Run
from store.metabolism import ClaimEvent, append_claim_event
from store.metabolism.errors import NotAnAssertion, UnknownClaimEventKind

INVALIDATING = ("claim_contradicted", "claim_expired", "claim_superseded")


class Blackboard(_MetabolismCampaign):
    """Assert four claims, invalidate three in each way, and one by an event that names nothing."""

    def _work(self, connection: apsw.Connection, root: Path, run: Run) -> None:
        claims = [
            run.step(f"assert {n}", partial(assert_claim, connection, run, f"claim {n}"))
            for n in range(4)
        ]
        append = partial(self._append, connection, run)
        for kind, claim in zip(INVALIDATING, claims, strict=False):
            run.step(f"{kind} {claim.claim_id}", partial(append, kind, claim.event_id))
        run.step("contradict nothing", partial(append, "claim_contradicted", None))
        run.step("contradict again", partial(append, "claim_contradicted", claims[0].event_id))
        for label, kind, points_at, reason in (
            ("unknown kind", "claim_doubted", None, UnknownClaimEventKind),
            ("no such assertion", "claim_expired", 99, NotAnAssertion),
            ("what is no assertion", "claim_expired", 5, NotAnAssertion),
        ):
            run.step(f"{label} is refused", partial(append, kind, points_at), raises=reason)

    def _append(
        self, connection: apsw.Connection, run: Run, kind: str, assertion_id: int | None
    ) -> ClaimEvent:
        facts: dict[str, Any] = {
            "kind": kind,
            "claim_id": "doubt",
            "subject": "s",
            "predicate": "p",
            "object": "\u00e9 o",
            "assertion_id": assertion_id,
        }
        event = append_claim_event(connection, payload={"why": kind}, now_ns=run.clock(), **facts)
        asked = {**facts, "payload_json": as_json({"why": kind})}
        run.promise("appended", event={**event._asdict(), **asked})
        return event
