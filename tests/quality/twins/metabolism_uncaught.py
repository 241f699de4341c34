"""Twins of the metabolism runtime that crashing its campaigns does not catch, and why."""

from __future__ import annotations

from .twin import Patch
from .uncaught import Uncaught

_BLACKBOARD = "campaigns.metabolism.blackboard:Blackboard"
_CLAIMING = "campaigns.metabolism.claiming:Claiming"
_FIRST_OPEN = "campaigns.metabolism.storage:FirstOpen"
_LOGS = "campaigns.metabolism.launch_logs:LaunchLogs"
_RUNNING = "campaigns.metabolism.running:Running"
_TOO_LATE = "campaigns.metabolism.running:TooLate"
_BOARD = "store/metabolism/blackboard.py"
_LAUNCH_LOG = "store/metabolism/launch_log.py"
_QUEUE = "store/metabolism/queue.py"
_RUNS = "store/metabolism/runs.py"
_SCHEMA = "store/metabolism/v1.sql"
_STORAGE = "store/metabolism/storage.py"
_WALK = "store/metabolism/reconciliation/walk.py"

_NO_UPDATE = """
CREATE TRIGGER blackboard_claim_events_no_update BEFORE UPDATE ON blackboard_claim_events
BEGIN
    SELECT RAISE(ABORT, 'blackboard_claim_events: an event is never changed; append another');
END;
"""

_POWER = "The page cache outlives a process; needs power loss."

UNCAUGHT = {
    twin.name: twin
    for twin in (
        Uncaught(
            "runtime_never_synced",
            "Connections use synchronous OFF.",
            (
                Patch(
                    "store/sqlite.py",
                    '"synchronous", settings.synchronous, _SYNCHRONOUS[settings.synchronous])',
                    '"synchronous", "OFF", 0)',
                ),
            ),
            _RUNNING,
            "survives",
            f"{_POWER} The report names the setting.",
        ),
        Uncaught(
            "runtime_folder_never_synced",
            "Opening does not sync the new database's folder.",
            (
                Patch(
                    _STORAGE,
                    "            durability.sync_directory(path.parent)\n",
                    " " * 12 + "pass\n",
                ),
            ),
            _FIRST_OPEN,
            "survives",
            _POWER,
        ),
        Uncaught(
            "log_lines_never_synced",
            "A line of a launch log is written and not synced.",
            (Patch(_LAUNCH_LOG, "    durability.sync_file(path, descriptor=file.fileno())\n", ""),),
            _LOGS,
            "survives",
            _POWER,
        ),
        Uncaught(
            "log_name_never_synced",
            "The folder of a new launch log is not synced, though a run names the log.",
            (
                Patch(
                    _LAUNCH_LOG,
                    "    durability.sync_directory(path.parent)\n    return path\n",
                    "    return path\n",
                ),
            ),
            _LOGS,
            "survives",
            _POWER,
        ),
        Uncaught(
            "torn_line_not_ended",
            "A line is appended to whatever a crash left of the last one.",
            (
                Patch(
                    _LAUNCH_LOG,
                    "            if file.seek(0, os.SEEK_END) and not _ends_a_line(file):\n"
                    '                line = f"\\n{line}"  '
                    "# a crash cut the last line: the new one is one of its own\n",
                    "            file.seek(0, os.SEEK_END)\n",
                ),
            ),
            "campaigns.metabolism.launch_logs:CutLine",
            "no crash needed",
            "No boundary lies inside a write, so the campaign begins with a line that was cut, and "
            "finds the next one swallowed at once.",
        ),
        Uncaught(
            "job_chosen_before_the_lock",
            "A claim looks for a job, and then takes it whatever it has become.",
            (
                Patch(
                    _QUEUE,
                    " WHERE job_id = ? AND state IN ('queued', 'recoverable')\"",
                    ' WHERE job_id = ?"',
                ),
                Patch(
                    _QUEUE,
                    "    with immediate(connection):\n"
                    "        found = rows(connection, _NEXT, (now_ns,))\n"
                    "        if not found:\n"
                    "            return None\n",
                    "    found = rows(connection, _NEXT, (now_ns,))\n"
                    "    if not found:\n"
                    "        return None\n"
                    "    with immediate(connection):\n",
                ),
            ),
            _CLAIMING,
            "survives",
            "A race of two workers, not a crash; the store's tests of interleavings show it.",
        ),
        Uncaught(
            "late_worker_ends_the_job",
            "The end of a run finalizes its job, whoever holds that by now.",
            (
                Patch(
                    _RUNS,
                    "            held = (JobState.RUNNING, ended.attempt)\n",
                    "            held = None\n",
                ),
            ),
            _TOO_LATE,
            "no crash needed",
            "The campaign asks for the refusal, and does not get it.",
        ),
        Uncaught(
            "contradiction_edits_its_assertion",
            "What contradicts an assertion also marks it, in place; the guard is dropped.",
            (
                Patch(
                    _BOARD,
                    "        [row] = rows(connection, _INSERT, values)\n",
                    "        [row] = rows(connection, _INSERT, values)\n"
                    "        rows(\n"
                    "            connection,\n"
                    "            \"UPDATE blackboard_claim_events SET object = 'doubted'\"\n"
                    '            " WHERE event_id = ?",\n'
                    "            (assertion_id,),\n"
                    "        )\n",
                ),
                Patch(_SCHEMA, _NO_UPDATE, ""),
            ),
            _BLACKBOARD,
            "no crash needed",
            "An event that was acknowledged is another one afterwards, in one transaction.",
        ),
        Uncaught(
            "ambiguous_given_back_too",
            "A requeue takes every lapsed job, those whose run is missing or has ended as well.",
            (
                Patch(
                    _QUEUE,
                    "claim_expires_at_ns < ? AND ifnull(\n",
                    "claim_expires_at_ns < ? AND 1 OR 0 AND ifnull(\n",
                ),
            ),
            _RUNNING,
            "no crash needed",
            "The job that the campaign leaves running over an ended run is given back.",
        ),
        Uncaught(
            "findings_left_in_the_folder",
            "Reconciliation leaves what it found as a file beside the database.",
            (
                Patch(
                    _WALK,
                    "        return Reconciliation(**vars(found.summary), "
                    "findings=tuple(found.findings()))\n",
                    '        (folder / "findings.json").write_text(str(found.summary.to_json()))\n'
                    "        return Reconciliation(**vars(found.summary), "
                    "findings=tuple(found.findings()))\n",
                ),
            ),
            _RUNNING,
            "no crash needed",
            "The folder is compared before and after.",
        ),
        Uncaught(
            "first_line_waits_for_the_second",
            "A launch log is made empty, and its first line written with the next one.",
            (
                Patch(
                    _LAUNCH_LOG,
                    "            _write_line(file, path, first_line)\n",
                    " " * 12 + "pass\n",
                ),
                Patch(
                    _LAUNCH_LOG,
                    "            _write_line(file, path, line)\n",
                    "            if not file.tell():\n"
                    '                line = f"started\\n{line}"\n'
                    "            _write_line(file, path, line)\n",
                ),
            ),
            _LOGS,
            "no crash needed",
            "A restarted worker ends its runs without a second line, and they name an empty log.",
        ),
    )
}
