"""``bootcache resume``: servers from the snapshots that ``bootcache snapshot`` has taken."""

import argparse
import os
from typing import Any

from bootcache.exception import BootcacheError
from bootcache.quoting import one_line
from glance_bootcache.cli.deployment import DeploymentLister
from glance_bootcache.deployment import checkpoint
from glance_bootcache.deployment.cloud import Cloud
from glance_bootcache.deployment.resuming import FAILED, Placing, Restart

_COLUMNS = ('server_id', 'name', 'new_server_id', 'host', 'outcome', 'reason')
_LONGEST_SUFFIX = 50


def _suffix(text: str) -> str:
    if len(text) > _LONGEST_SUFFIX or not text.isprintable():
        raise argparse.ArgumentTypeError(
            f'a suffix has up to {_LONGEST_SUFFIX} characters that can be printed')
    return text


class ResumeServers(DeploymentLister):
    """Start servers from the images of a checkpoint, as many at once as wanted.

    Run again it starts only what is missing. With another --name-suffix it starts another
    deployment of the same checkpoint. Each has the flavor, networks, security groups, metadata,
    tags, key pair and user data of the server that was snapshotted, as far as they can be given;
    what cannot be is told. Asks Nova and Glance as "bootcache snapshot" does; the servers are of
    the project of the credentials, which has to be that of the servers that were snapshotted.
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('file', help='written by "bootcache snapshot"')
        parser.add_argument('--aggregate', dest='aggregates', action='append', default=[],
                            metavar='NAME',
                            help='on hosts of this aggregate, in turns; can be repeated')
        parser.add_argument('--availability-zone', metavar='NAME',
                            help='in this availability zone (default: that of each server, if'
                                 ' no host is asked for)')
        parser.add_argument('--other-hosts', action='store_true',
                            help='none on the host that it ran on')
        parser.add_argument('--name-suffix', type=_suffix, default='', metavar='TEXT',
                            help='appended to the names; one that begins with a dash as'
                                 ' --name-suffix=-restored')
        self.add_limits(parser, 8, 'servers that are started at a time', 1800,
                        'time in which a server has to be ACTIVE')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Ask, and start them."""
        if parsed_args.availability_zone and (parsed_args.aggregates or parsed_args.other_hosts):
            raise BootcacheError('--availability-zone has Nova choose the host: give it, or'
                                 ' --aggregate and --other-hosts')
        path = os.path.abspath(parsed_args.file)
        made = checkpoint.read(path)
        cloud, limits = self.prepare(parsed_args)
        placing = Placing(_hosts(cloud, parsed_args), parsed_args.other_hosts,
                          parsed_args.availability_zone, parsed_args.name_suffix)
        if placing.others and not all(saved.host for saved in made.servers):
            raise BootcacheError(f'{path} does not say on which hosts its servers ran, as who took'
                                 ' the snapshots was no administrator; use --aggregate instead of'
                                 ' --other-hosts')
        self.confirm(f'Start {len(made.servers)} servers from the images of {path}, unless they are'
                     ' there?', parsed_args.yes)
        progress = self.app.progress()
        try:
            with checkpoint.held(path):
                outcomes = Restart(cloud, made, placing, progress, limits).run()
        finally:
            progress.end()
        self.complaints += [f'{one.saved.server_id}: {one.reason}' for one in outcomes
                            if one.outcome == FAILED]
        return _COLUMNS, [(one.saved.server_id, one_line(one.saved.name + placing.suffix),
                           one.server_id or None, one.host or None, one.outcome, one.reason)
                          for one in outcomes]


def _hosts(cloud: Cloud, parsed_args: argparse.Namespace) -> tuple[str, ...] | None:
    """Return the hosts that may be; None if Nova chooses."""
    if not parsed_args.aggregates and not parsed_args.other_hosts:
        return None
    up = cloud.hosts_up()
    wanted = cloud.hosts_of(parsed_args.aggregates) if parsed_args.aggregates else up
    return tuple(host for host in up if host in wanted)
