"""An open that dies at any of its boundaries leaves a root that opens again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]

# Runs in an interpreter of its own, since forking is for processes without threads. Prints one
# object per boundary: what the dead child had announced last, and what the next open found.
CRASHES = """
import json, os, shutil, sys
from pathlib import Path
import apsw
from store import crash_points
from store.run_store.opening import embedded_schema, open_database
from store.run_store.schema import RUN_STORE_SCHEMA_SQL

root, is_new = Path(sys.argv[1]), sys.argv[2] == "new"
embedded = embedded_schema(RUN_STORE_SCHEMA_SQL)

def child(boundary, channel):
    passed = 0
    def at(text):
        nonlocal passed
        passed += 1
        if passed == boundary:
            os.write(channel, text.encode())
            os._exit(99)
    def connected(connection):
        kinds = {apsw.SQLITE_TRACE_STMT: "before", apsw.SQLITE_TRACE_PROFILE: "after"}
        connection.trace_v2(
            apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE,
            lambda event: at(kinds[event["code"]] + " " + event["sql"][:60]),
            id="crash",
        )
    apsw.connection_hooks.append(connected)
    crash_points._observer = lambda kind, phase, *names: at(phase + " " + kind + " " + names[0])
    open_database(root)
    os._exit(0)

def died_at(boundary):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(boundary, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as file:
        text = file.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, text

def reopened():
    connection, path = open_database(root)
    tables = [name for kind, name in embedded if kind == "table"]
    found = {
        "integrity": connection.execute("PRAGMA integrity_check").fetchall(),
        "rows": sum(
            connection.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0] for name in tables
        ),
        "version": connection.execute("PRAGMA user_version").fetchall()[0][0],
    }
    connection.close()
    found["files"] = sorted(os.listdir(root))
    return found

root.mkdir()
if not is_new:
    reopened()
boundary = 0
while True:
    boundary += 1
    if is_new:
        shutil.rmtree(root)
        root.mkdir()
    status, text = died_at(boundary)
    print(json.dumps({"status": status, "at": text, **reopened()}))
    if status != 99:
        break
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["new", "existing"])
def test_an_open_killed_at_any_boundary_is_repeatable(kind: str, tmp_path: Path) -> None:
    """RS-008, RS-039, RS-040: after each death the next open gives a whole, empty store."""
    done = subprocess.run(
        [sys.executable, "-c", CRASHES, str(tmp_path / "root"), kind],
        check=True, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    states = [json.loads(line) for line in done.stdout.splitlines()]
    assert [state.pop("status") for state in states] == [99] * (len(states) - 1) + [0]
    reached = [state.pop("at") for state in states]
    expected = {
        "integrity": [["ok"]],
        "rows": 0,
        "version": 1,
        "files": [".run-store-init.lock", "run.sqlite3"],
    }
    assert [state for state in states if state != expected] == []
    assert len(states) > (200 if kind == "new" else 60)
    assert ("after point open.create_schema" in reached) == (kind == "new")
    for kinds in ("file_sync", "directory_sync", "rename", "point"):
        assert any(text.startswith(f"before {kinds}") for text in reached)
