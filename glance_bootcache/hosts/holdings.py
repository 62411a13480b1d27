"""What compute hosts hold, as they report it: soft state, in memory.

A service that was restarted knows no host. Each one is asked for its holdings when it reports next,
within a minute. What a host is to let go of is derived from the images' manifests and operators'
orders, which outlive it.
"""

import dataclasses
import heapq
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oslo_log import log as logging

from bootcache.exception import MessageRefused, RequestRefused
from bootcache.quoting import quoted
from bootcache.rpc.fields import plain
from bootcache.rpc.messages import PAGE_ENTRIES, HoldingsAnswer
from bootcache.rpc.report import HeldImage, HostReport
from glance_bootcache import availability
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

# Hosts that are known at a time, and what they hold: whoever can write to the message bus can
# report for any host, and make up names. An image of a host takes 300 bytes, and 500 if it
# alone has it.
MOST_HOSTS = 20_000
_MOST_HELD = 1_000_000
# A host reports each minute; one that is silent for so long gives its place to another one.
SILENT_SECONDS = 600
_CLOCKS_DIFFER_SECONDS = 300
_LONGEST_LIST = 255
# A host that was not heard of for so long is forgotten.
_FORGET_SECONDS = 86400


Refuse = Callable[[MessageRefused], None]


def clamp_times(report: HostReport, now: float, refuse: Refuse) -> HostReport:
    """Return a report to be kept: without times in the future, what was left out, and needs.

    Those times count as now, as hosts' clocks differ. ReportedNeeds keeps needs, within a bound.

    :param now: seconds since the epoch.
    :param refuse: is told of last uses that clocks do not explain.
    """
    for held in report.images.values():
        if held.last_use > now + _CLOCKS_DIFFER_SECONDS:
            refuse(MessageRefused('report.images.used', f'{quoted(held.last_use)} is in the future,'
                                  ' and counts as now; is the host\'s clock right?'))
    images = {image_id: held if held.last_use <= now else dataclasses.replace(held, last_use=now)
              for image_id, held in report.images.items()}
    paused, bases = report.paused, report.bases
    if paused is not None:
        paused = dataclasses.replace(paused, named=tuple(
            dataclasses.replace(guest, since=min(guest.since, now)) for guest in paused.named))
    if bases is not None:
        bases = dataclasses.replace(bases, named=tuple(dataclasses.replace(
            base, since=min(base.since, now),
            answered=None if base.answered is None else min(base.answered, now))
            for base in bases.named))
    return dataclasses.replace(report, images=images, needs=None, paused=paused, bases=bases,
                               left_out=())


@dataclasses.dataclass(frozen=True)
class ReportedSums:
    """What all hosts' last reports say together; of silent hosts nothing is known.

    :ivar reporting: how many hosts report.
    :ivar silent: how many have not reported for SILENT_SECONDS.
    :ivar unsettled: servers that depend on bootcache.
    :ivar paused: servers whose guests are paused by an I/O error.
    :ivar certificates_end: when the first of the hosts' certificates ends, in seconds since the
        epoch; None if no host has one.
    """

    reporting: int
    silent: int
    unsettled: int
    paused: int
    certificates_end: float | None


@dataclasses.dataclass
class _Host:
    """A host, as it was heard of last.

    :ivar seen: monotonic seconds.
    :ivar sender: the process that has sent its last whole report.
    :ivar number: of that report.
    """

    holdings: HostReport
    seen: float
    sender: str = ''
    number: int = 0


