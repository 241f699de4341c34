"""The metabolism runtime as it is survives its campaigns, and they meet every invariant."""

from __future__ import annotations

import pytest
from surviving import names, survived

from campaigns.metabolism import invariants

IDLE: dict[str, set[str]] = {
    "blackboard:Blackboard": {
        invariants.ONE_ACTIVE_KEY,
        invariants.REPORTED,
        invariants.REQUEUED,
    },
    "claiming:Claiming": {invariants.REPORTED},
    "draining:Draining": {invariants.REPORTED},
    "enqueueing:Enqueueing": {invariants.REPORTED, invariants.REQUEUED},
    "launch_logs:CutLine": set(),
    "launch_logs:LaunchLogs": set(),
    "requeueing:Requeueing": set(),
    "requeueing:RequeueingAtStart": set(),
    "requeueing:Unopened": set(),
    "running:Running": set(),
    "running:TooLate": {invariants.REPORTED},
    "storage:EmptyDatabase": set(),
    "storage:FirstOpen": set(),
}
"""Campaign -> the invariants of `invariants.NAMES` that nothing in it is a subject of."""

OPENING = {"storage:EmptyDatabase", "storage:FirstOpen"}
"""The campaigns that promise less: only what an empty runtime is a subject of."""

KINDS = {
    "storage:EmptyDatabase": {"directory_sync"},
    "storage:FirstOpen": {"directory_sync"},
    "launch_logs:CutLine": {"file_sync", "write"},
    "launch_logs:LaunchLogs": {"directory_sync", "file_sync", "write"},
}
"""Campaign -> what its trace holds besides statements; without it, statements are all there is."""


def test_campaigns_are_these() -> None:
    """No campaign of the runtime is missing from the list that is run here."""
    assert list(IDLE) == names("metabolism")


def test_every_invariant_is_exercised() -> None:
    """Each invariant has subjects in some campaign that declares all of them."""
    idle = [names for campaign, names in IDLE.items() if campaign not in OPENING]
    assert set.intersection(*idle) == set()


@pytest.mark.slow
@pytest.mark.parametrize("campaign", IDLE)
def test_runtime_survives_its_campaign(campaign: str) -> None:
    """Boundaries all over it are survived, and just these invariants have no subject."""
    kinds = {"sql", "step", "end", *KINDS.get(campaign, ())}
    assert survived(f"campaigns.metabolism.{campaign}", kinds) == IDLE[campaign]
