"""The run store as it is survives its campaigns, and they meet every kind and invariant."""

from __future__ import annotations

import pytest
from surviving import names, survived

from campaigns.run_store import invariants

CAMPAIGNS = (
    "initialization:EmptyDatabase",
    "initialization:FirstOpen",
    "initialization:LeftoverProbe",
    "lease_renewal:LeaseRenewal",
    "neighbour:Neighbour",
    "transitions:EarlyFinalizing",
    "transitions:Transitions",
)

KINDS = {"sql", "file_sync", "directory_sync", "rename", "point", "write"}

NOT_EXERCISED = {invariants.LIVE_CLAIM}
"""What a campaign without a claim says nothing about; `LeaseRenewal` has one."""


def test_campaigns_are_these() -> None:
    """No campaign of the run store is missing from the list that is run here."""
    assert list(CAMPAIGNS) == names("run_store")


@pytest.mark.slow
@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_store_survives_its_campaign(campaign: str) -> None:
    """Boundaries all over it are survived, each kind is met, each invariant has subjects."""
    idle = survived(f"campaigns.run_store.{campaign}", KINDS)
    claimed = {invariants.LIVE_CLAIM} if campaign.startswith("lease_renewal") else set()
    assert idle <= NOT_EXERCISED - claimed
