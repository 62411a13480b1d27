"""What ``bootcache snapshot`` and ``bootcache resume`` share."""

import argparse
import signal
import sys
from typing import Any

from bootcache.exception import BootcacheError
from glance_bootcache.cli.arguments import count, seconds
from glance_bootcache.cli.listing import Listing
from glance_bootcache.deployment import cloud
from glance_bootcache.deployment.cloud import Cloud, DeploymentLimits

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

    def prepare(self, parsed_args: argparse.Namespace) -> tuple[Cloud, DeploymentLimits]:
        """Return Nova and Glance, as whoever the shell's OS_* variables or [service_auth] name.

        From then on a signal that ends the command lets it end in order.

        :raises BootcacheError: if something is missing.
        """
        limits = DeploymentLimits(parsed_args.at_once, parsed_args.tries, parsed_args.timeout)
        session, region = cloud.open_session(lambda: self.app.conf, limits.at_once)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: sys.exit(128 + number))
        return Cloud(session, region), limits

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
