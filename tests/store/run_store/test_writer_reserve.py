"""
Reserving: one attempt, one authorization, all of it or nothing.
"""

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from run_store_writer_world import (
    OWNER,
    dump,
    finish,
    lease,
    open_planned,
    plan,
    query,
    refused,
    reserve,
    walk,
)

from store.run_store import (
    Authorization,
    FirstAttempt,
    Next,
    Phase,
    Retry,
    RunStore,
    WriterRefusal,
    run_attempt_id,
)
from store.run_store.identity import SAFE_INTEGER_MAX
from store.run_store.ownership_refusals import (
    DuplicateLease,
    LeaseNeverLive,
    RetryBoundExceeded,
    RetryIndexMismatch,
    RetryNotAuthorized,
    SatisfiedSlot,
    StoreBusy,
    StoreClosed,
    UnknownSlot,
)
from store.run_store.refusals import (
    MalformedAuthorization,
    MalformedId,
    MalformedToken,
    RetryIndexOutOfRange,
    TimestampOutOfRange,
)
from store.run_store.requests import TIMESTAMP_NS_MAX

SLOT_ID = plan().slot_id


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with open_planned(tmp_path) as opened:
        yield opened


def attempts(store: RunStore) -> list[tuple[Any, ...]]:
    return query(store, "SELECT retry_index, state FROM attempts ORDER BY retry_index")


def reserve_many(store: RunStore, count: int) -> None:
    for index in range(count):
        store.reserve(SLOT_ID, Next(retry=True), lease(f"many-{index}"), 10)


def test_reservation_is_written_whole(store: RunStore) -> None:
    """RS-075 RS-095: attempt, lease, event and transition 0 come together, with pinned bytes."""
    attempt = store.reserve(SLOT_ID, FirstAttempt(), lease(), 10)
    attempt_id = run_attempt_id(SLOT_ID, 0)
    payload = f'{{"from":null,"retry_index":0,"revision":0,"slot_id":"{SLOT_ID}","to":"reserved"}}'
    kind = "attempt_reserved"
    found = dump(store)
    assert [(attempt_id, SLOT_ID, 0, "reserved", 0, 10, 10, None, None, None, "attempt")] == found[
        "attempts"
    ]
    assert [(1, attempt_id, kind, 10, payload, attempt_id)] == found["events"]
    assert [(attempt_id, 0, None, "reserved", 10, None, None, 1, kind)] == found[
        "attempt_transitions"
    ]
    assert [("l0", OWNER, attempt_id, "reservation", 10, 1_000, None, None)] == found["leases"]
    assert attempt_id == attempt.attempt_id


def test_guard_tells_what_was_reserved(store: RunStore) -> None:
    """RS-088: the guard carries slot, index, phase, revision and times of the reservation."""
    attempt = store.reserve(SLOT_ID, FirstAttempt(), lease(), 10)
    assert (
        attempt.slot_id,
        attempt.retry_index,
        attempt.phase,
        attempt.revision,
        attempt.changed_at_ns,
        attempt.expires_at_ns,
    ) == (SLOT_ID, 0, Phase.RESERVED, 0, 10, 1_000)


def test_time_takes_no_part_in_the_id(tmp_path: Path) -> None:
    """RS-063: the same slot and index give the same attempt id at another time and owner."""
    found = set()
    for name, now_ns in (("one", 10), ("two", 500)):
        (tmp_path / name).mkdir()
        with open_planned(tmp_path / name) as store:
            request = lease(f"l-{name}", owner=f"owner-{name}")
            found.add(store.reserve(SLOT_ID, FirstAttempt(), request, now_ns).attempt_id)
    assert {run_attempt_id(SLOT_ID, 0)} == found


def test_same_calls_leave_the_same_rows(tmp_path: Path) -> None:
    """RS-099: nothing in the store is drawn from a clock, a process or chance."""
    dumps = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with open_planned(tmp_path / name) as store:
            walk(store, reserve(store), Phase.MATERIALIZING, Phase.FINALIZING)
            dumps.append(dump(store))
    assert dumps[0] == dumps[1]


