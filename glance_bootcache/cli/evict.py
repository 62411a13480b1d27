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
class _Watch:
    """What is known of the hosts that held images.

    :ivar wanted: hosts that are to let go; None for all.
    :ivar outcomes: by image and host.
    :ivar reports: when hosts that are about to let go have reported, in monotonic seconds.
    """

    client: ServiceClient
    progress: ProgressLine
    wanted: list[str] | None
    outcomes: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    reports: dict[tuple[str, str], list[float]] = dataclasses.field(default_factory=dict)

    def take(self, image: str, holders: list[str]) -> None:
        """Note the hosts that are told to let go of an image."""
        for name in self.wanted or holders:
            self.outcomes[image, name] = LEAVING if name in holders else NOT_HELD
        if not holders:
            self.progress.line(f'image {image}: no host that has reported holds it')

    def step(self) -> bool:
        """Look once more, and show where things are.

        :returns: True if no host is left that is about to let go.
        """
        if not (pending := self._pending()):
            return True
        known: set[str] | None = None
        holders: dict[str, dict[str, Any]] = {}
        for image, name in pending:
            if image not in holders:
                answer = self.client.send(ImageHosts(image))
                holders[image] = {one['host']: one for one in answer['hosts']} if answer else {}
            entry, outcome = holders[image].get(name), LEAVING
            if entry is None:
                if known is None:
                    known = {one['host'] for one in all_entries(self.client.send, ListHosts())}
                # A storage service that was restarted knows a host when it has reported again.
                outcome = GONE if name in known else LEAVING
            elif entry['leaving']:
                reports = self.reports.setdefault((image, name), [])
                reported = time.monotonic() - entry['seen']
                if not reports or reported - reports[-1] > _SAME_REPORT_SECONDS:
                    reports.append(reported)
            else:
                outcome = KEPT
            if outcome != LEAVING:
                self.outcomes[image, name] = outcome
                self.progress.line(f'image {image}, host {one_line(name)}: {outcome}',
                                   terminal=False)
        pending = self._pending()
        held = [outcome for outcome in self.outcomes.values() if outcome != NOT_HELD]
        used = sum(self._still(key) == IN_USE for key in pending)
        self.progress.bar('letting go', held.count(GONE), len(held), 'hosts',
                          f'{used} in use' if used else '')
        return not pending

    def _pending(self) -> list[tuple[str, str]]:
        return [key for key, outcome in self.outcomes.items() if outcome == LEAVING]

    def _still(self, key: tuple[str, str]) -> str:
        """Return why a host has the image still, which is about to let go."""
        # The first report is of before; with the second the host hears of it, with the third tells.
        return (SILENT, SILENT, LEAVING, IN_USE)[min(len(self.reports.get(key, ())), 3)]

    def complaints(self, waited: float | None) -> list[str]:
        """Return which hosts have it still, and why.

        :param waited: seconds until time ran out; None if it did not.
        """
        for key in self._pending():
            self.outcomes[key] = self._still(key)
        found = []
        for image in dict.fromkeys(image for image, _host in self.outcomes):
            for outcome, why in _WHY.items():
                those = [one_line(name) for (one, name), known in self.outcomes.items()
                         if one == image and known == outcome]
                if those:
                    after = '' if outcome == KEPT else f' after {waited:g} s'
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
        wanted = parsed_args.hosts and list(dict.fromkeys(parsed_args.hosts))
        watch = _Watch(self.app.storage_client(), self.app.progress(), wanted)
        self.ask_and_wait(parsed_args, watch, lambda image: EvictImage(image, wanted))
        return _COLUMNS, [(image, one_line(name), outcome)
                          for (image, name), outcome in watch.outcomes.items()]
