"""Each invariant of the run store can fail: one defect in a good store breaks exactly it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from campaigns.run_store import invariants
from campaigns.run_store.observation import EMPTY_STORE, TABLES, observe
from campaigns.run_store.records import ONE_SHOT, SLOT
from harness import Evidence
from store import canonical
from store.run_store import FirstAttempt, LeaseRequest, Phase, RunStore, layout

Tables = dict[str, list[dict[str, Any]]]

PATH = (
    "reserved",
    "materializing",
    "starting",
    "preparing",
    "executing",
    "validating",
    "evaluating",
    "finalizing",
)
OPEN, DONE = "slot-open", "slot-done"


def add_attempt(tables: Tables, slot_id: str, retry_index: int, states: tuple[str, ...]) -> str:
    """Add an attempt that went through *states*, with its lease and its whole history."""
    attempt_id, start = f"{slot_id}-attempt-{retry_index}", 100 * (retry_index + 1)
    for revision, state in enumerate(states):
        before = states[revision - 1] if revision else None
        facts: dict[str, Any] = {"from": before, "revision": revision, "to": state}
        if not revision:
            facts |= {"retry_index": retry_index, "slot_id": slot_id}
        is_end = state in invariants.TERMINAL
        kind = "finished" if is_end else "transition" if revision else "reserved"
        at = {"attempt_id": attempt_id, "at_ns": start + revision}
        sequence = len(tables["events"]) + 1
        payload = canonical.encode(facts).decode()
        tables["events"].append(
            {**at, "sequence": sequence, "kind": f"attempt_{kind}", "payload_json": payload}
        )
        tables["attempt_transitions"].append(
            {
                **at,
                "revision": revision,
                "from_state": before,
                "to_state": state,
                "event_sequence": sequence,
            }
        )
    is_end = states[-1] in invariants.TERMINAL
    tables["attempts"].append(
        {
            "attempt_id": attempt_id,
            "slot_id": slot_id,
            "retry_index": retry_index,
            "state": states[-1],
            "revision": len(states) - 1,
            "started_at_ns": start,
            "changed_at_ns": start + len(states) - 1,
            "finished_at_ns": start + len(states) - 1 if is_end else None,
            "failure_code": "broken" if states[-1] == "failed" else None,
            "final_artifact_id": f"{attempt_id}-end" if is_end else None,
        }
    )
    if is_end:
        tables["artifacts"].append({"artifact_id": f"{attempt_id}-end", "kind": "attempt"})
    add_lease(tables, attempt_id, "reservation")
    return attempt_id


def add_lease(tables: Tables, attempt_id: str, purpose: str) -> str:
    """Add a lease of the attempt's owner."""
    lease_id = f"{attempt_id}-{purpose}"
    tables["leases"].append(
        {
            "lease_id": lease_id,
            "attempt_id": attempt_id,
            "purpose": purpose,
            "owner_token": f"{attempt_id}-owner",
        }
    )
    return lease_id


def good() -> Tables:
    """Return what a store shows with a claim, a running, a failed and an accepted attempt."""
    tables: Tables = {table: [] for table in TABLES}
    for slot_id in (OPEN, DONE):
        tables["attempt_slots"].append({"slot_id": slot_id})
        tables["attempt_observation_slots"].append(
            {"attempt_slot_id": slot_id, "observation_slot_id": f"{slot_id}-observation"}
        )
    claimed = add_attempt(tables, OPEN, 0, PATH)
    add_attempt(tables, OPEN, 1, PATH[:5])
    add_attempt(tables, DONE, 0, (*PATH, "failed"))
    accepted = add_attempt(tables, DONE, 1, (*PATH, "accepted"))
    lease_id = add_lease(tables, claimed, "finalization")
    tables["finalization_claims"].append(
        {"slot_id": OPEN, "attempt_id": claimed, "lease_id": lease_id}
    )
    slot_id = f"{DONE}-observation"
    tables["observations"].append(
        {"attempt_id": accepted, "slot_id": slot_id, "valid": 1, "completion": "reached"}
    )
    tables["selected_observations"].append({"slot_id": slot_id})
    return tables


