"""
Print the table of README.md: every twin under its whole campaign, and under the subset.

Usage, from the repository: ``PYTHONPATH=tests/quality python -m twins.measure [TWIN ...]``
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from harness.errors import ConfigurationError
from harness.subset import representative

from .catalogue import TWINS, UNCAUGHT
from .exploring import explored
from .twin import Twin, plant
from .uncaught import Uncaught

HEAD = "| twin | campaign | violated of boundaries | first in step | broken | of the subset |\n"


def row(twin: Twin | Uncaught) -> str:
    """Return a twin's line: measured, not claimed."""
    campaign = twin.campaign.rpartition(":")[2]
    head = f"| {twin.name} | {campaign} | "
    with tempfile.TemporaryDirectory() as folder:
        tree = plant(twin.patches, Path(folder) / "tree")
        try:
            return head + measured(tree, twin.campaign)
        except ConfigurationError as error:
            return f"{head}- | - | refused: {str(error).partition(' failed')[0]} | - |"


def measured(tree: Path, campaign: str) -> str:
    """Explore every boundary and return the line's cells after the campaign."""
    with explored(tree, campaign) as exploration:
        result = exploration.result
        if result.problem is not None:
            problem = result.problem
            return f"- | - | {problem.verdict} without a crash: {problem.invariant} | - |"
        recording = exploration.recording
        count = len(recording.lines)
        exploration.examine(range(1, count + 1))
        subset = set(representative(recording))
        wrong = [verdict for verdict in result.verdicts if verdict.kind != "survived"]
        hit = [verdict for verdict in wrong if verdict.boundary in subset]
        names = sorted({x.violation.invariant for x in wrong if x.violation is not None})
        kinds = sorted({verdict.kind for verdict in wrong} - {"violated"})
        first = result.findings[0].step if wrong else "-"
        return (
            f"{len(wrong)} of {count} | {first} | {', '.join((*names, *kinds)) or 'nothing'} "
            f"| {len(hit)} of {len(subset)} |"
        )


def main(names: list[str]) -> None:
    """Print the lines of the twins named, or of all."""
    print(HEAD + "| --- | --- | --- | --- | --- | --- |", flush=True)
    twins: dict[str, Twin | Uncaught] = {**TWINS, **UNCAUGHT}
    for name in names or twins:
        print(row(twins[name]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
