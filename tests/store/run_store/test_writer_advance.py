"""
Advancing: one legal edge, one event with pinned bytes, and only for the owner who is current.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_store_writer_world import (
    PATH_TO_EVALUATING,
    dump,
    finish,
    forged,
    insert_claim,
    lease,
    open_planned,
    plan,
    query,
    refused,
    reserve,
    walk,
)

from store.run_store import (
    LEGAL_EDGES,
    TERMINAL_PHASES,
    FirstAttempt,
    Next,
    OwnedAttempt,
    Phase,
    RunStore,
    WriterRefusal,
)
from store.run_store.identity import SAFE_INTEGER_MAX
from store.run_store.ownership_refusals import (
    IllegalTransition,
    LeaseExpired,
    LeaseReleased,
    LostUpdate,
    StaleRevision,
    UnknownAttempt,
    WrongLease,
    WrongOwner,
)
from store.run_store.refusals import RevisionOutOfRange, TimestampOutOfRange
from store.run_store.requests import TIMESTAMP_NS_MAX

PATHS: dict[Phase, tuple[Phase, ...]] = {
    Phase.RESERVED: (),
    Phase.CHECKPOINTING: (*PATH_TO_EVALUATING[:4], Phase.CHECKPOINTING),
    Phase.FINALIZING: (Phase.FINALIZING,),
    **{phase: PATH_TO_EVALUATING[: at + 1] for at, phase in enumerate(PATH_TO_EVALUATING)},
}

EDGES = sorted(
    (before, after) for before in PATHS for after in LEGAL_EDGES[before] - TERMINAL_PHASES
)

NO_EDGES = sorted({(before, after) for before in PATHS for after in Phase} - set(EDGES))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with open_planned(tmp_path) as opened:
        yield opened


def test_there_are_seventeen_edges_to_advance() -> None:
    """RS-066: of the twenty-one edges, advancing walks all but the four that end an attempt."""
    assert len(EDGES) == 17
    assert len(EDGES) + len(NO_EDGES) == 9 * 13


@pytest.mark.parametrize(("before", "after"), EDGES)
def test_legal_edge_is_walked(store: RunStore, before: Phase, after: Phase) -> None:
    """RS-066 RS-076: each legal edge moves the projection one revision on, with its history."""
    attempt = walk(store, reserve(store), *PATHS[before])
    moved = store.advance(attempt, after, 30)
    assert (after, attempt.revision + 1, 30) == (
        moved.phase,
        moved.revision,
        moved.changed_at_ns,
    )
    assert [(after.value, moved.revision, 30)] == query(
        store, "SELECT state, revision, changed_at_ns FROM attempts"
    )
    last = "SELECT * FROM attempt_transitions ORDER BY revision DESC LIMIT 1"
    assert [
        (
            attempt.attempt_id,
            moved.revision,
            before.value,
            after.value,
            30,
            attempt.revision,
            attempt.changed_at_ns,
            moved.revision + 1,
            "attempt_transition",
        )
    ] == query(store, last)


@pytest.mark.parametrize(("before", "after"), NO_EDGES)
def test_other_edge_is_refused(store: RunStore, before: Phase, after: Phase) -> None:
    """RS-066: every other pair is refused, the ends of an attempt among them."""
    attempt = walk(store, reserve(store), *PATHS[before])
    with refused(store, IllegalTransition) as caught:
        store.advance(attempt, after, 30)
    legal = tuple(sorted(LEGAL_EDGES[before] - TERMINAL_PHASES))
    assert (before.value, after.value, legal) == (
        caught.value.current,
        caught.value.requested,
        caught.value.legal,
    )


@pytest.mark.parametrize("phase", ["resting", "", None, 3, ["materializing"]])
def test_what_is_no_phase_is_refused(store: RunStore, phase: Any) -> None:
    """RS-066: a request for something that is no phase is an illegal transition."""
    attempt = reserve(store)
    with refused(store, IllegalTransition):
        store.advance(attempt, phase, 20)


def test_payload_bytes_are_pinned(store: RunStore) -> None:
    """RS-096 RS-099: each transition's event has exactly these canonical bytes."""
    attempt = reserve(store)
    walk(store, attempt, *PATH_TO_EVALUATING, Phase.EXECUTING, Phase.FINALIZING)
    found = query(store, "SELECT sequence, attempt_id, kind, payload_json FROM events")
    kind = "attempt_transition"
    slot = plan().slot_id
    assert [
        f'{{"from":null,"retry_index":0,"revision":0,"slot_id":"{slot}","to":"reserved"}}',
        '{"from":"reserved","revision":1,"to":"materializing"}',
        '{"from":"materializing","revision":2,"to":"starting"}',
        '{"from":"starting","revision":3,"to":"preparing"}',
        '{"from":"preparing","revision":4,"to":"executing"}',
        '{"from":"executing","revision":5,"to":"validating"}',
        '{"from":"validating","revision":6,"to":"evaluating"}',
        '{"from":"evaluating","revision":7,"to":"executing"}',
        '{"from":"executing","revision":8,"to":"finalizing"}',
    ] == [payload for *_, payload in found]
    assert ["attempt_reserved", *[kind] * 8] == [kind for _, _, kind, _ in found]
    assert {attempt.attempt_id} == {attempt_id for _, attempt_id, _, _ in found}
    assert list(range(1, 10)) == [sequence for sequence, *_ in found]


