"""Launch logs: made before their run, and written line by line."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import apsw

from campaigns.metabolism.base import LEASE_NS, _MetabolismCampaign, enqueue, promise_claimed
from harness import ANYTHING, Evidence, Run
from store.metabolism import append_log, claim_next_job, create_log, start_run
from store.metabolism.errors import LogRefused

LOG = "logs/first/run.log"
LINES = ("step one", "step two")


class LaunchLogs(_MetabolismCampaign):
    """Claim, make the log, start the run that names it, and write to it."""

    def prepare(self, root: Path, run: Run) -> None:
        super().prepare(root, run)
        with self.opened(root) as connection:
            enqueue(connection, run, "logged")

    def _work(self, connection: apsw.Connection, root: Path, run: Run) -> None:
        claim = run.step(
            "claim",
            lambda: claim_next_job(
                connection, owner="worker", lease_ns=LEASE_NS, now_ns=run.clock()
            ),
        )
        assert claim is not None
        promise_claimed(run, claim)
        path = run.step("make the log", lambda: create_log(root, LOG), between=ANYTHING)
        run.promise("logged", path=LOG, line="started")
        run.step("the log is not made twice", lambda: create_log(root, LOG), raises=LogRefused)
        begun = run.step(
            "start", lambda: start_run(connection, claim, log_path=LOG, now_ns=run.clock())
        )
        run.promise("named", run_id=begun.run_id, path=LOG)
        for line in LINES:
            run.step(f"log {line}", partial(append_log, path, line))
            run.promise("logged", path=LOG, line=line)
        run.step(
            "what is missing is not made by a line",
            partial(append_log, root / "logs/first/other.log", "lost"),
            raises=LogRefused,
        )

    def resume(self, root: Path, run: Run) -> None:
        """Whoever lives on writes to the log that is there, before the lease has lapsed."""
        assert run.past is not None
        if run.past.observed["logs"].get(LOG):
            append_log(root / LOG, "after a crash")
            run.promise("logged", path=LOG, line="after a crash")
        super().resume(root, run)

    def promised_named(self, root: Path, evidence: Evidence, *, run_id: int, path: str) -> bool:
        """A run that was started with a log names it."""
        [begun] = [row for row in evidence.observed["runs"] if row["run_id"] == run_id]
        return bool(begun["log_path"] == path)

    def promised_logged(self, root: Path, evidence: Evidence, *, path: str, line: str) -> bool:
        """A line that was logged stays one of its own."""
        return line in evidence.observed["logs"].get(path, "").splitlines()


class CutLine(LaunchLogs):
    """A line follows one that a crash has cut, and neither swallows the other."""

    def prepare(self, root: Path, run: Run) -> None:
        super().prepare(root, run)
        with self.opened(root) as connection:
            claim = claim_next_job(connection, owner="dead", lease_ns=LEASE_NS, now_ns=run.clock())
            assert claim is not None
            path = create_log(root, LOG)
            start_run(connection, claim, log_path=LOG, now_ns=run.clock())
        with path.open("a") as file:
            file.write("step o")
        run.promise("logged", path=LOG, line="step o")

    def _work(self, connection: apsw.Connection, root: Path, run: Run) -> None:
        run.step("log after the cut", partial(append_log, root / LOG, "whole"))
        run.promise("logged", path=LOG, line="whole")
