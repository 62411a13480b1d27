"""Bring a small Ceph up and down: python -m tools.ceph up|down DIRECTORY."""

import argparse
import sys
from pathlib import Path

from tools.ceph.cluster import Ceph, CephError


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog='python -m tools.ceph',
        description='A small real Ceph on the loopback interface, without systemd.')
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    up = commands.add_parser('up', help='start what does not run yet')
    up.add_argument('--osds', type=int, default=1)
    up.add_argument('--port', type=int, default=6789, help='of the monitor')
    up.add_argument('--pool', action='append', default=[], help='to make, for RBD')
    down = commands.add_parser('down', help='end all of it')
    down.add_argument('--wipe', action='store_true', help='remove its directory too')
    for command in (up, down):
        command.add_argument('directory', type=Path)
    return parser.parse_args()


def main() -> int:
    """Do what the command line asks for."""
    options = parse_arguments()
    directory = options.directory.absolute()
    if options.command == 'down':
        Ceph(directory).down(options.wipe)
        return 0
    ceph = Ceph(directory, options.port, options.osds)
    try:
        ceph.up()
        for pool in options.pool:
            ceph.make_pool(pool)
    except CephError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    print(f'export CEPH_CONF={ceph.conf}')
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