@pytest.mark.parametrize(
    ("authorization", "existing", "allowed"),
    [
        (FirstAttempt(), 0, True),
        (FirstAttempt(), 1, False),
        (FirstAttempt(), 2, False),
        (Next(retry=False), 0, True),
        (Next(retry=False), 1, False),
        (Next(retry=True), 0, True),
        (Next(retry=True), 1, True),
        (Next(retry=True), 3, True),
        (Retry(next_index=0, max_index=0), 0, True),
        (Retry(next_index=1, max_index=1), 1, True),
        (Retry(next_index=2, max_index=5), 2, True),
        (Retry(next_index=1, max_index=5), 0, False),
        (Retry(next_index=1, max_index=5), 2, False),
        (Retry(next_index=2, max_index=1), 2, False),
        (Retry(next_index=3, max_index=3), 3, True),
    ],
)
def test_authorization_decides(
    store: RunStore, authorization: Authorization, existing: int, allowed: bool
) -> None:
    """RS-082 RS-083 RS-084: each form allows exactly the indices that it is made for."""
    reserve_many(store, existing)
    if allowed:
        attempt = store.reserve(SLOT_ID, authorization, lease(), 10)
        assert existing == attempt.retry_index
        assert run_attempt_id(SLOT_ID, existing) == attempt.attempt_id
    else:
        before = dump(store)
        with pytest.raises((RetryNotAuthorized, RetryIndexMismatch, RetryBoundExceeded)):
            store.reserve(SLOT_ID, authorization, lease(), 10)
        assert before == dump(store)


@pytest.mark.parametrize("authorization", [FirstAttempt(), Next(retry=False)])
def test_first_attempt_only(store: RunStore, authorization: Authorization) -> None:
    """RS-082 RS-083: a first attempt is not authorized where attempts exist."""
    reserve_many(store, 2)
    with refused(store, RetryNotAuthorized) as caught:
        store.reserve(SLOT_ID, authorization, lease(), 10)
    assert vars(caught.value) == {"slot_id": SLOT_ID, "next_index": 2}


def test_retry_names_exactly_the_next_index(store: RunStore) -> None:
    """RS-084: a retry that names an index behind or ahead of the next one is refused."""
    reserve_many(store, 2)
    for index in (0, 1, 3):
        with refused(store, RetryIndexMismatch) as caught:
            store.reserve(SLOT_ID, Retry(next_index=index, max_index=9), lease(), 10)
        assert {"slot_id": SLOT_ID, "next_index": 2, "authorized_index": index} == vars(
            caught.value
        )


def test_retry_bound_is_inclusive(store: RunStore) -> None:
    """RS-084: the maximum itself is allowed and what lies above it is not."""
    reserve_many(store, 1)
    with refused(store, RetryBoundExceeded) as caught:
        store.reserve(SLOT_ID, Retry(next_index=1, max_index=0), lease(), 10)
    assert vars(caught.value) == {"slot_id": SLOT_ID, "next_index": 1, "max_index": 0}
    assert store.reserve(SLOT_ID, Retry(next_index=1, max_index=1), lease(), 10).retry_index == 1


def test_authorized_retry_overlaps_the_active_attempt(store: RunStore) -> None:
    """RS-085: a retry leaves the active attempt and its owner as they are."""
    first = walk(store, reserve(store), Phase.MATERIALIZING)
    second = store.reserve(SLOT_ID, Next(retry=True), lease("l1", owner="another"), 20)
    assert attempts(store) == [(0, "materializing"), (1, "reserved")]
    assert Phase.STARTING is store.advance(first, Phase.STARTING, 30).phase
    assert Phase.MATERIALIZING is store.advance(second, Phase.MATERIALIZING, 30).phase


def test_retry_after_the_process_died(tmp_path: Path) -> None:
    """RS-085: who comes after a crash, without any guard, reserves an authorized retry."""
    with open_planned(tmp_path) as store:
        walk(store, reserve(store), Phase.MATERIALIZING, Phase.STARTING)
    with open_planned(tmp_path) as store:
        attempt = store.reserve(SLOT_ID, Retry(next_index=1, max_index=3), lease("l1"), 20)
        assert attempts(store) == [(0, "starting"), (1, "reserved")]
        assert attempt.retry_index == 1


@pytest.mark.parametrize(
    "authorization", [FirstAttempt(), Next(retry=True), Retry(next_index=1, max_index=9)]
)
def test_satisfied_slot_refuses_everyone(store: RunStore, authorization: Authorization) -> None:
    """RS-085: no authorization reserves in a slot that has its accepted attempt."""
    first = walk(store, reserve(store), Phase.FINALIZING)
    finish(store, first, Phase.ACCEPTED)
    with refused(store, SatisfiedSlot) as caught:
        store.reserve(SLOT_ID, authorization, lease("l1"), 20)
    assert {"slot_id": SLOT_ID, "attempt_id": first.attempt_id} == vars(caught.value)


