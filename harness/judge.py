"""
Judging: observe a store and hold it against its campaign, in one child that is thrown away.

Runs user code (``observe``, ``check``, the judges, ``complete``), so it runs in forked children.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.campaign import (
    Campaign,
    Check,
    Evidence,
    judge_of,
    normalise,
    overrides,
)
from harness.errors import ConfigurationError
from harness.oracle import (
    Broken,
    difference,
    is_right,
    judge_delivery,
    judge_steps,
    right_observations,
)
from harness.stage import describe_exception
from harness.trace import Entry, Promise, Recording, binding, effects_of


@dataclass(frozen=True)
class Case:
    """
    One thing to judge.

    Attributes:
        boundary: Where the execution died.
        entries: What was promised and done until now, in every phase.
        phase: As in Evidence.
        is_final: Whether what must happen at least once must have happened.
        has_step_oracle: Whether the observation is held against the recorded steps.
        must_complete: Whether the store must have reached its end.
    """

    boundary: int
    entries: Sequence[Entry]
    phase: Literal["recovered", "resumed"]
    is_final: bool
    has_step_oracle: bool
    must_complete: bool


@dataclass
class Judgement:
    """
    What judging found.

    Attributes:
        observed: The observation; None where observing failed.
        broken: What does not hold, in the order it was looked at.
        subjects: How many subjects each invariant had.
        error: What the campaign's own code raised, other than an assertion.
        is_present: Whether the step in flight is seen to have happened.
        printed: What the judging child printed.
    """

    observed: Any = None
    broken: list[Broken] = field(default_factory=list)
    subjects: Counter[str] = field(default_factory=Counter)
    error: str = ""
    is_present: bool = False
    printed: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON for the parent."""
        return {
            **vars(self),
            "broken": [[b.invariant, b.message, list(b.difference)] for b in self.broken],
            "subjects": dict(self.subjects),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Judgement:
        """Return what :meth:`as_json` made."""
        broken = [Broken(name, message, tuple(lines)) for name, message, lines in data["broken"]]
        return cls(
            data["observed"], broken, Counter(data["subjects"]), data["error"], data["is_present"]
        )


class NotJson(ValueError):
    """What observe returned is no JSON, though it was before the crash."""


def observation(campaign: Campaign, root: Path) -> Any:
    """Observe as JSON. Raises: NotJson, and whatever observe raises."""
    value = campaign.observe(root)
    try:
        return normalise(value, "the observation")
    except ConfigurationError as error:
        raise NotJson(str(error)) from None


class _Errored(Exception):
    """The campaign's own code raised something that is no assertion."""


def _errored(method: str, error: Exception) -> _Errored:
    raised = describe_exception(error)
    return _Errored(f"{method} raised {raised}\n{raised.traceback}".rstrip())


def judge(
    campaign: Campaign,
    root: Path,
    recording: Recording,
    case: Case,
    now_ns: int,
    reached: Callable[[str], None],
) -> Judgement:
    """
    Observe the store in *root* and return what holds and what does not.

    Args:
        reached: Is told each method of the campaign before it is called, so that a process which
            ends there can be accounted for.
    Raises: ConfigurationError: the campaign's answers are of the wrong kind.
    """
    result = Judgement()
    reached("observe")
    try:
        result.observed = observation(campaign, root)
    except ConfigurationError:
        raise
    except BaseException as error:  # SystemExit too: a store's own way to refuse a torn file
        _refuse_configuration(error)
        raised = describe_exception(error)
        result.broken.append(
            Broken("observable", f"observe raised {raised}", _lines(raised.traceback))
        )
        return result
    reached("after_recovery")
    right = _right(campaign, recording, case)
    evidence = evidence_at(
        recording,
        case.boundary,
        case.entries,
        case.phase,
        observed=normalise(result.observed),  # a copy: a check may sort it
        right=right,
        now_ns=now_ns,
    )
    steps: list[Broken] = []
    if case.has_step_oracle:  # before any code of the campaign has the evidence
        steps += _steps(campaign, recording, case, result, right)
        result.is_present = _is_present(campaign, recording, case.boundary, result.observed)
    try:
        reached("check")
        result.broken += _checks(campaign, root, evidence, result.subjects)
        result.broken += _promises(campaign, root, evidence, result.subjects, reached)
        result.broken += _deliveries(campaign, evidence, case, result.subjects)
        result.broken += steps
        if case.must_complete:
            reached("complete")
            result.broken += _completion(campaign, root, recording, evidence, result.observed)
    except _Errored as error:
        result.error = str(error)
    return result


def _refuse_configuration(error: BaseException) -> None:
    """Let through what makes the campaign itself wrong, wherever it is raised."""
    if isinstance(error, (NameError, ImportError)) and not isinstance(error, UnboundLocalError):
        raise error


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.rstrip().splitlines()[-12:])


def _right(campaign: Campaign, recording: Recording, case: Case) -> list[Any] | None:
    if not case.has_step_oracle:
        return None
    return right_observations(
        recording, case.boundary, lambda state: _after_recovery(campaign, state)
    )


def _after_recovery(campaign: Campaign, state: Any) -> Any:
    if not overrides(campaign, "after_recovery"):
        return state
    # A copy goes in: one that changes its argument must not change the recording.
    return normalise(campaign.after_recovery(normalise(state)), "the result of after_recovery")


