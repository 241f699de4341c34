"""
The run store's invariants as named predicates, for every campaign over it.

Method: each is a generator of Checks, one per subject, over the observation; only the schema's
needs the database. ``all_of`` strings them together.

Covered: I0-01 to I0-06, I0-14 and I0-18 of the store's acceptance list.
Not covered here: I0-13, which is the harness's ``step_atomicity``, and I0-17, the proof of each
death, which the harness gives for every boundary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from campaigns.run_store.observation import TABLES
from campaigns.tables import Rows
from harness import Check, Evidence
from store import canonical
from store.run_store import RUN_STORE_SCHEMA_SQL, RUN_STORE_SCHEMA_VERSION, layout
from store.run_store.opening import embedded_schema

Tables = dict[str, Rows]

TERMINAL = frozenset({"accepted", "censored", "superseded", "failed"})
SOUND_DATABASE = "I0-01 database is sound"
CONTIGUOUS_HISTORY = "I0-02 history is contiguous"
ONE_EVENT = "I0-03 each transition has its event"
COMPLETE_END = "I0-04 a terminal attempt is complete"
ONE_ACCEPTANCE = "I0-05 a slot accepts one attempt"
LIVE_CLAIM = "I0-06 a claim belongs to its attempt and lease"
NEXT_RETRY = "I0-14 a retry takes the next index"
WHOLE_SCHEMA = "I0-18 the schema is whole or absent"

NAMES = (
    SOUND_DATABASE,
    CONTIGUOUS_HISTORY,
    ONE_EVENT,
    COMPLETE_END,
    ONE_ACCEPTANCE,
    LIVE_CLAIM,
    NEXT_RETRY,
    WHOLE_SCHEMA,
)

# Once per process, and before the zygote forks: it costs 3 ms.
_SCHEMA = embedded_schema(RUN_STORE_SCHEMA_SQL)


def all_of(root: Path, evidence: Evidence) -> Iterator[Check]:
    """Yield every check of a recovered store; its observation is the dump of its tables."""
    yield from whole_schema(root, evidence.observed)
    if evidence.observed is None or set(TABLES) - evidence.observed.keys():
        return  # there is no store, or one whose schema has just been found wanting
    tables: Tables = evidence.observed
    yield from sound_database(root)
    yield from contiguous_history(tables)
    yield from one_event(tables)
    yield from complete_end(tables)
    yield from one_acceptance(tables)
    yield from live_claim(tables)
    yield from next_retry(tables)


def whole_schema(root: Path, observed: Tables | None) -> Iterator[Check]:
    """I0-18: all tables or none, and no probe folder that a later start would trip over."""
    tables = set() if observed is None else observed.keys()
    missing = sorted(set(TABLES) - tables)
    extra = sorted(tables - set(TABLES))
    yield Check(
        WHOLE_SCHEMA,
        observed is None or not (missing or extra),
        f"missing tables {missing}, unknown tables {extra}",
    )
    probes = sorted(path.name for path in root.glob(".run-store-probe*"))
    yield Check(WHOLE_SCHEMA, not probes, f"probe folders are left: {probes}")


def sound_database(root: Path) -> Iterator[Check]:
    """I0-01: checks pass, the version is ours, the schema is the embedded one, WAL is on."""
    connection = apsw.Connection(str(layout.database_path(root)), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        answers = {
            pragma: [row[0] for row in connection.execute(f"PRAGMA {pragma}").fetchall()]
            for pragma in ("integrity_check", "foreign_key_check", "user_version", "journal_mode")
        }
        schema: dict[tuple[str, str], object] = {
            (str(kind), str(name)): (table, sql)
            for kind, name, table, sql in connection.execute(
                "SELECT type, name, tbl_name, sql FROM sqlite_schema"
            ).fetchall()
        }
    finally:
        connection.close()
    expected: dict[str, list[Any]] = {
        "integrity_check": ["ok"],
        "foreign_key_check": [],
        "user_version": [RUN_STORE_SCHEMA_VERSION],
        "journal_mode": ["wal"],
    }
    for pragma, right in expected.items():
        yield Check(
            SOUND_DATABASE,
            answers[pragma] == right,
            f"PRAGMA {pragma} is {answers[pragma]}, expected {right}",
        )
    changed = sorted(f"{x} {y}" for x, y in _SCHEMA.keys() ^ schema.keys()) or sorted(
        f"{x} {y}" for (x, y) in schema if schema[x, y] != _SCHEMA[x, y]
    )
    yield Check(SOUND_DATABASE, not changed, f"the schema differs from the embedded: {changed}")


def contiguous_history(tables: Tables) -> Iterator[Check]:
    """I0-02: revisions without a gap, each after its predecessor, the last one projected."""
    history = _by(tables["attempt_transitions"], "attempt_id")
    for attempt in tables["attempts"]:
        steps = sorted(history[attempt["attempt_id"]], key=lambda step: step["revision"])
        yield Check(CONTIGUOUS_HISTORY, *_history_problem(attempt, steps))
    owners = {attempt["attempt_id"] for attempt in tables["attempts"]}
    stray = sorted(history.keys() - owners)
    yield Check(CONTIGUOUS_HISTORY, not stray, f"transitions of unknown attempts {stray}")


def _history_problem(attempt: dict[str, Any], steps: Rows) -> tuple[bool, str]:
    who = f"attempt {attempt['retry_index']} of slot {attempt['slot_id'][-8:]}"
    revisions = [step["revision"] for step in steps]
    if revisions != list(range(attempt["revision"] + 1)):
        return False, f"{who} is at revision {attempt['revision']}, its history has {revisions}"
    state, at_ns = None, attempt["started_at_ns"]
    for step in steps:
        is_first = step["revision"] == 0
        if (
            step["from_state"] != state
            or step["at_ns"] < at_ns
            or is_first != (step["to_state"] == "reserved")
        ):
            return False, f"{who}: revision {step['revision']} does not follow its predecessor"
        state, at_ns = step["to_state"], step["at_ns"]
    is_projected = (attempt["state"], attempt["changed_at_ns"]) == (state, at_ns)
    return is_projected, f"{who} shows {attempt['state']!r}, its history ends in {state!r}"


def one_event(tables: Tables) -> Iterator[Check]:
    """I0-03: one event per transition, of the same attempt and time, with the pinned bytes."""
    events = {event["sequence"]: event for event in tables["events"]}
    attempts = {attempt["attempt_id"]: attempt for attempt in tables["attempts"]}
    told = set()
    for step in tables["attempt_transitions"]:
        sequence = step["event_sequence"]
        event = events.get(sequence)
        told.add(sequence)
        yield Check(
            ONE_EVENT,
            event is not None
            and (event["attempt_id"], event["at_ns"]) == (step["attempt_id"], step["at_ns"])
            and event["payload_json"] == _payload(step, attempts, event),
            f"revision {step['revision']} of {step['attempt_id'][-8:]} has the event {event}",
        )
    alone = [
        x["sequence"] for x in tables["events"] if x["attempt_id"] and x["sequence"] not in told
    ]
    yield Check(ONE_EVENT, not alone, f"events {alone} of attempts tell of no transition")


def _payload(step: dict[str, Any], attempts: dict[str, Any], event: dict[str, Any]) -> str:
    """Return the bytes that the event must have; terminal and claim payloads come later."""
    facts: dict[str, Any] = {
        "from": step["from_state"],
        "revision": step["revision"],
        "to": step["to_state"],
    }
    attempt = attempts.get(step["attempt_id"])
    if step["revision"] == 0 and attempt is not None:
        facts |= {"retry_index": attempt["retry_index"], "slot_id": attempt["slot_id"]}
    elif event["kind"] != "attempt_transition":
        return str(event["payload_json"])
    return canonical.encode(facts).decode()


def complete_end(tables: Tables) -> Iterator[Check]:
    """I0-04: terminal exactly with a finish time and a final artifact; failed with a code."""
    kinds = {row["artifact_id"]: row["kind"] for row in tables["artifacts"]}
    for attempt in tables["attempts"]:
        is_terminal = attempt["state"] in TERMINAL
        has_end = (
            attempt["finished_at_ns"] is not None
            and kinds.get(attempt["final_artifact_id"]) == "attempt"
        )
        has_nothing = attempt["finished_at_ns"] is None and attempt["final_artifact_id"] is None
        has_code = bool(attempt["failure_code"]) == (attempt["state"] == "failed")
        yield Check(
            COMPLETE_END,
            (has_end if is_terminal else has_nothing) and has_code,
            f"attempt {attempt['attempt_id'][-8:]} is {attempt['state']!r} with finish "
            f"{attempt['finished_at_ns']}, artifact {attempt['final_artifact_id']!r}, code "
            f"{attempt['failure_code']!r}",
        )


def one_acceptance(tables: Tables) -> Iterator[Check]:
    """I0-05: at most one accepted attempt per slot, each with what acceptance requires."""
    selected = {row["slot_id"] for row in tables["selected_observations"]}
    members = _by(tables["attempt_observation_slots"], "attempt_slot_id")
    attempts = _by(tables["attempts"], "slot_id")
    own = {
        (row["attempt_id"], row["slot_id"])
        for row in tables["observations"]
        if row["valid"] and row["completion"] == "reached"
    }
    for slot in tables["attempt_slots"]:
        accepted = [row for row in attempts[slot["slot_id"]] if row["state"] == "accepted"]
        needed = [row["observation_slot_id"] for row in members[slot["slot_id"]]]
        yield Check(
            ONE_ACCEPTANCE,
            len(accepted) <= 1
            and all(
                slot_id in selected and (attempt["attempt_id"], slot_id) in own
                for attempt in accepted
                for slot_id in needed
            ),
            f"slot {slot['slot_id'][-8:]} accepted {len(accepted)} attempts over {needed}",
        )


def live_claim(tables: Tables) -> Iterator[Check]:
    """I0-06: a claim's attempt is finalizing, its lease of the same attempt and owner."""
    attempts = {row["attempt_id"]: row for row in tables["attempts"]}
    leases = {row["lease_id"]: row for row in tables["leases"]}
    owners = {
        row["attempt_id"]: row["owner_token"]
        for row in tables["leases"]
        if row["purpose"] == "reservation"
    }
    accepted = {row["slot_id"] for row in tables["attempts"] if row["state"] == "accepted"}
    for claim in tables["finalization_claims"]:
        lease = leases.get(claim["lease_id"], {})
        yield Check(
            LIVE_CLAIM,
            attempts.get(claim["attempt_id"], {}).get("state") == "finalizing"
            and claim["slot_id"] not in accepted
            and lease.get("attempt_id") == claim["attempt_id"]
            and lease.get("owner_token") == owners.get(claim["attempt_id"]),
            f"claim of slot {claim['slot_id'][-8:]} stands on lease {lease}",
        )


def next_retry(tables: Tables) -> Iterator[Check]:
    """I0-14: the retries of a slot are numbered without a gap, and each has its lease."""
    reserved = {row["attempt_id"] for row in tables["leases"] if row["purpose"] == "reservation"}
    for slot_id, attempts in _by(tables["attempts"], "slot_id").items():
        indices = sorted(attempt["retry_index"] for attempt in attempts)
        yield Check(
            NEXT_RETRY,
            indices == list(range(len(indices))),
            f"slot {slot_id[-8:]} has the retries {indices}",
        )
        bare = [x["retry_index"] for x in attempts if x["attempt_id"] not in reserved]
        yield Check(NEXT_RETRY, not bare, f"slot {slot_id[-8:]}: retries {bare} have no lease")


def _by(rows: Rows, column: str) -> dict[str, Rows]:
    groups: dict[str, Rows] = defaultdict(list)
    for row in rows:
        groups[row[column]].append(row)
    return groups
