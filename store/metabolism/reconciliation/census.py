"""
What the whole database holds, for whoever doubts that it is whole: how many jobs, and how new.

An empty or old database contradicts nothing. Whether it is the one that was meant, and with its
newest commits, is seen from how much is in it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import apsw

from store.metabolism.records import JobState
from store.sqlite import rows

__all__ = ["Census", "take_census"]


class Census(NamedTuple):
    """
    The jobs of a database, and its newest moment.

    Attributes:
        job_counts: The jobs in each state, in the order of a job's life, zeros included.
        newest_row_ns: The newest time at which a row says that it was written; None without rows.
    """

    job_counts: dict[str, int]
    newest_row_ns: int | None

    @property
    def job_count(self) -> int:
        """How many jobs there are in all."""
        return sum(self.job_counts.values())


_NEWEST: Final = """SELECT max(at) FROM (
 SELECT max(max(created_at_ns, updated_at_ns)) AS at FROM jobs
 UNION ALL SELECT max(max(started_at_ns, ifnull(completed_at_ns, started_at_ns))) FROM runs
 UNION ALL SELECT max(created_at_ns) FROM blackboard_claim_events)"""


def take_census(connection: apsw.Connection) -> Census:
    """
    Count the jobs by state, and find the newest row.

    Reads only, in two statements: for a database that nobody writes to.

    Cost: Linear in all rows; constant memory.
    """
    found = dict(rows(connection, "SELECT state, count(*) FROM jobs GROUP BY state"))
    return Census(
        {state.value: int(found.get(state.value, 0)) for state in JobState},
        rows(connection, _NEWEST)[0][0],
    )
