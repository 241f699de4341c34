"""
Verification of one crash state: recover it, judge it, recover again, resume it, judge again.

Method: each phase in a forked child with a timeout; the first thing found wrong is the verdict.
What observing and judging do to the files is thrown away.

Covered: DESIGN's order of verification for one process death.
Not covered: crashes inside recovery.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from harness import workspace
from harness.campaign import overrides
from harness.crash import kill_at
from harness.judge import Case, Judgement, evidence_at, judge, observation
from harness.oracle import difference
from harness.run import ResumePlan, Run
from harness.sqlite_check import check_databases
from harness.stage import PhaseEnd, Stage
from harness.trace import Entry, Recording, parse_journal
from harness.verdict import Kind, Verdict, Violation

_CONSISTENT = (
    "durability consistent: a power loss may take the newest steps; not part of this fault model"
)


class _Wrong(Exception):
    """The verdict is known."""

    def __init__(self, kind: Kind, violation: Violation) -> None:
        super().__init__(violation.message)
        self.kind = kind
        self.violation = violation


def examine(
    stage: Stage, recording: Recording, boundary: int, *, keep: Path | None = None
) -> Verdict:
    """
    Kill an execution at *boundary* and return the verdict over what it left.

    Args:
        boundary: 1..len(recording.lines).
        keep: Folder that receives copies of the crashed and the recovered root.
    Raises: ConfigurationError: the campaign is wrong. Hangup: the asking process is gone.
    """
    return _examined(_Verification(stage, recording, boundary, keep))


def control(stage: Stage, recording: Recording) -> tuple[Verdict, list[Entry]]:
    """
    Examine the finished execution; return the verdict, and all that was promised and done.

    Raises: as :func:`examine`.
    """
    verification = _Verification(stage, recording, len(recording.lines), None)
    return _examined(verification), verification.entries


def is_judged_wrong(stage: Stage, recording: Recording, boundary: int) -> bool:
    """
    Verify what stands at the root, taken for what a death at *boundary* left.

    Raises: as :func:`examine`.
    """
    try:
        _Verification(stage, recording, boundary, None).run()
    except _Wrong as wrong:
        return wrong.kind in ("violated", "hung")
    return False


def _examined(verification: _Verification) -> Verdict:
    started = time.monotonic()
    boundary = verification.boundary
    death = kill_at(verification.stage, verification.recording, boundary)
    verification.note_printed("execute", death.end.printed)
    kind: Kind = "survived"
    violation: Violation | None = None
    if death.kind is not None:
        kind, violation = death.kind, death.violation
    else:
        try:
            verification.run()
        except _Wrong as wrong:
            kind, violation = wrong.kind, wrong.violation
    return Verdict(
        kind=kind,
        boundary=boundary,
        violation=violation,
        printed="" if kind == "survived" else "\n".join(verification.printed),
        exit_status=death.end.ended.exit_status,
        died_at=death.end.died_at,
        subjects=dict(verification.subjects),
        notes=tuple(dict.fromkeys(verification.notes)),
        seconds=time.monotonic() - started,
    )


class _Verification:
    """One pass over one crash state that stands at the stage's root."""

    def __init__(
        self, stage: Stage, recording: Recording, boundary: int, keep: Path | None
    ) -> None:
        self.stage = stage
        self.recording = recording
        self.boundary = boundary
        self.keep = keep
        count, _ = recording.journal_before(boundary)
        self.entries: list[Entry] = [
            *parse_journal(recording.prepared),
            *recording.entries[:count],
        ]
        self.printed: list[str] = []
        self.subjects: Counter[str] = Counter()
        self.notes: list[str] = []
        if stage.campaign.durability == "consistent":
            self.notes.append(_CONSISTENT)

    def run(self) -> None:
        """Go through every step of the verification. Raises: _Wrong."""
        recovers = overrides(self.stage.campaign, "recover")
        self._keep("crashed")
        if recovers:
            self._recover("recover")
        self._keep("recovered")
        self._check_sqlite()
        first = self._judged_aside("recovered", "after recovery")
        if recovers:
            self._recover("recover, once more,")
            self._demand_same_observation(first)
        self._resume(first)
        self._judge("resumed", "after resume")

    # -- phases -----------------------------------------------------------------------------

    def _recover(self, phase: str) -> None:
        stage = self.stage
        run = Run(
            stage.campaign,
            stage.tape,
            "recover",
            fixture=stage.fixture_value,
            before=self.entries,
        )
        end = stage.run(lambda: stage.campaign.recover(stage.root, run), is_traced=True)
        self._demand(end, phase, "recovers", "in recovery")

    def _resume(self, recovered: Judgement) -> None:
        stage, recording = self.stage, self.recording
        past = evidence_at(
            recording,
            self.boundary,
            self.entries,
            "recovered",
            observed=recovered.observed,
            right=None,
            now_ns=stage.tape.time[0],
        )
        plan = ResumePlan(
            steps={step.label: step for step in recording.steps},
            acknowledged=past.acknowledged,
            in_flight=past.in_flight,
            is_present=recovered.is_present,
            is_default=not overrides(stage.campaign, "resume"),
        )
        run = Run(
            stage.campaign,
            stage.tape,
            "resume",
            fixture=stage.fixture_value,
            past=past,
            before=self.entries,
            plan=plan,
        )

        def body() -> None:
            stage.campaign.resume(stage.root, run)
            run.finish()

        end = stage.run(body, is_traced=True)
        self._demand(end, "resume", "resumes", "in resume")

    def _demand(self, end: PhaseEnd, phase: str, invariant: str, where: str) -> None:
        self.note_printed(phase, end.printed)
        if not end.has_returned:
            detail = end.raised.traceback if end.raised else end.ended.stack
            self._wrong(
                "hung" if end.ended.is_hung else "violated",
                invariant,
                end.failure(phase),
                where,
                difference=tuple(detail.rstrip().splitlines()),
                trace_tail=end.trace_tail,
            )
        self.entries += end.entries
        if not self.stage.has_root:
            message = f"{phase} removed the store's folder, or put something else in its place"
            self._wrong("violated", invariant, message, where, trace_tail=end.trace_tail)
        if end.leftovers:
            message = f"{phase} returned and left a process: {end.leftovers}"
            self._wrong("violated", "no_process_left", message, where)

    # -- judging ----------------------------------------------------------------------------

    def _check_sqlite(self) -> None:
        checked = check_databases(self.stage)
        self.notes += checked.notes
        if checked.databases:
            self.subjects["sqlite_integrity"] += checked.databases
        if checked.failure:
            self._wrong("errored", "sqlite_integrity", checked.failure, "after recovery")
        new = [line for line in checked.complaints if line not in self.recording.sqlite_golden]
        if new:
            self._wrong(
                "violated",
                "sqlite_integrity",
                f"SQLite complains of the recovered database: {new[0]}",
                "after recovery",
                difference=tuple(new),
            )

    def _judged_aside(self, phase: Literal["recovered", "resumed"], where: str) -> Judgement:
        saved = self.stage.save("saved")
        judgement = self._judge(phase, where)
        self.stage.put_back(saved)
        return judgement

    def _judge(self, phase: Literal["recovered", "resumed"], where: str) -> Judgement:
        is_final = phase == "resumed"
        case = Case(
            boundary=self.boundary,
            entries=self.entries,
            phase=phase,
            is_final=is_final,
            has_step_oracle=not is_final,
            must_complete=is_final,
        )
        judgement = run_judge(self.stage, self.recording, case)
        self.note_printed("judging", judgement.printed)
        if isinstance(judgement, PhaseEnd):
            self._unjudged(judgement, where)
        self.subjects.update(judgement.subjects)
        if judgement.broken:
            first = judgement.broken[0]
            self._wrong(
                "violated",
                first.invariant,
                first.message,
                where,
                difference=first.difference,
                also=tuple(dict.fromkeys(b.invariant for b in judgement.broken[1:])),
            )
        if judgement.error:
            self._wrong("errored", "judged", judgement.error, where)
        return judgement

    def _unjudged(self, end: PhaseEnd, where: str) -> NoReturn:
        """Account for a judging child that did not answer: a store may end its reader."""
        method = end.entries[-1].name if end.entries else "judging"
        is_observing = method == "observe"
        kind: Kind = "hung" if end.ended.is_hung else "violated" if is_observing else "errored"
        detail = end.raised.traceback if end.raised else end.ended.stack
        self._wrong(
            kind,
            "observable" if is_observing else "judged",
            end.failure(method),
            where,
            difference=tuple(detail.rstrip().splitlines()),
        )

    def _demand_same_observation(self, first: Judgement) -> None:
        stage = self.stage
        saved = stage.save("saved")
        end = stage.run(lambda: observation(stage.campaign, stage.root))
        stage.put_back(saved)
        self.note_printed("observe", end.printed)
        where = "after a second recovery"
        if not end.has_returned:
            kind: Kind = "hung" if end.ended.is_hung else "violated"
            detail = end.raised.traceback if end.raised else end.ended.stack
            lines = tuple(detail.rstrip().splitlines())
            self._wrong(kind, "observable", end.failure("observe"), where, difference=lines)
        if end.value != first.observed:
            self._wrong(
                "violated",
                "recovery_is_idempotent",
                "recovering the recovered store once more changed what observe shows",
                where,
                difference=difference(first.observed, end.value),
            )

    # -- what a person sees -----------------------------------------------------------------

    def note_printed(self, phase: str, printed: str) -> None:
        """Keep what the children of a phase printed."""
        if printed.strip():
            self.printed.append(f"{phase} printed:\n{printed.rstrip()}")

    def _keep(self, name: str) -> None:
        if self.keep is not None:
            workspace.copy_tree(self.stage.root, self.keep / name)

    def _wrong(
        self,
        kind: Kind,
        invariant: str,
        message: str,
        where: str,
        *,
        difference: Sequence[str] = (),
        also: tuple[str, ...] = (),
        trace_tail: tuple[str, ...] = (),
    ) -> NoReturn:
        raise _Wrong(
            kind, Violation(invariant, message, where, tuple(difference), also, trace_tail)
        )


def run_judge(stage: Stage, recording: Recording, case: Case) -> Judgement | PhaseEnd:
    """Judge in a child; return how the child ended where it did not answer."""
    now_ns = stage.tape.time[0]

    def reached(method: str) -> None:
        stage.tape.write_journal("reached", method, {})

    def body() -> dict[str, Any]:
        return judge(stage.campaign, stage.root, recording, case, now_ns, reached).as_json()

    end = stage.run(body)
    if not end.has_returned:
        return end
    judgement = Judgement.from_json(end.value)
    judgement.printed = end.printed
    return judgement
