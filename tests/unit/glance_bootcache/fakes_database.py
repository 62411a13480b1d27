"""A database that cannot be written for a while."""

import contextlib
import sqlite3

from sqlalchemy import event

from glance_bootcache.db import engine


@contextlib.contextmanager
def locked(database):
    """Have another process hold the lock of SQLite's file, and nobody wait for it for long."""
    def wait_shortly(connection, _record):
        connection.execute('PRAGMA busy_timeout = 1')

    other = sqlite3.connect(database.file, isolation_level=None)
    other.execute('BEGIN IMMEDIATE')
    event.listen(database._engine, 'connect', wait_shortly)
    most, engine._MOST_RETRIES = engine._MOST_RETRIES, 0
    try:
        yield
    finally:
        engine._MOST_RETRIES = most
        event.remove(database._engine, 'connect', wait_shortly)
        other.close()
