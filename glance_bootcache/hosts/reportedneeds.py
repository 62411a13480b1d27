"""Which images' bases compute hosts need, as they report it: remembered over a restart.

A gateway that has lost its connection comes back by itself, maybe after minutes, and must find what
it read from. So what a host said last counts until it says something else. It is served for a day:
one of this service, as while it stands still it can hear of no host. It is kept on: a cell may be
down, of which Nova lists no servers then.
"""

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from oslo_log import log as logging

from bootcache import naming, savefile
from bootcache.rpc.report import HostReport
from glance_bootcache.hosts.holdings import MOST_HOSTS

LOG = logging.getLogger(__name__)

VERSION = 1
# No host has this name: it stands for those of which too many have reported.
_OTHERS = '(other hosts)'
# Of all hosts: 40 MB of the file. So many servers' images are not needed at a time.
_MOST_NAMED = 1_000_000
_FORGET_SECONDS = 86400
# That a host was heard of is written this often, if nothing else has changed.
_WRITE_SECONDS = 3600


@dataclasses.dataclass(frozen=True)
class _Told:
    """What a host said last.

    :ivar seen: monotonic seconds; below 0 if that was before the machine came up.
    :ivar images: ids; None if what it tells cannot be read.
    :ivar is_cut: it tells of too many to remember; ``images`` is None.
    """

    seen: float
    images: frozenset[str] | None
    is_cut: bool = False


def _ages(document: Any) -> dict[str, _Told]:
    """Read the file's document: for how many seconds each host was silent when it was written."""
    told = {str(name): _Told(float(host['seen']), None if host['images'] is None else frozenset(
        map(naming.canonical_image_id, host['images'])), bool(host.get('cut')))
            for name, host in document['hosts'].items()}
    written = float(document['written'])
    if not all(map(math.isfinite, (written, *(host.seen for host in told.values())))):
        raise ValueError('a time that is none')
    return {name: dataclasses.replace(host, seen=max(0.0, written - host.seen))
            for name, host in told.items()}


class ReportedNeeds:
    """What all hosts need that have reported.

    :param path: of the file; a damaged one counts as empty.
    :param clock: monotonic seconds.
    :param wall: seconds since the epoch, for people who read the file.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic,
                 wall: Callable[[], float] = time.time):
        self._path = path
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()  # guards the dictionary and what is below it
        self._saved = clock()
        self._hosts = {name: dataclasses.replace(age, seen=self._saved - age.seen)
                       for name, age in savefile.read_table(
                           path, VERSION, _ages, 'hosts tell what they need within a minute'
                       ).items()}
        # How often something changed, and how many of these changes were written.
        self._changes = self._written = 0

    def note(self, name: str, report: HostReport | None) -> None:
        """Note what a host reports.

        :param report: None if nothing has changed since its last one.
        """
        now = self._clock()
        with self._lock:
            known = self._hosts.get(name)
            if report is None:
                if known is not None:
                    self._hosts[name] = dataclasses.replace(known, seen=now)
                return
            if known is None and len(self._hosts) >= MOST_HOSTS:
                self._make_room(now)
            self._hosts[name] = _Told(now, report.needs)
            if known is None or known.images != report.needs:
                self._changes += 1
                self._bound()

    def _make_room(self, now: float) -> None:
        """Forget a host that is silent for longest: for a day what it needs may be anything.

        Its servers may read, and somebody may have made up the names that take its place.
        """
        others = self._hosts.pop(_OTHERS, None)
        oldest = min(self._hosts, key=lambda host: self._hosts[host].seen)
        dropped = self._hosts.pop(oldest)
        if dropped.seen >= now - _FORGET_SECONDS or dropped.images or dropped.is_cut:
            others = _Told(now, None, is_cut=True)
        if others is not None:
            self._hosts[_OTHERS] = others

    def _bound(self) -> None:
        """Of the hosts that name the most remember that they need any; under the lock."""
        named = sum(len(host.images or ()) for host in self._hosts.values())
        while named > _MOST_NAMED:
            most = max(self._hosts, key=lambda name: len(self._hosts[name].images or ()))
            LOG.warning('host %s says that its servers need %d images, and all hosts name more than'
                        ' %d: it counts as one that needs any', most,
                        len(self._hosts[most].images or ()), _MOST_NAMED)
            named -= len(self._hosts[most].images or ())
            self._hosts[most] = _Told(self._hosts[most].seen, None, is_cut=True)

    def needed(self, image_id: str) -> bool:
        """Tell whether a host needs an image's base, or may do so."""
        oldest = self._clock() - _FORGET_SECONDS
        with self._lock:
            return any(host.images is None or image_id in host.images
                       for host in self._hosts.values() if host.seen >= oldest)

    def hosts(self, image_id: str) -> list[str]:
        """Return the hosts that said so last, by name, and those that name too many to remember.

        Those that tell nothing that can be read are ``needed`` alone, as that can be taken back.
        """
        oldest = self._clock() - _FORGET_SECONDS
        with self._lock:
            return sorted(name for name, host in self._hosts.items()
                          if (host.is_cut or image_id in (host.images or ()))
                          and (name != _OTHERS or host.seen >= oldest))

    def save(self) -> None:
        """Write the file if something changed.

        :raises OSError: if it cannot be written.
        """
        now, wall = self._clock(), self._wall()
        with self._lock:
            changes = self._changes
            if changes == self._written and now - self._saved < _WRITE_SECONDS:
                return
            self._hosts = {name: host for name, host in self._hosts.items()
                           if host.seen >= now - _FORGET_SECONDS or (
                               name != _OTHERS and (host.images or host.is_cut))}
            document = {'version': VERSION, 'written': wall, 'hosts': {
                name: {'seen': wall - (now - host.seen),
                       'images': None if host.images is None else sorted(host.images),
                       **({'cut': True} if host.is_cut else {})}
                for name, host in self._hosts.items()}}
        savefile.write_json(self._path, document)
        self._written, self._saved = changes, now
