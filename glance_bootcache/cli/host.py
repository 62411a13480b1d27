"""``bootcache host``: what the storage service knows of compute hosts."""

import argparse
from typing import Any

from bootcache import exception
from bootcache.quoting import one_line
from bootcache.rpc.client import all_entries
from bootcache.rpc.messages import ForgetHost, HostBases, ListHosts
from bootcache.tier import Medium
from glance_bootcache.cli.client import utc
from glance_bootcache.cli.listing import Listing

# Hosts report once a minute; one that missed so much is down, or cannot reach the message bus.
_SILENT_SECONDS = 300
_NO_HOST = ('no compute host has reported to the storage service; each does within a minute, if its'
            ' nova-compute runs bootcache\'s driver and reaches the message bus')


class HostList(Listing):
    """List the compute hosts that have reported what they hold.

    A host that was not heard of for more than 5 minutes is silent: it is down, or cannot reach the
    message bus. It is shown with what it held then, and forgotten after a day. certificates_end is
    when the first of its certificates ends, or has ended.
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('--unsettled', action='store_true',
                            help='list the servers that still depend on bootcache, and why, and the'
                                 ' hosts that do not tell; first those that are paused, of all'
                                 ' hosts, and what for; none is left: nothing depends on it')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Ask and tabulate."""
        hosts = all_entries(self.app.storage_client().send, ListHosts())
        self.nothing = _NO_HOST
        if parsed_args.unsettled:
            if hosts:
                self.nothing = ('no server depends on bootcache, as the hosts that have reported'
                                f' tell ({len(hosts)}); "bootcache host list" shows when each did')
            return ('host', 'seen', 'state', 'server', 'why'), _unsettled(hosts)
        tiers = [medium.value for medium in Medium]
        columns = ('host', 'seen', 'state', 'images', 'waiting',
                   *(f'{tier}_{what}' for tier in tiers for what in ('bytes', 'quota')), 'rpc',
                   'certificates_end')
        return columns, [
            (one_line(host['host']), round(host['seen']), _state(host), host['images'],
             (host['paused'] or {}).get('servers'),
             *(value for tier in tiers for value in _used_and_quota(host, tier)),
             one_line(host['rpc']) or None,
             None if host['certificates_end'] is None else utc(host['certificates_end']))
            for host in hosts]


class HostShow(Listing):
    """Show through which connectors a host reads bases, as it reported last.

    way is the storage node's address, or the place in Ceph; it is empty where the base can be read
    by no way, and since then counts from when it could not. last_answer is "now" while the reads of
    the host's watch are answered, else when the last one was. Those that are not answered come
    first.
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('host', help='name of the host, as "bootcache host list" has it')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Ask and tabulate."""
        answer = self.app.storage_client().send(HostBases(parsed_args.host))
        if answer is None:
            raise exception.BootcacheError(
                f'host {parsed_args.host} has not reported to the storage service; "bootcache host'
                ' list" shows those that have')
        told = answer['bases']
        if told is None:
            raise exception.BootcacheError(
                f'host {parsed_args.host} does not tell how it reads bases, or nothing that can be'
                ' read; the log of glance-bootcache says what of its report is left out')
        self.nothing = f'host {parsed_args.host} reads no base'
        rows: list[tuple[Any, ...]] = [
            (base['image_id'], one_line(base['way']) or None, one_line(base['connector']) or None,
             utc(base['since']), 'now' if base['answered'] is None
             else utc(base['answered']) if base['answered'] else None)
            for base in told['named']]
        if told['bases'] > len(rows):
            rows.append((None, f'{told["bases"] - len(rows)} more bases', None, None, None))
        return ('image_id', 'way', 'connector', 'since', 'last_answer'), rows


class HostForget(Listing):
    """Forget hosts that are gone for good: the bases that their servers needed are kept no more.

    A host that Nova has no more is forgotten by itself, after a day of silence. One that comes back
    tells again what it needs, but a base may be gone by then, and its servers paused until their
    image is got again.
    """

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('hosts', nargs='+', metavar='host',
                            help='names of hosts, as "kept_for" of "bootcache image show" has them')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Ask for each."""
        client = self.app.storage_client()
        known = {name: client.send(ForgetHost(name)) for name in parsed_args.hosts}
        self.complaints = [f'the storage service knows of nothing that host {one_line(name)} needs'
                           for name, is_known in known.items() if not is_known]
        return ('host',), [(one_line(name),) for name, is_known in known.items() if is_known]


def _unsettled(hosts: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return a row for each server that is named, and for what is not told.

    Those of all hosts that are paused come first.
    """
    waits: list[tuple[Any, ...]] = []
    rows: list[tuple[Any, ...]] = []
    for host in hosts:
        begin = (one_line(host['host']), round(host['seen']), _state(host))
        paused, unsettled = host['paused'] or {'servers': 0, 'named': []}, host['unsettled']
        waits += [(*begin, one_line(guest['server']), f'it has been paused since'
                   f' {utc(guest["since"])}, and waits: {one_line(guest["waits_for"])}')
                  for guest in paused['named']]
        if (more := paused['servers'] - len(paused['named'])) > 0:
            waits.append((*begin, None, f'{more} more servers wait'))
        if unsettled is None:
            rows.append((*begin, None, 'not known yet: its nova-compute has not looked'))
            continue
        told = {guest['server'] for guest in paused['named']}
        rows += [(*begin, one_line(one['server']), one_line(one['why']))
                 for one in unsettled['named'] if one['server'] not in told]
        if (more := unsettled['servers'] - len(unsettled['named'])) > 0:
            rows.append((*begin, None, f'{more} more servers'))
    return waits + rows


def _state(host: dict[str, Any]) -> str:
    return 'silent' if host['seen'] > _SILENT_SECONDS else 'reporting'


def _used_and_quota(host: dict[str, Any], tier: str) -> tuple[int | None, int | None]:
    """Return the bytes of a tier, None for both if the host has no such tier."""
    quota, used = host['quotas'].get(tier), host['bytes'].get(tier)
    return (None, None) if quota is None and used is None else (used or 0, quota)
