"""
Insert-only tables stay as they were written, by whatever verb they are attacked.
"""

import pytest
from run_store_schema_world import INSERT_ONLY_TABLES, TABLES, World


@pytest.fixture
def world() -> World:
    world = World()
    world.populate()
    return world


def columns(world: World, table: str) -> list[str]:
    found = world.run("SELECT name FROM pragma_table_info(?)", table)
    return [name for (name,) in found]


def unique_keys(world: World, table: str) -> list[list[str]]:
    """Return the primary key and every other unique key of *table*."""
    keys = world.run(
        "SELECT l.name, group_concat(i.name, ' ') FROM pragma_index_list(?) AS l,"
        ' pragma_index_info(l.name) AS i WHERE l."unique" GROUP BY l.name ORDER BY l.name',
        table,
    )
    found = [str(names).split(" ") for _, names in keys]
    return found if table != "events" else [["sequence"], *found]


def test_every_table_is_populated(world: World) -> None:
    """RS-047: the attacks below meet at least one row in each of the sixteen tables."""
    assert [table for table in TABLES if not world.run(f"SELECT 1 FROM {table}")] == []
    assert len(INSERT_ONLY_TABLES) == 13


@pytest.mark.parametrize("table", INSERT_ONLY_TABLES)
def test_update_is_refused_for_each_column(world: World, table: str) -> None:
    """RS-041 RS-047 RS-048 RS-052 RS-059: no column of an insert-only row can be written."""
    for column in [*columns(world, table), "rowid"]:
        with world.refused(f"{table}: insert-only, no update"):
            world.run(f"UPDATE {table} SET {column} = {column}")


@pytest.mark.parametrize("table", INSERT_ONLY_TABLES)
def test_delete_is_refused(world: World, table: str) -> None:
    """RS-041 RS-047 RS-048 RS-052: no insert-only row can be deleted."""
    with world.refused(f"{table}: insert-only, no delete"):
        world.run(f"DELETE FROM {table}")


@pytest.mark.parametrize("table", INSERT_ONLY_TABLES)
def test_replace_is_refused_on_each_key(world: World, table: str) -> None:
    """RS-047 RS-048 RS-052: INSERT OR REPLACE deletes nothing, on whichever key it conflicts."""
    names = columns(world, table)
    row = world.run(f"SELECT {', '.join(names)} FROM {table} ORDER BY rowid LIMIT 1")[0]
    if table == "attempt_transitions":
        world.run("DROP TRIGGER attempt_transitions_insert_guard")
    if table == "leased_artifacts":
        assert world.run("SELECT released_at_ns FROM leases WHERE lease_id = 'la'") == [(None,)]
    for key in [*unique_keys(world, table), ["rowid"]]:
        values = {
            name: value if name in key or not isinstance(value, str) else changed(name, value)
            for name, value in zip(names, row, strict=True)
        }
        if key == ["rowid"] and table != "events":
            values["rowid"] = world.run(f"SELECT min(rowid) FROM {table}")[0][0]
        places = ", ".join("?" for _ in values)
        with world.refused(f"{table}: insert-only, no delete"):
            world.run(
                f"INSERT OR REPLACE INTO {table} ({', '.join(values)}) VALUES ({places})",
                *values.values(),
            )


def changed(name: str, value: str) -> str:
    """Return another value that passes the column's checks, or the same where few do."""
    kept = ("disposition", "kind", "state", "role", "entry", "completion", "sha256", "json")
    return value if any(word in name for word in kept) else f"{value}2"


@pytest.mark.parametrize("table", INSERT_ONLY_TABLES)
def test_upsert_is_refused(world: World, table: str) -> None:
    """RS-047 RS-048 RS-052: ON CONFLICT DO UPDATE updates nothing."""
    names = columns(world, table)
    row = world.run(f"SELECT {', '.join(names)} FROM {table} ORDER BY rowid LIMIT 1")[0]
    if table == "attempt_transitions":
        world.run("DROP TRIGGER attempt_transitions_insert_guard")
    places = ", ".join("?" for _ in names)
    with world.refused(f"{table}: insert-only, no update"):
        world.run(
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({places})"
            f" ON CONFLICT DO UPDATE SET {names[0]} = {names[0]}",
            *row,
        )


@pytest.mark.parametrize("table", INSERT_ONLY_TABLES)
def test_guard_is_what_refuses(world: World, table: str) -> None:
    """RS-047: without its guard a row can be written, so the tests above can fail."""
    world.run(f"DROP TRIGGER {table}_update_guard")
    column = columns(world, table)[-1]
    world.run(f"UPDATE {table} SET {column} = {column}")
    assert world.connection.changes() >= 1


def test_replace_passes_without_recursive_triggers(world: World) -> None:
    """RS-052: the setting is what makes the guards hold against REPLACE, so it is verified."""
    world.run("PRAGMA recursive_triggers = OFF")
    with world.committed():
        world.insert("observations", observation_id="ob2", attempt_id="b")
        world.insert("selected_observations", "INSERT OR REPLACE", observation_id="ob2")
    assert world.run("SELECT observation_id FROM selected_observations") == [("ob2",)]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("applicability_decisions", "record_json"),
        ("resolved_runs", "record_json"),
        ("attempt_slots", "record_json"),
        ("observation_slots", "record_json"),
        ("observations", "record_json"),
    ],
)
def test_each_identified_record_is_kept_whole(world: World, table: str, column: str) -> None:
    """RS-059: every identified record stands beside its id, and cannot be left out."""
    with world.refused(f"NOT NULL constraint failed: {table}.{column}"):
        world.insert(table, **{columns(world, table)[0]: "new", column: None})
