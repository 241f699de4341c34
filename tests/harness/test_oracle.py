"""The step oracle and the contracts of effects, row by row, on plain data."""

from __future__ import annotations

from typing import Any

import pytest

from harness.oracle import (
    Broken,
    difference,
    is_right,
    judge_delivery,
    judge_steps,
    right_observations,
)
from harness.trace import Effect, Promise, Recording, Step

LINES = [
    "before step one",  # 1
    "after write s",  # 2
    "after step one",  # 3
    "before step two",  # 4
    "after write s",  # 5
    "after step two",  # 6
    "end",  # 7
]


def recording(*, between: Any = (), states: tuple[Any, ...] = (0, 1, 2)) -> Recording:
    """Return a recording of two steps, the second with other states between; None: any."""
    others = None if between is None else list(between)
    steps = [
        Step("one", 1, 3, "value", states[1], [], "unless_present", None, False),
        Step("two", 4, 6, "value", states[2], others, "unless_present", None, False),
    ]
    trace = "".join(f"{line}\n" for line in LINES)
    return Recording("/root", trace, "", "", steps, list(states), states[2])


def doubled(state: Any) -> Any:
    """Be a model of recovery that marks each state as recovered."""
    return state if isinstance(state, str) else f"R{state}"


@pytest.mark.parametrize(
    ("boundary", "right"),
    [
        (1, ["R0"]),  # a step's "before": nothing is in flight
        (2, ["R0", "R1"]),
        (3, ["R1"]),
        (4, ["R1"]),
        (5, ["R1", "R2", "R8", "R9"]),  # what is right between counts while it is in flight
        (6, ["R2"]),
        (7, ["R2"]),
    ],
)
def test_right_observations_follow_the_step(boundary: int, right: list[str]) -> None:
    """Acknowledged steps are there; one in flight is there, absent, or as declared between."""
    assert right_observations(recording(between=[8, 9]), boundary, doubled) == right


def test_the_oracle_abstains_only_inside_a_step_that_says_anything() -> None:
    """between=ANYTHING leaves the step's inside to check, and nothing else."""
    known = recording(between=None)
    rights = [right_observations(known, n, doubled) for n in range(1, 8)]
    assert [right is None for right in rights] == [False] * 4 + [True, False, False]


@pytest.mark.parametrize(
    ("boundary", "message"),
    [
        (1, "no step had begun: the fixture"),
        (2, "step 'one' was in flight: wholly there or wholly absent"),
        (3, "step 'one' was acknowledged and nothing in flight"),
        (4, "step 'one' was acknowledged and nothing in flight"),
        (5, "step 'two' was in flight: wholly there or wholly absent"),
        (7, "step 'two' was acknowledged and nothing in flight"),
    ],
)
def test_a_wrong_observation_is_told_against_the_step(boundary: int, message: str) -> None:
    """The message says which step was acknowledged or in flight, and shows the closest state."""
    known = recording(states=([0, 0, 0], [1, 1, 1], [1, 2, 2]))
    right = right_observations(known, boundary, lambda state: state)
    broken = judge_steps(known, boundary, [1, 1, 7], right, is_cache=False)
    assert broken is not None
    assert broken.invariant == "step_atomicity"
    assert broken.message == f"{message}; the recovered store shows neither"
    expected = {1: 0, 2: 1, 3: 1, 4: 1, 5: 1, 7: 2}[boundary]
    assert broken.difference[-1] == f"$[2]: expected {expected}, observed 7"


def test_a_right_observation_is_nothing_broken() -> None:
    """Any of the right observations will do, and all where the oracle abstains."""
    known = recording()
    assert judge_steps(known, 2, 1, [0, 1], is_cache=False) is None
    assert judge_steps(known, 2, 99, None, is_cache=False) is None


