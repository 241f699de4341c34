"""
How the writer's operations begin, end, fail in the middle, and show where they are.
"""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from run_store_writer_world import dump, open_planned, plan, query, reserve

from store import crash_points
from store.run_store import Phase, RunStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with open_planned(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("table", ["events", "attempt_transitions"])
def test_failure_after_the_projection_rolls_it_back(store: RunStore, table: str) -> None:
    """RS-100: an error once the projection has moved leaves projection and history as before."""
    attempt = reserve(store)
    before = dump(store)
    query(
        store,
        f"CREATE TEMP TRIGGER broken AFTER INSERT ON main.{table}"
        " BEGIN SELECT RAISE(ABORT, 'broken'); END",
    )
    with pytest.raises(apsw.ConstraintError, match="broken"):
        store.advance(attempt, Phase.MATERIALIZING, 20)
    assert before == dump(store)
    query(store, "DROP TRIGGER broken")
    assert store.advance(attempt, Phase.MATERIALIZING, 20).revision == 1


def traced(store: RunStore) -> list[str]:
    """Record every statement of the store from here on."""
    statements: list[str] = []

    def note(cursor: object, sql: str, bindings: object) -> bool:
        statements.append(" ".join(sql.split()))
        return True

    store._open().exec_trace = note  # type: ignore[assignment]
    return statements


def test_each_operation_is_one_immediate_transaction(store: RunStore) -> None:
    """RS-081: everything is read and written between one BEGIN IMMEDIATE and one COMMIT."""
    statements = traced(store)
    operations = []
    attempt = reserve(store)
    operations.append(statements.copy())
    statements.clear()
    attempt = store.advance(attempt, Phase.MATERIALIZING, 20)
    operations.append(statements.copy())
    statements.clear()
    store.renew(attempt, 2_000, 30)
    operations.append(statements.copy())
    statements.clear()
    plan("second").register(store)
    operations.append(statements.copy())
    for found in operations:
        assert (found[0], found[-1]) == ("BEGIN IMMEDIATE", "COMMIT")
        assert len(found) >= 3
        control = {"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE"}
        assert [sql for sql in found[1:-1] if sql.split()[0] in control] == []
    assert not store._open().in_transaction


def test_guard_is_returned_only_after_commit(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-100: whatever ends the operation before COMMIT leaves no guard and no rows."""
    attempt = reserve(store)
    before = dump(store)

    def break_commit(cursor: object, sql: str, bindings: object) -> bool:
        if sql == "COMMIT":
            raise RuntimeError("no commit")
        return True

    store._open().exec_trace = break_commit  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="no commit"):
        store.advance(attempt, Phase.MATERIALIZING, 20)
    store._open().exec_trace = None
    assert before == dump(store)
    assert store.advance(attempt, Phase.MATERIALIZING, 20).revision == 1


def test_crash_points_surround_operations_and_history(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RS-155: each operation, and the writing of each transition, stands between two points."""
    found: list[tuple[str, ...]] = []

    def note(kind: str, phase: str, /, *names: str) -> None:
        found.append((kind, phase, *names, str(store._open().in_transaction)))

    monkeypatch.setattr(crash_points, "_observer", note)
    attempt = reserve(store)
    store.renew(store.advance(attempt, Phase.MATERIALIZING, 20), 2_000, 30)
    plan().register(store)
    inside = [
        ("point", "before", "writer.append_history", "True"),
        ("point", "after", "writer.append_history", "True"),
    ]

    def around(operation: str, *within: tuple[str, ...]) -> list[tuple[str, ...]]:
        label = f"writer.{operation}"
        return [
            ("point", "before", label, "False"),
            *within,
            ("point", "after", label, "False"),
        ]

    assert [
        *around("reserve", *inside),
        *around("advance", *inside),
        *around("renew"),
        *around("register_one_shot"),
    ] == found
