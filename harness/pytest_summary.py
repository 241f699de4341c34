"""
The line at the end of a test run: what was explored, under which fault model, what came of it.

It is made from the properties that each item's report carries, since those come from every worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def _properties(stats: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, str]]:
    """Yield the properties of each campaign item that was run."""
    for reports in stats.values():
        for one in reports:
            if getattr(one, "when", None) == "call":
                properties = dict(one.user_properties)
                if {"campaign", "boundaries", "fault", "verdict"} <= properties.keys():
                    yield properties


def summary_line(stats: Mapping[str, Sequence[Any]], subset: str) -> str:
    """
    Return the line, or nothing where no campaign was run.

    Args:
        stats: The terminal reporter's reports, by category.
        subset: Which boundaries were asked for, in words.
    """
    in_traces: dict[str, int] = {}
    verdicts: Counter[str] = Counter()
    self_tests: Counter[str] = Counter()
    for one in _properties(stats):
        in_traces[one["campaign"]] = int(one["boundaries"])
        (verdicts if "boundary" in one else self_tests)[one["verdict"]] += 1
    if not in_traces:
        return ""
    from harness.explain import FAULT
    from harness.report import SILENT
    from harness.verdict import KINDS, boundaries

    kinds = dict.fromkeys([*KINDS, *sorted(verdicts)])
    counts = [f"{verdicts[kind]} {kind}" for kind in kinds if verdicts[kind]]
    total = f"{verdicts.total()} of {boundaries(sum(in_traces.values()))} ({subset})"
    parts = [", ".join([total, FAULT, *(counts or ["nothing explored"])])]
    failed = [f"{n} {kind}" for kind, n in sorted(self_tests.items()) if kind != "passed"]
    if failed:
        parts.append(f"self-tests: {', '.join(failed)}")
    return f"crashconform: {'; '.join([*parts, SILENT])}"