def test_finalizing_by_advance_takes_no_claim(store: RunStore) -> None:
    """RS-073 RS-096: entering finalizing this way is a plain transition without claim or lease."""
    walk(store, reserve(store), Phase.FINALIZING)
    found = dump(store)
    assert found["finalization_claims"] == []
    assert [row[3] for row in found["leases"]] == ["reservation"]
    assert found["events"][-1][2] == "attempt_transition"


def test_former_guard_is_stale(store: RunStore, tmp_path: Path) -> None:
    """RS-088: after a transition the former guard fails, on this connection and on another."""
    first = reserve(store)
    second = store.advance(first, Phase.MATERIALIZING, 20)
    with RunStore.open(tmp_path) as other:
        for handle in (store, other):
            with refused(handle, StaleRevision) as caught:
                handle.advance(first, Phase.MATERIALIZING, 20)
            assert {"attempt_id": first.attempt_id, "held": 0, "current": 1} == vars(caught.value)
        third = other.advance(second, Phase.STARTING, 30)
    with refused(store, StaleRevision):
        store.advance(second, Phase.STARTING, 30)
    assert Phase.PREPARING is store.advance(third, Phase.PREPARING, 40).phase


def test_clock_that_goes_back_is_clamped(store: RunStore) -> None:
    """RS-069: a transition at an earlier time is written at the preceding one's."""
    attempt = reserve(store, now_ns=100)
    attempt = store.advance(attempt, Phase.MATERIALIZING, 40)
    assert attempt.changed_at_ns == 100
    attempt = store.advance(attempt, Phase.STARTING, 150)
    attempt = store.advance(attempt, Phase.PREPARING, 0)
    found = query(store, "SELECT at_ns FROM attempt_transitions ORDER BY revision")
    assert found == [(100,), (100,), (150,), (150,)]
    assert found == query(store, "SELECT at_ns FROM events ORDER BY sequence")
    assert query(store, "SELECT started_at_ns FROM attempts") == [(100,)]


@pytest.mark.parametrize(("now_ns", "alive"), [(998, True), (999, True), (1_000, False)])
def test_expiration_is_exclusive(store: RunStore, now_ns: int, alive: bool) -> None:
    """RS-091: one nanosecond before its expiration a lease writes, at its expiration not."""
    attempt = reserve(store, expires_at_ns=1_000)
    if alive:
        assert now_ns == store.advance(attempt, Phase.MATERIALIZING, now_ns).changed_at_ns
        return
    with refused(store, LeaseExpired) as caught:
        store.advance(attempt, Phase.MATERIALIZING, now_ns)
    assert {
        "attempt_id": attempt.attempt_id,
        "lease_id": "l0",
        "expires_at_ns": 1_000,
        "now_ns": now_ns,
    } == vars(caught.value)


def test_expiration_is_judged_by_the_preceding_transition(store: RunStore) -> None:
    """RS-093: setting the clock back does not bring an expired lease to life."""
    attempt = reserve(store, now_ns=500, expires_at_ns=501)
    query(store, "DROP TRIGGER attempts_update_guard")
    query(store, "DROP TRIGGER attempt_transitions_update_guard")
    query(store, "DROP TRIGGER events_update_guard")
    query(store, "PRAGMA foreign_keys = OFF")
    for table, column in (
        ("attempts", "changed_at_ns"),
        ("attempt_transitions", "at_ns"),
        ("events", "at_ns"),
    ):
        query(store, f"UPDATE {table} SET {column} = 501")
    with refused(store, LeaseExpired) as caught:
        store.advance(attempt, Phase.MATERIALIZING, 0)
    assert (caught.value.expires_at_ns, caught.value.now_ns) == (501, 501)


