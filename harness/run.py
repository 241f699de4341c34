"""
Run: the hand that a campaign's phases are given; steps, promises, effects, clock, identifiers.

Everything it does is left on the tape before it counts, so that a process that dies at the next
boundary leaves exactly what it had acknowledged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn, TypeVar

from harness import observe
from harness.campaign import (
    ANYTHING,
    JSON,
    OBSERVED,
    UNCHANGED,
    Campaign,
    Evidence,
    Expectation,
    judge_of,
    normalise,
    overrides,
)
from harness.errors import ConfigurationError
from harness.tape import Tape
from harness.trace import Entry, Promise, Step, binding, effects_of

T = TypeVar("T")
Retry = Literal["unless_present", "always", "never"]
_RETRIES: Final = ("unless_present", "always", "never")


class NotRefused(AssertionError):
    """A step returned that its ``raises=`` says the store must refuse."""


class Lost:
    """Stands for a result that was no JSON and died with the process; any use of it is refused."""

    __slots__ = ("_label",)

    def __init__(self, label: str) -> None:
        object.__setattr__(self, "_label", label)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        label = object.__getattribute__(self, "_label")
        raise ConfigurationError(
            f"the result of step {label!r} was used after a crash, but it was no JSON (a named "
            "tuple is none) and died with the process: write resume() so that it takes its guards "
            "from the store."
        )


_USES: Final = """
    getattribute setattr delattr call getitem setitem delitem iter next len bool contains reversed
    enter exit aenter aexit await aiter anext str repr format bytes fspath int float complex index
    round trunc floor ceil neg pos abs invert hash eq ne lt le gt ge reduce reduce_ex
    add sub mul matmul truediv floordiv mod divmod pow lshift rshift and xor or
    radd rsub rmul rmatmul rtruediv rfloordiv rmod rdivmod rpow rlshift rrshift rand rxor ror
