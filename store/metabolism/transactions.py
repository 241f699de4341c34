"""
The one kind of transaction that the operations have, with its refusals typed.
"""

from __future__ import annotations

import os
from typing import Final
from weakref import WeakKeyDictionary

import apsw

from store import sqlite
from store.metabolism.errors import DatabaseBusy, ForkedConnection, TransactionOpen

__all__ = ["immediate", "opened_here"]

_openers: Final[WeakKeyDictionary[apsw.Connection, int]] = WeakKeyDictionary()


def opened_here(connection: apsw.Connection) -> None:
    """
    Remember that this process opened *connection*: none that is forked from it may write there.
    """
    _openers[connection] = os.getpid()


class immediate(sqlite.immediate):
    """
    Run the block in one transaction that holds the write lock, as `store.sqlite.immediate` does.

    Raises:
        ForkedConnection: the connection was opened before a fork, by the parent.
        TransactionOpen: the connection is in a transaction, which stays as it is.
        DatabaseBusy: another connection held the lock for the whole busy timeout.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        connection = self._connection
        opener = _openers.get(connection)
        if opener is not None and opener != os.getpid():
            # The parent's close would take this process for gone, and remove the WAL under it.
            raise ForkedConnection(connection.db_filename("main"), opener)
        if connection.in_transaction:
            raise TransactionOpen(connection.db_filename("main"))
        try:
            super().__enter__()
        except apsw.BusyError as error:
            raise DatabaseBusy(connection.db_filename("main")) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        except apsw.BusyError as failed:
            raise DatabaseBusy(self._connection.db_filename("main")) from failed
        if isinstance(error, apsw.BusyError) and not isinstance(error, DatabaseBusy):
            raise DatabaseBusy(self._connection.db_filename("main")) from error
