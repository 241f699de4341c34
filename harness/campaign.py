"""
What a user writes: a class that says what to prove about one store.

The smallest campaign has ``execute`` and ``observe``. Everything else has a default.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, Union, get_args

from harness.errors import ConfigurationError
from harness.trace import Effect, Promise

if TYPE_CHECKING:
    from harness.run import Run

JSON = Union[  # noqa: UP007 - "X | Y" cannot hold forward references at run time on 3.11
    None, bool, int, float, str, Sequence["JSON"], Mapping[str, "JSON"]
]
"""What an observation may be; tuples count as lists."""

Contract = Literal["at-most-once", "at-least-once", "exactly-once", "checked"]
Durability = Literal["full", "consistent", "cache"]


class Expectation:
    """One of the three words that say what a step does to the observation."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


OBSERVED: Final = Expectation("OBSERVED")
"""What ``observe`` sees in the files of a process that died when the step had returned."""

UNCHANGED: Final = Expectation("UNCHANGED")
"""By contract, nothing that ``observe`` shows changes."""

ANYTHING: Final = Expectation("ANYTHING")
"""While the step is in flight, only ``check`` judges."""


class Observer(Protocol):
    """Takes a store's own announcements of what it is about to do, and has done."""

    def __call__(self, kind: str, phase: Literal["before", "after"], /, *names: str) -> None: ...


@dataclass(frozen=True)
class Check:
    """
    What one look at one subject found.

    Attributes:
        invariant: Name of the predicate; it stands in the report.
        holds: Whether it holds for this subject.
        message: What was expected and what was seen, where it does not.
    """

    invariant: str
    holds: bool
    message: str = ""


@dataclass(frozen=True)
class Evidence:
    """
    What is known about an execution that a crash ended.

    Attributes:
        phase: "recovered", or "resumed" once the workload was resumed too.
        boundary: Where the execution died, 1-based.
        acknowledged: Labels of the steps that had returned.
        in_flight: Label of the step that had begun and not returned.
        promises: What binds: promised and not withdrawn, in every phase so far.
        effects: What was done to the outside, in every phase so far.
        expected: The right observations; None where the step oracle abstains.
        observed: What ``observe`` returned.
        now_ns: The virtual clock, in nanoseconds since the Unix epoch.
    """

    phase: Literal["recovered", "resumed"]
    boundary: int
    acknowledged: Sequence[str]
    in_flight: str | None
    promises: Sequence[Promise]
    effects: Sequence[Effect]
    expected: Sequence[Any] | None
    observed: Any
    now_ns: int


class Campaign:
    """
    What to prove about one store.

    Every subclass with ``execute`` and without a leading underscore is a campaign. Its phases
    run in different processes, so attributes are frozen: state belongs in the store's files.

    Attributes:
        durability: "full": what was acknowledged survives every fault; "consistent": a power
            loss may take the newest steps; "cache": anything may be lost, nothing may lie.
        delivery: For each effect, how often it may happen.
        volatile: Patterns of files that a dead process leaves and nobody reads.
        invariants: Names that ``check`` is meant to exercise; one that no crash state had a
            subject for is reported as not exercised.
    """

    durability: ClassVar[Durability] = "full"
    delivery: ClassVar[Mapping[str, Contract]] = {}
    volatile: ClassVar[Sequence[str]] = ("*-shm",)
    invariants: ClassVar[Sequence[str]] = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise ConfigurationError(
            f"{type(self).__name__}.{name} was set, but the phases of a campaign run in different "
            "processes: keep state in the store's files, or make it a class attribute."
        )

    def prepare(self, root: Path, run: Run) -> JSON:
        """Make the fixture in the empty folder *root*; the result is ``run.fixture``."""
        return None

    def execute(self, root: Path, run: Run) -> None:
        """Run the workload as calls of ``run.step``; this is what gets crashed."""
        raise NotImplementedError

    def recover(self, root: Path, run: Run) -> None:
        """Start the store as a restart does."""

    def observe(self, root: Path) -> JSON:
        """Return the logical state of the store in *root*."""
        raise NotImplementedError

    def after_recovery(self, expected: Any) -> JSON:
        """Return what recovery makes of a right observation; twice is the same as once."""
        return expected  # type: ignore[no-any-return]

    def check(self, root: Path, evidence: Evidence) -> Iterable[Check] | None:
        """Yield one Check for each subject of each invariant."""
        return None

    def resume(self, root: Path, run: Run) -> None:
        """Go on after the crash; by default the workload again, steps done return at once."""
        self.execute(root, run)

    def complete(self, root: Path, evidence: Evidence) -> bool:
        """Say whether the resumed store reached its end; by default the golden one."""
        raise NotImplementedError

    def spoil(self, root: Path) -> None:
        """Damage a copy of the golden end so that recovering and judging it must fail."""
        raise NotImplementedError

    def attach(self, observer: Observer) -> None:
        """Give *observer* to the store's own slot for crash points, where it has one."""


