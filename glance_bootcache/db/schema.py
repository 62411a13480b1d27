"""The schema's version: what the database has, and what this release needs.

A version is NNNN, or NNNN_MMMM where releases of version MMMM on work with it as well: it only adds
tables, and columns that may be NULL. So storage nodes are upgraded one after the other.
"""

import logging as stdlib_logging
import os
import pathlib

import sqlalchemy as sa
from alembic import command, config, migration, script
from oslo_log import log as logging

from bootcache.exception import DatabaseUnusable
from glance_bootcache.db.engine import Database

LOG = logging.getLogger(__name__)
# Its lines of level INFO come with each look at the version.
stdlib_logging.getLogger('alembic').setLevel(stdlib_logging.WARNING)


def _config() -> config.Config:
    found = config.Config()
    # alembic takes % for the begin of a reference.
    found.set_main_option('script_location', str(
        pathlib.Path(__file__).with_name('migrations')).replace('%', '%%'))
    return found


def wanted() -> str:
    """Return the version that this release needs."""
    head = script.ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def version(database: Database) -> str | None:
    """Return the version that the database has; None if it has no tables of ours.

    :raises DatabaseAway: if the database does not answer.
    """
    # Reading would make it.
    if database.file is not None and not os.path.exists(database.file):
        return None
    return database.read(
        lambda connection: migration.MigrationContext.configure(connection).get_current_revision())


def sync(database: Database) -> None:
    """Make the tables, or upgrade them to the version that this release needs.

    SQLite and PostgreSQL have all of an upgrade or nothing; with MariaDB each table is a step, and
    a run that was cut off is gone on with.

    :raises DatabaseUnusable: if they are of a later release, and this one does not work with them.
    :raises DatabaseAway: if the database does not answer, or cannot be written.
    """
    found = version(database)
    if found == wanted() or _is_later(database, found):
        return

    def upgrade(connection: sa.Connection) -> None:
        settings = _config()
        settings.attributes['connection'] = connection
        command.upgrade(settings, 'head')

    database.write(upgrade)
    LOG.info('the database %s has schema %s', database, wanted())


def check(database: Database) -> None:
    """Check that the database has the tables that this release needs.

    :raises DatabaseUnusable: if they are missing, or of another release; with the cure.
    :raises DatabaseAway: if the database does not answer.
    """
    found = version(database)
    if found == wanted() or _is_later(database, found):
        return
    has = f'schema {found}, not {wanted()}' if found else 'no tables of bootcache\'s'
    raise DatabaseUnusable(f'the database {database} has {has}; run "bootcache-manage db sync"')


def _is_later(database: Database, found: str | None) -> bool:
    """Tell whether the tables are of a later release, and this one works with them.

    :raises DatabaseUnusable: if they are of one, and this one does not.
    """
    known = {revision.revision for revision in
             script.ScriptDirectory.from_config(_config()).walk_revisions()}
    if found is None or found in known:
        return False
    number, _line, oldest = found.partition('_')
    own, _line, _oldest = wanted().partition('_')
    if not oldest or not oldest <= own < number:
        raise DatabaseUnusable(
            f'the database {database} has schema {found}, which this release does not know; install'
            ' the release that made it, or name another database in [database]connection')
    LOG.info('the database %s has schema %s, of a later release, with which this one works',
             database, found)
    return True
