"""A database that cannot be written for a while."""

import contextlib
import sqlite3

from sqlalchemy import event

from bootcache.exception import DatabaseAway
from glance_bootcache.db import engine


class Rows:
    """Images' rows that cannot be written for a while; those of one image for longer.

    :ivar tries: how often it was tried.
    """

    def __init__(self, store, monkeypatch):
        self.is_away, self.spoilt, self.tries = False, '', 0
        for name in '_replace', 'add', '_delete':
            monkeypatch.setattr(store, name, self._guarded(getattr(store, name)))

    def _guarded(self, write):
        def guarded(what, *more):
            self.tries += 1
            if self.is_away or (self.spoilt and self.spoilt in str((what, *more))):
                raise DatabaseAway('the database cannot be written')
            return write(what, *more)
        return guarded


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
