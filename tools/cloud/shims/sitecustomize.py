"""Make SQLite usable by several OpenStack processes at once.

Python imports this module at start-up because its directory is on PYTHONPATH, which is so for
the OpenStack processes of this cloud only.

oslo.db opens a transaction with a deferred ``BEGIN``. Nova then reads and writes in one
transaction, and when another process wrote in between, SQLite cannot turn the read lock into a
write lock: it fails at once with "database is locked", without honouring the busy timeout.
``BEGIN IMMEDIATE`` takes the write lock first, and that wait does honour the timeout.

Except for a thread's transaction within another one of its own: Placement reads a provider anew in
the midst of writing allocations, and would wait for itself.
"""

import sqlite3
import threading
import weakref
from sqlite3 import dbapi2
from typing import Any

BUSY_TIMEOUT = 60
_connect = dbapi2.connect


class ImmediateCursor(sqlite3.Cursor):
    """A cursor whose transactions take the write lock when they begin."""

    def execute(self, sql: str, *args: Any) -> Any:
        if sql != "BEGIN":
            return super().execute(sql, *args)
        connection: Any = self.connection
        return super().execute("BEGIN" if connection.is_inner() else "BEGIN IMMEDIATE")


class ImmediateConnection(sqlite3.Connection):
    """A connection that hands out such cursors."""

    def __init__(self, database: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(database, *args, **kwargs)
        self._database = str(database)
        # The thread that began this connection's transaction last.
        self._thread: int | None = None
        with _lock:
            _connections.add(self)

    def cursor(self, factory: Any = ImmediateCursor) -> Any:
        return super().cursor(factory)

    def is_inner(self) -> bool:
        """Note that this thread begins a transaction; whether it has another one under way."""
        self._thread = threading.get_ident()
        with _lock:
            others = [one for one in _connections if one is not self]
        return any(
            (one._database, one._thread) == (self._database, self._thread) and one._is_busy()
            for one in others
        )

    def _is_busy(self) -> bool:
        try:
            return self.in_transaction
        except sqlite3.ProgrammingError:
            # It is closed.
            return False


# Guarded by the lock, which is held for steps in memory.
_connections: "weakref.WeakSet[ImmediateConnection]" = weakref.WeakSet()
_lock = threading.Lock()


def connect(database: Any, *args: Any, **kwargs: Any) -> sqlite3.Connection:
    """Stand in for sqlite3.connect()."""
    kwargs.setdefault("factory", ImmediateConnection)
    kwargs["timeout"] = BUSY_TIMEOUT
    connection: sqlite3.Connection = _connect(database, *args, **kwargs)
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


dbapi2.connect = sqlite3.connect = connect  # type: ignore[assignment]
