"""
What an operator may do next: ways to look without changing anything, and one to say what is true.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from store.metabolism.launch_log import log_file
from store.metabolism.reconciliation.finding import Facts, Finding, Rule
from store.metabolism.reconciliation.log_evidence import LogSeen, look_at_log
from store.metabolism.reconciliation.printing import command, paragraph, quoted, title

__all__ = ["print_steps"]

_LOOK: Final = {
    Rule.NO_RUN_ROW: (
        "See, wherever the worker of that name ran, whether a process still works on the job, and "
        "whether what the job makes is there."
    ),
    Rule.FINALIZED: (
        "See whether what was to follow the run was done, and what the run's launch log ends with."
    ),
    Rule.MISSING_LOG: (
        "See whether the log was moved; if only the database was copied here, name the folder "
        "that it came from with --logs. Then look for the worker of that name where it ran."
    ),
    Rule.STALE_LOG: (
        "Read the log's last lines and look for the worker of that name where it ran; where the "
        "log could not be looked at, try again as a user who may."
    ),
}

_STATES: Final = (
    "completed: the work was done; the job ends, and its key is free for another.",
    "failed: it was not done and is given up; the job ends, and its key is free for another.",
    "recoverable: it was not done and nobody is at it; a worker may claim the job and do it again.",
)


def print_steps(
    console: Console,
    plain: dict[Rule, str],
    shown: Sequence[Finding],
    *,
    database: Path,
    folder: Path,
) -> None:
    """
    Print how to look into the jobs of *shown*, which are those on the screen, and how to decide.

    Args:
        plain: Each rule in plain words.
        database: Absolute, for the commands.
        folder: Where relative log paths begin.
    """
    title(console, "What may be done next (nothing was changed, and nothing is done for you)")
    paragraph(console, "Look into a copy; another tool may write to what it opens:")
    command(console, f"mkdir look && cp {quoted(str(database))}* look/")
    ids = ", ".join(str(job_id) for job_id in sorted({finding.job_id for finding in shown}))
    for table, order in (("jobs", "job_id"), ("runs", "run_id")):
        sql = f"SELECT * FROM {table} WHERE job_id IN ({ids or 'JOB'}) ORDER BY {order}"
        command(console, f'sqlite3 {quoted(f"look/{database.name}")} "{sql}"')
    for rule in Rule:
        broken = [one.facts for one in shown if one.rule is rule]
        if broken:
            paragraph(console, f"Where {plain[rule]}: {_LOOK[rule]}")
        for log in dict.fromkeys(log for facts in broken if (log := _log(facts, folder))):
            command(console, f"tail {quoted(str(log))}")
    _print_decision(console, database)


def _print_decision(console: Console, database: Path) -> None:
    paragraph(
        console,
        "When you know what happened, say so, job by job: the job's number for JOB, and for STATE "
        "one of",
    )
    for state in _STATES:
        paragraph(console, state, indent="  - ")
    path = json.dumps(str(database), ensure_ascii=False)
    code = (
        "import time; from pathlib import Path; from store.metabolism import *; "
        f"print(update_job_state(connect(Path({path}), create=False), JOB, "
        '"STATE", now_ns=time.time_ns()))'
    )
    command(console, f"{quoted(sys.executable or 'python3')} -c {quoted(code)}")


def _log(facts: Facts, folder: Path) -> Path | None:
    """Return where the launch log of the newest run lies, if it is there."""
    if facts.log_path is None or look_at_log(folder, facts.log_path).seen != LogSeen.FILE:
        return None
    return log_file(folder, facts.log_path)
