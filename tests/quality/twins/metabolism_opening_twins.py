"""Twins of the metabolism runtime whose bug lies in opening, in launch logs, or in looking."""

from __future__ import annotations

from .twin import Patch, Twin

_CLAIMING = "campaigns.metabolism.claiming:Claiming"
_ENQUEUEING = "campaigns.metabolism.enqueueing:Enqueueing"
_FIRST_OPEN = "campaigns.metabolism.storage:FirstOpen"
_LOGS = "campaigns.metabolism.launch_logs:LaunchLogs"
_LAUNCH_LOG = "store/metabolism/launch_log.py"
_RUNS = "store/metabolism/runs.py"
_STORAGE = "store/metabolism/storage.py"
_AT_REST = "store/at_rest.py"

_CREATE = """\
    with sqlite.immediate(connection):
        if problem := schema_problem(connection):
"""

_READY = "        ensure_schema(connection)\n    except BaseException"

_APPEND = """\
        with open(path, "r+b", buffering=0) as file:
            if file.seek(0, os.SEEK_END) and not _ends_a_line(file):
                line = f"\\n{line}"  # a crash cut the last line: the new one is one of its own
            _write_line(file, path, line)
"""

_CUT_BACK = """\
        ensure_schema(connection)
        if had_wal:
            name = "blackboard_claim_events_no_delete"
            [guard] = sqlite.rows(
                connection, "SELECT sql FROM sqlite_schema WHERE name = ?", (name,)
            )
            sqlite.rows(connection, f"DROP TRIGGER {name}")
            sqlite.rows(
                connection,
                "DELETE FROM blackboard_claim_events WHERE event_id ="
                " (SELECT max(event_id) FROM blackboard_claim_events)",
            )
            sqlite.rows(connection, guard[0])
    except BaseException"""

_GIVE_BACK = """\
        ensure_schema(connection)
        if had_wal:
            sqlite.rows(
                connection,
                "UPDATE jobs SET state = 'recoverable', claim_owner = NULL,"
                " claim_expires_at_ns = NULL WHERE state = 'claimed'",
            )
    except BaseException"""

TWINS = (
    Twin(
        name="runtime_schema_in_autocommit",
        what="The script is applied statement by statement, in no transaction.",
        patches=(
            Patch(
                _STORAGE, _CREATE, _CREATE.replace("sqlite.immediate(connection)", "nullcontext()")
            ),
            Patch(_STORAGE, "import re\n", "import re\nfrom contextlib import nullcontext\n"),
        ),
        campaign=_FIRST_OPEN,
        step="open",
        near="CREATE TABLE runs",
        invariants=frozenset({"recovers"}),
    ),
    Twin(
        name="runtime_version_set_first",
        what="user_version says that the schema is there before its transaction begins.",
        patches=(
            Patch(
                _STORAGE,
                _CREATE + "            raise UnknownSchema(problem)\n"
                "        if _version(connection) != SCHEMA_VERSION:\n",
                "    is_new = _version(connection) != SCHEMA_VERSION\n"
                '    sqlite.rows(connection, f"PRAGMA user_version={SCHEMA_VERSION}")\n'
                "    with sqlite.immediate(connection):\n"
                "        if is_new:\n",
            ),
        ),
        campaign=_FIRST_OPEN,
        step="open",
        near="PRAGMA user_version=1",
        invariants=frozenset({"recovers"}),
        is_representative=False,
    ),
    Twin(
        name="runtime_log_cleared_at_open",
        what="Opening unlinks the WAL as a leftover of the process that died.",
        patches=(
            Patch(
                _STORAGE,
                '        had_wal = path.with_name(f"{path.name}-wal").exists()\n',
                '        had_wal = path.with_name(f"{path.name}-wal").exists()\n'
                '        path.with_name(f"{path.name}-wal").unlink(missing_ok=True)\n',
            ),
        ),
        campaign=_ENQUEUEING,
        step="enqueue plain",
        near="after step",
        invariants=frozenset({"promise enqueued"}),
    ),
    Twin(
        name="leases_of_the_dead_given_back",
        what="Opening beside a WAL gives back every claimed job, though its worker may live.",
        patches=(Patch(_STORAGE, _READY, _GIVE_BACK),),
        campaign=_CLAIMING,
        step="claim urgent",
        near="COMMIT",
        invariants=frozenset({"promise claimed", "step_atomicity"}),
    ),
    Twin(
        name="newest_event_dropped_at_open",
        what="Opening beside a WAL removes the newest event, which might be half written; the "
        "guard against that is off meanwhile.",
        patches=(Patch(_STORAGE, _READY, _CUT_BACK),),
        campaign="campaigns.metabolism.blackboard:Blackboard",
        step="assert 0",
        near="COMMIT",
        invariants=frozenset({"I1-07 the log only grows"}),
    ),
    Twin(
        name="log_made_again_by_its_run",
        what="A started run empties its launch log and writes the first line again.",
        patches=(
            Patch(
                _RUNS,
                "    return Run._make(run)\n\n\ndef complete_run",
                "    if log_path is not None:\n"
                '        log = Path(connection.db_filename("main")).parent / log_path\n'
                '        with open(log, "wb", buffering=0) as file:\n'
                '            file.write(b"started\\n")\n'
                "    return Run._make(run)\n\n\ndef complete_run",
            ),
            Patch(_RUNS, "import apsw\n", "from pathlib import Path\n\nimport apsw\n"),
        ),
        campaign=_LOGS,
        step="start",
        near="write",
        invariants=frozenset({"a run that names a log has one"}),
        is_representative=False,
    ),
    Twin(
        name="log_line_in_two_writes",
        what="A line is written, and then its end.",
        patches=(
            Patch(
                _LAUNCH_LOG,
                '    rest = memoryview(f"{line}\\n".encode())\n'
                "    while rest:\n"
                "        rest = rest[file.write(rest) :]\n",
                '    file.write(line.encode())\n    file.write(b"\\n")\n',
            ),
        ),
        campaign=_LOGS,
        step="log step one",
        near="write",
        invariants=frozenset({"step_atomicity"}),
        is_representative=False,
    ),
    Twin(
        name="log_written_anew_for_each_line",
        what="A line is added by writing the whole log again over the emptied file.",
        patches=(
            Patch(
                _LAUNCH_LOG,
                _APPEND,
                "        before = path.read_bytes()\n"
                '        with open(path, "wb", buffering=0) as file:\n'
                "            _write_line(file, path, before.decode() + line)\n",
            ),
        ),
        campaign=_LOGS,
        step="log step one",
        near="write",
        invariants=frozenset({"a run that names a log has one"}),
    ),
    Twin(
        name="dead_opened_for_writing",
        what="Looking at a dead runtime is an ordinary connection, whose end moves the WAL.",
        patches=(
            Patch(
                _AT_REST,
                "    main = _resolved(path)\n    before",
                "    with closing(apsw.Connection(str(path))) as connection:\n"
                "        yield connection\n"
                "    return\n"
                "    main = _resolved(path)\n    before",
            ),
        ),
        campaign="campaigns.metabolism.requeueing:Unopened",
        step="open and give back",
        near="COMMIT",
        invariants=frozenset({"I1-10 reconciliation changes nothing"}),
    ),
)
