"""
What the writer refuses of what it is passed, each refusal a type of its own.

Whoever catches one knows that the operation committed nothing. `ownership_refusals` holds what
is refused because of where a slot, an attempt or a lease stands.
"""

from store.run_store.errors import RunStoreError

__all__ = [
    "ConflictingIdentity",
    "IdentityMismatch",
    "InapplicableCandidate",
    "MalformedAuthorization",
    "MalformedId",
    "MalformedRecord",
    "MalformedToken",
    "MembershipRefused",
    "NotOneShot",
    "RetryIndexOutOfRange",
    "RevisionOutOfRange",
    "TimestampOutOfRange",
    "UnrelatedRecords",
    "WriterRefusal",
]


class WriterRefusal(RunStoreError):
    """
    Root of the writer's refusals: the operation was rolled back, the database is as before.
    """


# What a caller passed ----------------------------------------------------------------------


class TimestampOutOfRange(WriterRefusal):
    """
    A time is not a nonnegative number of nanoseconds in 64 bits.

    Attributes:
        name: Which argument.
        value: What was passed.
    """

    def __init__(self, name: str, value: object) -> None:
        super().__init__(
            f"{name}={value!r} must be an int in [0, 2**63-1], nanoseconds since the Unix epoch; "
            "pass the current time."
        )
        self.name = name
        self.value = value


class RetryIndexOutOfRange(WriterRefusal):
    """
    A retry index does not fit canonical JSON.

    Attributes:
        name: Which argument, or `retry_index` for the one to be allocated.
        value: What was passed.
    """

    def __init__(self, name: str, value: object) -> None:
        super().__init__(
            f"{name}={value!r} must be an int in [0, 2**53-1]; count retries from zero."
        )
        self.name = name
        self.value = value


class RevisionOutOfRange(WriterRefusal):
    """
    An attempt has no revision left that canonical JSON can carry.

    Attributes:
        value: The revision that would come next.
    """

    def __init__(self, value: object) -> None:
        super().__init__(
            f"revision={value!r} must be an int in [0, 2**53-1]; retry under a new attempt."
        )
        self.value = value


class MalformedId(WriterRefusal):
    """
    A text is not an id of the expected kind.

    Attributes:
        kind: The kind that was expected.
        identifier: What was passed.
    """

    def __init__(self, kind: str, identifier: object) -> None:
        super().__init__(
            f"identifier={identifier!r} must be 'mw1-{kind}-' and 64 lowercase hex digits; "
            "derive it with store.run_store.identity."
        )
        self.kind = kind
        self.identifier = identifier


class MalformedRecord(WriterRefusal):
    """
    A record is not the canonical document of its kind.

    Attributes:
        kind: The record's kind.
        problem: What is wrong with it.
    """

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(f"record of kind={kind!r}: {problem} Build it with the class's `of`.")
        self.kind = kind
        self.problem = problem


class MalformedToken(WriterRefusal):
    """
    A lease id or owner token is not usable text. The text itself is not shown.

    Attributes:
        name: Which argument.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} must be nonempty text without NUL or lone surrogates; "
            "pass a unique lease id and a private owner token."
        )
        self.name = name


class MalformedAuthorization(WriterRefusal):
    """
    A value is none of the three authorizations.

    Attributes:
        value: What was passed.
    """

    def __init__(self, value: object) -> None:
        super().__init__(
            f"authorization={value!r} must be FirstAttempt(), Next(retry=True or False) or "
            "Retry(next_index=..., max_index=...); say which attempt is allowed."
        )
        self.value = value


# Registration ------------------------------------------------------------------------------


class IdentityMismatch(WriterRefusal):
    """
    A field of a record does not follow from the record.

    Attributes:
        kind: The record's kind.
        field: Which field.
        found: What the field says.
        expected: What the record says.
    """

    def __init__(self, kind: str, field: str, found: object, expected: object) -> None:
        super().__init__(
            f"{field}={found!r} of kind={kind!r}, expected {expected!r} from its record; "
            "never reuse an id for another record."
        )
        self.kind = kind
        self.field = field
        self.found = found
        self.expected = expected


class UnrelatedRecords(WriterRefusal):
    """
    Records that were passed together do not refer to one another.

    Attributes:
        field: The referring field.
        found: What it refers to.
        expected: The id of the record that was passed.
    """

    def __init__(self, field: str, found: str, expected: str) -> None:
        super().__init__(
            f"{field}={found!r}, expected {expected!r}; pass records of one candidate and run."
        )
        self.field = field
        self.found = found
        self.expected = expected


class ConflictingIdentity(WriterRefusal):
    """
    The store holds something else under an identity that must mean one thing.

    Attributes:
        table: Where.
        identity: The identity, by column.
        found: What the store holds.
        expected: What the caller wanted it to hold.
    """

    def __init__(
        self, table: str, identity: dict[str, object], *, found: object, expected: object
    ) -> None:
        super().__init__(
            f"{table} {identity!r} holds {found!r}, expected {expected!r}; "
            "registered records never change, register a new one."
        )
        self.table = table
        self.identity = identity
        self.found = found
        self.expected = expected


class InapplicableCandidate(WriterRefusal):
    """
    A run was to be registered for a candidate that the decision excludes.

    Attributes:
        candidate_id: The candidate.
        decision_id: The decision that excludes it.
    """

    def __init__(self, candidate_id: str, decision_id: str) -> None:
        super().__init__(
            f"candidate_id={candidate_id!r} is excluded by decision_id={decision_id!r}, "
            "expected an applicable decision; do not run it."
        )
        self.candidate_id = candidate_id
        self.decision_id = decision_id


class NotOneShot(WriterRefusal):
    """
    A slot of a reserved kind was passed where only one-shot slots are supported.

    Attributes:
        slot_id: The slot.
        kind: Its kind.
    """

    def __init__(self, slot_id: str, kind: str) -> None:
        super().__init__(
            f"slot_id={slot_id!r} has kind={kind!r}, expected 'one_shot'; "
            "the other kinds are reserved by the layout."
        )
        self.slot_id = slot_id
        self.kind = kind


class MembershipRefused(WriterRefusal):
    """
    A warm-up came with an observation slot, or a measurement without one.

    Attributes:
        slot_id: The execution slot.
        role: Its role.
    """

    def __init__(self, slot_id: str, role: str) -> None:
        expected = "one observation slot" if role == "measurement" else "observation_slot=None"
        super().__init__(
            f"slot_id={slot_id!r} has role={role!r}, expected {expected}; "
            "a warm-up measures nothing, a measurement fills a slot."
        )
        self.slot_id = slot_id
        self.role = role