def row(tables: Tables, table: str, **facts: Any) -> dict[str, Any]:
    """Return the one row that has all the facts."""
    [found] = [r for r in tables[table] if all(r[key] == facts[key] for key in facts)]
    return found


def change(table: str, where: dict[str, Any], **facts: Any) -> Callable[[Tables], None]:
    """Return a defect that changes columns of one row."""
    return lambda tables: row(tables, table, **where).update(facts)


def drop(table: str, **where: Any) -> Callable[[Tables], None]:
    """Return a defect that removes one row."""
    return lambda tables: tables[table].remove(row(tables, table, **where))


def lose_a_transition(tables: Tables) -> None:
    """Remove a transition together with its event."""
    lost = row(tables, "attempt_transitions", attempt_id=f"{OPEN}-attempt-1", revision=2)
    tables["attempt_transitions"].remove(lost)
    drop("events", sequence=lost["event_sequence"])(tables)


def start_late(tables: Tables) -> None:
    """Let a history start in another state than reserved, in event and transition alike."""
    states = ("starting", "preparing")
    add_attempt(tables, OPEN, 2, states)


def lose_an_attempt(tables: Tables) -> None:
    """Remove the newest attempt's projection and lease, and keep its history."""
    drop("attempts", attempt_id=f"{OPEN}-attempt-1")(tables)
    drop("leases", lease_id=f"{OPEN}-attempt-1-reservation")(tables)


def accept_twice(tables: Tables) -> None:
    """Accept a second attempt of a slot, with an observation of its own."""
    accepted = add_attempt(tables, DONE, 2, (*PATH, "accepted"))
    observation = row(tables, "observations", attempt_id=f"{DONE}-attempt-1")
    tables["observations"].append({**observation, "attempt_id": accepted})


def claim(slot_id: str, retry_index: int) -> Callable[[Tables], None]:
    """Return a defect that claims for an attempt, with a lease of its own."""

    def defect(tables: Tables) -> None:
        attempt_id = f"{slot_id}-attempt-{retry_index}"
        lease_id = add_lease(tables, attempt_id, "finalization")
        tables["finalization_claims"].append(
            {"slot_id": slot_id, "attempt_id": attempt_id, "lease_id": lease_id}
        )

    return defect


def claim_an_accepted_slot(tables: Tables) -> None:
    """Claim for a finalizing retry of the slot that is accepted."""
    add_attempt(tables, DONE, 2, PATH)
    claim(DONE, 2)(tables)


def skip_a_retry(tables: Tables) -> None:
    """Add an attempt whose index leaves out one."""
    add_attempt(tables, OPEN, 3, PATH[:1])


TRANSITION = {"attempt_id": f"{OPEN}-attempt-1", "revision": 2}
RUNNING = {"attempt_id": f"{OPEN}-attempt-1"}
FAILED = {"attempt_id": f"{DONE}-attempt-0"}
ACCEPTED = {"attempt_id": f"{DONE}-attempt-1"}
CLAIM_LEASE = {"lease_id": f"{OPEN}-attempt-0-finalization"}
EVENT = {"attempt_id": f"{OPEN}-attempt-1", "at_ns": 202}

