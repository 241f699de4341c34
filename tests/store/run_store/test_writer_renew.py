"""
Renewing: all live leases of the attempt together, or none, and never shorter.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_store_writer_world import (
    dump,
    finish,
    forged,
    insert_claim,
    insert_stage,
    lease,
    open_planned,
    plan,
    query,
    refused,
    reserve,
    walk,
)

from store.run_store import Next, OwnedAttempt, Phase, RunStore, WriterRefusal
from store.run_store.ownership_refusals import (
    LeaseExpired,
    LeaseReleased,
    LostUpdate,
    ShortenedLease,
    StaleRevision,
    UnknownAttempt,
    WrongLease,
    WrongOwner,
)
from store.run_store.refusals import TimestampOutOfRange
from store.run_store.requests import TIMESTAMP_NS_MAX


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with open_planned(tmp_path) as opened:
        yield opened


def expirations(store: RunStore) -> dict[str, int]:
    return dict(query(store, "SELECT lease_id, expires_at_ns FROM leases ORDER BY lease_id"))


def finalizing(store: RunStore) -> OwnedAttempt:
    """Return a finalizing attempt with a claim and four stages: live, live, expired, released."""
    attempt = walk(store, reserve(store), Phase.FINALIZING)
    insert_claim(store, attempt)
    insert_stage(store, attempt, lease_id="t0", expires_at_ns=1_000)
    insert_stage(store, attempt, lease_id="t1", expires_at_ns=900)
    insert_stage(store, attempt, lease_id="t2", expires_at_ns=30)
    insert_stage(store, attempt, lease_id="t3", expires_at_ns=1_000, released_at_ns=25)
    return attempt


def test_reservation_is_extended(store: RunStore) -> None:
    """RS-077: a renewal moves the reservation's expiration, and no other row."""
    attempt = reserve(store)
    before = dump(store)
    renewed = store.renew(attempt, 2_000, 500)
    after = dump(store)
    assert expirations(store) == {"l0": 2_000}
    assert renewed.expires_at_ns == 2_000
    assert {t: r for t, r in before.items() if t != "leases"} == {
        t: r for t, r in after.items() if t != "leases"
    }


def test_all_live_leases_are_extended_together(store: RunStore) -> None:
    """RS-077 RS-092: reservation, claim and live stages move; expired and released ones stay."""
    attempt = finalizing(store)
    store.renew(attempt, 2_000, 30)
    assert expirations(store) == {
        "f0": 2_000,
        "l0": 2_000,
        "t0": 2_000,
        "t1": 2_000,
        "t2": 30,
        "t3": 1_000,
    }


def test_stage_expires_exclusively(store: RunStore) -> None:
    """RS-091 RS-092: a stage is extended up to the last nanosecond before its expiration."""
    attempt = finalizing(store)
    store.renew(attempt, 2_000, 29)
    assert expirations(store)["t2"] == 2_000


def test_leases_of_other_attempts_stay(store: RunStore) -> None:
    """RS-077: a renewal touches the leases of its own attempt only."""
    attempt = reserve(store)
    other = store.reserve(plan().slot_id, Next(retry=True), lease("l1"), 10)
    insert_stage(store, other, lease_id="t1", expires_at_ns=1_000)
    store.renew(attempt, 2_000, 20)
    assert expirations(store) == {"l0": 2_000, "l1": 1_000, "t1": 1_000}


def test_equal_expiration_changes_nothing(store: RunStore) -> None:
    """RS-077: renewing to the expiration that a lease has is allowed."""
    attempt = reserve(store)
    before = dump(store)
    assert store.renew(attempt, 1_000, 20).expires_at_ns == 1_000
    assert before == dump(store)


def test_renewal_is_no_transition(store: RunStore) -> None:
    """RS-088: a renewal keeps the revision, so both guards are good for the next transition."""
    attempt = reserve(store)
    renewed = store.renew(attempt, 2_000, 20)
    assert renewed is not attempt
    assert (attempt.revision, attempt.phase, attempt.changed_at_ns) == (
        renewed.revision,
        renewed.phase,
        renewed.changed_at_ns,
    )
    assert store.advance(attempt, Phase.MATERIALIZING, 1_500).revision == 1
    with refused(store, StaleRevision):
        store.renew(renewed, 3_000, 1_600)


