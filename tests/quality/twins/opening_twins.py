"""Twins whose bug lies in opening: the lock, the probes, the schema, and what is left over."""

from __future__ import annotations

from .twin import Patch, Twin

_FIRST_OPEN = "campaigns.run_store.initialization:FirstOpen"
_TRANSITIONS = "campaigns.run_store.transitions:Transitions"
_OPENING = "store/run_store/opening.py"
_LOCK = "store/run_store/init_lock.py"
_PROBES = "store/run_store/probes.py"
_HANDLE = "store/run_store/run_store.py"
_SCHEMA = "store/run_store/v1.sql"

_CREATE = '    with crash_points.surrounding("open.create_schema")'
_OPEN = "        return _durable_connection(database), database\n"
_HELD = "            _check_in_place(descriptor, path)\n            yield\n"
_LEFTOVERS = """\
            with _stage("remove_leftovers", root):
                probes.remove_leftovers(root)
"""

TWINS = (
    Twin(
        name="schema_in_autocommit",
        what="The script is applied statement by statement, in no transaction.",
        patches=(Patch(_OPENING, ", sqlite.immediate(connection):", ":"),),
        campaign=_FIRST_OPEN,
        step="open",
        near="CREATE TABLE resolved_runs",
        invariants=frozenset({"recovers"}),
    ),
    Twin(
        name="version_set_before_the_tables",
        what="user_version says that the schema is there before its transaction begins.",
        patches=(
            Patch(
                _OPENING,
                _CREATE,
                '    sqlite.rows(connection, "PRAGMA user_version = 1")\n' + _CREATE,
            ),
        ),
        campaign=_FIRST_OPEN,
        step="open",
        near="PRAGMA user_version = 1",
        invariants=frozenset({"recovers"}),
    ),
    Twin(
        name="marked_initialized_before_the_commit",
        what="A marker file promises the schema before its transaction is committed.",
        patches=(
            Patch(
                _OPENING,
                "        if not is_empty:\n            return connection\n",
                '        marker = database.with_name("run.initialized")\n'
                "        if not is_empty or marker.exists():\n            return connection\n"
                '        marker.write_bytes(b"1")\n',
            ),
        ),
        campaign=_FIRST_OPEN,
        step="open",
        near="run.initialized",
        invariants=frozenset({"step_atomicity"}),
    ),
    Twin(
        name="existing_file_is_not_looked_at",
        what="A database file that exists is taken for an initialised store, unchecked.",
        patches=(
            Patch(
                _OPENING,
                "    had_wal = layout",
                "    existed = database.exists()\n    had_wal = layout",
            ),
            Patch(
                _OPENING,
                "            is_empty = _is_empty(connection, database)\n",
                "            is_empty = not existed and _is_empty(connection, database)\n",
            ),
        ),
        campaign=_FIRST_OPEN,
        step="open",
        near="PRAGMA journal_mode=WAL",
        invariants=frozenset({"step_atomicity"}),
    ),
    Twin(
        name="lock_is_what_its_file_says",
        what="The lock's file says whether the lock is held, so the dead hold it for ever.",
        patches=(
            Patch(
                _LOCK,
                _HELD,
                "            _check_in_place(descriptor, path)\n"
                '            if path.read_bytes() == b"held":\n'
                "                raise InitLockBusy(path, TIMEOUT_S)\n"
                '            path.write_bytes(b"held")\n'
                "            yield\n"
                '            path.write_bytes(b"free")\n',
            ),
        ),
        campaign=_FIRST_OPEN,
        step="open",
        near="write .run-store-init.lock",
        invariants=frozenset({"recovers"}),
    ),
    Twin(
        name="lock_file_replaced",
        what="The lock file is replaced by one that names its holder, through a new file that a "
        "crash leaves in the next holder's way.",
        patches=(
            Patch(
                _LOCK,
                _HELD,
                "            _check_in_place(descriptor, path)\n"
                '            new = path.with_name(path.name + ".new")\n'
                '            with open(new, "xb") as holder:\n'
                '                holder.write(b"held")\n'
                "            new.replace(path)\n"
                "            yield\n",
            ),
        ),
        campaign=_FIRST_OPEN,
        step="open",
        near="init.lock.new",
        invariants=frozenset({"recovers"}),
    ),
    Twin(
        name="leftover_probe_stays",
        what="Probe folders that interrupted opens left are never removed.",
        patches=(Patch(_OPENING, _LEFTOVERS, ""),),
        campaign=_FIRST_OPEN,
        step="open",
        near="rename .run-store-probe-0001/source .run-store-probe-0001/moved",
        invariants=frozenset({"I0-18 the schema is whole or absent"}),
    ),
    Twin(
        name="leftover_probe_is_refused",
        what="The probe folder has one fixed name, and one that is there already is an error.",
        patches=(
            Patch(_OPENING, _LEFTOVERS, ""),
            Patch(
                _PROBES,
                "    number = next(number for number in range(1, len(taken) + 2) "
                "if number not in taken)\n",
                "    number = min({1, *taken})\n",
            ),
        ),
        campaign=_FIRST_OPEN,
        step="open",
        near="rename .run-store-probe-0001/source .run-store-probe-0001/moved",
        invariants=frozenset({"recovers"}),
    ),
    Twin(
        name="database_synced_beside_its_connection",
        what="The database is opened, synced and closed while a connection has it open, which "
        "drops that connection's locks.",
        patches=(
            Patch(
                _OPENING,
                '        with _stage("sync_root", database.parent):\n',
                "        durability.sync_file(database)\n"
                '        with _stage("sync_root", database.parent):\n',
            ),
        ),
        campaign="campaigns.run_store.neighbour:Neighbour",
        step="reserve beside a visitor",
        near="promise reserved",
        invariants=frozenset({"promise reserved"}),
        is_representative=True,
        harmless_from=(3, 51),
    ),
    Twin(
        name="write_ahead_log_cleared_at_open",
        what="Opening unlinks the WAL as a leftover of the process that died.",
        patches=(
            Patch(
                _OPENING, _OPEN, "        layout.wal_path(root).unlink(missing_ok=True)\n" + _OPEN
            ),
        ),
        campaign=_TRANSITIONS,
        step="register",
        near="after step",
        invariants=frozenset({"step_atomicity"}),
        everywhere=frozenset({"promise reserved"}),
    ),
    Twin(
        name="leases_of_the_dead_deleted",
        what="Opening after an unclean end deletes the unreleased leases; the schema's guard "
        "against deletion is dropped.",
        patches=(
            Patch(
                _HANDLE,
                "        return cls(connection, database_path)\n",
                '        marker = database_path.with_name("run.opened")\n'
                "        if marker.exists():\n"
                "            connection.execute(\n"
                '                "DELETE FROM leases WHERE released_at_ns IS NULL"\n'
                "            )\n"
                "        marker.touch()\n"
                "        return cls(connection, database_path)\n",
            ),
            Patch(
                _HANDLE,
                "            self._connection.close()\n",
                "            self._connection.close()\n"
                '            self._database_path.with_name("run.opened").unlink(missing_ok=True)\n',
            ),
            Patch(
                _SCHEMA,
                "CREATE TRIGGER leases_delete_guard BEFORE DELETE ON leases\nBEGIN\n"
                "    SELECT RAISE(ABORT, 'leases: a lease cannot be deleted');\nEND;\n",
                "",
            ),
        ),
        campaign=_TRANSITIONS,
        step="reserve the first attempt",
        near="COMMIT",
        invariants=frozenset({"I0-14 a retry takes the next index"}),
    ),
    Twin(
        name="recovery_restores_its_own_backup",
        what="Opening after an unclean end copies the database without its WAL, and the opening "
        "after that takes the copy for the newer one.",
        patches=(
            Patch(
                _OPENING,
                _OPEN,
                '        backup = database.with_name("run.sqlite3.backup")\n'
                "        if backup.exists():\n"
                "            layout.wal_path(root).unlink(missing_ok=True)\n"
                "            backup.replace(database)\n"
                "        elif layout.wal_path(root).exists():\n"
                "            backup.write_bytes(database.read_bytes())\n" + _OPEN,
            ),
        ),
        campaign=_TRANSITIONS,
        step="register",
        near="COMMIT",
        invariants=frozenset({"recovery_is_idempotent"}),
    ),
    Twin(
        name="helper_left_behind",
        what="Opening beside a WAL that has content forks a process to tend it, and nobody ends "
        "that.",
        patches=(
            Patch(
                _OPENING,
                _OPEN,
                "        wal = layout.wal_path(root)\n"
                "        if wal.exists() and wal.stat().st_size and not os.fork():\n"
                "            signal.pause()\n" + _OPEN,
            ),
            Patch(_OPENING, "import functools\n", "import functools\nimport os\nimport signal\n"),
        ),
        campaign=_TRANSITIONS,
        step="register",
        near="COMMIT",
        invariants=frozenset({"no_process_left"}),
    ),
)
