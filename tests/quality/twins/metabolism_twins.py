"""Twins of the metabolism runtime whose bug lies in its operations and their transactions."""

from __future__ import annotations

from .twin import Patch, Twin

_CLAIMING = "campaigns.metabolism.claiming:Claiming"
_DRAINING = "campaigns.metabolism.draining:Draining"
_ENQUEUEING = "campaigns.metabolism.enqueueing:Enqueueing"
_REQUEUEING = "campaigns.metabolism.requeueing:Requeueing"
_RUNNING = "campaigns.metabolism.running:Running"
_TOO_LATE = "campaigns.metabolism.running:TooLate"
_BLACKBOARD = "campaigns.metabolism.blackboard:Blackboard"
_BOARD = "store/metabolism/blackboard.py"
_QUEUE = "store/metabolism/queue.py"
_RUNS = "store/metabolism/runs.py"
_SCHEMA = "store/metabolism/v1.sql"
_TRANSACTIONS = "store/metabolism/transactions.py"

_IMPORT = "from collections.abc import Mapping\n"
_CLAIMED = "    held = (owner, until, "

_CHOOSE = """\
    with immediate(connection):
        found = rows(connection, _NEXT, (now_ns,))
        if not found:
            return None
"""

_CHOOSE_AND_LEAVE_OPEN = """\
    rows(connection, "BEGIN IMMEDIATE")
    with nullcontext():
        found = rows(connection, _NEXT, (now_ns,))
        if not found:
            rows(connection, "ROLLBACK")
            return None
"""

_COUNT_THE_CLAIM = """\
    with immediate(connection):
        rows(connection, "UPDATE jobs SET attempts = attempts + 1 WHERE job_id = ?", found[0][:1])
"""

_FILL_IN = """\
    with immediate(connection):
        rows(connection, "UPDATE jobs SET params_json = ? WHERE job_id = ?", (values[2], job_id))
"""

_FINALIZE = """\
        if finalize_job:
            state = JobState.FAILED if return_code else JobState.COMPLETED
            held = (JobState.RUNNING, ended.attempt)
            if not move(connection, ended.job_id, state, held=held, now_ns=now_ns):
                raise stale(connection, ended.job_id, ended.attempt)
"""

_COMPLETE = """\
    with immediate(connection):
        is_open = changes(connection, _COMPLETE, (now_ns, return_code, run.run_id))
"""

_RENEWED = """\
            raise stale(connection, claim.job_id, claim.attempts)
        return job_by_id(connection, claim.job_id)
"""

_GIVE_BACK_AND_CLAIM = """\
            raise stale(connection, claim.job_id, claim.attempts)
        rows(
            connection,
            "UPDATE jobs SET state = 'queued', claim_owner = NULL, claim_expires_at_ns = NULL"
            " WHERE job_id = ?",
            (claim.job_id,),
        )
    with immediate(connection):
        rows(
            connection,
            "UPDATE jobs SET state = 'claimed', claim_owner = ?, claim_expires_at_ns = ?"
            " WHERE job_id = ?",
            (claim.claim_owner, until, claim.job_id),
        )
        return job_by_id(connection, claim.job_id)
"""

_REQUEUE = """\
    with immediate(connection):
        return changes(connection, _REQUEUE, (REQUEUED, now_ns, now_ns))
"""

_ONE_BY_ONE = """\
    count = 0
    held = rows(connection, "SELECT job_id FROM jobs WHERE state IN ('claimed', 'running')")
    for (job_id,) in held:
        with immediate(connection):
            one = (REQUEUED, now_ns, now_ns, job_id)
            count += changes(connection, f"{_REQUEUE} AND job_id = ?", one)
    return count
"""

