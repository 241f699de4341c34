"""
Twins that crashing the present campaigns does not catch, and why: the limits of what they prove.

Each was run under its whole campaign; README.md holds what came of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .twin import Patch

_FIRST_OPEN = "campaigns.run_store.initialization:FirstOpen"
_TRANSITIONS = "campaigns.run_store.transitions:Transitions"
_OPENING = "store/run_store/opening.py"
_LOCK = "store/run_store/init_lock.py"
_PROBES = "store/run_store/probes.py"
_WRITER = "store/run_store/writer.py"

_FOLDER = '    return root / f".run-store-probe-{number:04d}"\n'


@dataclass(frozen=True)
class Uncaught:
    """
    A bug that no crash of its campaign shows.

    Attributes:
        name, what, patches, campaign: As of a Twin.
        outcome: "survives"; "inconclusive", where the self-tests refuse to believe the campaign;
            "no crash needed", where they find the store wrong; "refused", where the store's own
            checks stop it before any crash.
        why: Why no crash shows it, and what would.
    """

    name: str
    what: str
    patches: tuple[Patch, ...]
    campaign: str
    outcome: Literal["survives", "inconclusive", "no crash needed", "refused"]
    why: str


UNCAUGHT = {
    twin.name: twin
    for twin in (
        Uncaught(
            "root_never_synced",
            "Opening does not sync the root.",
            (
                Patch(
                    _OPENING,
                    "            durability.sync_directory(database.parent)\n",
                    " " * 12 + "pass\n",
                ),
            ),
            _FIRST_OPEN,
            "survives",
            "The page cache outlives a process; needs power loss.",
        ),
        Uncaught(
            "database_never_synced",
            "The new database is not synced.",
            (Patch(_OPENING, "            durability.sync_file(database)\n", " " * 12 + "pass\n"),),
            _FIRST_OPEN,
            "survives",
            "The page cache outlives a process; needs power loss.",
        ),
        Uncaught(
            "commits_not_synced",
            "Connections use synchronous NORMAL.",
            (Patch(_OPENING, 'Settings(synchronous="FULL"', 'Settings(synchronous="NORMAL"'),),
            _TRANSITIONS,
            "survives",
            "The page cache outlives a process; needs power loss. The report names the setting.",
        ),
        Uncaught(
            "schema_with_a_journal_in_memory",
            "The schema is created with its rollback journal in memory, and WAL is set later.",
            (
                Patch(
                    _OPENING,
                    "            sqlite.apply_journal_mode(connection)\n        if not is_empty:\n",
                    "            if is_empty:\n"
                    '                sqlite.rows(connection, "PRAGMA journal_mode = MEMORY")\n'
                    "            else:\n"
                    "                sqlite.apply_journal_mode(connection)\n"
                    "        if not is_empty:\n",
                ),
            ),
            _FIRST_OPEN,
            "survives",
            "SQLite writes the pages inside COMMIT, which is one boundary; needs syscall death.",
        ),
        Uncaught(
            "lock_file_unlinked",
            "The init lock's file is unlinked by whoever lets it go.",
            (
                Patch(
                    _LOCK,
                    "            fcntl.flock(descriptor, fcntl.LOCK_UN)\n",
                    "            path.unlink()\n"
                    "            fcntl.flock(descriptor, fcntl.LOCK_UN)\n",
                ),
            ),
            _FIRST_OPEN,
            "no crash needed",
            "The file is gone once the open has returned. That it lets in two initialisers at once "
            "needs two; the tests of the lock show that.",
        ),
        Uncaught(
            "rename_that_replaces",
            "Rename without replacement is an ordinary rename.",
            (
                Patch(
                    "store/durability.py",
                    "        errno.ENOSYS if rename is None else "
                    "rename(os.fsencode(source), os.fsencode(destination))\n",
                    "        os.rename(source, destination) or 0\n",
                ),
            ),
            _FIRST_OPEN,
            "refused",
            "The probe of the first open sees it. No operation renames yet but the probes.",
        ),
        Uncaught(
            "retry_index_read_before_the_lock",
            "A reservation reads the next retry index before its transaction begins.",
            (
                Patch(
                    _WRITER,
                    '    with _transaction(connection, "reserve"):\n'
                    "        retry_index = _next_retry_index(connection, slot_id)\n",
                    "    retry_index = _next_retry_index(connection, slot_id)\n"
                    '    with _transaction(connection, "reserve"):\n',
                ),
            ),
            _TRANSITIONS,
            "survives",
            "A race of two writers, not a crash; needs actors that stop between the two.",
        ),
        Uncaught(
            "ownership_not_rechecked_under_the_lock",
            "A transition checks its guard before its transaction begins.",
            (
                Patch(
                    _WRITER,
                    '    with _transaction(connection, "advance"):\n'
                    "        standing = check_ownership(connection, attempt, now_ns=now_ns)\n",
                    "    standing = check_ownership(connection, attempt, now_ns=now_ns)\n"
                    '    with _transaction(connection, "advance"):\n',
                ),
            ),
            _TRANSITIONS,
            "survives",
            "A race of two writers, not a crash; needs actors that stop between the two.",
        ),
        Uncaught(
            "busy_store_ignored",
            "An operation that finds the store busy reports success.",
            (
                Patch(
                    _WRITER,
                    "        raise StoreBusy(operation) from error\n",
                    "        del error\n",
                ),
            ),
            _TRANSITIONS,
            "survives",
            "Nothing contends for the lock in any campaign; a test with two connections shows it.",
        ),
        Uncaught(
            "foreign_keys_off",
            "Connections do not enforce foreign keys.",
            (Patch("store/sqlite.py", '"foreign_keys", "ON", 1)', '"foreign_keys", "OFF", 0)'),),
            _TRANSITIONS,
            "survives",
            "A guard alone: the writer never needs it. A second bug would, and is then caught.",
        ),
        Uncaught(
            "half_made_schema_dropped",
            "The schema is applied in no transaction, and opening drops what it finds half made.",
            (
                Patch(_OPENING, ", sqlite.immediate(connection):", ":"),
                Patch(
                    _OPENING,
                    "        if found:\n"
                    "            raise UnversionedDatabase"
                    "(database, tuple(sorted(name for _, name in found)))\n",
                    '        sqlite.rows(connection, "PRAGMA foreign_keys = OFF")\n'
                    "        for (kind, name), (_, sql) in found.items():\n"
                    '            if kind == "table":\n'
                    '                sqlite.rows(connection, f"DROP TABLE {name}")\n'
                    '        sqlite.rows(connection, "PRAGMA foreign_keys = ON")\n',
                ),
            ),
            _FIRST_OPEN,
            "survives",
            "It comes back right from every crash. What it destroys is somebody else's database, "
            "which the tests of opening show.",
        ),
        Uncaught(
            "probe_named_by_pid",
            "The probe folder carries the process id, padded to ten digits.",
            (
                Patch(
                    _PROBES, _FOLDER, '    return root / f".run-store-probe-{os.getpid():010d}"\n'
                ),
            ),
            _FIRST_OPEN,
            "inconclusive",
            "Two executions differ. A process id without padding stands as <pid> in a trace, and "
            "is harmless here: the next open removes every probe folder, whatever its number.",
        ),
        Uncaught(
            "probe_named_at_random",
            "The probe folder carries a random number.",
            (
                Patch(
                    _PROBES,
                    _FOLDER,
                    "    number += int.from_bytes(os.urandom(4))\n" + _FOLDER,
                ),
            ),
            _FIRST_OPEN,
            "inconclusive",
            "Two executions differ, so their boundaries cannot be numbered.",
        ),
    )
}
