"""The run store as it is survives its campaigns, and they meet every kind and invariant."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns.run_store import invariants
from harness.client import ZygoteClient
from harness.discovery import Found
from harness.runner import Options, Result, run_campaign
from harness.verdict import Verdict
from harness.workdir import Workdir

REPOSITORY = Path(__file__).parents[2]
OPTIONS = Options(is_representative=True, shard=(1, 5), import_path=(REPOSITORY,))
"""A fifth of the subset: pytest collects every boundary of it from `campaigns` itself."""

CAMPAIGNS = (
    "initialization:EmptyDatabase",
    "initialization:FirstOpen",
    "initialization:LeftoverProbe",
    "lease_renewal:LeaseRenewal",
    "neighbour:Neighbour",
    "transitions:EarlyFinalizing",
    "transitions:Transitions",
)

NOT_EXERCISED = {invariants.LIVE_CLAIM}
"""What a campaign without a claim says nothing about; `LeaseRenewal` has one."""


class _Silence:
    """A listener that says nothing."""

    def started(self, found: Found) -> None: ...

    def exploring(self, result: Result) -> None: ...

    def judged(self, result: Result, verdict: Verdict) -> None: ...

    def finished(self, result: Result) -> None: ...


def found(target: str) -> list[Found]:
    """Return the campaigns that a target names."""
    with ZygoteClient((REPOSITORY,)) as finder:
        return list(finder.list([target], REPOSITORY))


def test_campaigns_are_these() -> None:
    """No campaign of the run store is missing from the list that is run here."""
    names = [f"{Path(one.path).stem}:{one.class_name}" for one in found("campaigns.run_store")]
    assert list(CAMPAIGNS) == sorted(names)


@pytest.mark.slow
@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_store_survives_its_campaign(campaign: str) -> None:
    """Boundaries all over it are survived, each kind is met, each invariant has subjects."""
    [one] = found(f"campaigns.run_store.{campaign}")
    with Workdir.choose(None, 2) as workdir:
        result = run_campaign(one, workdir, OPTIONS, _Silence())
    assert result.recording is not None, result.problem
    assert (result.problem, result.findings, result.exit_code) == (None, [], 0)
    assert result.chosen == [verdict.boundary for verdict in result.verdicts]
    kinds = {boundary.kind for boundary in result.recording.boundaries}
    assert {"sql", "file_sync", "directory_sync", "rename", "point", "write"} <= kinds
    claimed = {invariants.LIVE_CLAIM} if campaign.startswith("lease_renewal") else set()
    idle = {name for name, count in result.subjects.items() if not count}
    assert idle <= NOT_EXERCISED - claimed
