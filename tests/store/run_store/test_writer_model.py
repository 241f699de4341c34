"""
The writer against a plain model: two connections, lying owners, stale guards, wild clocks.

Method: each rule asks the model first what the store must answer, a refusal by its type or the
new state, then asks the store through one of two connections. After each step both connections
must show exactly the model's attempts, leases and history.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from run_store_writer_world import finish, forged, plan, query

from store.run_store import (
    LEGAL_EDGES,
    TERMINAL_PHASES,
    Authorization,
    FirstAttempt,
    LeaseRequest,
    Next,
    OwnedAttempt,
    Phase,
    Retry,
    RunStore,
    WriterRefusal,
    run_attempt_id,
)
from store.run_store.ownership_refusals import (
    DuplicateLease,
    IllegalTransition,
    LeaseExpired,
    LeaseNeverLive,
    LeaseReleased,
    RetryBoundExceeded,
    RetryIndexMismatch,
    RetryNotAuthorized,
    SatisfiedSlot,
    ShortenedLease,
    StaleRevision,
    UnknownSlot,
    WrongLease,
    WrongOwner,
)

Refusal = type[WriterRefusal] | None

OUTCOMES: set[Refusal] = {
    None,
    DuplicateLease,
    IllegalTransition,
    LeaseExpired,
    LeaseNeverLive,
    LeaseReleased,
    RetryBoundExceeded,
    RetryIndexMismatch,
    RetryNotAuthorized,
    SatisfiedSlot,
    ShortenedLease,
    StaleRevision,
    UnknownSlot,
    WrongLease,
    WrongOwner,
}

PLANS = {name: plan(name) for name in ("first", "second")}

CLOCKS = st.one_of(st.integers(0, 60), st.integers(0, 400))

AUTHORIZATIONS = st.one_of(
    st.just(FirstAttempt()),
    st.builds(Next, retry=st.booleans()),
    st.just(Next(retry=True)),
    st.just(Next(retry=True)),
    st.builds(Retry, next_index=st.integers(0, 4), max_index=st.integers(0, 4)),
)

LIES = st.sampled_from(
    [{}, {}, {}, {}, {}, {"owner_token": "thief"}, {"lease_id": "stolen"}, {"revision": 0}]
)

WALK = {
    Phase.RESERVED: Phase.MATERIALIZING,
    Phase.MATERIALIZING: Phase.STARTING,
    Phase.STARTING: Phase.PREPARING,
    Phase.PREPARING: Phase.EXECUTING,
    Phase.EXECUTING: Phase.VALIDATING,
    Phase.CHECKPOINTING: Phase.VALIDATING,
    Phase.VALIDATING: Phase.EVALUATING,
    Phase.EVALUATING: Phase.FINALIZING,
    Phase.FINALIZING: Phase.FINALIZING,
}

ENDS = st.just(Phase.ACCEPTED) | st.sampled_from(sorted(TERMINAL_PHASES))


@dataclass
class Attempt:
    """
    What the model knows of one attempt.
    """

    slot_id: str
    retry_index: int
    lease_id: str
    owner: str
    expires_at_ns: int
    history: list[tuple[Phase, int]] = field(default_factory=list)
    released: bool = False

    @property
    def phase(self) -> Phase:
        return self.history[-1][0]

    @property
    def revision(self) -> int:
        return len(self.history) - 1

    @property
    def changed_at_ns(self) -> int:
        return self.history[-1][1]


class Model:
    """
    The rules of the writer, over plain dictionaries.
    """

    def __init__(self) -> None:
        self.slots: set[str] = set()
        self.attempts: dict[str, Attempt] = {}
        self.lease_ids: set[str] = set()

    def in_slot(self, slot_id: str) -> list[Attempt]:
        return [found for found in self.attempts.values() if found.slot_id == slot_id]

    def reserve(
        self, slot_id: str, authorization: Authorization, lease: LeaseRequest, now_ns: int
    ) -> Refusal:
        if lease.expires_at_ns <= now_ns:
            return LeaseNeverLive
        if slot_id not in self.slots:
            return UnknownSlot
        earlier = self.in_slot(slot_id)
        if any(found.phase is Phase.ACCEPTED for found in earlier):
            return SatisfiedSlot
        refusal = self.authorized(authorization, len(earlier))
        if refusal is None and lease.lease_id in self.lease_ids:
            refusal = DuplicateLease
        if refusal is None:
            self.lease_ids.add(lease.lease_id)
            self.attempts[run_attempt_id(slot_id, len(earlier))] = Attempt(
                slot_id=slot_id,
                retry_index=len(earlier),
                lease_id=lease.lease_id,
                owner=lease.owner_token,
                expires_at_ns=lease.expires_at_ns,
                history=[(Phase.RESERVED, now_ns)],
            )
        return refusal

    def authorized(self, authorization: Authorization, index: int) -> Refusal:
        if isinstance(authorization, Retry):
            if authorization.next_index != index:
                return RetryIndexMismatch
            return RetryBoundExceeded if index > authorization.max_index else None
        anything = isinstance(authorization, Next) and authorization.retry
        return None if anything or index == 0 else RetryNotAuthorized

    def owned(self, guard: OwnedAttempt, now_ns: int) -> Refusal:
        attempt = self.attempts[guard.attempt_id]
        if guard._owner_token != attempt.owner:
            return WrongOwner
        if guard._lease_id != attempt.lease_id:
            return WrongLease
        if attempt.released:
            return LeaseReleased
        if max(now_ns, attempt.changed_at_ns) >= attempt.expires_at_ns:
            return LeaseExpired
        return StaleRevision if guard.revision != attempt.revision else None

    def advance(self, guard: OwnedAttempt, phase: Phase, now_ns: int) -> Refusal:
        refusal = self.owned(guard, now_ns)
        attempt = self.attempts[guard.attempt_id]
        if refusal is None and phase not in LEGAL_EDGES[attempt.phase] - TERMINAL_PHASES:
            refusal = IllegalTransition
        if refusal is None:
            attempt.history.append((phase, max(now_ns, attempt.changed_at_ns)))
        return refusal

    def renew(self, guard: OwnedAttempt, expires_at_ns: int, now_ns: int) -> Refusal:
        refusal = self.owned(guard, now_ns)
        attempt = self.attempts[guard.attempt_id]
        if refusal is None and expires_at_ns < attempt.expires_at_ns:
            refusal = ShortenedLease
        if refusal is None:
            attempt.expires_at_ns = expires_at_ns
        return refusal


class WriterMachine(RuleBasedStateMachine):
    """
    Drives two connections on one root, and the model beside them.
    """

    outcomes: ClassVar[set[Refusal]] = set()

    @initialize()
    def open(self) -> None:
        self.folder = TemporaryDirectory()
        root = Path(self.folder.name).resolve()
        self.stores = (RunStore.open(root), RunStore.open(root))
        self.model = Model()
        self.guards: list[OwnedAttempt] = []
        self.register("first", 0)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for store in self.stores:
                store.close()
            self.folder.cleanup()

    def answered(
        self, expected: Refusal, operation: Callable[[], OwnedAttempt]
    ) -> OwnedAttempt | None:
        """Run *operation*, which must be refused exactly as *expected*, or else succeed."""
        self.outcomes.add(expected)
        if expected is not None:
            with pytest.raises(WriterRefusal) as caught:
                operation()
            assert expected is caught.type
            return None
        guard = operation()
        self.guards.append(guard)
        attempt = self.model.attempts[guard.attempt_id]
        assert (attempt.phase, attempt.revision, attempt.changed_at_ns, attempt.expires_at_ns) == (
            guard.phase,
            guard.revision,
            guard.changed_at_ns,
            guard.expires_at_ns,
        )
        return guard

    @rule(name=st.sampled_from(sorted(PLANS)), side=st.integers(0, 1))
    def register(self, name: str, side: int) -> None:
        PLANS[name].register(self.stores[side])
        self.model.slots.add(PLANS[name].slot_id)

    @rule(
        name=st.sampled_from(["first", "first", "first", "second"]),
        side=st.integers(0, 1),
        authorization=AUTHORIZATIONS,
        lease_id=st.sampled_from([f"l{number}" for number in range(12)]),
        owner=st.sampled_from(["one", "two"]),
        now_ns=CLOCKS,
        duration_ns=st.one_of(st.integers(-1, 60), st.integers(200, 900)),
    )
    def reserve(
        self,
        name: str,
        side: int,
        authorization: Authorization,
        lease_id: str,
        owner: str,
        now_ns: int,
        duration_ns: int,
    ) -> None:
        request = LeaseRequest(lease_id, owner, max(0, now_ns + duration_ns))
        slot_id = PLANS[name].slot_id
        expected = self.model.reserve(slot_id, authorization, request, now_ns)
        self.answered(
            expected,
            lambda: self.stores[side].reserve(slot_id, authorization, request, now_ns),
        )

    @precondition(lambda self: self.guards)
    @rule(
        data=st.data(),
        side=st.integers(0, 1),
        phase=st.one_of(st.none(), st.just(Phase.FINALIZING), st.sampled_from(Phase)),
        now_ns=CLOCKS,
        lie=LIES,
    )
    def advance(
        self,
        data: st.DataObject,
        side: int,
        phase: Phase | None,
        now_ns: int,
        lie: dict[str, object],
    ) -> None:
        guard = self.drawn(data, lie)
        requested = phase or WALK.get(guard.phase, Phase.FINALIZING)
        expected = self.model.advance(guard, requested, now_ns)
        self.answered(expected, lambda: self.stores[side].advance(guard, requested, now_ns))

    @precondition(lambda self: self.guards)
    @rule(
        data=st.data(),
        side=st.integers(0, 1),
        expires_at_ns=st.integers(0, 1_200),
        now_ns=CLOCKS,
        lie=LIES,
    )
    def renew(
        self,
        data: st.DataObject,
        side: int,
        expires_at_ns: int,
        now_ns: int,
        lie: dict[str, object],
    ) -> None:
        guard = self.drawn(data, lie)
        expected = self.model.renew(guard, expires_at_ns, now_ns)
        self.answered(expected, lambda: self.stores[side].renew(guard, expires_at_ns, now_ns))

    @precondition(lambda self: self.guards)
    @rule(side=st.integers(0, 1))
    def hurry(self, side: int) -> None:
        """Take the latest guard straight to finalizing, so that attempts come to their ends."""
        guard = self.guards[-1]
        expected = self.model.advance(guard, Phase.FINALIZING, guard.changed_at_ns)
        self.answered(
            expected,
            lambda: self.stores[side].advance(guard, Phase.FINALIZING, guard.changed_at_ns),
        )

    @precondition(lambda self: self.ready())
    @rule(data=st.data(), side=st.integers(0, 1), state=ENDS)
    def end(self, data: st.DataObject, side: int, state: Phase) -> None:
        guard = data.draw(st.sampled_from(self.ready()))
        finish(self.stores[side], guard, state)
        attempt = self.model.attempts[guard.attempt_id]
        attempt.history.append((state, attempt.changed_at_ns))
        attempt.released = True

    @precondition(lambda self: len(self.guards) > 1)
    @rule(side=st.integers(0, 1))
    def reopen(self, side: int) -> None:
        stores = list(self.stores)
        stores[side].close()
        stores[side] = RunStore.open(stores[side].database_path().parent)
        self.stores = (stores[0], stores[1])

    def drawn(self, data: st.DataObject, lie: dict[str, object]) -> OwnedAttempt:
        """Draw a guard, the latest more often than a stale one, and let it lie."""
        back = data.draw(st.just(1) | st.integers(1, len(self.guards)))
        return forged(self.guards[-back], **lie)

    def ready(self) -> list[OwnedAttempt]:
        """Return the current guards of finalizing attempts in slots without an accepted one."""
        found = {}
        for guard in self.guards:
            attempt = self.model.attempts[guard.attempt_id]
            rivals = self.model.in_slot(attempt.slot_id)
            if (
                attempt.phase is Phase.FINALIZING
                and guard.revision == attempt.revision
                and not any(rival.phase is Phase.ACCEPTED for rival in rivals)
            ):
                found[guard.attempt_id] = guard
        return list(found.values())

    @invariant()
    def both_connections_show_the_model(self) -> None:
        for store in self.stores:
            self.compare(store)

    def compare(self, store: RunStore) -> None:
        """Compare attempts, history and reservations with the model's, row by row."""
        attempts = self.model.attempts
        assert sorted(
            (name, a.slot_id, a.retry_index, a.phase.value, a.revision, a.changed_at_ns)
            for name, a in attempts.items()
        ) == sorted(
            query(
                store,
                "SELECT attempt_id, slot_id, retry_index, state, revision, changed_at_ns"
                " FROM attempts",
            )
        )
        assert sorted(
            (name, revision, phase.value, at_ns)
            for name, a in attempts.items()
            for revision, (phase, at_ns) in enumerate(a.history)
        ) == sorted(
            query(
                store,
                "SELECT t.attempt_id, t.revision, t.to_state, e.at_ns FROM attempt_transitions AS t"
                " JOIN events AS e ON e.sequence = t.event_sequence",
            )
        )
        assert sorted(
            (a.lease_id, a.owner, name, a.expires_at_ns, a.released) for name, a in attempts.items()
        ) == sorted(
            (lease_id, owner, name, expires_at_ns, released_at_ns is not None)
            for lease_id, owner, name, expires_at_ns, released_at_ns in query(
                store,
                "SELECT lease_id, owner_token, attempt_id, expires_at_ns, released_at_ns"
                " FROM leases WHERE purpose = 'reservation'",
            )
        )
        events = sum(len(a.history) for a in attempts.values())
        assert [(events,)] == query(store, "SELECT count(*) FROM events")


