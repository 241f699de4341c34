"""Running one campaign of a store, and what must come of it, whichever store it is."""

from __future__ import annotations

from pathlib import Path

from harness.client import ZygoteClient
from harness.discovery import Found
from harness.runner import Options, Result, run_campaign
from harness.verdict import Verdict
from harness.workdir import Workdir

REPOSITORY = Path(__file__).parents[2]
OPTIONS = Options(is_representative=True, shard=(1, 5), import_path=(REPOSITORY,))
"""A fifth of the subset: pytest collects every boundary of it from `campaigns` itself."""


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


def names(folder: str) -> list[str]:
    """Return ``module:Class`` of every campaign below ``campaigns.<folder>``, sorted."""
    campaigns = found(f"campaigns.{folder}")
    return sorted(f"{Path(one.path).stem}:{one.class_name}" for one in campaigns)


def survived(target: str, kinds: set[str]) -> set[str]:
    """
    Crash a campaign at boundaries all over it, and return the invariants that had no subject.

    Asserts that every one was survived, and that *kinds* of boundaries are in its trace.
    """
    [one] = found(target)
    with Workdir.choose(None, 2) as workdir:
        result = run_campaign(one, workdir, OPTIONS, _Silence())
    assert result.recording is not None, result.problem
    assert (result.problem, result.findings, result.exit_code) == (None, [], 0)
    assert result.chosen == [verdict.boundary for verdict in result.verdicts]
    assert kinds <= {boundary.kind for boundary in result.recording.boundaries}
    return {name for name, count in result.subjects.items() if not count}
