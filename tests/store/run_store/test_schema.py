"""
The schema script itself: one script, strict tables, JSON objects, named rules.
"""

import re
from pathlib import Path

import apsw
import pytest
from run_store_schema_world import INSERT_ONLY_TABLES, TABLES, World

import store.run_store
from store.run_store import (
    ExecutionKind,
    ObservationKind,
    Phase,
    run_attempt_id,
    schema,
    typed_id,
)
from store.run_store.schema import RUN_STORE_SCHEMA_SQL, RUN_STORE_SCHEMA_VERSION
from store.sqlite import immediate, rows

JSON_COLUMNS = (
    ("applicability_decisions", "record_json", "applicability_decisions_record_is_object"),
    ("resolved_runs", "record_json", "resolved_runs_record_is_object"),
    ("attempt_slots", "record_json", "attempt_slots_record_is_object"),
    ("observation_slots", "record_json", "observation_slots_record_is_object"),
    ("observations", "record_json", "observations_record_is_object"),
    ("events", "payload_json", "events_payload_is_object"),
)

NOT_OBJECTS = ("[]", "1", '"text"', "null", "true", "", "{", '{"a":}', "{} {}", "{'a':1}")


@pytest.fixture
def world() -> World:
    return World()


def objects(connection: apsw.Connection) -> list[tuple[str, str]]:
    return rows(connection, "SELECT type, name FROM sqlite_schema ORDER BY type, name")


def test_exported_script_is_the_shipped_file() -> None:
    """RS-001: the exported text encodes to exactly the bytes of the shipped script."""
    shipped = Path(schema.__file__).with_name("v1.sql").read_bytes()
    assert shipped == RUN_STORE_SCHEMA_SQL.encode("utf-8")
    assert store.run_store.RUN_STORE_SCHEMA_SQL is RUN_STORE_SCHEMA_SQL


def test_version_is_one_and_in_the_database(world: World) -> None:
    """RS-002: the exported version is 1 and the script leaves it in `user_version`."""
    assert RUN_STORE_SCHEMA_VERSION == 1
    assert world.run("PRAGMA user_version") == [(RUN_STORE_SCHEMA_VERSION,)]


def test_layout_version_takes_no_part_in_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    """RS-003: another layout version leaves every identity as it is."""
    slot_id = typed_id("attempt-slot", {"version": 1})
    before = run_attempt_id(slot_id, 3)
    monkeypatch.setattr(schema, "RUN_STORE_SCHEMA_VERSION", 2)
    assert before == run_attempt_id(slot_id, 3)
    assert re.search(r"application_id|schema_version", RUN_STORE_SCHEMA_SQL) is None


@pytest.mark.parametrize("kind", sorted(ExecutionKind))
def test_layout_reserves_every_execution_kind(world: World, kind: str) -> None:
    """RS-004: the layout holds slots of each execution kind, also those not yet supported."""
    world.plan()
    with world.committed():
        world.insert("attempt_slots", slot_id="s2", logical_slot_id="l2", execution_kind=kind)


@pytest.mark.parametrize("kind", sorted(ObservationKind))
def test_layout_reserves_every_observation_kind(world: World, kind: str) -> None:
    """RS-004: the layout holds observation slots of each kind, also those not yet supported."""
    world.plan()
    with world.committed():
        world.insert("observation_slots", slot_id="o2", logical_slot_id="l2", kind=kind)


def test_layout_holds_exactly_the_phases(world: World) -> None:
    """RS-004: the states that the layout allows are the phases that the library names."""
    [(sql,)] = world.run("SELECT sql FROM sqlite_schema WHERE name = 'attempts'")
    listed = re.search(r"CONSTRAINT attempts_state\s+CHECK \(state IN \(([^)]*)\)\)", sql)
    assert listed is not None
    assert sorted(phase.value for phase in Phase) == sorted(re.findall(r"'(\w+)'", listed[1]))


def test_script_never_tolerates_an_existing_object() -> None:
    """RS-005: no statement of the script says IF NOT EXISTS."""
    statements = re.sub(r"--[^\n]*", "", RUN_STORE_SCHEMA_SQL)
    assert re.search(r"\bIF\s+NOT\s+EXISTS\b", statements, re.IGNORECASE) is None
    assert len(re.findall(r"^CREATE TABLE ", statements, re.MULTILINE)) == 16


@pytest.mark.parametrize("table", TABLES)
def test_an_existing_table_stops_the_initialisation_whole(table: str) -> None:
    """RS-005 RS-006: a foreign table of any of the names stops the script, which rolls back."""
    connection = apsw.Connection(":memory:")
    rows(connection, f"CREATE TABLE {table} (foreign_column)")
    with (
        pytest.raises(apsw.SQLError, match=f"table {table} already exists"),
        immediate(connection),
    ):
        rows(connection, RUN_STORE_SCHEMA_SQL)
    assert [("table", table)] == objects(connection)
    assert rows(connection, "PRAGMA user_version") == [(0,)]


