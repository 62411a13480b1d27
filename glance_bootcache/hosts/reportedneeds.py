"""Which images' bases compute hosts need, as they report it: remembered over a restart.

A gateway that has lost its connection comes back by itself, maybe after minutes, and must find what
it read from. So what a host said last counts until it says something else, or is gone for a day.
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from bootcache import naming, savefile
from glance_bootcache.hosts.holdings import MOST_IMAGES

LOG = logging.getLogger(__name__)

VERSION = 1
# As in hosts.py: whoever can write to the message bus can report for any host.
_MOST_HOSTS = 20_000
_LONGEST_NAME = 255
_FORGET_SECONDS = 86400
# That a host was heard of is written this often, if nothing else has changed.
_WRITE_SECONDS = 3600


@dataclasses.dataclass(frozen=True)
class _Told:
    """What a host said last.

    :ivar seen: seconds since the epoch.
    :ivar images: ids; None if it does not tell, as one of an earlier version.
    """

    seen: float
    images: frozenset[str] | None


def parse(images: Any) -> frozenset[str] | None:
    """Read what a host reports; what is no image's id is left out. Pure.

    :param images: a list; anything else says nothing.
    """
    if not isinstance(images, list | tuple):
        return None
    found = set()
    for image_id in images[:MOST_IMAGES]:
        try:
            found.add(naming.canonical_image_id(image_id))
        except (ValueError, TypeError, AttributeError):
            continue
    return frozenset(found)


class ReportedNeeds:
    """What all hosts need that have reported within a day.

    :param path: of the file; a damaged one counts as empty.
    :param clock: seconds since the epoch.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.time):
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()  # guards the dictionary and what is below it
        self._hosts = self._load()
        self._changed = False
        self._saved = clock()

    def _load(self) -> dict[str, _Told]:
        try:
            return savefile.read_json(self._path, VERSION, lambda document: {
                str(name): _Told(float(host['seen']), parse(host['images']))
                for name, host in document['hosts'].items()}) or {}
        except ValueError as error:
            LOG.warning('%s cannot be used (%s): hosts tell what they need within a minute',
                        self._path, error)
            return {}

    def note(self, name: str, report: dict[str, Any] | None) -> None:
        """Note what a host reports: see ``report_holdings`` in bootcache/rpcapi.py.

        :param report: None if nothing has changed since its last one.
        """
        name, now = str(name)[:_LONGEST_NAME], self._clock()
        images = parse(report.get('needs')) if isinstance(report, dict) else None
        with self._lock:
            known = self._hosts.get(name)
            if report is None:
                if known is None:
                    return
                images = known.images
            if known is None and len(self._hosts) >= _MOST_HOSTS:
                del self._hosts[min(self._hosts, key=lambda host: self._hosts[host].seen)]
            self._hosts[name] = _Told(now, images)
            self._changed |= known is None or known.images != images

    def needed(self, image_id: str) -> bool:
        """Tell whether a host needs an image's base, or may do so."""
        oldest = self._clock() - _FORGET_SECONDS
        with self._lock:
            return any(host.images is None or image_id in host.images
                       for host in self._hosts.values() if host.seen >= oldest)

    def named(self, image_id: str) -> bool:
        """Tell whether a host says that it needs an image's base.

        Those of an earlier version, which say nothing, count as ``needed`` alone: what follows from
        that can be taken back. What has to go at some time cannot wait for their upgrade.
        """
        oldest = self._clock() - _FORGET_SECONDS
        with self._lock:
            return any(image_id in (host.images or ()) for host in self._hosts.values()
                       if host.seen >= oldest)

    def save(self) -> None:
        """Write the file if something changed.

        :raises OSError: if it cannot be written.
        """
        now = self._clock()
        with self._lock:
            if not self._changed and now - self._saved < _WRITE_SECONDS:
                return
            self._hosts = {name: host for name, host in self._hosts.items()
                           if host.seen >= now - _FORGET_SECONDS}
            document = {'version': VERSION, 'hosts': {
                name: {'seen': host.seen,
                       'images': None if host.images is None else sorted(host.images)}
                for name, host in self._hosts.items()}}
            self._changed, self._saved = False, now
        try:
            savefile.write_json(self._path, document)
        except OSError:
            with self._lock:
                self._changed = True
            raise