class Hosts:
    """All hosts that have reported within a day.

    :param store: the images' manifests.
    :param tiers: hear of last uses.
    :param orders: what operators want gone from single hosts.
    :param clock: monotonic seconds.
    :param speaks_tls: whether the exporter speaks TLS, and nothing else.
    """

    def __init__(self, store: ImageStore, tiers: StorageTiers, orders: Orders,
                 clock: Callable[[], float] = time.monotonic, speaks_tls: bool = False):
        self._store = store
        self._tiers = tiers
        self._orders = orders
        self._clock = clock
        self._speaks_tls = speaks_tls
        # Guards the dictionaries and the hosts; no file is read under it.
        self._lock = threading.Lock()
        # The host that was heard of last is at the end.
        self._hosts: dict[str, _Host] = {}
        # By image the hosts that hold it, and how many that is of all images.
        self._holders: dict[str, set[str]] = {}
        self._held = 0

    def report(self, name: str, report: HostReport | None,
               refuse: Refuse = lambda refusal: None, sender: str = '',
               number: int = 0) -> HoldingsAnswer:
        """Take a host's report, and tell what it is to let go of.

        :param report: None if nothing has changed since its last one.
        :param refuse: is told of what is left out.
        :param sender: the process: that nothing has changed it can say of its own report only.
        :param number: of the report; one before it may have come to another storage node alone.
        :raises MessageRefused: if so many other hosts report that there is no place for another.
        """
        now = self._clock()
        for refusal in report.left_out if report else ():
            refuse(refusal)
        fresh = None if report is None else clamp_times(report, time.time(), refuse)
        for image_id, held in fresh.images.items() if fresh else ():
            self._tiers.note_use(image_id, held.last_use)
        with self._lock:
            host = self._hosts.get(name)
            if fresh is None and (host is None or (host.sender, host.number) != (sender, number)):
                return HoldingsAnswer(resend=True)
            lacked = host is not None and host.holdings.certificates_end is None
            if host is None:
                self._make_room(now)
                host = _Host(HostReport(), now)
                LOG.info('host %s tells what it holds', name)
            else:
                del self._hosts[name]
            self._hosts[name], host.seen = host, now
            if fresh is not None:
                self._note_held(name, host.holdings.images, fresh.images)
                host.holdings, host.sender, host.number = fresh, sender, number
            images = host.holdings.images
            forgotten = self._bound_held()
        if self._speaks_tls and fresh and fresh.certificates_end is None and not lacked:
            LOG.warning('host %s has no certificate that it can read, and the exporter speaks TLS'
                        ' only: new servers there go the stock way; set [bootcache]tls_directory in'
                        ' its nova.conf, or see the log of its nova-compute for what is wrong with'
                        ' the files', name)
        for _host in range(forgotten):
            refuse(MessageRefused('report.images', f'all hosts hold more than {_MOST_HELD}: what is'
                                  ' forgotten is what the one holds that names the most'))
        if fresh is not None:
            self._orders.settle(name, fresh.images)
        orders = self._orders.of(name)
        drop = tuple(image_id for image_id, held in images.items()
                     if self._is_to_go(image_id, held, image_id in orders))
        if drop:
            LOG.debug('host %s is to let go of %s', name, ', '.join(drop))
        return HoldingsAnswer(drop)

    def _make_room(self, now: float) -> None:
        """Forget who was silent for a day, and for one more whoever is silent for longest.

        Those that report are never forgotten for names that somebody makes up.
        """
        while (silent := next(iter(self._hosts), None)) is not None:
            seconds, is_full = now - self._hosts[silent].seen, len(self._hosts) >= MOST_HOSTS
            if seconds <= _FORGET_SECONDS and not is_full:
                return
            if seconds < SILENT_SECONDS:
                raise MessageRefused('host', f'{MOST_HOSTS} others report, and no more are known')
            self._note_held(silent, self._hosts.pop(silent).holdings.images, {})

    def _note_held(self, name: str, before: Mapping[str, HeldImage],
                   images: Mapping[str, HeldImage]) -> None:
        """Note that a host holds other images than before; with the lock held."""
        self._held += len(images) - len(before)
        for image_id in images.keys() - before.keys():
            self._holders.setdefault(image_id, set()).add(name)
        for image_id in before.keys() - images.keys():
            holders = self._holders[image_id]
            holders.remove(name)
            if not holders:
                del self._holders[image_id]

    def _bound_held(self) -> int:
        """Forget what those hosts hold that name the most; with the lock held.

        :returns: of how many.
        """
        forgotten = 0
        while self._held > _MOST_HELD:
            name, most = max(self._hosts.items(),
                             key=lambda entry: len(entry[1].holdings.images))
            self._note_held(name, most.holdings.images, {})
            most.holdings = dataclasses.replace(most.holdings, images={})
            forgotten += 1
        return forgotten

    def _is_to_go(self, image_id: str, held: HeldImage, ordered: bool) -> bool:
        manifest = self._store.anywhere(image_id)
        return availability.is_to_go(held.generation, manifest, ordered=ordered or (
            # One that Glance has again is given out again.
            manifest is None and self._orders.is_for_all(image_id)))

    def _present(self, names: Iterable[str]) -> list[tuple[str, _Host, float]]:
        """Return name, host and seconds since its report of those of some hosts that are known.

        Call it with the lock held.
        """
        now = self._clock()
        return [(name, host, now - host.seen) for name in names
                if (host := self._hosts.get(name)) is not None
                and now - host.seen <= _FORGET_SECONDS]

    def describe(self, marker: str | None = None) -> list[dict[str, Any]]:
        """Return a page of the hosts: see ListHosts."""
        with self._lock:
            names = heapq.nsmallest(PAGE_ENTRIES, (
                name for name, _host, _seen in self._present(self._hosts)
                if marker is None or name > marker))
            present = [(name, host.holdings, seen) for name, host, seen in self._present(names)]
        return [{'host': name, 'seen': seen, 'images': len(holdings.images),
                 'bytes': _by_tier(holdings.images.values()), 'quotas': plain(holdings.quotas),
                 'rpc': holdings.rpc, 'certificates_end': holdings.certificates_end,
                 'unsettled': plain(holdings.unsettled), 'paused': plain(holdings.paused)}
                for name, holdings, seen in present]

    def bases(self, name: str) -> dict[str, Any] | None:
        """Return how a host reads bases: see HostBases."""
        with self._lock:
            found = [(host.holdings, seen) for _name, host, seen in self._present([name])]
        if not found:
            return None
        holdings, seen = found[0]
        return {'seen': seen, 'bases': plain(holdings.bases)}

    def holders(self, image_id: str) -> list[dict[str, Any]]:
        """Return the hosts that hold an image: see ImageHosts."""
        with self._lock:
            found = [(name, host.holdings.images[image_id], seen) for name, host, seen
                     in self._present(sorted(self._holders.get(image_id, ())))]
        return [{'host': name, 'medium': held.medium.value, 'bytes': held.bytes,
                 'last_use': held.last_use, 'seen': seen,
                 'leaving': self._is_to_go(image_id, held, image_id in self._orders.of(name))}
                for name, held, seen in found]

    def held_since(self, image_id: str, since: float) -> dict[str, int]:
        """Return the generations that hosts hold of an image, of hosts that reported after a time.

        :param since: monotonic seconds, as of the clock.
        """
        with self._lock:
            return {name: host.holdings.images[image_id].generation
                    for name in self._holders.get(image_id, ())
                    if (host := self._hosts[name]).seen > since}

    def seen(self) -> dict[str, float]:
        """Return when each host reported last, in monotonic seconds as of the clock."""
        with self._lock:
            return {name: host.seen for name, host in self._hosts.items()}

    def sums(self) -> ReportedSums:
        """Return what all hosts' last reports say together."""
        with self._lock:
            present = self._present(self._hosts)
        heard = [host.holdings for _name, host, seen in present if seen <= SILENT_SECONDS]
        return ReportedSums(
            len(heard), len(present) - len(heard),
            sum(report.unsettled.servers for report in heard if report.unsettled),
            sum(report.paused.servers for report in heard if report.paused),
            min((report.certificates_end for report in heard
                 if report.certificates_end is not None), default=None))

    def count(self) -> int:
        """Return how many hosts have reported, and are not forgotten."""
        return len(self._hosts)

    def order_eviction(self, image_id: str, names: Iterable[str]) -> list[str]:
        """Have hosts let go of an image; forgotten once a host reports that it has.

        :returns: names of those that hold it.
        :raises RequestRefused: if a host is not known, or too many orders wait; then none is told.
        :raises DatabaseAway: if that cannot be written; then none is told.
        """
        with self._lock:
            wanted = {str(name) for name in names}
            known = {name: host for name, host, _seen in self._present(wanted)}
            missing = sorted(wanted - set(known))
            if missing:
                raise RequestRefused(
                    f'not heard of: {", ".join(missing)[:_LONGEST_LIST]}; "bootcache host list"'
                    ' shows the hosts that have reported, each within a minute after the storage'
                    ' service has started')
            holding = sorted(name for name in wanted if image_id in known[name].holdings.images)
        self._orders.add(image_id, holding)
        for name in holding:
            LOG.info('image %s: host %s lets go of its cache image, as an operator says', image_id,
                     name)
        return holding


def _by_tier(images: Iterable[HeldImage]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for held in images:
        sums[held.medium.value] = sums.get(held.medium.value, 0) + held.bytes
    return sums
