"""
One finding, told to a person: what broke, where, with all the evidence, and how to see it again.

Pure functions over verdicts; nothing here is coloured or opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.verdict import Finding, boundaries, counted

if TYPE_CHECKING:
    from harness.runner import Result

SEED = 0
FAULT = "process-death"
INDENT = " " * 5
PRINTED_LINES_MAX = 30
LINE_SIZE_MAX = 100
"""Characters of a trace line in a finding's heading; the trace below it has them all."""
_UNAIDED = "no crash needed"
_WORDS = {
    "violated": "FAIL",
    "hung": "FAIL",
    "diverged": "DIVERGED",
    "errored": "ERROR",
    "survived": "ok",
}


def ranges(numbers: Iterable[int]) -> str:
    """
    Return ascending numbers with runs drawn together.

    >>> ranges([57, 58, 59, 70])
    '57-59, 70'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def printable(text: str) -> str:
    """Return *text* with every control character but newline and tab escaped."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii")
        for c in text
    )


def command(finding: Finding, options: str) -> str:
    """Return the command that shows a finding again, with more options."""
    return f"{finding.replay} {options}".rstrip()


def finding_lines(
    finding: Finding, result: Result, *, is_full: bool = True, replay_options: str = ""
) -> list[str]:
    """Return one finding as lines; without evidence where *is_full* is false."""
    wrong = finding.violation
    lines = [_head(finding, result)]
    lines += block("", printable(f"{wrong.stage}: {wrong.message}").splitlines())
    if is_full:
        lines += block("", wrong.difference)
    if wrong.also:
        lines.append(f"{INDENT}also broken: {printable(', '.join(wrong.also))}")
    if finding.boundaries:
        count = boundaries(len(finding.boundaries))
        lines.append(f"{INDENT}at {count}: {ranges(finding.boundaries)}")
    if is_full:
        lines += _trace_lines(finding)
        lines += printed_lines(finding.printed)
    lines.append(f"{INDENT}replay {command(finding, replay_options)}")
    return lines


def _head(finding: Finding, result: Result) -> str:
    parts = [f"{_WORDS[finding.kind]} {result.found.name}", _what_broke(finding)]
    if finding.boundaries:
        total = len(result.recording.lines) if result.recording else 0
        parts.append(f"boundary {finding.boundaries[0]}/{total} {_cut(finding.line)}")
        parts.append("before any step" if finding.step is None else f'step "{finding.step}"')
        parts.append(f"fault {FAULT}")
    else:
        if finding.step is not None:
            parts.append(f'step "{finding.step}"')
        parts.append(_UNAIDED)
    return printable("  ".join([*parts, f"seed {SEED}"]))


def _cut(line: str) -> str:
    """Return a trace line short enough for a heading, cut after a word where it has some."""
    if len(line) <= LINE_SIZE_MAX:
        return line
    kept = line[: LINE_SIZE_MAX - 4]
    start, space, _ = kept.rpartition(" ")
    is_near = bool(space) and len(start) > LINE_SIZE_MAX // 2
    return f"{start if is_near else kept} ..."


def _what_broke(finding: Finding) -> str:
    name = finding.violation.invariant
    word = next((w for w in ("promise", "delivery") if name.startswith(f"{w} ")), "invariant")
    name = f"{word} `{name.removeprefix(word).strip()}`"
    return {
        "violated": f"broke {name}",
        "hung": f"hung {finding.violation.stage} ({name})",
        "diverged": f"took another path than recorded ({name})",
        "errored": f"could not be judged ({name})",
    }.get(finding.kind, name)


def _trace_lines(finding: Finding) -> list[str]:
    lines: list[str] = []
    tail = finding.trace_tail
    if tail:
        first = finding.boundaries[0] - len(tail) + 1
        numbered = [f"{number:>6}  {line}" for number, line in enumerate(tail, first)]
        title = f"trace, last {counted(len(tail), 'line')} up to boundary {finding.boundaries[0]}:"
        lines += block(title, numbered)
    failing = finding.violation.trace_tail
    if failing:
        count = counted(len(failing), "line")
        title = f"trace of what failed ({finding.violation.stage}), last {count}:"
        lines += block(title, [f"  {line}" for line in failing])
    return lines


def printed_lines(printed: str) -> list[str]:
    """Return the last lines that children printed, under a title."""
    lines = printed.rstrip().splitlines()
    if not lines:
        return []
    title = "printed:"
    if len(lines) > PRINTED_LINES_MAX:
        title = f"printed, last {PRINTED_LINES_MAX} of {len(lines)} lines:"
    return block(title, [f"  {line}" for line in lines[-PRINTED_LINES_MAX:]])


def block(title: str, lines: Iterable[str]) -> list[str]:
    """Return lines indented below a title, with nothing in them that moves a cursor."""
    titled = [title] if title else []
    return [INDENT + printable(line) for line in [*titled, *lines]]