DEFECTS: dict[str, tuple[str, Callable[[Tables], None]]] = {
    "transition lost": (invariants.CONTIGUOUS_HISTORY, lose_a_transition),
    "history starts late": (invariants.CONTIGUOUS_HISTORY, start_late),
    "attempt lost": (invariants.CONTIGUOUS_HISTORY, lose_an_attempt),
    "projection behind": (invariants.CONTIGUOUS_HISTORY, change("attempts", RUNNING, revision=3)),
    "projected state": (
        invariants.CONTIGUOUS_HISTORY,
        change("attempts", RUNNING, state="starting"),
    ),
    "projected time": (
        invariants.CONTIGUOUS_HISTORY,
        change("attempts", RUNNING, changed_at_ns=999),
    ),
    "starts before itself": (
        invariants.CONTIGUOUS_HISTORY,
        change("attempts", RUNNING, started_at_ns=201),
    ),
    "event lost": (invariants.ONE_EVENT, drop("events", **EVENT)),
    "event of another": (invariants.ONE_EVENT, change("events", EVENT, **FAILED)),
    "event at another time": (invariants.ONE_EVENT, change("events", EVENT, at_ns=999)),
    "event in other bytes": (invariants.ONE_EVENT, change("events", EVENT, payload_json="{}")),
    "event that tells nothing": (
        invariants.ONE_EVENT,
        lambda tables: tables["events"].append(
            {**row(tables, "events", **EVENT), "sequence": 10**6}
        ),
    ),
    "no finish time": (invariants.COMPLETE_END, change("attempts", ACCEPTED, finished_at_ns=None)),
    "finish time too early": (
        invariants.COMPLETE_END,
        change("attempts", RUNNING, finished_at_ns=1),
    ),
    "end of another kind": (
        invariants.COMPLETE_END,
        change("artifacts", {"artifact_id": f"{DONE}-attempt-1-end"}, kind="other"),
    ),
    "end that is not there": (
        invariants.COMPLETE_END,
        drop("artifacts", artifact_id=f"{DONE}-attempt-0-end"),
    ),
    "failed without code": (invariants.COMPLETE_END, change("attempts", FAILED, failure_code="")),
    "code without failure": (
        invariants.COMPLETE_END,
        change("attempts", RUNNING, failure_code="x"),
    ),
    "accepted twice": (invariants.ONE_ACCEPTANCE, accept_twice),
    "nothing selected": (
        invariants.ONE_ACCEPTANCE,
        drop("selected_observations", slot_id=f"{DONE}-observation"),
    ),
    "invalid observation": (invariants.ONE_ACCEPTANCE, change("observations", ACCEPTED, valid=0)),
    "incomplete observation": (
        invariants.ONE_ACCEPTANCE,
        change("observations", ACCEPTED, completion="not_reached"),
    ),
    "observation of another": (
        invariants.ONE_ACCEPTANCE,
        change("observations", ACCEPTED, **FAILED),
    ),
    "claim too early": (
        invariants.LIVE_CLAIM,
        lambda tables: (tables["finalization_claims"].clear(), claim(OPEN, 1)(tables))[1],
    ),
    "claim of an accepted slot": (invariants.LIVE_CLAIM, claim_an_accepted_slot),
    "claim without lease": (invariants.LIVE_CLAIM, drop("leases", **CLAIM_LEASE)),
    "claim on another's lease": (invariants.LIVE_CLAIM, change("leases", CLAIM_LEASE, **RUNNING)),
    "claim of another owner": (
        invariants.LIVE_CLAIM,
        change("leases", CLAIM_LEASE, owner_token="thief"),
    ),
    "retry left out": (invariants.NEXT_RETRY, skip_a_retry),
    "retry without lease": (
        invariants.NEXT_RETRY,
        drop("leases", lease_id=f"{OPEN}-attempt-1-reservation"),
    ),
    "table missing": (invariants.WHOLE_SCHEMA, lambda tables: tables.pop("leases") and None),
    "table too many": (invariants.WHOLE_SCHEMA, lambda tables: tables.update(strangers=[])),
}


def sql(*statements: str) -> Callable[[Path], None]:
    """Return a defect that statements make in the database, with no guard on."""

    def defect(root: Path) -> None:
        connection = apsw.Connection(str(layout.database_path(root)))
        for statement in statements:
            connection.execute(statement).fetchall()
        connection.close()

    return defect


