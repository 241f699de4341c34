"""What ``crashconform trace`` shows: one recording, its boundaries numbered, its steps visible."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.cli.session import work_folder
from harness.discovery import Found
from harness.explain import printable
from harness.runner import Options, Result, open_worker, record_with, recording_from
from harness.trace import Recording
from harness.verdict import boundaries, counted


def record_only(found: Found, workdir: Path | None, options: Options) -> Result:
    """
    Record a campaign in two interpreters and return it without exploring.

    Raises: ConfigurationError, WorkspaceError, ZygoteDied: as the runner.
    """
    result = Result(found)
    with work_folder(workdir, 2) as folder, ExitStack() as stack:
        first, second = (
            stack.enter_context(open_worker(found, folder, number, options)) for number in (0, 1)
        )
        data = record_with(first, second, result)
        if data is not None:
            result.recording = recording_from(data)
    return result


def trace_lines(name: str, recording: Recording) -> list[str]:
    """Return a heading and one line for each boundary, those inside a step indented."""
    count, steps = len(recording.lines), len(recording.steps)
    sqlite = f", {recording.sqlite}" if recording.sqlite else ""
    width = len(str(count))
    lines = [f"{name}: {boundaries(count)}, {counted(steps, 'step')}{sqlite}"]
    for number, line in enumerate(recording.lines, 1):
        inside = "  " if recording.in_flight(number) is not None else ""
        lines.append(f"{number:>{width}}  {inside}{printable(line)}")
    return lines


def trace_json(name: str, recording: Recording) -> dict[str, Any]:
    """Return the recording's boundaries and steps as JSON."""
    flying = [recording.in_flight(number) for number in range(1, len(recording.lines) + 1)]
    return {
        "name": name,
        "boundaries": [
            {"number": number, "id": one.identity, "line": one.line, "step": step and step.label}
            for number, (one, step) in enumerate(zip(recording.boundaries, flying, strict=True), 1)
        ],
        "steps": [
            {"label": step.label, "begin": step.begin, "end": step.end} for step in recording.steps
        ],
    }