def test_script_can_be_rolled_back_after_its_end() -> None:
    """RS-006: the whole script, version included, is one transaction's work."""
    connection = apsw.Connection(":memory:")
    rows(connection, "BEGIN IMMEDIATE")
    rows(connection, RUN_STORE_SCHEMA_SQL)
    assert connection.in_transaction
    assert len(objects(connection)) > 16
    rows(connection, "ROLLBACK")
    assert objects(connection) == []
    assert rows(connection, "PRAGMA user_version") == [(0,)]


def test_script_refuses_to_run_twice(world: World) -> None:
    """RS-006: running the script on its own database fails and changes nothing."""
    before = objects(world.connection)
    with pytest.raises(apsw.SQLError, match="already exists"), immediate(world.connection):
        world.run(RUN_STORE_SCHEMA_SQL)
    assert before == objects(world.connection)


def test_schema_has_sixteen_strict_tables(world: World) -> None:
    """RS-012: there are exactly the sixteen tables, all STRICT."""
    found = world.run("SELECT name, strict FROM pragma_table_list WHERE schema = 'main'")
    expected = [(table, 1) for table in TABLES] + [("sqlite_schema", 0)]
    assert expected == sorted(found)


def test_strict_table_refuses_text_as_a_time(world: World) -> None:
    """RS-012: a column typed INTEGER refuses text that is no number."""
    with world.refused("cannot store TEXT value in INTEGER column artifacts.verified_at_ns"):
        world.insert("artifacts", verified_at_ns="noon")


@pytest.mark.parametrize(("table", "column", "rule"), JSON_COLUMNS)
@pytest.mark.parametrize("text", NOT_OBJECTS)
def test_json_column_refuses_what_is_no_object(
    world: World, table: str, column: str, rule: str, text: str
) -> None:
    """RS-012: arrays, scalars and malformed text are refused by every JSON column."""
    world.populate()
    with world.refused(f"CHECK constraint failed: {rule}"):
        world.insert(table, **{**fresh_key(table), column: text})


@pytest.mark.parametrize(("table", "column", "rule"), JSON_COLUMNS)
@pytest.mark.parametrize("text", ["{}", '{"b":[1,{"c":null}],"a":"\u00e9"}'])
def test_json_column_accepts_an_object(
    world: World, table: str, column: str, rule: str, text: str
) -> None:
    """RS-012: every JSON column takes an object."""
    assert rule in RUN_STORE_SCHEMA_SQL
    world.populate()
    with world.committed():
        world.insert(table, **{**fresh_key(table), column: text})


def test_every_json_column_is_known_here(world: World) -> None:
    """RS-012: no JSON column escapes the tests above."""
    found = world.run(
        "SELECT t.name, c.name FROM pragma_table_list AS t, pragma_table_xinfo(t.name) AS c"
        " WHERE t.schema = 'main' AND c.name LIKE '%json'"
    )
    assert sorted((table, column) for table, column, _ in JSON_COLUMNS) == sorted(found)


def test_sql_leaves_canonical_form_to_the_writer(world: World) -> None:
    """RS-013: SQL takes an object in any spelling and any members; the writer judges those."""
    world.plan()
    with world.committed():
        world.insert("events", payload_json='{ "z": 1, "a": 2 }')
        world.insert(
            "attempt_slots",
            slot_id="s2",
            logical_slot_id="l2",
            record_json='{"role":"warm_up","slot_id":"another"}',
        )


def test_every_check_has_a_name() -> None:
    """RS-012: each CHECK is a named constraint, so that a refusal says which rule it was."""
    statements = re.sub(r"--[^\n]*", "", RUN_STORE_SCHEMA_SQL)
    checks = re.findall(r"\bCHECK\b", statements)
    named = re.findall(r"\bCONSTRAINT\s+(\w+)\s+CHECK\b", statements)
    assert len(checks) == len(named) == len(set(named))


@pytest.mark.parametrize("table", INSERT_ONLY_TABLES)
def test_insert_only_tables_have_both_guards(world: World, table: str) -> None:
    """RS-012: each insert-only table has a guard against UPDATE and one against DELETE."""
    found = world.run(
        "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?"
        " AND (name LIKE '%update_guard' OR name LIKE '%delete_guard') ORDER BY name",
        table,
    )
    assert [(f"{table}_delete_guard",), (f"{table}_update_guard",)] == found


def fresh_key(table: str) -> dict[str, str]:
    """Return ids for one more row of *table* beside those that `populate` left."""
    return {
        "applicability_decisions": {"decision_id": "d2"},
        "resolved_runs": {"run_id": "r2"},
        "attempt_slots": {"slot_id": "s2", "logical_slot_id": "l2"},
        "observation_slots": {"slot_id": "o2", "logical_slot_id": "l2"},
        "observations": {"observation_id": "ob2"},
        "events": {},
    }[table]
