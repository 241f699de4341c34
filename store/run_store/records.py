"""
The shapes of what a planner registers.

Method: a planned record is its canonical JSON text plus the fields that the store indexes. `of`
builds text and fields from parts, `verify` takes the text apart and builds it again, so that no
field can disagree with the text and no id with either. Every record has `version` 1.

    Candidate        decision: candidate, candidate_id, disposition, evidence
    ResolvedRun      resolved-run: candidate_id, decision_id, logical, logical_run_id, resolution
    AttemptSlot      attempt-slot: control, execution_kind, logical, logical_slot_id, role, run_id
    ObservationSlot  observation-slot: control, kind, logical, logical_slot_id, run_id

`candidate`, `evidence`, `logical`, `resolution` and `control` are JSON objects that the planner
owns. A logical id is made of `logical` alone.

Covered: canonical form, exact members, every id.
Not covered: what the planner's objects mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import ClassVar, Self, TypeAlias, TypeVar

from store import canonical
from store.canonical import JsonValue
from store.run_store.identity import canonical_object, check_id, typed_id
from store.run_store.refusals import IdentityMismatch, MalformedRecord

__all__ = [
    "AttemptSlot",
    "Candidate",
    "Disposition",
    "ExecutionKind",
    "JsonObject",
    "ObservationKind",
    "ObservationSlot",
    "ResolvedRun",
    "Role",
]

JsonObject: TypeAlias = dict[str, JsonValue]

_Choice = TypeVar("_Choice", bound=StrEnum)


class Disposition(StrEnum):
    """
    What a decision says about a candidate.
    """

    APPLICABLE = "applicable"
    EXCLUDED = "excluded"


class ExecutionKind(StrEnum):
    """
    How an execution slot runs; the layout reserves all but `ONE_SHOT`.
    """

    ONE_SHOT = "one_shot"
    FRESH_OBSERVATION = "fresh_observation"
    STREAM = "stream"


class ObservationKind(StrEnum):
    """
    What an observation slot holds; the layout reserves all but `ONE_SHOT`.
    """

    ONE_SHOT = "one_shot"
    FRESH_OBSERVATION = "fresh_observation"
    CHECKPOINT = "checkpoint"


class Role(StrEnum):
    """
    What an execution is for; a warm-up owns no observation slot.
    """

    MEASUREMENT = "measurement"
    WARM_UP = "warm_up"


@dataclass(frozen=True, slots=True)
class _Record(ABC):
    """
    A record's text, and how it is taken apart and put together again.
    """

    KIND: ClassVar[str]
    MEMBERS: ClassVar[frozenset[str]]

    record_json: str

    @classmethod
    @abstractmethod
    def _rebuilt(cls, record: JsonObject) -> Self:
        """Build the record again from its members, trusting none of the derived ones."""

    def verify(self) -> None:
        """
        Check that the text is canonical, has exactly its members, and yields every field.

        Raises:
            MalformedRecord: the text is not the canonical document of this kind.
            MalformedId: it refers to something by what is no id.
            IdentityMismatch: an id or another field does not follow from the text.
        """
        rebuilt = self._rebuilt(self._members())
        for declared in fields(self):
            found = getattr(self, declared.name)
            expected = getattr(rebuilt, declared.name)
            if type(found) is not type(expected) or found != expected:
                raise IdentityMismatch(self.KIND, declared.name, found, expected)

    def _members(self) -> JsonObject:
        if type(self.record_json) is not str:
            raise MalformedRecord(self.KIND, f"record_json={self.record_json!r} must be text.")
        try:
            data = self.record_json.encode("utf-8")
            record = canonical.decode(data, canonical_only=True)
        except (UnicodeEncodeError, canonical.CanonicalError) as error:
            raise MalformedRecord(self.KIND, f"{error}") from error
        if not isinstance(record, dict) or record.keys() != self.MEMBERS:
            raise MalformedRecord(self.KIND, f"expected the members {sorted(self.MEMBERS)!r}.")
        return record


def _text(kind: str, record: JsonObject) -> str:
    return canonical_object(kind, record).decode("utf-8")


def _object(kind: str, name: str, value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise MalformedRecord(kind, f"{name}={value!r} must be an object.")
    return value


def _choice(kind: str, enum: type[_Choice], name: str, value: JsonValue) -> _Choice:
    for member in enum:
        if member.value == value:
            return member
    choices = [member.value for member in enum]
    raise MalformedRecord(kind, f"{name}={value!r} must be one of {choices!r}.")


@dataclass(frozen=True, slots=True)
class Candidate(_Record):
    """
    A candidate with the decision whether it applies; its record is the whole decision.
    """

    KIND: ClassVar[str] = "decision"
    MEMBERS: ClassVar[frozenset[str]] = frozenset(
        {"candidate", "candidate_id", "disposition", "evidence", "version"}
    )

    candidate_id: str
    decision_id: str
    disposition: Disposition

    @classmethod
    def of(
        cls,
        *,
        candidate: JsonObject,
        evidence: JsonObject,
        disposition: Disposition = Disposition.APPLICABLE,
    ) -> Self:
        """
        Return the decision about *candidate*, on the *evidence* that led to it.

        Raises: MalformedRecord: a part has no canonical form.
        """
        candidate_id = typed_id("candidate", _object(cls.KIND, "candidate", candidate))
        record: JsonObject = {
            "candidate": candidate,
            "candidate_id": candidate_id,
            "disposition": disposition.value,
            "evidence": _object(cls.KIND, "evidence", evidence),
            "version": 1,
        }
        return cls(
            record_json=_text(cls.KIND, record),
            candidate_id=candidate_id,
            decision_id=typed_id(cls.KIND, record),
            disposition=disposition,
        )

    @classmethod
    def _rebuilt(cls, record: JsonObject) -> Self:
        return cls.of(
            candidate=_object(cls.KIND, "candidate", record["candidate"]),
            evidence=_object(cls.KIND, "evidence", record["evidence"]),
            disposition=_choice(cls.KIND, Disposition, "disposition", record["disposition"]),
        )


@dataclass(frozen=True, slots=True)
class ResolvedRun(_Record):
    """
    One logical run, resolved for an applicable candidate.
    """

    KIND: ClassVar[str] = "resolved-run"
    MEMBERS: ClassVar[frozenset[str]] = frozenset(
        {"candidate_id", "decision_id", "logical", "logical_run_id", "resolution", "version"}
    )

    run_id: str
    logical_run_id: str
    candidate_id: str
    decision_id: str

    @classmethod
    def of(cls, *, candidate: Candidate, logical: JsonObject, resolution: JsonObject) -> Self:
        """
        Return the run that *resolution* makes of the *logical* specification.

        Raises: MalformedRecord: a part has no canonical form.
        """
        return cls._built(candidate.candidate_id, candidate.decision_id, logical, resolution)

    @classmethod
    def _built(
        cls, candidate_id: str, decision_id: str, logical: JsonObject, resolution: JsonObject
    ) -> Self:
        logical_run_id = typed_id("logical-run", _object(cls.KIND, "logical", logical))
        record: JsonObject = {
            "candidate_id": check_id("candidate", candidate_id),
            "decision_id": check_id("decision", decision_id),
            "logical": logical,
            "logical_run_id": logical_run_id,
            "resolution": _object(cls.KIND, "resolution", resolution),
            "version": 1,
        }
        return cls(
            record_json=_text(cls.KIND, record),
            run_id=typed_id(cls.KIND, record),
            logical_run_id=logical_run_id,
            candidate_id=candidate_id,
            decision_id=decision_id,
        )

    @classmethod
    def _rebuilt(cls, record: JsonObject) -> Self:
        return cls._built(
            check_id("candidate", record["candidate_id"]),
            check_id("decision", record["decision_id"]),
            _object(cls.KIND, "logical", record["logical"]),
            _object(cls.KIND, "resolution", record["resolution"]),
        )


@dataclass(frozen=True, slots=True)
class AttemptSlot(_Record):
    """
    One execution that a resolved run needs.
    """

    KIND: ClassVar[str] = "attempt-slot"
    MEMBERS: ClassVar[frozenset[str]] = frozenset(
        {"control", "execution_kind", "logical", "logical_slot_id", "role", "run_id", "version"}
    )

    slot_id: str
    run_id: str
    logical_slot_id: str
    execution_kind: ExecutionKind
    role: Role

    @classmethod
    def of(
        cls,
        *,
        run: ResolvedRun,
        logical: JsonObject,
        control: JsonObject,
        execution_kind: ExecutionKind = ExecutionKind.ONE_SHOT,
        role: Role = Role.MEASUREMENT,
    ) -> Self:
        """
        Return the slot of *run* for the *logical* execution, with all that controls it.

        Raises: MalformedRecord: a part has no canonical form.
        """
        return cls._built(run.run_id, logical, control, execution_kind, role)

    @classmethod
    def _built(
        cls,
        run_id: str,
        logical: JsonObject,
        control: JsonObject,
        execution_kind: ExecutionKind,
        role: Role,
    ) -> Self:
        logical_slot_id = typed_id("logical-attempt-slot", _object(cls.KIND, "logical", logical))
        record: JsonObject = {
            "control": _object(cls.KIND, "control", control),
            "execution_kind": execution_kind.value,
            "logical": logical,
            "logical_slot_id": logical_slot_id,
            "role": role.value,
            "run_id": check_id("resolved-run", run_id),
            "version": 1,
        }
        return cls(
            record_json=_text(cls.KIND, record),
            slot_id=typed_id(cls.KIND, record),
            run_id=run_id,
            logical_slot_id=logical_slot_id,
            execution_kind=execution_kind,
            role=role,
        )

    @classmethod
    def _rebuilt(cls, record: JsonObject) -> Self:
        return cls._built(
            check_id("resolved-run", record["run_id"]),
            _object(cls.KIND, "logical", record["logical"]),
            _object(cls.KIND, "control", record["control"]),
            _choice(cls.KIND, ExecutionKind, "execution_kind", record["execution_kind"]),
            _choice(cls.KIND, Role, "role", record["role"]),
        )


@dataclass(frozen=True, slots=True)
class ObservationSlot(_Record):
    """
    One observation that a resolved run needs; a warm-up has none and passes None.
    """

    KIND: ClassVar[str] = "observation-slot"
    MEMBERS: ClassVar[frozenset[str]] = frozenset(
        {"control", "kind", "logical", "logical_slot_id", "run_id", "version"}
    )

    slot_id: str
    run_id: str
    logical_slot_id: str
    kind: ObservationKind

    @classmethod
    def of(
        cls,
        *,
        run: ResolvedRun,
        logical: JsonObject,
        control: JsonObject,
        kind: ObservationKind = ObservationKind.ONE_SHOT,
    ) -> Self:
        """
        Return the slot of *run* for the *logical* observation, with all that controls it.

        Raises: MalformedRecord: a part has no canonical form.
        """
        return cls._built(run.run_id, logical, control, kind)

    @classmethod
    def _built(
        cls, run_id: str, logical: JsonObject, control: JsonObject, kind: ObservationKind
    ) -> Self:
        logical_slot_id = typed_id(
            "logical-observation-slot", _object(cls.KIND, "logical", logical)
        )
        record: JsonObject = {
            "control": _object(cls.KIND, "control", control),
            "kind": kind.value,
            "logical": logical,
            "logical_slot_id": logical_slot_id,
            "run_id": check_id("resolved-run", run_id),
            "version": 1,
        }
        return cls(
            record_json=_text(cls.KIND, record),
            slot_id=typed_id(cls.KIND, record),
            run_id=run_id,
            logical_slot_id=logical_slot_id,
            kind=kind,
        )

    @classmethod
    def _rebuilt(cls, record: JsonObject) -> Self:
        return cls._built(
            check_id("resolved-run", record["run_id"]),
            _object(cls.KIND, "logical", record["logical"]),
            _object(cls.KIND, "control", record["control"]),
            _choice(cls.KIND, ObservationKind, "kind", record["kind"]),
        )