def evidence_at(
    recording: Recording,
    boundary: int,
    entries: Sequence[Entry],
    phase: Literal["recovered", "resumed"],
    *,
    observed: Any,
    right: list[Any] | None,
    now_ns: int,
) -> Evidence:
    """Return what is known of an execution that died at *boundary*."""
    flying = recording.in_flight(boundary)
    done = [step.label for step in recording.steps if step.end <= boundary]
    if phase == "resumed":
        later = [entry.name for entry in entries if entry.act == "done"]
        done += [label for label in dict.fromkeys(later) if label not in done]
    return Evidence(
        phase=phase,
        boundary=boundary,
        acknowledged=done,
        in_flight=flying.label if flying and phase == "recovered" else None,
        promises=binding(entries),
        effects=effects_of(entries),
        expected=right,
        observed=observed,
        now_ns=now_ns,
    )


def _checks(
    campaign: Campaign, root: Path, evidence: Evidence, subjects: Counter[str]
) -> Iterator[Broken]:
    for name in campaign.invariants:
        subjects[name] += 0
    if not overrides(campaign, "check"):
        return
    failed: Counter[str] = Counter()
    try:
        checks = campaign.check(root, evidence)
        if checks is None:
            subjects["check"] += 1
        elif not isinstance(checks, Iterable):
            raise ConfigurationError(
                f"check returned {checks!r}; yield Check(invariant, holds, message), or assert."
            )
        for check in checks or ():
            if not isinstance(check, Check) or not isinstance(check.holds, bool):
                raise ConfigurationError(
                    f"check yielded {check!r}; yield Check(invariant, holds, message) with a bool."
                )
            subjects[check.invariant] += 1
            failed[check.invariant] += not check.holds
            if not check.holds and failed[check.invariant] == 1:
                yield Broken(check.invariant, check.message or "does not hold")
    except AssertionError as error:
        subjects["check"] = 1
        yield Broken("check", describe_exception(error).message)
    except ConfigurationError:
        raise
    except Exception as error:
        _refuse_configuration(error)
        raise _errored("check", error) from error


def _promises(
    campaign: Campaign,
    root: Path,
    evidence: Evidence,
    subjects: Counter[str],
    reached: Callable[[str], None],
) -> Iterator[Broken]:
    for promise in evidence.promises:
        judge_method = judge_of(campaign, promise.name)
        if judge_method is None:
            continue
        name = f"promise {promise.name}"
        subjects[name] += 1
        reached(f"promised_{promise.name}")
        try:
            holds = judge_method(root, evidence, **promise.facts)
        except AssertionError as error:
            yield Broken(name, f"{_told(promise)}: {describe_exception(error).message}")
            continue
        except Exception as error:
            _refuse_configuration(error)
            raise _errored(f"promised_{promise.name}", error) from error
        if not isinstance(holds, bool):
            raise ConfigurationError(
                f"promised_{promise.name} returned {holds!r}; it must return True or False."
            )
        if not holds:
            yield Broken(name, f"{_told(promise)} was acknowledged and does not hold any more")


def _told(promise: Promise) -> str:
    facts = ", ".join(f"{key}={value!r}" for key, value in promise.facts.items())
    return f"{promise.name}({facts})"


def _deliveries(
    campaign: Campaign, evidence: Evidence, case: Case, subjects: Counter[str]
) -> Iterator[Broken]:
    for name, contract in campaign.delivery.items():
        if contract != "checked":
            names = [x.name for x in evidence.promises] + [x.name for x in evidence.effects]
            subjects[f"delivery {name}"] += names.count(name)
    yield from judge_delivery(
        campaign.delivery, evidence.promises, evidence.effects, is_final=case.is_final
    )


def _steps(
    campaign: Campaign,
    recording: Recording,
    case: Case,
    result: Judgement,
    right: list[Any] | None,
) -> Iterator[Broken]:
    is_cache = campaign.durability == "cache"
    if is_cache and not isinstance(result.observed, dict):
        raise ConfigurationError("durability='cache' needs an observation that is an object.")
    result.subjects["step_atomicity"] += right is not None
    broken = judge_steps(recording, case.boundary, result.observed, right, is_cache=is_cache)
    if broken is not None:
        yield broken


def _is_present(campaign: Campaign, recording: Recording, boundary: int, observed: Any) -> bool:
    if recording.in_flight(boundary) is None:
        return False
    done = recording.acknowledged(boundary)
    absent = _after_recovery(campaign, recording.expected[done])
    present = _after_recovery(campaign, recording.expected[done + 1])
    return bool(observed == present and present != absent)


def _completion(
    campaign: Campaign, root: Path, recording: Recording, evidence: Evidence, observed: Any
) -> Iterator[Broken]:
    if not overrides(campaign, "complete"):
        ends = [recording.ended, _after_recovery(campaign, recording.ended)]
        if not is_right(observed, ends, is_cache=campaign.durability == "cache"):
            yield Broken(
                "complete",
                "the resumed store did not reach the end of the uncrashed execution",
                difference(ends[0], observed),
            )
        return
    try:
        holds = campaign.complete(root, evidence)
    except AssertionError as error:
        yield Broken("complete", describe_exception(error).message)
        return
    except Exception as error:
        _refuse_configuration(error)
        raise _errored("complete", error) from error
    if not isinstance(holds, bool):
        raise ConfigurationError(f"complete returned {holds!r}; it must return True or False.")
    if not holds:
        yield Broken("complete", "complete() says that the resumed store did not reach its end")