@pytest.mark.parametrize(
    ("observed", "holds"),
    [
        ({}, True),
        ({"a": 1}, True),
        ({"a": 2}, True),  # each key on its own, from any right observation
        ({"a": 2, "b": 5}, True),
        ({"a": 1, "b": 5}, True),
        ({"a": 3}, False),
        ({"a": 1, "c": 1}, False),
        ({"b": None}, False),
    ],
)
def test_a_cache_may_lose_and_may_not_lie(observed: dict[str, int], holds: bool) -> None:
    """In a cache each key is absent, or has its value in one of the right observations."""
    assert is_right(observed, [{"a": 1}, {"a": 2, "b": 5}], is_cache=True) is holds


CONTRACTS = {
    "once": "at-most-once",
    "sure": "at-least-once",
    "exact": "exactly-once",
    "free": "checked",
}
ONE, TWO = {"id": 1}, {"id": 2}


@pytest.mark.parametrize(
    ("promised", "done", "is_final", "broken"),
    [
        # at-most-once: never the same twice; what was never done is fine
        ([], [("once", ONE), ("once", TWO)], True, []),
        ([], [("once", ONE), ("once", ONE)], False, ["delivery once"]),
        # at-least-once: each promise of that name and facts has its effect, after resume
        ([("sure", ONE)], [("sure", ONE), ("sure", ONE)], True, []),
        ([("sure", ONE)], [], False, []),
        ([("sure", ONE)], [], True, ["delivery sure"]),
        ([("sure", ONE)], [("sure", TWO)], True, ["delivery sure"]),
        # exactly-once: both
        ([("exact", ONE)], [("exact", ONE)], True, []),
        ([("exact", ONE)], [], True, ["delivery exact"]),
        ([("exact", ONE)], [("exact", ONE), ("exact", ONE)], True, ["delivery exact"]),
        # checked: only check judges
        ([("free", ONE)], [], True, []),
        ([], [("free", ONE), ("free", ONE)], True, []),
        # facts are compared whole and without regard to their order
        ([("sure", {"a": 1, "b": 2})], [("sure", {"b": 2, "a": 1})], True, []),
        ([("sure", {"a": 1, "b": 2})], [("sure", {"a": 1})], True, ["delivery sure"]),
    ],
)
def test_effects_are_held_to_their_contract(
    promised: list[tuple[str, dict[str, int]]],
    done: list[tuple[str, dict[str, int]]],
    is_final: bool,
    broken: list[str],
) -> None:
    """Each contract, kept and broken, and at which moment it is asked for."""
    promises = [Promise(name, facts) for name, facts in promised]
    effects = [Effect(name, facts) for name, facts in done]
    found = list(judge_delivery(CONTRACTS, promises, effects, is_final=is_final))
    assert [one.invariant for one in found] == broken
    for one in found:
        assert CONTRACTS[one.invariant.removeprefix("delivery ")] in one.message


@pytest.mark.parametrize(
    ("expected", "observed", "lines"),
    [
        (1, 1, ()),
        (1, 2, ("$: expected 1, observed 2",)),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ("$.a[1].b: expected 2, observed 3",)),
        ({"a": 1}, {}, ("$.a: expected 1, observed nothing",)),
        ([], ["é"], ('$[0]: expected nothing, observed "é"',)),
        ([1], {"a": 1}, ('$: expected [1], observed {"a": 1}',)),
    ],
)
def test_a_difference_names_its_places(expected: Any, observed: Any, lines: tuple[str]) -> None:
    """Each place where two observations part is one line, with both values."""
    assert difference(expected, observed) == lines


def test_a_difference_is_cut() -> None:
    """A difference of many lines or long values stays readable, and says that it was cut."""
    lines = difference(list(range(50)), [])
    assert len(lines) == 21
    assert lines[-1] == "... (more differences not shown)"
    (line,) = difference("x" * 1000, "")
    assert len(line) < 250


def test_what_is_broken_has_no_difference_unless_it_is_given() -> None:
    """A broken invariant carries a name and a sentence at least."""
    assert Broken("fine", "does not hold").difference == ()
