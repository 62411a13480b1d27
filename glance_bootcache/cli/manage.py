"""The ``bootcache-manage`` command: what operators do with a storage node's database and files."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache import exception, savefile
from glance_bootcache import conf as glance_conf
from glance_bootcache.cli import client
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database
from glance_bootcache.nodes import node
from glance_bootcache.storage.nodefiles import NodeFiles
from glance_bootcache.storage.servedexports import ServedExports

PROG = 'bootcache-manage'


def _sync(database: Database, _conf: cfg.ConfigOpts) -> int:
    schema.sync(database)
    print(f'{database} has schema {schema.wanted()}')
    return 0


def _version(database: Database, _conf: cfg.ConfigOpts) -> int:
    found = schema.version(database)
    told = f'schema {found}' if found else 'no tables of bootcache\'s'
    print(f'{database} has {told}; this release needs {schema.wanted()}')
    return 0


def _accept(database: Database, _conf: cfg.ConfigOpts) -> int:
    schema.check(database)
    names = node.accept(database)
    print(f'{database} is accepted by {", ".join(names)}: files are removed there again within'
          ' seconds' if names else f'{database} is that of all storage nodes')
    return 0


def _unnamed(database: Database, conf: cfg.ConfigOpts) -> list[tuple[str, int, bool]]:
    """Return the files of this node that no row names: paths, bytes, and whether they are served.

    :raises BootcacheError: if this is no storage node, or the database does not answer.
    """
    schema.check(database)
    group: Any = conf[bootcache_conf.GROUP]
    state_dir = group.state_dir
    node_id = node.number(database, os.path.join(state_dir, 'node.json'))
    if node_id is None:
        raise exception.BootcacheError(
            f'{database} has no row of this node; start glance-bootcache here first')
    served = {path for image in ServedExports(os.path.join(state_dir, 'exports.json')).images()
              for path in (image.path, image.cache_path)}
    # The service removes files meanwhile.
    return [(path, found[2], path in served) for path in NodeFiles(
        database, node_id, os.path.join(state_dir, 'images')).unnamed()
            if (found := savefile.signature(path))]


def _list_files(database: Database, conf: cfg.ConfigOpts) -> int:
    for path, size, is_served in _unnamed(database, conf):
        print(f'{path} {size}{" served" if is_served else ""}')
    return 0


def _remove_files(database: Database, conf: cfg.ConfigOpts) -> int:
    for path, size, is_served in _unnamed(database, conf):
        if not is_served:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        print(f'{path} {size} {"served, and so left" if is_served else "removed"}')
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        PROG, description='Looks after the storage service\'s database, and the node\'s files.')
    made.add_argument('--version', action='version', version=client.version())
    made.add_argument('--config-file', metavar='PATH', action='append', default=[],
                      help='configuration of the storage service (default: bootcache.conf where'
                           ' oslo.config looks, such as /etc/bootcache)')
    subjects = made.add_subparsers(required=True, metavar='db|files')
    for subject, about, commands in (
            ('db', 'look after the database', (
                ('sync', _sync, 'make the tables of [database]connection, or upgrade them'),
                ('version', _version, 'show which schema they have, and which this release needs'),
                ('accept', _accept, 'go on with a database that was restored, or made anew: files'
                                    ' are removed again'))),
            ('files', 'look after the files of this storage node', (
                ('list', _list_files, 'show the files in state_dir that no row of the database'
                                      ' names, with their bytes, and whether they are served'),
                ('remove', _remove_files, 'remove those that are not served')))):
        parsers = subjects.add_parser(subject, help=about).add_subparsers(
            required=True, metavar='COMMAND')
        for name, run, said in commands:
            parsers.add_parser(name, help=said, description=said).set_defaults(run=run)
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
        return int(arguments.run(database, conf))
    except (exception.BootcacheError, OSError) as error:
        print(f'{PROG}: {error}', file=sys.stderr)
        return 1


if __name__ == '__main__':
    sys.exit(main())