def test_writer_is_the_model_step_by_step() -> None:
    """
    RS-074 RS-075 RS-076 RS-077 RS-085 RS-088 RS-089: any interleaving of owners, clocks and
    connections is answered as the model says, and every answer occurs.
    """
    WriterMachine.outcomes.clear()
    run_state_machine_as_test(
        WriterMachine,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
    assert WriterMachine.outcomes == OUTCOMES


def test_model_tells_a_broken_writer() -> None:
    """RS-089: the machine fails when the model expects another answer, so it can fail."""
    machine = WriterMachine()
    try:
        machine.open()
        machine.register("first", 0)
        slot_id = PLANS["first"].slot_id
        request = LeaseRequest("l0", "one", 50)
        machine.model.reserve(slot_id, FirstAttempt(), request, 10)
        guard = machine.answered(
            None, lambda: machine.stores[0].reserve(slot_id, FirstAttempt(), request, 10)
        )
        assert guard is not None
        machine.both_connections_show_the_model()
        attempt = machine.model.attempts[guard.attempt_id]
        for wrong in ({"expires_at_ns": 51}, {"history": [(Phase.RESERVED, 11)]}):
            machine.model.attempts[guard.attempt_id] = replace(attempt, **wrong)  # type: ignore[arg-type]
            with pytest.raises(AssertionError):
                machine.both_connections_show_the_model()
    finally:
        machine.teardown()