def overrides(campaign: Campaign, method: str) -> bool:
    """Say whether the campaign's class replaced a method's default."""
    return getattr(type(campaign), method) is not getattr(Campaign, method)


_PARAMETERS: Final = {
    "prepare": "root, run",
    "execute": "root, run",
    "recover": "root, run",
    "observe": "root",
    "after_recovery": "expected",
    "check": "root, evidence",
    "resume": "root, run",
    "complete": "root, evidence",
    "spoil": "root",
    "attach": "observer",
}


def check_class(campaign: Campaign) -> None:
    """
    Refuse a campaign whose methods cannot be called or whose attributes mean nothing.

    Raises: ConfigurationError: the first thing found.
    """
    name = type(campaign).__name__
    if not overrides(campaign, "observe"):
        raise ConfigurationError(
            f"{name} lacks observe(self, root), which returns the store's state as JSON: write it."
        )
    for method, parameters in _PARAMETERS.items():
        _check_method(campaign, method, parameters)
    _check_choice(f"{name}.durability", campaign.durability, get_args(Durability))
    if not isinstance(campaign.delivery, Mapping):
        raise ConfigurationError(
            f"{name}.delivery={campaign.delivery!r} must be a dict from the name of an effect to "
            f"its contract, one of {get_args(Contract)}."
        )
    for effect, contract in campaign.delivery.items():
        _check_choice(f"{name}.delivery[{effect!r}]", contract, get_args(Contract))
    for attribute in ("volatile", "invariants"):
        value = getattr(campaign, attribute)
        is_list = isinstance(value, (list, tuple)) and all(isinstance(x, str) for x in value)
        if not is_list:
            raise ConfigurationError(
                f"{name}.{attribute}={value!r} must be a list or tuple of strings."
            )


def _check_method(campaign: Campaign, method: str, parameters: str) -> None:
    bound = getattr(campaign, method)
    said = f"{type(campaign).__name__}.{method}"
    if not callable(bound):
        raise ConfigurationError(
            f"{said}={bound!r} must be a method, {method}(self, {parameters})."
        )
    if method != "check" and (
        inspect.isgeneratorfunction(bound) or inspect.iscoroutinefunction(bound)
    ):
        raise ConfigurationError(
            f"{said} is a generator or coroutine, which does nothing when it is called: write a "
            f"plain method, def {method}(self, {parameters})."
        )
    try:
        inspect.signature(bound).bind(*parameters.split(", "))
    except TypeError as error:
        raise ConfigurationError(
            f"{said} is called as {method}({parameters}), which does not fit its signature: "
            f"{error}. Write def {method}(self, {parameters})."
        ) from None


def _check_choice(said: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{said}={value!r} must be one of {tuple(choices)}.")


def judge_of(campaign: Campaign, promise: str) -> Callable[..., object] | None:
    """Return the method ``promised_NAME`` of a promise, or None."""
    return getattr(campaign, f"promised_{promise}", None)


def normalise(value: Any, place: str = "$") -> Any:
    """
    Return *value* as JSON gives it back: tuples and sequences as lists, mappings as objects.

    Raises: ConfigurationError: something in it is no JSON; the message names the place.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigurationError(f"{place} is {value!r}, which JSON cannot say; use a string.")
        return float(value)
    if isinstance(value, Mapping):
        return {_key(k, place): normalise(v, f"{place}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple)) or (
        isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview))
    ):
        return [normalise(item, f"{place}[{n}]") for n, item in enumerate(value)]
    raise ConfigurationError(
        f"{place} is {_shown(value)} of type {type(value).__name__}; JSON was expected (None, "
        "bool, number, string, list or tuple, or dict with string keys): sort a set into a list, "
        "write bytes as hex."
    )


def _key(key: object, place: str) -> str:
    if not isinstance(key, str):
        raise ConfigurationError(
            f"{place} has the key {key!r} of type {type(key).__name__}; keys must be strings: "
            "use str(key)."
        )
    return key


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
