"""The connection with the storage service's database.

A transaction is short, can be repeated as a whole, and begins with a write if it has any: SQLite
has one writer, and a transaction that has read before cannot always become one.
"""

import contextlib
import logging
import os
import pwd
import re
import select
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from oslo_config import cfg
from oslo_db import api
from oslo_db import exception as db_exception
from oslo_db.sqlalchemy import engines
from sqlalchemy import exc as sa_exception
from sqlalchemy.dialects import mysql, postgresql, sqlite

from bootcache import tier
from bootcache.exception import ConfigurationError, DatabaseAway, DatabaseUnusable
from bootcache.quoting import one_line
from bootcache.util.backoff import CircuitBreaker
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db import models

# They log errors with their traceback; here who asks says what is wrong, and what to do.
for _name in ('oslo_db.api', 'oslo_db.sqlalchemy.exc_filters', 'sqlalchemy.pool'):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

T = TypeVar('T')
Row = Mapping[str, Any]

# A file system that several machines write to has no shared memory between them, as WAL needs it.
_SHARED = re.compile(r'nfs\d*|ceph|cifs|smb\d*|glusterfs|gfs2|ocfs2|lustre|9p|virtiofs|fuse\..+')
# Given to a driver unless the URL says otherwise: a call to a server that hangs has an end.
_TIMEOUTS = {'pymysql': {'connect_timeout': '10', 'read_timeout': '30', 'write_timeout': '30'},
             'pysqlite': {'timeout': '30'}}
_REFUSED = re.compile(r'\((1044|1045|1049|1142|1698),|authentication failed|no pg_hba\.conf entry'
                      r'|(database|role) "[^"]*" does not exist|permission denied')
# What libpq says of the URL's parameters before it connects.
_INVALID = re.compile(r'invalid (dsn|connection option|\w+ value: ")|for connection option "')
_DAMAGED = re.compile(r'disk image is malformed|file is not a database')
# sqlite3 decodes names of tables itself.
_ERRORS = (db_exception.DBError, sa_exception.SQLAlchemyError, OSError, UnicodeDecodeError)
# Of PostgreSQL; MariaDB's and SQLite's are above.
_ANSWER_SECONDS = 30
_MOST_RETRIES, _RETRY_SECONDS = 5, 0.1
# A call that fails after so long was not answered: one thread alone calls, after a pause.
_HANGS_SECONDS, _PAUSE_SECONDS = 5.0, 10.0