TWINS = (
    Twin(
        name="start_in_two_transactions",
        what="The job is running in one transaction, and gets its run in another.",
        patches=(
            Patch(
                _RUNS,
                "        begun = (claim.job_id",
                "    with immediate(connection):\n        begun = (claim.job_id",
            ),
        ),
        campaign=_RUNNING,
        step="first starts good",
        near="COMMIT",
        invariants=frozenset({"I1-04 a running job has a run"}),
    ),
    Twin(
        name="job_ended_after_its_run",
        what="The run's end is committed before its job's.",
        patches=(Patch(_RUNS, _FINALIZE, "    with immediate(connection):\n" + _FINALIZE),),
        campaign=_RUNNING,
        step="complete good",
        near="COMMIT",
        invariants=frozenset({"I1-05 a job ends with its run"}),
    ),
    Twin(
        name="job_ended_before_its_run",
        what="A job is finalized, and its key free, before the end of its run is recorded.",
        patches=(
            Patch(_RUNS, _FINALIZE, ""),
            Patch(
                _RUNS,
                _COMPLETE,
                "    with immediate(connection):\n        ended = run\n" + _FINALIZE + _COMPLETE,
            ),
        ),
        campaign=_TOO_LATE,
        step="complete slow at last",
        near="COMMIT",
        invariants=frozenset({"I1-05 a job ends with its run"}),
    ),
    Twin(
        name="claim_answered_before_its_commit",
        what="A claim is answered while its transaction is open; the next operation commits it.",
        patches=(
            Patch(
                _TRANSACTIONS,
                'raise TransactionOpen(connection.db_filename("main"))\n',
                'sqlite.rows(connection, "COMMIT")\n',
            ),
            Patch(_QUEUE, _CHOOSE, _CHOOSE_AND_LEAVE_OPEN),
            Patch(_QUEUE, _IMPORT, f"{_IMPORT}from contextlib import nullcontext\n"),
        ),
        campaign=_DRAINING,
        step="work",
        near="promise claimed",
        invariants=frozenset({"promise claimed"}),
    ),
    Twin(
        name="job_inserted_before_its_parameters",
        what="A job is inserted bare, and its parameters are filled in by a second transaction.",
        patches=(
            Patch(
                _QUEUE,
                "connection.execute(_INSERT, values)",
                'connection.execute(_INSERT, (*values[:2], "{}", *values[3:]))',
            ),
            Patch(
                _QUEUE,
                "        job_id = connection.last_insert_rowid()\n",
                "        job_id = connection.last_insert_rowid()\n" + _FILL_IN,
            ),
        ),
        campaign=_ENQUEUEING,
        step="enqueue urgent",
        near="COMMIT",
        invariants=frozenset({"step_atomicity"}),
    ),
    Twin(
        name="attempts_counted_after_the_claim",
        what="A claim is committed, and counted in a transaction of its own.",
        patches=(
            Patch(_QUEUE, "\n attempts = attempts + 1, updated_at_ns", "\n updated_at_ns"),
            Patch(_QUEUE, _CLAIMED, _COUNT_THE_CLAIM + _CLAIMED),
        ),
        campaign=_CLAIMING,
        step="claim urgent",
        near="COMMIT",
        invariants=frozenset({"I1-03 a lease is whole or absent"}),
        everywhere=frozenset({"step_atomicity"}),
    ),
    Twin(
        name="renewal_gives_back_first",
        what="A renewal gives the job back and claims it again, in two transactions.",
        patches=(Patch(_QUEUE, _RENEWED, _GIVE_BACK_AND_CLAIM),),
        campaign=_CLAIMING,
        step="renew",
        near="COMMIT",
        invariants=frozenset({"step_atomicity"}),
    ),
    Twin(
        name="owner_cleared_after_the_state",
        what="A requeue makes jobs recoverable in one transaction and clears their leases in "
        "another; the schema's rule that forbids what is in between is dropped.",
        patches=(
            Patch(
                _QUEUE,
                "SET state = 'recoverable', claim_owner = NULL, claim_expires_at_ns = NULL,\n"
                " last_error = ?",
                "SET state = 'recoverable',\n last_error = ?",
            ),
            Patch(
                _QUEUE,
                _REQUEUE,
                "    with immediate(connection):\n"
                "        count = changes(connection, _REQUEUE, (REQUEUED, now_ns, now_ns))\n"
                "    with immediate(connection):\n"
                "        rows(\n"
                "            connection,\n"
                '            "UPDATE jobs SET claim_owner = NULL, claim_expires_at_ns = NULL"\n'
                "            \" WHERE state = 'recoverable'\",\n"
                "        )\n"
                "    return count\n",
            ),
            Patch(
                _SCHEMA,
                "CHECK (state <> 'claimed' OR claim_owner IS NOT NULL),\n"
                "    CONSTRAINT jobs_waiting_is_free CHECK (\n"
                "        state NOT IN ('queued', 'recoverable') OR claim_owner IS NULL\n"
                "    )\n",
                "CHECK (state <> 'claimed' OR claim_owner IS NOT NULL)\n",
            ),
        ),
        campaign=_REQUEUEING,
        step="give back",
        near="COMMIT",
        invariants=frozenset({"I1-03 a lease is whole or absent"}),
    ),
    Twin(
        name="leases_given_back_one_by_one",
        what="Each lapsed job is given back in a transaction of its own.",
        patches=(Patch(_QUEUE, _REQUEUE, _ONE_BY_ONE),),
        campaign=_REQUEUEING,
        step="give back",
        near="COMMIT",
        invariants=frozenset({"step_atomicity"}),
    ),
    Twin(
        name="index_forgets_recoverable",
        what="The index that holds a key does so in three of the four active states.",
        patches=(
            Patch(
                _SCHEMA,
                "ON jobs (idempotency_key)\n"
                "    WHERE state IN ('queued', 'claimed', 'running', 'recoverable');",
                "ON jobs (idempotency_key)\n    WHERE state IN ('queued', 'claimed', 'running');",
            ),
        ),
        campaign=_TOO_LATE,
        step="first claims slow",
        near="COMMIT",
        invariants=frozenset({"I1-12 a key is held while its job is active"}),
    ),
    Twin(
        name="event_count_kept_in_a_file",
        what="The projection counts events in a side file, which an append writes before it "
        "commits.",
        patches=(
            Patch(
                _BOARD,
                "        [row] = rows(connection, _INSERT, values)\n",
                "        [row] = rows(connection, _INSERT, values)\n"
                '        file = Path(connection.db_filename("main")).with_name("events.count")\n'
                "        count = int(file.read_text()) if file.exists() else 0\n"
                '        file.with_name("count.new").write_text(str(count + 1))\n'
                '        file.with_name("count.new").replace(file)\n',
            ),
            Patch(
                _BOARD,
                "    return Projection(active, len(active), len(log), contradictions)\n",
                '    file = Path(connection.db_filename("main")).with_name("events.count")\n'
                "    count = int(file.read_text()) if file.exists() else 0\n"
                "    return Projection(active, len(active), count, contradictions)\n",
            ),
            Patch(
                _BOARD,
                "from collections.abc import Mapping\n",
                "from collections.abc import Mapping\nfrom pathlib import Path\n",
            ),
        ),
        campaign=_BLACKBOARD,
        step="assert 0",
        near="rename",
        invariants=frozenset({"I1-08 the projection is the log's"}),
    ),
    Twin(
        name="queue_locked_by_a_file",
        what="Operations exclude each other by a lock file, which the dead hold for ever.",
        patches=(
            Patch(
                _TRANSACTIONS,
                "            super().__enter__()\n",
                '            database = Path(connection.db_filename("main"))\n'
                '            database.with_name("lock").open("x").close()\n'
                "            super().__enter__()\n",
            ),
            Patch(
                _TRANSACTIONS,
                "            super().__exit__(kind, error, trace)\n",
                "            super().__exit__(kind, error, trace)\n"
                '            database = Path(self._connection.db_filename("main"))\n'
                '            database.with_name("lock").unlink()\n',
            ),
            Patch(_TRANSACTIONS, "import os\n", "import os\nfrom pathlib import Path\n"),
        ),
        campaign="campaigns.metabolism.requeueing:RequeueingAtStart",
        step="give back",
        near="COMMIT",
        invariants=frozenset({"recovers"}),
    ),
)