@pytest.mark.parametrize("state", [Phase.FAILED, Phase.CENSORED, Phase.SUPERSEDED])
def test_other_ends_leave_the_slot_open(store: RunStore, state: Phase) -> None:
    """RS-085: an attempt that ended otherwise leaves its slot to an authorized retry."""
    finish(store, walk(store, reserve(store), Phase.FINALIZING), state)
    assert store.reserve(SLOT_ID, Next(retry=True), lease("l1"), 20).retry_index == 1


def test_finalizing_attempt_leaves_the_slot_open(store: RunStore) -> None:
    """RS-073: entering finalizing satisfies nothing."""
    walk(store, reserve(store), Phase.FINALIZING)
    assert store.reserve(SLOT_ID, Next(retry=True), lease("l1"), 20).retry_index == 1


def test_duplicate_lease_rolls_everything_back(store: RunStore) -> None:
    """RS-087: a lease id is used once, by whomever, in whichever slot."""
    reserve(store)
    other = plan("second")
    other.register(store)
    for slot_id, authorization in ((SLOT_ID, Next(retry=True)), (other.slot_id, FirstAttempt())):
        with refused(store, DuplicateLease) as caught:
            store.reserve(slot_id, authorization, lease(owner="another"), 20)
        assert vars(caught.value) == {"lease_id": "l0"}


def test_released_lease_id_is_not_used_again(store: RunStore) -> None:
    """RS-087: also the id of a lease that was released stays taken."""
    finish(store, walk(store, reserve(store), Phase.FINALIZING), Phase.FAILED)
    with refused(store, DuplicateLease):
        store.reserve(SLOT_ID, Next(retry=True), lease(), 20)


@pytest.mark.parametrize("table", ["attempts", "events", "attempt_transitions", "leases"])
def test_failure_at_any_write_leaves_nothing(store: RunStore, table: str) -> None:
    """RS-100: an error at any of the four writes rolls back all of them."""
    before = dump(store)
    query(
        store,
        f"CREATE TEMP TRIGGER broken AFTER INSERT ON main.{table}"
        " BEGIN SELECT RAISE(ABORT, 'broken'); END",
    )
    with pytest.raises(apsw.ConstraintError, match="broken"):
        reserve(store)
    assert before == dump(store)
    query(store, "DROP TRIGGER broken")
    assert reserve(store).retry_index == 0


def test_unknown_slot_is_refused(store: RunStore) -> None:
    """RS-075: a slot that nobody registered takes no attempt."""
    with refused(store, UnknownSlot) as caught:
        store.reserve(plan("second").slot_id, FirstAttempt(), lease(), 10)
    assert {"slot_id": plan("second").slot_id} == vars(caught.value)


@pytest.mark.parametrize("slot_id", ["", "slot", plan().run.run_id, None])
def test_malformed_slot_id_is_refused(store: RunStore, slot_id: Any) -> None:
    """RS-058: the writer takes typed ids of execution slots only."""
    with refused(store, MalformedId):
        store.reserve(slot_id, FirstAttempt(), lease(), 10)


@pytest.mark.parametrize("value", [-1, TIMESTAMP_NS_MAX + 1, 1.0, True, "10", None])
@pytest.mark.parametrize("name", ["now_ns", "expires_at_ns"])
def test_time_out_of_range_is_refused(store: RunStore, name: str, value: Any) -> None:
    """RS-060: a time is a nonnegative 64 bit integer, and nothing that merely looks like one."""
    request = lease() if name == "now_ns" else dataclasses.replace(lease(), expires_at_ns=value)
    with refused(store, TimestampOutOfRange) as caught:
        store.reserve(SLOT_ID, FirstAttempt(), request, value if name == "now_ns" else 10)
    assert {"name": name, "value": value} == vars(caught.value)


def test_times_at_the_ends_of_the_range_are_taken(store: RunStore) -> None:
    """RS-060: the whole range of times is usable, zero and the last one included."""
    store.reserve(SLOT_ID, Next(retry=True), lease("l0", 1), 0)
    store.reserve(SLOT_ID, Next(retry=True), lease("l1", TIMESTAMP_NS_MAX), TIMESTAMP_NS_MAX - 1)
    found = query(store, "SELECT acquired_at_ns, expires_at_ns FROM leases ORDER BY lease_id")
    assert found == [(0, 1), (TIMESTAMP_NS_MAX - 1, TIMESTAMP_NS_MAX)]


