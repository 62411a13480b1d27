"""The ``bootcache-manage`` command: what an operator does with the storage service's database."""

import argparse
import sys
from collections.abc import Sequence

from oslo_config import cfg

from bootcache import exception
from glance_bootcache import conf as glance_conf
from glance_bootcache.cli import client
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database

PROG = 'bootcache-manage'


def _sync(database: Database) -> int:
    schema.sync(database)
    print(f'{database} has schema {schema.wanted()}')
    return 0


def _version(database: Database) -> int:
    found = schema.version(database)
    told = f'schema {found}' if found else 'no tables of bootcache\'s'
    print(f'{database} has {told}; this release needs {schema.wanted()}')
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(PROG, description='Looks after the storage service\'s database.')
    made.add_argument('--version', action='version', version=client.version())
    made.add_argument('--config-file', metavar='PATH', action='append', default=[],
                      help='configuration of the storage service (default: bootcache.conf where'
                           ' oslo.config looks, such as /etc/bootcache)')
    subjects = made.add_subparsers(required=True, metavar='db',
                                   help='look after the database: db sync, db version')
    commands = subjects.add_parser('db').add_subparsers(required=True, metavar='COMMAND')
    for name, run, said in (
            ('sync', _sync, 'make the tables of [database]connection, or upgrade them'),
            ('version', _version, 'show which schema they have, and which this release needs')):
        commands.add_parser(name, help=said, description=said).set_defaults(run=run)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    :returns: the process's exit code.
    """
    arguments = parser().parse_args(argv)
    conf = cfg.CONF
    glance_conf.register_opts(conf)
    try:
        client.read(conf, PROG, files=arguments.config_file)
        database = Database(conf)
        database.check_user()
        return int(arguments.run(database))
    except exception.BootcacheError as error:
        print(f'{PROG}: {error}', file=sys.stderr)
        return 1


if __name__ == '__main__':
    sys.exit(main())