@pytest.mark.parametrize("expires_at_ns", [0, 10, 999])
def test_reservation_is_never_shortened(store: RunStore, expires_at_ns: int) -> None:
    """RS-077 RS-094: a renewal to an earlier expiration is refused."""
    attempt = reserve(store)
    with refused(store, ShortenedLease) as caught:
        store.renew(attempt, expires_at_ns, 20)
    assert {
        "attempt_id": attempt.attempt_id,
        "lease_id": "l0",
        "expires_at_ns": 1_000,
        "requested_ns": expires_at_ns,
    } == vars(caught.value)


@pytest.mark.parametrize("lease_id", ["f0", "t0"])
def test_longer_lease_refuses_the_whole_renewal(store: RunStore, lease_id: str) -> None:
    """RS-077 RS-092: a claim or stage that expires later keeps all leases as they are."""
    attempt = finalizing(store)
    query(store, "UPDATE leases SET expires_at_ns = 3000 WHERE lease_id = ?", lease_id)
    with refused(store, ShortenedLease) as caught:
        store.renew(attempt, 2_000, 20)
    assert lease_id == caught.value.lease_id
    store.renew(attempt, 3_000, 20)
    assert expirations(store)["l0"] == 3_000


@pytest.mark.parametrize(("now_ns", "alive"), [(999, True), (1_000, False), (1_001, False)])
def test_expired_reservation_is_not_renewed(store: RunStore, now_ns: int, alive: bool) -> None:
    """RS-091: at its expiration a lease cannot be renewed any more."""
    attempt = reserve(store)
    if alive:
        assert store.renew(attempt, 2_000, now_ns).expires_at_ns == 2_000
        return
    with refused(store, LeaseExpired) as caught:
        store.renew(attempt, 2_000, now_ns)
    assert (1_000, now_ns) == (caught.value.expires_at_ns, caught.value.now_ns)


def test_clock_that_goes_back_does_not_revive(store: RunStore) -> None:
    """RS-093: a renewal reads a clock behind the last transition as that transition's time."""
    attempt = walk(store, reserve(store), Phase.MATERIALIZING, now_ns=900)
    insert_stage(store, attempt, lease_id="t0", expires_at_ns=901)
    store.renew(attempt, 2_000, 0)
    attempt = store.advance(attempt, Phase.STARTING, 1_999)
    insert_stage(store, attempt, lease_id="t1", expires_at_ns=2_000)
    query(store, "UPDATE leases SET released_at_ns = 1999 WHERE lease_id = 't0'")
    store.renew(attempt, 3_000, 0)
    assert expirations(store) == {"l0": 3_000, "t0": 2_000, "t1": 3_000}


def test_stage_that_expired_by_the_transition_s_time_stays(store: RunStore) -> None:
    """RS-092 RS-093: a stage that had expired at the last transition is left for recovery."""
    attempt = reserve(store)
    insert_stage(store, attempt, lease_id="t0", expires_at_ns=500)
    attempt = store.advance(attempt, Phase.MATERIALIZING, 500)
    store.renew(attempt, 2_000, 0)
    assert expirations(store) == {"l0": 2_000, "t0": 500}


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"owner_token": "thief"}, WrongOwner),
        ({"lease_id": "stolen"}, WrongLease),
        ({"revision": 1}, StaleRevision),
        ({"attempt_id": "mw1-attempt-none"}, UnknownAttempt),
    ],
)
def test_lying_owner_renews_nothing(
    store: RunStore, facts: dict[str, Any], kind: type[WriterRefusal]
) -> None:
    """RS-089: a guard that lies about owner, lease, revision or attempt renews nothing."""
    with_facts = forged(reserve(store), **facts)
    with refused(store, kind):
        store.renew(with_facts, 2_000, 20)


def test_released_reservation_is_not_renewed(store: RunStore) -> None:
    """RS-094: a released lease stays released."""
    attempt = walk(store, reserve(store), Phase.FINALIZING)
    finish(store, attempt, Phase.FAILED)
    with refused(store, LeaseReleased):
        store.renew(attempt, 2_000, 30)


