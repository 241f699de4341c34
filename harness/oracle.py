"""
What decides whether a recovered store is right, given what was recorded and acknowledged.

Method: pure functions over data; nothing here opens a file or runs a user's code, so a saved
run can be judged again.

Covered: the step oracle under process death; contracts of effects; readable differences.
Not covered: the step oracle's rows for power loss.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.trace import Effect, Promise, Recording

_LINES_MAX = 20
_VALUE_SIZE_MAX = 160
_ABSENT = object()


@dataclass(frozen=True)
class Broken:
    """
    One broken invariant, promise or contract.

    Attributes:
        invariant: Its name.
        message: What was expected and what was seen, in a sentence.
        difference: Lines that say where the expectation and the observation part.
    """

    invariant: str
    message: str
    difference: tuple[str, ...] = ()


def right_observations(
    recording: Recording, boundary: int, after_recovery: Callable[[Any], Any]
) -> list[Any] | None:
    """Return what may be observed after recovery from a process death; None: anything may."""
    flying = recording.in_flight(boundary)
    done = recording.acknowledged(boundary)
    states = [recording.expected[done]]
    if flying is not None:
        if flying.between is None:
            return None
        states += [recording.expected[done + 1], *flying.between]
    return [after_recovery(state) for state in states]


def is_right(observed: Any, right: Sequence[Any], *, is_cache: bool) -> bool:
    """Say whether *observed* is one of the right observations, or a cache's honest rest of one."""
    if not is_cache:
        return observed in right
    return all(
        any(isinstance(state, dict) and state.get(key, _ABSENT) == value for state in right)
        for key, value in observed.items()
    )


def judge_steps(
    recording: Recording,
    boundary: int,
    observed: Any,
    right: Sequence[Any] | None,
    *,
    is_cache: bool,
) -> Broken | None:
    """Return the broken ``step_atomicity``, or None."""
    if right is None or is_right(observed, right, is_cache=is_cache):
        return None
    flying = recording.in_flight(boundary)
    done = recording.acknowledged(boundary)
    last = recording.steps[done - 1].label if done else None
    if flying is not None:
        expected = f"step {flying.label!r} was in flight: wholly there or wholly absent"
    elif last is not None:
        expected = f"step {last!r} was acknowledged and nothing in flight"
    else:
        expected = "no step had begun: the fixture"
    closest = min(right, key=lambda state: sum(1 for _ in _differences(state, observed, "$")))
    return Broken(
        "step_atomicity",
        f"{expected}; the recovered store shows neither",
        difference(closest, observed),
    )


def judge_delivery(
    delivery: Mapping[str, str],
    promises: Sequence[Promise],
    effects: Sequence[Effect],
    *,
    is_final: bool,
) -> Iterator[Broken]:
    """Yield each broken contract; what must happen at least once is asked for after resume."""
    times = Counter((e.name, _facts(e.facts)) for e in effects)
    for (name, facts), count in times.items():
        if count > 1 and delivery.get(name) in ("at-most-once", "exactly-once"):
            yield Broken(
                f"delivery {name}",
                f"effect {name} {facts} happened {count} times; its contract is {delivery[name]}",
            )
    if not is_final:
        return
    for promise in promises:
        contract = delivery.get(promise.name)
        facts = _facts(promise.facts)
        if contract in ("at-least-once", "exactly-once") and not times[promise.name, facts]:
            yield Broken(
                f"delivery {promise.name}",
                f"effect {promise.name} {facts} was promised and never happened, also after "
                f"resume; its contract is {contract}",
            )


def _facts(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True)


def difference(expected: Any, observed: Any) -> tuple[str, ...]:
    """Return lines such as ``$.jobs[0].state: expected "ready", observed "taken"``."""
    lines: list[str] = []
    for line in _differences(expected, observed, "$"):
        if len(lines) == _LINES_MAX:
            lines.append("... (more differences not shown)")
            break
        lines.append(line)
    return tuple(lines)


def _differences(expected: Any, observed: Any, place: str) -> Iterator[str]:
    if expected == observed and type(expected) is type(observed):
        return
    if isinstance(expected, dict) and isinstance(observed, dict):
        for key in sorted(expected.keys() | observed.keys()):
            yield from _differences(
                expected.get(key, _ABSENT), observed.get(key, _ABSENT), f"{place}.{key}"
            )
    elif isinstance(expected, list) and isinstance(observed, list):
        for index in range(max(len(expected), len(observed))):
            yield from _differences(
                expected[index] if index < len(expected) else _ABSENT,
                observed[index] if index < len(observed) else _ABSENT,
                f"{place}[{index}]",
            )
    else:
        yield f"{place}: expected {_shown(expected)}, observed {_shown(observed)}"


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) <= _VALUE_SIZE_MAX else text[: _VALUE_SIZE_MAX - 3] + "..."
