"""Mistakes in the metabolism runtime that need no crash: its campaigns refuse each at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from twins.exploring import explored
from twins.twin import Patch, plant

from harness.errors import ConfigurationError

_BLACKBOARD = "store/metabolism/blackboard.py"
_FINDING = "store/metabolism/reconciliation/finding.py"
_LOGS = "store/metabolism/launch_log.py"
_QUEUE = "store/metabolism/queue.py"
_RUNS = "store/metabolism/runs.py"
_WALK = "store/metabolism/reconciliation/walk.py"

MISTAKES: dict[str, tuple[str, str, Patch]] = {
    # Mistake: the campaign that refuses it, what that names, and how it is made.
    "a lease lapses at its last moment": (
        "requeueing:Requeueing",
        "I1-09 lapsed leases are given back",
        Patch(_QUEUE, "claim_expires_at_ns < ? AND ifnull", "claim_expires_at_ns <= ? AND ifnull"),
    ),
    "an older claim renews the lease of a newer": (
        "claiming:Claiming",
        "stale claim cannot be renewed",
        Patch(_QUEUE, ' AND attempts = ?"""', ' AND attempts >= ?"""'),
    ),
    "the lease of an ended job is renewed": (
        "claiming:Claiming",
        "claim of an ended job cannot be renewed",
        Patch(_QUEUE, " AND state IN ('claimed', 'running') AND claim_owner", " AND claim_owner"),
    ),
    "an ended job moves": (
        "enqueueing:Enqueueing",
        "it does not become queued",
        Patch(_QUEUE, " AND state NOT IN ('completed', 'failed')\n", "\n"),
    ),
    "parameters are not stored": (
        "enqueueing:Enqueueing",
        "enqueued",
        Patch(_QUEUE, "{} if params is None else params)", 'params or {}) and "{}"'),
    ),
    "the operator's reason is not stored": (
        "enqueueing:Enqueueing",
        "ended",
        Patch(_QUEUE, "job_id, state, last_error=last_error", "job_id, state"),
    ),
    "a run that a signal ended is a success": (
        "running:Running",
        "I1-05 a job ends with its run",
        Patch(
            _RUNS, "JobState.FAILED if return_code else", "JobState.FAILED if return_code > 0 else"
        ),
    ),
    "return codes become 0 and 1": (
        "running:Running",
        "completed",
        Patch(
            _RUNS,
            "(now_ns, return_code, run.run_id)",
            "(now_ns, int(return_code != 0), run.run_id)",
        ),
    ),
    "the log's path is not stored": (
        "launch_logs:LaunchLogs",
        "named",
        Patch(_RUNS, "now_ns, log_path)\n", "now_ns, None)\n"),
    ),
    "a log is made over another": (
        "launch_logs:LaunchLogs",
        "the log is not made twice",
        Patch(_LOGS, '"xb", buffering', '"wb", buffering'),
    ),
    "a line makes the log that is missing": (
        "launch_logs:LaunchLogs",
        "what is missing is not made by a line",
        Patch(_LOGS, '"r+b", buffering', '"a+b", buffering'),
    ),
    "a silent log is not reported": (
        "launch_logs:LaunchLogs",
        "I1-13 what is torn is reported",
        Patch(_WALK, "return log.modified_at_ns < oldest_ns", "return False"),
    ),
    "a finding is named after its moment": (
        "requeueing:Requeueing",
        "I1-10 reconciliation changes nothing",
        Patch(_FINDING, "self.object_kind, self.object_id)", "str(self.now_ns), self.object_id)"),
    ),
    "payloads are not stored": (
        "blackboard:Blackboard",
        "I1-07 the log only grows",
        Patch(_BLACKBOARD, "{} if payload is None else payload)", 'payload or {}) and "{}"'),
    ),
    "an event forgets what it invalidates": (
        "blackboard:Blackboard",
        "I1-07 the log only grows",
        Patch(_BLACKBOARD, "        assertion_id,\n        json", "        None,\n        json"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("campaign", "named", "patch"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_refused_without_a_crash(
    campaign: str, named: str, patch: Patch, tmp_path: Path
) -> None:
    """A store with one mistake fails the run that nothing kills, by the right name."""
    tree = plant((patch,), tmp_path / "tree")
    with explored(tree, f"campaigns.metabolism.{campaign}") as exploration:
        problem = exploration.result.problem
    assert problem is not None
    assert problem.verdict == "violated"
    assert named in f"{problem.invariant} {problem.step}"


@pytest.mark.slow
def test_claim_before_its_time_stops_the_campaign(tmp_path: Path) -> None:
    """A store that gives out a job before it is due is told by the job that comes first."""
    early = Patch(_QUEUE, " AND not_before_ns <= ?\n", " AND not_before_ns >= -?\n")
    tree = plant((early,), tmp_path / "tree")
    told = pytest.raises(ConfigurationError, match=r"'old' was to be claimed, .*'not yet'")
    with told, explored(tree, "campaigns.metabolism.claiming:Claiming"):
        pass