@pytest.mark.parametrize(
    ("change", "now_ns", "kind"),
    [
        ("released_at_ns = 25", 30, LeaseReleased),
        ("owner_token = 'thief'", 30, WrongOwner),
        ("expires_at_ns = 40", 40, LeaseExpired),
    ],
)
def test_lost_claim_lease_refuses_the_whole_renewal(
    store: RunStore, change: str, now_ns: int, kind: type[WriterRefusal]
) -> None:
    """RS-090 RS-092: if the claim's lease cannot be renewed, nothing is."""
    attempt = finalizing(store)
    query(store, "DROP TRIGGER leases_update_guard")
    query(store, f"UPDATE leases SET {change} WHERE lease_id = 'f0'")
    with refused(store, kind) as caught:
        store.renew(attempt, 2_000, now_ns)
    assert caught.value.lease_id == "f0"


def test_stage_of_another_owner_refuses_the_whole_renewal(store: RunStore) -> None:
    """RS-092: a live stage under another owner token keeps all leases as they are."""
    attempt = finalizing(store)
    insert_stage(store, attempt, lease_id="t9", expires_at_ns=1_000, owner="thief")
    with refused(store, WrongOwner) as caught:
        store.renew(attempt, 2_000, 20)
    assert caught.value.lease_id == "t9"


@pytest.mark.parametrize("value", [-1, TIMESTAMP_NS_MAX + 1, 1.0, True, "10", None])
@pytest.mark.parametrize("name", ["expires_at_ns", "now_ns"])
def test_time_out_of_range_is_refused(store: RunStore, name: str, value: Any) -> None:
    """RS-060: both times of a renewal are nonnegative 64 bit integers."""
    attempt = reserve(store)
    times: dict[str, Any] = {"expires_at_ns": 2_000, "now_ns": 20, name: value}
    with refused(store, TimestampOutOfRange) as caught:
        store.renew(attempt, **times)
    assert {"name": name, "value": value} == vars(caught.value)


@pytest.mark.parametrize("lease_id", ["l0", "f0", "t0", "t1"])
def test_failure_at_any_lease_extends_none(store: RunStore, lease_id: str) -> None:
    """RS-092 RS-100: an update that meets no row, whichever it is, rolls back the others."""
    attempt = finalizing(store)
    query(
        store,
        "CREATE TEMP TRIGGER ignoring BEFORE UPDATE ON main.leases"
        f" WHEN OLD.lease_id = '{lease_id}' BEGIN SELECT RAISE(IGNORE); END",
    )
    with refused(store, LostUpdate) as caught:
        store.renew(attempt, 2_000, 20)
    assert {"table": "leases", "key": lease_id, "changed": 0} == vars(caught.value)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    expirations_ns=st.lists(st.integers(21, 60), max_size=4),
    requested_ns=st.integers(1, 80),
    now_ns=st.integers(0, 70),
)
def test_renewal_extends_all_live_leases_or_none(
    store: RunStore, expirations_ns: list[int], requested_ns: int, now_ns: int
) -> None:
    """RS-077 RS-092: for any stages, request and clock, either all live leases move or none."""
    number = query(store, "SELECT count(*) FROM leases")[0][0]
    attempt = store.reserve(
        plan().slot_id, Next(retry=True), lease(f"r{number}", expires_at_ns=50), 20
    )
    for at, expires_at_ns in enumerate(expirations_ns):
        insert_stage(store, attempt, lease_id=f"s{number}-{at}", expires_at_ns=expires_at_ns)
    before = expirations(store)
    clock = max(now_ns, 20)
    mine = {f"r{number}": 50} | {
        f"s{number}-{at}": expires_at_ns for at, expires_at_ns in enumerate(expirations_ns)
    }
    live = {name: end for name, end in mine.items() if end > clock}
    allowed = clock < 50 and requested_ns >= max(live.values(), default=0)
    if allowed:
        store.renew(attempt, requested_ns, now_ns)
        assert before | dict.fromkeys(live, requested_ns) == expirations(store)
    else:
        with pytest.raises((LeaseExpired, ShortenedLease)):
            store.renew(attempt, requested_ns, now_ns)
        assert before == expirations(store)
