"""
The one kind of transaction that the operations have, with its refusals typed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from store import sqlite
from store.metabolism.errors import DatabaseBusy, TransactionOpen

__all__ = ["immediate"]


@contextmanager
def immediate(connection: apsw.Connection) -> Iterator[None]:
    """
    Run the block in one transaction that holds the write lock, as `store.sqlite.immediate` does.

    Raises:
        TransactionOpen: the connection is in a transaction, which stays as it is.
        DatabaseBusy: another connection held the lock for the whole busy timeout.
    """
    if connection.in_transaction:
        raise TransactionOpen(connection.db_filename("main"))
    try:
        with sqlite.immediate(connection):
            yield
    except DatabaseBusy:
        raise
    except apsw.BusyError as error:
        raise DatabaseBusy(connection.db_filename("main")) from error