""".split()  # noqa: SIM905 - eighty quoted words are not easier to read
for _use in _USES:
    setattr(Lost, f"__{_use}__", Lost._refuse)


@dataclass(frozen=True)
class ResumePlan:
    """
    What a resumed workload needs to know of the crashed one.

    Attributes:
        steps: The recorded ones, by label.
        acknowledged: Labels of those that had returned.
        in_flight: Label of the one that had not.
        is_present: Whether the step in flight is seen to have happened all the same.
        is_default: Whether ``execute`` itself is run again, so that its steps must be the same.
    """

    steps: Mapping[str, Step]
    acknowledged: Sequence[str]
    in_flight: str | None
    is_present: bool
    is_default: bool

    def skips(self, label: str, retry: str) -> bool:
        """Say whether a step returns its recorded result at once."""
        if label in self.acknowledged:
            return True
        if label != self.in_flight:
            return False
        return retry == "never" or (retry == "unless_present" and self.is_present)


@dataclass
class StepNote:
    """What the recording process keeps of one step."""

    label: str
    begin: int
    retry: str
    then: str = "observed"
    given: Any = None
    between: list[Any] | None = field(default_factory=list)
    end: int = 0
    result: Any = None
    is_lost: bool = False

    def as_step(self) -> Step:
        """Return it as a recording holds it."""
        return Step(**vars(self))


class Run:
    """
    One phase of a campaign, in the process that runs it.

    Attributes:
        fixture: What ``prepare`` returned, as JSON; None in ``prepare``.
        past: In ``resume``, the crash and what recovery promised, did and left; else None.
    """

    def __init__(
        self,
        campaign: Campaign,
        tape: Tape,
        phase: Literal["prepare", "execute", "recover", "resume"],
        *,
        fixture: Any = None,
        past: Evidence | None = None,
        before: Sequence[Entry] = (),
        plan: ResumePlan | None = None,
        is_recording: bool = False,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        self.fixture = fixture
        self.past = past
        self._campaign = campaign
        self._tape = tape
        self._phase = phase
        self._before = list(before)
        self._plan = plan
        self._is_recording = is_recording
        self._after_step = after_step
        self._open_step: str | None = None
        self._failure: BaseException | None = None
        self._reached: set[str] = set()
        self._journal: list[Entry] = []
        self.notes: list[StepNote] = []

    # -- steps ------------------------------------------------------------------------------

    def step(
        self,
        label: str,
        action: Callable[[], T],
        *,
        then: JSON | Callable[[], JSON] | Expectation = OBSERVED,
        between: Sequence[JSON] | Expectation = (),
        raises: type[Exception] | tuple[type[Exception], ...] = (),
        retry: Retry = "unless_present",
    ) -> T:
        """
        Run *action* as one logical operation and return its result; then it is acknowledged.

        Args:
            label: Unique in the workload.
            then: The whole observation after it: a value, a callable asked through the live
                handle, UNCHANGED, or OBSERVED.
            between: Observations that are also right while it is in flight, or ANYTHING.
            raises: The refusal that must come; the step then leaves everything UNCHANGED.
            retry: What the default resume does with it when the crash found it in flight.
        Raises: ConfigurationError: nested, repeated, in recover or prepare, or an argument of the
            wrong kind. NotRefused: *raises* that did not come. What *action* raises goes through.
        """
        note = self._enter(label, action, then, between, raises, retry)
        plan = self._plan
        if plan is not None and plan.skips(label, retry):
            if plan.is_present and label == plan.in_flight:  # it had happened, and is done now
                self._tape.write_journal("done", label, {})
            step = plan.steps[label]
            return Lost(label) if step.is_lost else step.result  # type: ignore[return-value]
        self._tape.write_journal("begin", label, {})
        self._tape.mark("step", "before", label)
        note.begin = self._tape.count
        self._open_step = label
        result: Any = None
        try:
            if raises:
                self._refused(label, action, raises)
            else:
                result = action()
        except BaseException as error:
            self._failure = error
            raise
        self._note_end(note, then, result)
        self._tape.write_journal("done", label, {})
        self._open_step = None
        self._tape.mark("step", "after", label)
        note.end = self._tape.count
        if self._after_step is not None:
            self._after_step()
        return result  # type: ignore[no-any-return]

    def _enter(
        self, label: str, action: object, then: object, between: object, raises: object, retry: str
    ) -> StepNote:
        if self._phase not in ("execute", "resume"):
            raise ConfigurationError(
                f"step {label!r} was called in {self._phase}; only execute and resume have steps."
            )
        self._refuse_after_failure(f"went on to step {label!r}")
        if self._open_step is not None:
            raise ConfigurationError(
                f"step {label!r} was called while step {self._open_step!r} had not returned: "
                "steps do not nest; call one after the other."
            )
        if not isinstance(label, str) or not label.strip():
            raise ConfigurationError(f"label={label!r} of a step must be a string that says it.")
        if not callable(action):
            raise ConfigurationError(
                f"the action of step {label!r} is {action!r}, which cannot be called. Was it "
                f"called already? Write run.step({label!r}, lambda: ...)."
            )
        if label in self._reached:
            raise ConfigurationError(f"label={label!r} names two steps; labels must be unique.")
        if retry not in _RETRIES:
            raise ConfigurationError(
                f"retry={retry!r} of step {label!r} must be one of {_RETRIES}."
            )
        if then is ANYTHING:
            raise ConfigurationError(
                f"then=ANYTHING of step {label!r} would accept any state; use UNCHANGED, or leave "
                "it out to compare with what a dead process leaves, or between=ANYTHING."
            )
        self._reached.add(label)
        if self._plan is not None and self._plan.is_default and label not in self._plan.steps:
            raise ConfigurationError(
                f"resume reached step {label!r}, which the recorded workload does not have: it "
                "takes another path after a crash; write resume()."
            )
        note = StepNote(label=label, begin=0, retry=retry)
        if raises and then is OBSERVED:
            then = UNCHANGED
        note.then = (
            "observed" if then is OBSERVED else "unchanged" if then is UNCHANGED else "value"
        )
        if between is ANYTHING:
            note.between = None
        elif not isinstance(between, Sequence) or isinstance(between, (str, bytes)):
            raise ConfigurationError(
                f"between={between!r} of step {label!r} must be a list of observations or ANYTHING."
            )
        elif self._is_recording:
            note.between = [
                normalise(x, f"between[{n}] of step {label!r}") for n, x in enumerate(between)
            ]
        return note

    def _refused(
        self,
        label: str,
        action: Callable[[], object],
        raises: type[Exception] | tuple[type[Exception], ...],
    ) -> None:
        try:
            action()
        except raises:
            return
        names = " or ".join(
            kind.__name__ for kind in (raises if isinstance(raises, tuple) else (raises,))
        )
        raise NotRefused(
            f"step {label!r} returned, though its raises= says that {names} must come: the store "
            "accepted what it must refuse, so it lost a check, or raises= is wrong; only you can "
            "say which"
        )

    def _note_end(self, note: StepNote, then: object, result: object) -> None:
        if note.then == "value":
            with observe.paused():
                given = then() if callable(then) else then
                if self._is_recording:
                    note.given = normalise(given, f"then of step {note.label!r}")
        if not self._is_recording:
            return
        try:
            note.result = normalise(result)
            note.is_lost = _has_record(result)
        except ConfigurationError:
            note.is_lost = True
        self.notes.append(note)

    def _refuse_after_failure(self, what: str) -> None:
        """
        Refuse to go on after a step that raised undeclared, whoever caught it.

        In the recording the workload is wrong; later on it is the store's answer that counts.
        """
        error = self._failure
        if error is None:
            return
        if self._phase == "execute" and self._is_recording:
            raise ConfigurationError(
                f"step {self._open_step!r} raised {type(error).__name__}: {error}, and execute "
                f"{what}. Declare a refusal that must come with raises={type(error).__name__}; any "
                "other error ends the workload."
            ) from error
        raise error

    def finish(self) -> None:
        """
        Check, once the phase returned, that no step failed and that a default resume reached all.

        Raises: ConfigurationError: a failed step was passed over, or an acknowledged one was not
            reached. Exception: what a step raised and the workload passed over after a crash.
        """
        self._refuse_after_failure("returned all the same")
        if self._plan is None or not self._plan.is_default:
            return
        missing = [label for label in self._plan.acknowledged if label not in self._reached]
        if missing:
            raise ConfigurationError(
                f"resume did not reach the acknowledged steps {missing}: the workload takes "
                "another path after a crash; write resume()."
            )

    # -- promises and effects ---------------------------------------------------------------

    def promise(self, name: str, /, **facts: JSON) -> None:
        """
        Say that the store has acknowledged a fact, which must hold from now on.

        Raises: ConfigurationError: nothing judges it, or the facts do not fit its judge.
        """
        kept = {k: normalise(v, f"promise {name}.{k}") for k, v in facts.items()}
        self._demand_judge(name, kept)
        self._write("promise", name, kept)
        self._tape.mark("promise", "after", name)

    def withdraw(self, name: str, /, **facts: JSON) -> None:
        """
        End a promise, before the act that makes it void.

        Raises: ConfigurationError: no such promise binds.
        """
        kept = {k: normalise(v, f"withdraw {name}.{k}") for k, v in facts.items()}
        if self._is_recording and Promise(name, kept) not in binding(
            [*self._before, *self._journal]
        ):
            raise ConfigurationError(
                f"withdraw({name!r}, {kept}) ends no promise: none of that name and facts binds. "
                "Withdraw with the facts that were promised, once."
            )
        self._write("withdraw", name, kept)

    def effect(self, name: str, /, **facts: JSON) -> None:
        """
        Say that something was done to the outside world, for good.

        Raises: ConfigurationError: ``delivery`` has no contract for it, or it stands outside
            a step of a workload that the default resume repeats.
        """
        if name not in self._campaign.delivery:
            raise ConfigurationError(
                f"effect {name!r} has no contract; add it to delivery: at-most-once, "
                "at-least-once, exactly-once or checked."
            )
        is_repeated = self._phase in ("execute", "resume") and self._open_step is None
        if is_repeated and not overrides(self._campaign, "resume"):
            raise ConfigurationError(
                f"effect {name!r} stands outside a step, so the default resume would repeat it: "
                "put it into a step, or write resume()."
            )
        self._write(
            "effect", name, {k: normalise(v, f"effect {name}.{k}") for k, v in facts.items()}
        )
        self._tape.mark("effect", "after", name)

    def effects(self, name: str, /) -> Sequence[Mapping[str, Any]]:
        """Return the facts of every effect of that name so far, in order, past phases included."""
        return [e.facts for e in effects_of([*self._before, *self._journal]) if e.name == name]

    def _write(self, act: str, name: str, facts: dict[str, Any]) -> None:
        self._tape.write_journal(act, name, facts)
        self._journal.append(Entry(0, act, name, facts))

    def _demand_judge(self, name: str, facts: dict[str, Any]) -> None:
        judge = judge_of(self._campaign, name)
        if judge is None:
            if name in self._campaign.delivery and self._campaign.delivery[name] != "at-most-once":
                return
            raise ConfigurationError(
                f"promise {name!r} has no judge; define promised_{name}(self, root, evidence, *, "
                f"{', '.join(facts) or '**facts'}) -> bool, or a delivery contract that keeps it."
            )
        try:
            inspect.signature(judge).bind(None, None, **facts)
        except TypeError as error:
            raise ConfigurationError(
                f"promise {name!r} has the facts {sorted(facts)}, which do not fit the signature "
                f"of promised_{name}: {error}. Facts arrive as keywords of these names."
            ) from None

    # -- time and numbers -------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        """The virtual clock in nanoseconds since the Unix epoch, without moving it."""
        return self._tape.time[0]

    def clock(self) -> int:
        """Read the virtual clock in nanoseconds; each reading moves it by a millisecond."""
        return self._tape.tick()

    def sleep(self, seconds: float) -> None:
        """
        Move the virtual clock forward by *seconds*, taking no real time.

        Raises: ConfigurationError: *seconds* is negative.
        """
        if seconds < 0:
            raise ConfigurationError(f"seconds={seconds!r} of run.sleep must not be negative.")
        self._tape.tick(round(seconds * 1e9))

    def identifier(self, kind: str) -> str:
        """Return a name that no other call returns, in any phase: ``KIND-0001`` and so on."""
        return f"{kind}-{self._tape.next_number():04d}"


def _has_record(value: object) -> bool:
    """
    Say whether *value* holds a named tuple, of which JSON would keep the list and lose the names.
    """
    if isinstance(value, Mapping):
        return any(_has_record(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return hasattr(value, "_fields") or any(_has_record(item) for item in value)
    return False
