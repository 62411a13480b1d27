"""What ``bootcache snapshot`` and ``bootcache resume`` share."""

import signal
import sys
from collections.abc import Sequence
from typing import Any

from bootcache.exception import BootcacheError
from glance_bootcache.cli.arguments import count, seconds
from glance_bootcache.cli.listing import Listing, names
from glance_bootcache.deployment import cloud
from glance_bootcache.deployment.cloud import Cloud

_MOST_AT_ONCE = 64
_MOST_TRIES = 20


class DeploymentLister(Listing):
    """What came of each server is a table."""

    def add_limits(self, parser: Any, at_once: int, what: str, timeout: int, each: str) -> None:
        """Add the options that bound it."""
        parser.add_argument('--at-once', type=count(_MOST_AT_ONCE), default=at_once, metavar='N',
                            help=f'{what} (default: {at_once}, at most {_MOST_AT_ONCE})')
        parser.add_argument('--tries', type=count(_MOST_TRIES), default=3, metavar='N',
                            help='attempts for each server (default: 3)')
        parser.add_argument('--timeout', type=seconds, default=timeout, metavar='SECONDS',
                            help=f'{each} (default: {timeout})')
        parser.add_argument('-y', '--yes', action='store_true',
                            help='do not ask; without a terminal nothing is asked anyway')

    def cloud(self, at_once: int) -> Cloud:
        """Return Nova and Glance, as whoever the shell's OS_* variables or [service_auth] name.

        :raises BootcacheError: if something is missing.
        """
        session, region = cloud.open_session(lambda: self.app.conf, at_once)
        return Cloud(session, region)

    def confirm(self, question: str, yes: bool) -> None:
        """Ask on a terminal whether it is meant.

        :raises BootcacheError: if it is not.
        """
        if yes or not self.app.stdin.isatty():
            return
        self.app.stderr.write(f'{question} [y/N] ')
        self.app.stderr.flush()
        if self.app.stdin.readline().strip().lower() not in ('y', 'yes'):
            raise BootcacheError('nothing was done')

    def end_in_order(self) -> None:
        """Have a signal that ends the command be one that lets it end in order."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: sys.exit(128 + number))


def of_aggregates(cloud: Cloud, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the hosts of aggregates.

    :raises BootcacheError: if there is no such aggregate, or none of its hosts.
    """
    known = cloud.aggregate_hosts()
    for name in wanted:
        if name not in known:
            there = ', '.join(sorted(known)) or 'none'
            raise BootcacheError(f'there is no aggregate {name}; "openstack aggregate list" shows:'
                                 f' {there[:500]}')
    hosts = tuple(dict.fromkeys(host for name in wanted for host in known[name]))
    if not hosts:
        raise BootcacheError(f'aggregate {names(list(wanted))} has no host; "openstack aggregate'
                             ' add host" adds one')
    return hosts