@pytest.mark.parametrize("expires_at_ns", [0, 9, 10])
def test_lease_that_never_lives_is_refused(store: RunStore, expires_at_ns: int) -> None:
    """RS-091: expiration is exclusive, so a lease must end after it begins."""
    with refused(store, LeaseNeverLive) as caught:
        store.reserve(SLOT_ID, FirstAttempt(), lease(expires_at_ns=expires_at_ns), 10)
    assert (expires_at_ns, 10) == (caught.value.expires_at_ns, caught.value.now_ns)
    assert reserve(store, 10, 11).expires_at_ns == 11


@pytest.mark.parametrize("token", ["", "a\0b", "\ud800", None, 7, b"bytes"])
@pytest.mark.parametrize("name", ["lease_id", "owner_token"])
def test_unusable_token_is_refused(store: RunStore, name: str, token: Any) -> None:
    """RS-087: lease id and owner token are nonempty text that SQLite keeps as it is."""
    with refused(store, MalformedToken) as caught:
        store.reserve(SLOT_ID, FirstAttempt(), dataclasses.replace(lease(), **{name: token}), 10)
    assert {"name": name} == vars(caught.value)


@pytest.mark.parametrize(
    "authorization",
    [None, "first", FirstAttempt, 0, Next(retry=1), Next(retry=None)],  # type: ignore[arg-type]
)
def test_malformed_authorization_is_refused(store: RunStore, authorization: Any) -> None:
    """RS-083: only the three forms authorize, and `retry` must be said with a bool."""
    with refused(store, MalformedAuthorization):
        store.reserve(SLOT_ID, authorization, lease(), 10)


@pytest.mark.parametrize("value", [-1, SAFE_INTEGER_MAX + 1, True, 1.0, None])
@pytest.mark.parametrize("name", ["next_index", "max_index"])
def test_authorized_index_out_of_range_is_refused(store: RunStore, name: str, value: Any) -> None:
    """RS-061 RS-084: authorized indices fit canonical JSON."""
    indices = {"next_index": 0, "max_index": 0, name: value}
    with refused(store, RetryIndexOutOfRange) as caught:
        store.reserve(SLOT_ID, Retry(**indices), lease(), 10)
    assert {"name": name, "value": value} == vars(caught.value)


def test_no_index_follows_the_last_one(store: RunStore) -> None:
    """RS-061: a slot whose last index is the largest one takes no further attempt."""
    first = reserve(store)
    query(store, "DROP TRIGGER attempts_update_guard")
    query(store, "UPDATE attempts SET retry_index = ?", SAFE_INTEGER_MAX)
    with refused(store, RetryIndexOutOfRange) as caught:
        store.reserve(SLOT_ID, Next(retry=True), lease("l1"), 20)
    assert caught.value.value == SAFE_INTEGER_MAX + 1
    assert first.retry_index == 0


def test_two_connections_never_share_an_index(tmp_path: Path) -> None:
    """RS-083: writers on two connections that race for the next index get different ones."""
    with open_planned(tmp_path):
        pass
    count, found = 8, []
    barrier = threading.Barrier(2)

    def race(name: str) -> None:
        with RunStore.open(tmp_path) as store:
            barrier.wait(timeout=30)
            for number in range(count):
                attempt = store.reserve(SLOT_ID, Next(retry=True), lease(f"{name}{number}"), 10)
                found.append(attempt.retry_index)

    threads = [threading.Thread(target=race, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert list(range(2 * count)) == sorted(found)


def test_write_lock_of_another_is_reported(store: RunStore, tmp_path: Path) -> None:
    """RS-081: an operation that cannot get the write lock says so and has written nothing."""
    with RunStore.open(tmp_path) as other:
        other._open().set_busy_timeout(1)
        query(store, "BEGIN IMMEDIATE")
        with refused(other, StoreBusy) as caught:
            reserve(other)
        assert vars(caught.value) == {"operation": "reserve"}
        query(store, "ROLLBACK")
        assert reserve(other).retry_index == 0


def test_closed_store_is_reported(store: RunStore, tmp_path: Path) -> None:
    """RS-081: a closed handle writes nothing, says so, and still knows its path."""
    store.close()
    store.close()
    with pytest.raises(StoreClosed) as caught:
        reserve(store)
    assert str(tmp_path / "run.sqlite3") == caught.value.database_path
    assert tmp_path / "run.sqlite3" == store.database_path()
    assert isinstance(caught.value, WriterRefusal)