@pytest.mark.parametrize("value", [-1, TIMESTAMP_NS_MAX + 1, 1.0, True, "10", None])
def test_time_out_of_range_is_refused(store: RunStore, value: Any) -> None:
    """RS-060: a transition's time is a nonnegative 64 bit integer."""
    attempt = reserve(store)
    with refused(store, TimestampOutOfRange) as caught:
        store.advance(attempt, Phase.MATERIALIZING, value)
    assert {"name": "now_ns", "value": value} == vars(caught.value)


def release(store: RunStore, lease_id: str) -> None:
    query(store, "UPDATE leases SET released_at_ns = 25 WHERE lease_id = ?", lease_id)


def test_released_reservation_writes_nothing(store: RunStore) -> None:
    """RS-089: a released reservation refuses the next transition."""
    attempt = reserve(store)
    release(store, "l0")
    with refused(store, LeaseReleased) as caught:
        store.advance(attempt, Phase.MATERIALIZING, 30)
    assert (caught.value.lease_id, caught.value.released_at_ns) == ("l0", 25)


@pytest.mark.parametrize("state", sorted(TERMINAL_PHASES))
def test_ended_attempt_does_not_move(store: RunStore, state: Phase) -> None:
    """RS-070: once an attempt has ended, its last guard moves nothing."""
    attempt = walk(store, reserve(store), Phase.FINALIZING)
    finish(store, attempt, state)
    with refused(store, LeaseReleased):
        store.advance(attempt, Phase.FINALIZING, 30)


def test_ended_attempt_with_a_live_lease_does_not_move(store: RunStore) -> None:
    """RS-070: a guard of the terminal revision, as a liar would have it, finds no edge."""
    attempt = walk(store, reserve(store), Phase.FINALIZING)
    finish(store, attempt, Phase.FAILED)
    query(store, "DROP TRIGGER leases_update_guard")
    query(store, "UPDATE leases SET released_at_ns = NULL")
    liar = forged(attempt, revision=attempt.revision + 1)
    for phase in Phase:
        with refused(store, IllegalTransition) as caught:
            store.advance(liar, phase, 30)
        assert caught.value.legal == ()


def lies(attempt: OwnedAttempt) -> dict[str, dict[str, Any]]:
    """Return one lie for each check, in the order in which the checks are made."""
    return {
        "owner": {"owner_token": "thief"},
        "lease": {"lease_id": "stolen"},
        "revision": {"revision": attempt.revision + 1},
    }


@pytest.mark.parametrize(
    ("told", "released", "expired", "kind"),
    [
        (("owner", "lease", "revision"), True, True, WrongOwner),
        (("lease", "revision"), True, True, WrongLease),
        (("revision",), True, True, LeaseReleased),
        (("revision",), False, True, LeaseExpired),
        (("revision",), False, False, StaleRevision),
        (("owner",), False, False, WrongOwner),
        (("lease",), False, False, WrongLease),
        ((), True, False, LeaseReleased),
        ((), False, True, LeaseExpired),
    ],
)
def test_checks_come_in_their_order(
    store: RunStore,
    told: tuple[str, ...],
    released: bool,
    expired: bool,
    kind: type[WriterRefusal],
) -> None:
    """RS-089: owner, lease, release, expiration, revision; the first that fails is reported."""
    attempt = reserve(store)
    facts: dict[str, Any] = {}
    for name in told:
        facts |= lies(attempt)[name]
    if released:
        release(store, "l0")
    with refused(store, kind):
        store.advance(forged(attempt, **facts), Phase.MATERIALIZING, 5_000 if expired else 20)


def test_ownership_is_judged_before_the_edge(store: RunStore) -> None:
    """RS-089: whoever does not own the attempt is not told where it stands."""
    attempt = reserve(store)
    with refused(store, WrongOwner) as caught:
        store.advance(forged(attempt, owner_token="thief"), Phase.ACCEPTED, 20)
    assert "owner-secret" not in str(caught.value)
    assert {"attempt_id": attempt.attempt_id, "lease_id": "l0"} == vars(caught.value)


