"""The schema's version: what the database has, and what this service needs."""

import pathlib

import sqlalchemy as sa
from alembic import command, config, migration, script
from oslo_log import log as logging

from bootcache.exception import DatabaseUnusable
from glance_bootcache.db.engine import Database

LOG = logging.getLogger(__name__)

_SYNC = '"bootcache-manage db sync"'


def _config() -> config.Config:
    found = config.Config()
    # alembic takes % for the begin of a reference.
    found.set_main_option('script_location', str(
        pathlib.Path(__file__).with_name('migrations')).replace('%', '%%'))
    return found


def wanted() -> str:
    """Return the version that this service needs."""
    head = script.ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def version(database: Database) -> str | None:
    """Return the version that the database has; None if it has no tables of ours.

    :raises DatabaseAway: if the database does not answer.
    """
    return database.read(
        lambda connection: migration.MigrationContext.configure(connection).get_current_revision())


def sync(database: Database) -> None:
    """Make the tables, or upgrade them to the version that this service needs.

    SQLite and PostgreSQL have all of an upgrade or nothing; with MariaDB each table is a step.

    :raises DatabaseUnusable: if they are of a later release.
    :raises DatabaseAway: if the database does not answer, or cannot be written.
    """
    if fault := _later(database, version(database)):
        raise fault

    def upgrade(connection: sa.Connection) -> None:
        settings = _config()
        settings.attributes['connection'] = connection
        command.upgrade(settings, 'head')

    database.write(upgrade)


def check(database: Database) -> None:
    """Check that the database has the tables that this service needs; the default one gets them.

    :raises DatabaseUnusable: if they are missing, or of another release; with the cure.
    :raises DatabaseAway: if the database does not answer.
    """
    found = version(database)
    if found == wanted():
        return
    if database.is_default:
        sync(database)
        LOG.info('the database %s has schema %s', database, wanted())
        return
    raise _later(database, found) or DatabaseUnusable(
        f'the database {database} has ' + (f'schema {found}, not {wanted()}' if found else
                                           'no tables of bootcache\'s') + f'; run {_SYNC}')


def _later(database: Database, found: str | None) -> DatabaseUnusable | None:
    """Return the error about a schema that this release does not know; None if it does."""
    known = {revision.revision for revision in
             script.ScriptDirectory.from_config(_config()).walk_revisions()}
    if found is None or found in known:
        return None
    return DatabaseUnusable(
        f'the database {database} has schema {found}, which this release does not know; install'
        ' the release that made it, or name another database in [database]connection')
