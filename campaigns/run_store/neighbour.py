"""
A reservation beside another process that opens and closes the same store.

A process that closes the last connection to a database checkpoints and removes its WAL, and only
the locks of the other processes tell it that it is not the last. A store that has dropped its
locks goes on writing into a WAL without a name, and nothing shows before it dies.

SQLite 3.51 and later looks twice before it removes a WAL, and the store's own SQLite is such a
one. So the visitor also reads with the standard library's, as an operator's tool would, which
shows dropped locks only where it is older.
"""

from __future__ import annotations

import os
import sqlite3
import traceback
from contextlib import closing
from pathlib import Path
from types import TracebackType

from campaigns.run_store.base import (
    _RunStoreCampaign,
    is_resumed,
    lease,
    retry_to_finalizing,
)
from campaigns.run_store.records import ONE_SHOT, SLOT
from harness import Evidence, Run
from store.run_store import FirstAttempt, RunStore, layout


class Neighbour(_RunStoreCampaign):
    """
    Open, be visited, reserve, close: one step, with the reservation acknowledged inside it.

    So the moment between an acknowledgement and the close lies inside a step, and what only a
    close would write is missed by the promise alone.
    """

    def prepare(self, root: Path, run: Run) -> None:
        with RunStore.open(root) as store:
            store.register_one_shot(*ONE_SHOT)

    def execute(self, root: Path, run: Run) -> None:
        with _Visitor(root) as visitor:
            run.step("reserve beside a visitor", lambda: self._reserve(root, run, visitor))

    def _reserve(self, root: Path, run: Run, visitor: _Visitor) -> None:
        with RunStore.open(root) as store:
            visitor.visit()
            guard = store.reserve(SLOT.slot_id, FirstAttempt(), lease(run), run.clock())
            run.promise("reserved", attempt_id=guard.attempt_id)

    def resume(self, root: Path, run: Run) -> None:
        assert run.past is not None
        with RunStore.open(root) as store:
            retry_to_finalizing(store, run, len(run.past.observed["attempts"]))

    def complete(self, root: Path, evidence: Evidence) -> bool:
        return is_resumed(evidence)


class _Visitor:
    """
    A process that opens and closes the store in *root* when told to, and reads its database.

    It is forked before its parent has any connection, since SQLite's must not cross a fork, and
    ends with its parent, since then its pipe does.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> _Visitor:
        told, self._tell = os.pipe()
        self._answered, answer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._tell)
            os.close(self._answered)
            self._serve(told, answer)
        os.close(told)
        os.close(answer)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._tell)
        os.close(self._answered)
        os.waitpid(self._pid, 0)

    def visit(self) -> None:
        """Have the store opened, closed and read; return when that is done."""
        os.write(self._tell, b".")
        if os.read(self._answered, 1) != b".":
            raise RuntimeError("the visiting process could not open and close the store.")

    def _serve(self, told: int, answer: int) -> None:
        try:
            if os.read(told, 1):
                RunStore.open(self._root).close()
                with closing(sqlite3.connect(layout.database_path(self._root))) as connection:
                    connection.execute("PRAGMA user_version").fetchall()
                os.write(answer, b".")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
