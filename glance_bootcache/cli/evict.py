"""``bootcache evict``: compute hosts that let go of a cache image."""

import argparse
import dataclasses
import time
from typing import Any

from bootcache.quoting import one_line
from bootcache.rpc.client import all_entries
from bootcache.rpc.messages import EvictImage, ImageHosts, ListHosts
from glance_bootcache.cli.arguments import instead
from glance_bootcache.cli.client import ServiceClient
from glance_bootcache.cli.listing import WaitingLister, names
from glance_bootcache.progressline import ProgressLine

_COLUMNS = ('image_id', 'host', 'outcome')

GONE = 'gone'            # the host has reported that it is rid of it
NOT_HELD = 'not held'    # it did not hold it
LEAVING = 'leaving'      # it lets go of it as soon as no server of its needs it
IN_USE = 'in use'        # it knows, and has it all the same
SILENT = 'silent'        # it has not reported since
KEPT = 'kept'            # it has it, and is not to let go of it any more

_WHY = {
    IN_USE: 'still in use, and gone from there as soon as no server there needs it',
    LEAVING: 'told, but not known to be rid of it yet',
    SILENT: 'not heard of since ("bootcache host list" shows for how long)',
    KEPT: 'kept, as a server was started there meanwhile; evict it again',
}
# Two reports of a host are apart by more, and one is seen at times that differ by less.
_SAME_REPORT_SECONDS = 0.8


@dataclasses.dataclass
class _Host:
    """What is known of one host that held an image.

    :ivar reported_at: when it reported last, in monotonic seconds; None if that is not known.
    :ivar reports: how many times it has since it was told.
    """

    outcome: str = LEAVING
    reported_at: float | None = None
    reports: int = 0

    def reported(self, when: float) -> None:
        """Count a report if it is another one."""
        if self.reported_at is not None and when - self.reported_at > _SAME_REPORT_SECONDS:
            self.reports += 1
        if self.reported_at is None or when > self.reported_at:
            self.reported_at = when

    def end(self) -> None:
        """Time is out: say what keeps it."""
        if self.outcome == LEAVING:
            # With its first report it hears of it, with the second one it tells what came of it.
            self.outcome = (SILENT, LEAVING, IN_USE)[min(self.reports, 2)]


class _Watch:
    """What is known of the hosts that held images.

    :ivar hosts: by image and host.
    """

    def __init__(self, client: ServiceClient, progress: ProgressLine):
        self._client = client
        self._progress = progress
        self.hosts: dict[tuple[str, str], _Host] = {}

    def step(self) -> bool:
        """Look once more, and show where things are.

        :returns: True if no host is left that is about to let go.
        """
        known: set[str] | None = None
        for image in dict.fromkeys(image for image, _host in self._pending()):
            answer = self._client.send(ImageHosts(image))
            holders = {entry['host']: entry for entry in answer['hosts']} if answer else {}
            for name in [host for one, host in self._pending() if one == image]:
                if name in holders:
                    self._look(image, name, holders[name])
                    continue
                # A storage service that was restarted knows a host when it has reported again.
                if known is None:
                    known = {entry['host'] for entry in all_entries(self._client.send, ListHosts())}
                if name in known:
                    self._outcome(image, name, GONE)
        self.show()
        return not self._pending()

    def _pending(self) -> list[tuple[str, str]]:
        return [key for key, host in self.hosts.items() if host.outcome == LEAVING]

    def _look(self, image: str, name: str, entry: dict[str, Any]) -> None:
        if entry['leaving']:
            self.hosts[image, name].reported(time.monotonic() - entry['seen'])
        else:
            self._outcome(image, name, KEPT)

    def _outcome(self, image: str, name: str, outcome: str) -> None:
        self.hosts[image, name].outcome = outcome
        self._progress.line(f'image {image}, host {one_line(name)}: {outcome}', terminal=False)

    def show(self) -> None:
        """Show how many hosts are rid of it."""
        held = [host for host in self.hosts.values() if host.outcome != NOT_HELD]
        gone = sum(host.outcome == GONE for host in held)
        used = sum(host.outcome == LEAVING and host.reports > 1 for host in held)
        self._progress.bar('letting go', gone, len(held), 'hosts',
                           f'{used} in use' if used else '')

    def end(self) -> None:
        """Time is out: say what keeps the hosts that are left."""
        for host in self.hosts.values():
            host.end()

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the table."""
        return [(image, one_line(name), host.outcome)
                for (image, name), host in self.hosts.items()]

    def complaints(self, timeout: float) -> list[str]:
        """Return which hosts have it still, and why."""
        found = []
        for image in dict.fromkeys(image for image, _host in self.hosts):
            for outcome, why in _WHY.items():
                those = [one_line(name) for (one, name), host in self.hosts.items()
                         if one == image and host.outcome == outcome]
                if those:
                    after = '' if outcome == KEPT else f' after {timeout:g} s'
                    found.append(f'image {image} is on hosts{after}: {names(those)}: {why}')
        return found


class Evict(WaitingLister):
    """Have hosts let go of images' cache images, as soon as no server of theirs needs them.

    Without --host all hosts do, and the storage node's memory tier. A host is told when it reports,
    once a minute, and tells with its next report that it is rid of it; a server that needs the
    image later has its host fetch it again. Hosts whose servers use it are named when time is out;
    they let go later.
    """

    default_timeout = 300

    def get_parser(self, prog_name: str) -> Any:
        """Add our arguments."""
        parser = super().get_parser(prog_name)
        parser.add_argument('--host', dest='hosts', action='append', metavar='HOST',
                            help='only this host lets go; can be repeated')
        parser.add_argument('--aggregate', help=argparse.SUPPRESS, type=instead(
            'hosts are told by name: give each with --host ("openstack aggregate show NAME"'
            ' has those of an aggregate), or none for all'))
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Tell the service, and watch what comes of it."""
        client = self.app.storage_client()
        wanted = parsed_args.hosts and list(dict.fromkeys(parsed_args.hosts))
        progress = self.app.progress()
        watch = _Watch(client, progress)
        try:
            answers = self.ask_each(parsed_args.images,
                                    lambda image: client.send(EvictImage(image, wanted)))
            for image, holders in answers.items():
                for name in wanted or holders:
                    watch.hosts[image, name] = _Host(LEAVING if name in holders else NOT_HELD)
                if not holders:
                    progress.line(f'image {image}: no host that has reported holds it')
            if not parsed_args.no_wait and any(answers.values()):
                if not self.wait(progress, watch.step, parsed_args.timeout):
                    watch.end()
                self.complaints += watch.complaints(parsed_args.timeout)
        finally:
            progress.end()
        return _COLUMNS, watch.rows()
