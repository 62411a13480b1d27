"""Make SQLite usable by several OpenStack processes at once.

Python imports this module at start-up because its directory is on PYTHONPATH, which is so for
the OpenStack processes of this cloud only.

oslo.db opens a transaction with a deferred ``BEGIN``. Nova then reads and writes in one
transaction, and when another process wrote in between, SQLite cannot turn the read lock into a
write lock: it fails at once with "database is locked", without honouring the busy timeout.
``BEGIN IMMEDIATE`` takes the write lock first, and that wait does honour the timeout.
"""

import sqlite3
from sqlite3 import dbapi2
from typing import Any

BUSY_TIMEOUT = 60
_connect = dbapi2.connect


class ImmediateCursor(sqlite3.Cursor):
    """A cursor whose transactions take the write lock when they begin."""

    def execute(self, sql: str, *args: Any) -> Any:
        return super().execute("BEGIN IMMEDIATE" if sql == "BEGIN" else sql, *args)


class ImmediateConnection(sqlite3.Connection):
    """A connection that hands out such cursors."""

    def cursor(self, factory: Any = ImmediateCursor) -> Any:
        return super().cursor(factory)


def connect(database: Any, *args: Any, **kwargs: Any) -> sqlite3.Connection:
    """Stand in for sqlite3.connect()."""
    kwargs.setdefault("factory", ImmediateConnection)
    kwargs["timeout"] = BUSY_TIMEOUT
    connection: sqlite3.Connection = _connect(database, *args, **kwargs)
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


dbapi2.connect = sqlite3.connect = connect  # type: ignore[assignment]