ROOT_DEFECTS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "probe folder left": (
        invariants.WHOLE_SCHEMA,
        lambda root: (root / ".run-store-probe-0007").mkdir(),
    ),
    "another version": (invariants.SOUND_DATABASE, sql("PRAGMA user_version = 2")),
    "another journal": (invariants.SOUND_DATABASE, sql("PRAGMA journal_mode = DELETE")),
    "guard dropped": (invariants.SOUND_DATABASE, sql("DROP TRIGGER leases_delete_guard")),
    "guard changed": (
        invariants.SOUND_DATABASE,
        sql(
            "DROP TRIGGER leases_delete_guard",
            "CREATE TRIGGER leases_delete_guard BEFORE DELETE ON leases BEGIN SELECT 1; END",
        ),
    ),
    "table added": (invariants.SOUND_DATABASE, sql("CREATE TABLE strangers(a)")),
    "dangling reference": (
        invariants.SOUND_DATABASE,
        sql("INSERT INTO leased_artifacts VALUES ('no lease', 'no artifact')"),
    ),
    "broken constraint": (
        invariants.SOUND_DATABASE,
        sql(
            "PRAGMA ignore_check_constraints = ON",
            "INSERT INTO artifacts VALUES ('', 'other', 'file', 'x', 'p', NULL, 1)",
        ),
    ),
}


@pytest.fixture(scope="module")
def empty_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root that was opened once."""
    root = tmp_path_factory.mktemp("empty")
    RunStore.open(root).close()
    return root


def broken(root: Path, observed: Tables | None) -> set[str]:
    """Return the names of the invariants that do not hold."""
    return {check.invariant for check in checks(root, observed) if not check.holds}


def checks(root: Path, observed: Tables | None) -> list[Any]:
    """Return every check of a store that shows *observed*."""
    evidence = Evidence(
        phase="recovered",
        boundary=1,
        acknowledged=[],
        in_flight=None,
        promises=[],
        effects=[],
        expected=None,
        observed=observed,
        now_ns=0,
    )
    return list(invariants.all_of(root, evidence))


def test_good_store_exercises_and_holds_every_invariant(empty_root: Path) -> None:
    """The store that the defects start from is right, and each invariant has a subject in it."""
    made = checks(empty_root, good())
    assert set(invariants.NAMES) == {check.invariant for check in made}
    assert [check for check in made if not check.holds] == []


def test_store_as_it_is_holds_every_invariant(tmp_path: Path) -> None:
    """What the store itself writes is right, so the invariants ask for nothing that it is not."""
    with RunStore.open(tmp_path) as store:
        store.register_one_shot(*ONE_SHOT)
        guard = store.reserve(SLOT.slot_id, FirstAttempt(), LeaseRequest("l", "me", 99), 5)
        store.advance(guard, Phase.MATERIALIZING, 6)
    assert broken(tmp_path, observe(tmp_path)) == set()


@pytest.mark.parametrize("observed", [None, EMPTY_STORE], ids=["absent", "empty"])
def test_absent_and_empty_schema_are_both_right(observed: Tables | None, empty_root: Path) -> None:
    """No schema at all and a schema without a row are what an interrupted first open may leave."""
    assert broken(empty_root, observed) == set()


@pytest.mark.parametrize(("invariant", "defect"), DEFECTS.values(), ids=DEFECTS)
def test_defect_of_the_tables_breaks_its_invariant_alone(
    invariant: str, defect: Callable[[Tables], None], empty_root: Path
) -> None:
    """One wrong row breaks the invariant that is about it, and no other."""
    observed = copy.deepcopy(good())
    defect(observed)
    assert {invariant} == broken(empty_root, observed)


@pytest.mark.parametrize(("invariant", "defect"), ROOT_DEFECTS.values(), ids=ROOT_DEFECTS)
def test_defect_of_the_files_breaks_its_invariant_alone(
    invariant: str, defect: Callable[[Path], None], empty_root: Path, tmp_path: Path
) -> None:
    """A database or folder that is not what it should be breaks the invariant that is about it."""
    root = tmp_path / "root"
    shutil.copytree(empty_root, root)
    defect(root)
    assert {invariant} == broken(root, good())


def test_every_invariant_has_a_defect() -> None:
    """No invariant is there that nothing shows to be able to fail."""
    assert set(invariants.NAMES) == {
        name for name, _ in [*DEFECTS.values(), *ROOT_DEFECTS.values()]
    }