class Database:
    """The database of ``[database]connection``; nothing is connected before it is used.

    :param conf: configuration of the storage service.
    :param clock: monotonic seconds.
    :ivar file: path of SQLite's file; None of another database.
    :ivar is_default: whether it is the one that the service makes and upgrades itself.
    :ivar errors: how often a query or a change could not be made, in the end.
    :ivar retries: how often one was made again, as the database asked for that.
    :raises ConfigurationError: if the option cannot be used; the message names no password.
    """

    def __init__(self, conf: cfg.ConfigOpts, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._health = CircuitBreaker(1, _PAUSE_SECONDS, clock)
        db_conf.register_opts(conf)
        group, default = conf[db_conf.GROUP], db_conf.default_file(conf)
        self.is_default = default is not None
        # Figures for Prometheus: one lost between two threads does no harm.
        self.errors = self.retries = 0
        url = _url(group.connection, default)
        self.file = url.database if url.get_backend_name() == 'sqlite' else None
        self._option = '[bootcache]state_dir' if self.is_default else f'[{db_conf.GROUP}]connection'
        self._told = 'SQLite in ' + str(self.file) if self.file else \
            url.set(query={}).render_as_string(hide_password=True)
        if self.file is not None:
            _check_place(self.file, self._option)
        # SQLite has one writer; the others lock rows.
        self._writing: contextlib.AbstractContextManager[Any] = \
            threading.Lock() if self.file is not None else contextlib.nullcontext()
        options = {name: group[name] for name in db_conf.ENGINE
                   if self.file is None or not name.startswith(('max_', 'pool_'))}
        try:
            self._engine: sa.Engine = engines.create_engine(
                url, sqlite_fk=True, max_retries=0, **options)
        except (TypeError, ValueError) as error:
            raise self._invalid(error) from None
        except (ImportError, sa_exception.ArgumentError) as error:
            raise ConfigurationError(
                f'[{db_conf.GROUP}]connection: {self._told} cannot be used ({error}); install the'
                f' driver ("{sys.prefix}/bin/pip install PyMySQL" for mysql+pymysql://, "...'
                ' psycopg2-binary" for postgresql+psycopg2://), or correct the option') from None
        if self.file is not None:
            sa.event.listen(self._engine, 'connect', _set_up_sqlite)
        else:
            sa.event.listen(self._engine, 'do_connect', self._connect)
        if self._engine.driver == 'psycopg2':
            _bound_psycopg2(self._engine.dialect.loaded_dbapi)

    def __str__(self) -> str:
        return self._told

    def read(self, query: Callable[[sa.Connection], T]) -> T:
        """Run a query, again if the database asks for that.

        :raises DatabaseAway: if the database does not answer.
        """
        return self._run(query, contextlib.nullcontext())

    def write(self, change: Callable[[sa.Connection], T]) -> T:
        """Run a change in a transaction, again if the database asks for that.

        Where the answer to the commit is lost it may be in the database all the same.

        :raises DBDuplicateEntry: if there is a row of that key.
        :raises DatabaseAway: if the database does not answer, or cannot be written.
        """
        return self._run(change, self._writing)

    def check_user(self) -> None:
        """Check that a command leaves no file of SQLite's that the service may not write.

        :raises ConfigurationError: if the file's directory belongs to somebody else.
        """
        if self.file is None:
            return
        directory = os.path.dirname(os.path.abspath(self.file))
        owner = os.stat(directory).st_uid
        if owner != os.geteuid():
            try:
                name = pwd.getpwuid(owner).pw_name
            except KeyError:
                name = str(owner)
            raise ConfigurationError(
                f'{directory}, where the database is, belongs to user {name}; run this command as'
                f' that user: runuser -u {name} -- {" ".join(sys.argv)}')

    def check_writable(self) -> None:
        """Check that this process may write SQLite's file.

        :raises ConfigurationError: with the cure.
        """
        if self.file is None:
            return
        directory = os.path.dirname(os.path.abspath(self.file))
        files = [name for name in (self.file, f'{self.file}-wal', f'{self.file}-shm')
                 if os.path.exists(name)]
        for path in [directory, *files]:
            if not os.access(path, os.R_OK | os.W_OK):
                raise ConfigurationError(
                    f'{self._option}: {path} cannot be written by this service\'s user, as SQLite'
                    f' has to; give it to that user: chown {os.geteuid()} {path}')

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _run(self, work: Callable[[sa.Connection], T],
             lock: contextlib.AbstractContextManager[Any]) -> T:
        tries = 0

        def run() -> T:
            nonlocal tries
            tries += 1
            self.retries += tries > 1
            with lock, self._engine.begin() as connection:
                return work(connection)

        retried: Callable[[Callable[[], T]], Callable[[], T]] = api.wrap_db_retry(
            max_retries=_MOST_RETRIES, retry_interval=_RETRY_SECONDS, retry_on_deadlock=True,
            exception_checker=_is_locked)
        if not self._health.may_ask():
            self.errors += 1
            raise DatabaseAway(f'the database {self} has not answered just now')
        began = self._clock()
        try:
            with self._health.hearing(lambda _error: self._clock() - began >= _HANGS_SECONDS):
                return retried(run)()
        except db_exception.DBDuplicateEntry:
            raise
        except _ERRORS as error:
            self.errors += 1
            raise self._error(error) from error

    def _connect(self, dialect: sa.Dialect, _record: object, arguments: Sequence[Any],
                 parameters: Mapping[str, Any]) -> Any:
        try:
            return dialect.connect(*arguments, **parameters)
        except (AttributeError, TypeError, ValueError) as error:
            # PyMySQL of a parameter that it does not know, or whose value cannot be.
            raise self._invalid(error) from None

    def _invalid(self, error: object) -> ConfigurationError:
        return ConfigurationError(
            f'[{db_conf.GROUP}]connection: a parameter behind the "?" of {self} cannot be used'
            f' ({error}); correct it, or leave it out')

    def _error(self, error: Exception) -> DatabaseAway | ConfigurationError:
        # Without the statement and its values, which SQLAlchemy puts behind it.
        cause = getattr(error, 'inner_exception', None) or error
        said, place = one_line(getattr(cause, 'orig', None) or cause), f'the database {self}'
        if self.file is not None and (
                isinstance(error, UnicodeDecodeError) or _DAMAGED.search(said)):
            return DatabaseUnusable(
                f'{place} is damaged ({said}), and left as it is; move the file and those of its'
                ' name with -wal and -shm away, or put a backup in their place, and start'
                ' glance-bootcache again: exporters go on serving, images are taken up again as'
                ' servers boot from them, and what operators ordered has to be ordered again')
        if _INVALID.search(said):
            return self._invalid(said)
        if _REFUSED.search(said):
            return DatabaseUnusable(
                f'{place} refuses: {said}; correct user, password and database in'
                f' [{db_conf.GROUP}]connection, or the rights that the user has there')
        return DatabaseAway(f'{place} does not answer, or cannot be written: {said}; see'
                            f' [{db_conf.GROUP}]connection')


def upsert(connection: sa.Connection, model: type[models.Model], rows: Sequence[Row],
           by: Sequence[str] = ()) -> None:
    """Insert rows, or change those that are there.

    :param rows: with the same columns each.
    :param by: columns by which a row is found; the primary key's, if there are none.
    """
    if not rows:
        return
    table = model.__table__
    assert isinstance(table, sa.Table)
    keys = list(by) or [column.name for column in table.primary_key]
    changed = [name for name in rows[0] if name not in keys]
    if connection.dialect.name in ('mysql', 'mariadb'):
        # A row that is there already and has no more columns than its key is set to itself.
        into = mysql.insert(table)
        connection.execute(into.on_duplicate_key_update(
            {name: into.inserted[name] for name in changed or keys[:1]}), rows)
        return
    insert = postgresql.insert(table) if connection.dialect.name == 'postgresql' \
        else sqlite.insert(table)
    connection.execute(
        insert.on_conflict_do_update(index_elements=keys, set_={
            name: insert.excluded[name] for name in changed}) if changed
        else insert.on_conflict_do_nothing(index_elements=keys), rows)


def delete(connection: sa.Connection, model: type[models.Model], rows: Sequence[Row]) -> None:
    """Delete the rows that have the values of any of some columns.

    :param rows: the values, of the same columns each.
    """
    if rows:
        table = model.__table__
        connection.execute(
            sa.delete(model).where(*(table.c[name] == sa.bindparam(f'{name}_')
                                     for name in rows[0])),
            [{f'{name}_': value for name, value in row.items()} for row in rows])


def _url(connection: str | None, default: str | None) -> sa.URL:
    if default is not None:
        url = sa.URL.create('sqlite', database=default)
    else:
        try:
            url = sa.make_url(connection or '')
            url.get_dialect()
        except (sa_exception.ArgumentError, ImportError, ValueError):
            # SQLAlchemy's own text may have the password.
            raise ConfigurationError(
                f'[{db_conf.GROUP}]connection is no URL of a database that SQLAlchemy knows; give'
                ' one as mysql+pymysql://USER:PASSWORD@HOST/DATABASE, or leave the option out'
            ) from None
    if url.get_backend_name() == 'sqlite' and not url.database:
        raise ConfigurationError(
            f'[{db_conf.GROUP}]connection names no file of SQLite, and would be lost with the'
            ' process; give its path, or leave the option out')
    if not url.database:
        raise ConfigurationError(
            f'[{db_conf.GROUP}]connection names no database; it ends in its name, as in'
            ' mysql+pymysql://USER:PASSWORD@HOST/DATABASE')
    if url.get_backend_name() != 'sqlite' and '@' in f'{url.host}{url.database}':
        # What comes before the second one is of the password, and is not repeated.
        raise ConfigurationError(
            f'[{db_conf.GROUP}]connection has more than one @; write %40 for one in the password')
    timeouts = _TIMEOUTS.get(url.get_driver_name(), {})
    return url.update_query_dict({name: value for name, value in timeouts.items()
                                  if name not in url.query})


def _check_place(file: str, option: str) -> None:
    """Check that SQLite's write-ahead log works where a file is, or is to be.

    :param option: names the directory.
    :raises ConfigurationError: naming the option and the cure.
    """
    directory = os.path.dirname(os.path.abspath(file))
    try:
        kind = tier.file_system(directory)
    except OSError as error:
        raise ConfigurationError(
            f'{option}: {directory}, where SQLite\'s file is to be, cannot be looked at'
            f' ({error.strerror or error}); make it for the service\'s user, as its unit does, or'
            ' correct the option') from None
    if _SHARED.fullmatch(kind):
        raise ConfigurationError(
            f'{option}: SQLite\'s file {file} is on a shared file system ({kind}), where its'
            ' write-ahead log does not work; name a place on a disk of this machine, or a MariaDB'
            f' in [{db_conf.GROUP}]connection')


def _bound_psycopg2(driver: Any) -> None:
    """Have what a server does not answer end: libpq itself waits without end."""
    extensions = driver.extensions
    wanted = {extensions.POLL_READ: select.POLLIN, extensions.POLL_WRITE: select.POLLOUT}

    def wait(connection: Any) -> None:
        while (state := connection.poll()) != extensions.POLL_OK:
            poll = select.poll()
            poll.register(connection.fileno(), wanted[state])
            if not poll.poll(_ANSWER_SECONDS * 1000):
                raise driver.OperationalError(f'no answer within {_ANSWER_SECONDS} s')

    extensions.set_wait_callback(wait)


def _set_up_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # FULL: what was answered is on the disk, also after a power cut.
    for setting in ('journal_mode = WAL', 'synchronous = FULL'):
        connection.execute(f'PRAGMA {setting}')


def _is_locked(error: Exception) -> bool:
    return isinstance(error, sa_exception.OperationalError) and 'is locked' in str(error.orig)