def test_lease_of_another_attempt_does_not_serve(store: RunStore) -> None:
    """RS-089: an owner cannot use the lease of one attempt for another of its own."""
    first = reserve(store)
    store.reserve(plan().slot_id, Next(retry=True), lease("l1"), 10)
    with refused(store, WrongLease) as caught:
        store.advance(forged(first, lease_id="l1"), Phase.MATERIALIZING, 20)
    assert caught.value.lease_id == "l1"


def test_attempt_of_another_store_is_unknown(store: RunStore, tmp_path: Path) -> None:
    """RS-089: a guard of another root names an attempt that is not here."""
    (tmp_path / "other").mkdir()
    with open_planned(tmp_path / "other", plan("second")) as other:
        attempt = other.reserve(plan("second").slot_id, FirstAttempt(), lease(), 10)
    with refused(store, UnknownAttempt) as caught:
        store.advance(attempt, Phase.MATERIALIZING, 20)
    assert {"attempt_id": attempt.attempt_id} == vars(caught.value)


@pytest.mark.parametrize(
    ("change", "now_ns", "kind"),
    [
        (None, 499, IllegalTransition),
        (None, 500, LeaseExpired),
        ("released_at_ns = 25", 400, LeaseReleased),
        ("owner_token = 'thief'", 400, WrongOwner),
        ("owner_token = 'thief', released_at_ns = 25", 600, WrongOwner),
        ("released_at_ns = 25", 600, LeaseReleased),
    ],
)
def test_lease_of_an_owned_claim_must_live_too(
    store: RunStore, change: str | None, now_ns: int, kind: type[WriterRefusal]
) -> None:
    """RS-090: an owned claim's lease is checked for owner, release and expiration, in order."""
    attempt = walk(store, reserve(store), Phase.FINALIZING)
    insert_claim(store, attempt, expires_at_ns=500)
    if change is not None:
        query(store, "DROP TRIGGER leases_update_guard")
        query(store, f"UPDATE leases SET {change} WHERE lease_id = 'f0'")
    with refused(store, kind) as caught:
        store.advance(attempt, Phase.EXECUTING, now_ns)
    assert getattr(caught.value, "lease_id", "f0") == "f0"


def test_claim_is_judged_after_the_revision(store: RunStore) -> None:
    """RS-089 RS-090: a stale guard is stale, whatever became of the claim."""
    attempt = walk(store, reserve(store), Phase.FINALIZING)
    insert_claim(store, attempt, expires_at_ns=500)
    with refused(store, StaleRevision):
        store.advance(forged(attempt, revision=0), Phase.EXECUTING, 600)


def test_claim_of_another_attempt_does_not_matter(store: RunStore) -> None:
    """RS-090: a contender goes on although the claim of another attempt has expired."""
    claiming = walk(store, reserve(store), Phase.FINALIZING)
    insert_claim(store, claiming, expires_at_ns=30)
    contender = store.reserve(plan().slot_id, Next(retry=True), lease("l1"), 20)
    assert Phase.FINALIZING is store.advance(contender, Phase.FINALIZING, 40).phase


def test_update_that_meets_no_row_is_an_error(store: RunStore) -> None:
    """RS-089: the affected rows of the projection's update are counted."""
    attempt = reserve(store)
    query(
        store,
        "CREATE TEMP TRIGGER ignoring BEFORE UPDATE ON main.attempts"
        " BEGIN SELECT RAISE(IGNORE); END",
    )
    with refused(store, LostUpdate) as caught:
        store.advance(attempt, Phase.MATERIALIZING, 20)
    assert {"table": "attempts", "key": attempt.attempt_id, "changed": 0} == vars(caught.value)


def test_no_revision_follows_the_last_one(store: RunStore) -> None:
    """RS-061: an attempt at the largest canonical revision does not move."""
    attempt = reserve(store)
    query(store, "PRAGMA foreign_keys = OFF")
    query(store, "DROP TRIGGER attempts_update_guard")
    query(store, "UPDATE attempts SET revision = ?", SAFE_INTEGER_MAX)
    with refused(store, RevisionOutOfRange) as caught:
        store.advance(forged(attempt, revision=SAFE_INTEGER_MAX), Phase.MATERIALIZING, 20)
    assert vars(caught.value) == {"value": SAFE_INTEGER_MAX + 1}
