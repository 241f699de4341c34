"""Twins whose bug lies in the writing operations and their transactions."""

from __future__ import annotations

from .twin import Patch, Twin

_TRANSITIONS = "campaigns.run_store.transitions:Transitions"
_EARLY = "campaigns.run_store.transitions:EarlyFinalizing"
_NEIGHBOUR = "campaigns.run_store.neighbour:Neighbour"
_WRITER = "store/run_store/writer.py"
_HISTORY = "store/run_store/history.py"
_HANDLE = "store/run_store/run_store.py"
_SCHEMA = "store/run_store/v1.sql"

_PROJECTION = """\
        rows(connection, _UPDATE_ATTEMPT, (phase.value, revision, at_ns, *before))
        if connection.changes() != 1:
            raise LostUpdate("attempts", standing.attempt_id, connection.changes())
"""

_EVENT = """\
        sequence = _append_event(
            connection, standing.attempt_id, "attempt_transition", at_ns, payload
        )
"""

_COMMIT_AND_BEGIN = """\
        rows(connection, "COMMIT")
        rows(connection, "BEGIN IMMEDIATE")
"""

TWINS = (
    Twin(
        name="lease_in_its_own_transaction",
        what="The reservation's lease is written in a second transaction.",
        patches=(
            Patch(
                _WRITER,
                "            at_ns=now_ns,\n        )\n        rows(\n",
                "            at_ns=now_ns,\n        )\n"
                '    with _transaction(connection, "reserve"):\n        rows(\n',
            ),
        ),
        campaign=_TRANSITIONS,
        step="reserve the first attempt",
        near="COMMIT",
        invariants=frozenset({"I0-14 a retry takes the next index"}),
    ),
    Twin(
        name="projection_committed_before_its_history",
        what="A transition's projection is committed alone; the schema's key that forbids it "
        "is dropped.",
        patches=(
            Patch(_HISTORY, _PROJECTION, _PROJECTION + _COMMIT_AND_BEGIN),
            Patch(
                _SCHEMA,
                "REFERENCES artifacts (artifact_id, kind),\n"
                "    CONSTRAINT attempts_current_transition\n"
                "        FOREIGN KEY (attempt_id, revision, state, changed_at_ns)\n"
                "        REFERENCES attempt_transitions (attempt_id, revision, to_state, at_ns)\n"
                "        DEFERRABLE INITIALLY DEFERRED\n",
                "REFERENCES artifacts (artifact_id, kind)\n",
            ),
        ),
        campaign=_TRANSITIONS,
        step="retry 0 revision 1 materializing",
        near="COMMIT",
        invariants=frozenset({"I0-02 history is contiguous"}),
    ),
    Twin(
        name="event_committed_before_its_transition",
        what="A transition's event is appended in a transaction of its own, before the "
        "transition; the schema's key that forbids it is dropped.",
        patches=(
            Patch(_HISTORY, _PROJECTION + _EVENT, _EVENT + _COMMIT_AND_BEGIN + _PROJECTION),
            Patch(
                _SCHEMA,
                "CHECK (kind NOT GLOB 'attempt_*' OR attempt_id IS NOT NULL),\n"
                "    CONSTRAINT events_attempt_kind_has_transition\n"
                "        FOREIGN KEY (transition_attempt_id, sequence)\n"
                "        REFERENCES attempt_transitions (attempt_id, event_sequence)\n"
                "        DEFERRABLE INITIALLY DEFERRED\n",
                "CHECK (kind NOT GLOB 'attempt_*' OR attempt_id IS NOT NULL)\n",
            ),
        ),
        campaign=_TRANSITIONS,
        step="retry 0 revision 1 materializing",
        near="COMMIT",
        invariants=frozenset({"I0-03 each transition has its event"}),
    ),
    Twin(
        name="registration_in_two_transactions",
        what="The run is committed before its slots.",
        patches=(
            Patch(
                "store/run_store/registration.py",
                '    _insert_or_match(connection, "attempt_slots",',
                '    rows(connection, "COMMIT")\n    rows(connection, "BEGIN IMMEDIATE")\n'
                '    _insert_or_match(connection, "attempt_slots",',
            ),
        ),
        campaign=_TRANSITIONS,
        step="register",
        near="COMMIT",
        invariants=frozenset({"step_atomicity"}),
    ),
    Twin(
        name="leases_renewed_one_by_one",
        what="A renewal updates its leases without a transaction around them.",
        patches=(
            Patch(
                _WRITER,
                'with _transaction(connection, "renew"):',
                'with surrounding("writer.renew"):',
            ),
        ),
        campaign="campaigns.run_store.lease_renewal:LeaseRenewal",
        step="renew with its stages and claim",
        near="UPDATE leases",
        invariants=frozenset({"step_atomicity"}),
    ),
    Twin(
        name="commit_waits_for_close",
        what="An operation is acknowledged while its transaction is open; the next operation or "
        "close commits it.",
        patches=(
            Patch(
                _WRITER,
                '        with surrounding(f"writer.{operation}"), immediate(connection):\n'
                "            yield\n",
                "        if connection.in_transaction:\n"
                '            rows(connection, "COMMIT")\n'
                '        with surrounding(f"writer.{operation}"):\n'
                '            rows(connection, "BEGIN IMMEDIATE")\n'
                "            try:\n"
                "                yield\n"
                "            except BaseException:\n"
                '                rows(connection, "ROLLBACK")\n'
                "                raise\n",
            ),
            Patch(
                _HANDLE,
                "            self._connection.close()\n",
                "            if self._connection.in_transaction:\n"
                '                self._connection.execute("COMMIT")\n'
                "            self._connection.close()\n",
            ),
        ),
        campaign=_NEIGHBOUR,
        step="reserve beside a visitor",
        near="promise reserved",
        invariants=frozenset({"promise reserved"}),
        is_representative=True,
    ),
    Twin(
        name="retry_counter_saved_on_close",
        what="The next retry index is kept in memory, and written to a side file by close.",
        patches=(
            Patch(
                _WRITER,
                "def _next_retry_index(",
                "retry_counters: dict[str, int] = {}\n\n\ndef _next_retry_index(",
            ),
            Patch(
                _WRITER,
                "0 if last_index is None else last_index + 1)",
                "retry_counters.get(slot_id, 0))",
            ),
            Patch(
                _WRITER,
                "    return issue(\n        attempt_id=attempt_id,\n",
                "    retry_counters[slot_id] = retry_index + 1\n"
                "    return issue(\n        attempt_id=attempt_id,\n",
            ),
            Patch(
                _HANDLE,
                "        return cls(connection, database_path)\n",
                '        saved = root / "retries.json"\n'
                "        if saved.exists():\n"
                "            writer.retry_counters.update(json.loads(saved.read_text()))\n"
                "        return cls(connection, database_path)\n",
            ),
            Patch(
                _HANDLE,
                "            self._connection.close()\n",
                "            self._connection.close()\n"
                '            new = self._database_path.with_name("retries.json.new")\n'
                "            new.write_text(json.dumps(writer.retry_counters))\n"
                '            new.replace(self._database_path.with_name("retries.json"))\n',
            ),
            Patch(_HANDLE, "from pathlib import Path\n", "import json\nfrom pathlib import Path\n"),
        ),
        campaign=_TRANSITIONS,
        step="reserve the first attempt",
        near="after step",
        invariants=frozenset({"resumes"}),
    ),
    Twin(
        name="database_compacted_by_replacing_it",
        what="Close compacts into a new file and renames it over the database while the old "
        "one's WAL still lies beside it.",
        patches=(
            Patch(
                _HANDLE,
                "            self._connection.close()\n",
                '            new = self._database_path.with_name("run.sqlite3.new")\n'
                "            new.unlink(missing_ok=True)\n"
                '            self._connection.execute("VACUUM INTO ?", (str(new),))\n'
                "            compacted = apsw.Connection(str(new))\n"
                '            compacted.execute("PRAGMA journal_mode = WAL").fetchall()\n'
                "            compacted.close()\n"
                "            new.replace(self._database_path)\n"
                '            self._database_path.with_name("run.sqlite3-wal").unlink()\n'
                "            self._connection.close()\n",
            ),
        ),
        campaign=_EARLY,
        step="retry 6 revision 6 finalizing",
        near="rename",
        invariants=frozenset({"recovers"}),
    ),
)
