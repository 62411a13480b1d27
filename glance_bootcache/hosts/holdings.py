"""What compute hosts hold, as they report it: soft state, in memory.

A service that was restarted knows no host. Each one is asked for its holdings when it reports next,
within a minute. What a host is to let go of is derived from the images' manifests and operators'
orders, which are files.
"""

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oslo_log import log as logging

from bootcache import naming
from bootcache.exception import RequestRefused
from bootcache.tier import Medium
from glance_bootcache import decisions
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

# Images of one report that are looked at, and hosts that are known at a time: whoever can write to
# the message bus can report for any host.
MOST_IMAGES = 10_000
_MOST_HOSTS = 20_000
_LONGEST_NAME = 255
# Of a host's servers that depend on bootcache.
_MOST_NAMED = 50
_MOST_BYTES = 1 << 62
# A host that was not heard of for so long is forgotten.
_FORGET_SECONDS = 86400


@dataclasses.dataclass(frozen=True)
class HeldImage:
    """One cache image on one host.

    :ivar last_use: seconds since the epoch.
    :ivar medium: the tier that it is in.
    :ivar generation: that the host was told when it placed it, or used it last.
    :ivar bytes: the file's size.
    """

    last_use: float
    medium: Medium
    generation: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class HostHoldings:
    """What a host reported.

    :ivar images: by id.
    :ivar quotas: bytes, by tier.
    :ivar unsettled: how many of its servers depend on bootcache; None if it does not know, or does
        not tell.
    :ivar named: some of these servers, and why each does.
    :ivar waiting: how many of its servers' guests stand still, and wait; None if it does not tell.
    :ivar waits: some of these, with what for, and since when in seconds since the epoch.
    :ivar rpc: version of bootcache/rpcapi.py that it speaks; None if it does not tell.
    """

    images: Mapping[str, HeldImage]
    quotas: Mapping[str, int]
    unsettled: int | None = None
    named: tuple[tuple[str, str], ...] = ()
    waiting: int | None = None
    waits: tuple[tuple[str, str, float], ...] = ()
    rpc: str | None = None


def use_time(value: Any, now: float) -> float:
    """Return a time of use in seconds since the epoch; nothing is used in the future.

    :raises ValueError: if it is none; TypeError and OverflowError likewise.
    """
    when = float(value)
    if not math.isfinite(when):
        raise ValueError(f'{value!r} is no time')
    return min(max(when, 0.0), now)


def _size(value: Any) -> int:
    return min(max(int(value), 0), _MOST_BYTES)


def parse(report: Any, now: float) -> HostHoldings:
    """Read a host's report; what makes no sense in it is left out. Pure.

    :param report: as in ``report_holdings`` of bootcache/rpcapi.py.
    :param now: seconds since the epoch.
    """
    document = report if isinstance(report, dict) else {}
    images, quotas = {}, {}
    for image_id, entry in _items(document.get('images')):
        try:
            used, medium, generation, size = entry
            images[naming.canonical_image_id(image_id)] = HeldImage(
                use_time(used, now), Medium(medium), _size(generation), _size(size))
        except (ValueError, TypeError, OverflowError, AttributeError):
            continue
    for name, size in _items(document.get('quotas')):
        try:
            quotas[Medium(name).value] = _size(size)
        except (ValueError, TypeError, OverflowError):
            continue
    return HostHoldings(images, quotas, *_unsettled(document.get('unsettled')),
                        *_waiting(document.get('unsettled'), now),
                        rpc=_version(document.get('rpc')))


def _unsettled(entry: Any) -> tuple[int | None, tuple[tuple[str, str], ...]]:
    try:
        named = tuple((str(server)[:_LONGEST_NAME], str(why)[:_LONGEST_NAME])
                      for server, why in entry['named'][:_MOST_NAMED])
        return _size(entry['servers']), named
    except (KeyError, ValueError, TypeError, OverflowError):
        return None, ()


def _waiting(entry: Any, now: float) -> tuple[int | None, tuple[tuple[str, str, float], ...]]:
    try:
        told = entry['waiting']
        waits = tuple((str(server)[:_LONGEST_NAME], str(why)[:_LONGEST_NAME], use_time(since, now))
                      for server, why, since in told['named'][:_MOST_NAMED])
        return _size(told['servers']), waits
    except (KeyError, ValueError, TypeError, OverflowError):
        return None, ()


def _version(entry: Any) -> str | None:
    return entry[:_LONGEST_NAME] if isinstance(entry, str) else None


def _items(entries: Any) -> list[tuple[Any, Any]]:
    return list(entries.items())[:MOST_IMAGES] if isinstance(entries, dict) else []


@dataclasses.dataclass
class _Host:
    """A host, as it was heard of last.

    :ivar seen: monotonic seconds.
    """

    holdings: HostHoldings
    seen: float


class Hosts:
    """All hosts that have reported within a day.

    :param store: the images' manifests.
    :param tiers: hear of last uses.
    :param is_gone: tells whether Glance gives an image no more out of which there is no manifest.
    :param orders: what operators want gone from single hosts.
    :param clock: monotonic seconds.
    """

    def __init__(self, store: ImageStore, tiers: StorageTiers, is_gone: Callable[[str], bool],
                 orders: Orders, clock: Callable[[], float] = time.monotonic):
        self._store = store
        self._tiers = tiers
        self._is_gone = is_gone
        self._orders = orders
        self._clock = clock
        # Guards the dictionary and its hosts; no file is read under it.
        self._lock = threading.Lock()
        self._hosts: dict[str, _Host] = {}

    def report(self, name: str, report: Any) -> dict[str, Any]:
        """Take a host's report, and tell what it is to let go of.

        :param report: None if nothing has changed since its last one.
        :returns: see ``report_holdings`` in bootcache/rpcapi.py.
        """
        name, now = str(name)[:_LONGEST_NAME], self._clock()
        fresh = None if report is None else parse(report, time.time())
        for image_id, held in fresh.images.items() if fresh else ():
            if self._store.load(image_id) is not None:
                # Whatever else a host names is not worth remembering.
                self._tiers.note_use(image_id, held.last_use)
        with self._lock:
            host = self._hosts.get(name)
            if host is None and fresh is None:
                return {'drop': [], 'resend': True}
            if host is None:
                self._make_room(now)
                host = self._hosts[name] = _Host(HostHoldings({}, {}), now)
                LOG.info('host %s tells what it holds', name)
            host.seen = now
            if fresh is not None:
                host.holdings = fresh
            images = host.holdings.images
        if fresh is not None:
            self._orders.settle(name, fresh.images)
        orders = self._orders.of(name)
        drop = [image_id for image_id, held in images.items()
                if self._is_to_go(image_id, held, image_id in orders)]
        if drop:
            LOG.debug('host %s is to let go of %s', name, ', '.join(drop))
        return {'drop': drop, 'resend': False}

    def _make_room(self, now: float) -> None:
        for name in [name for name, host in self._hosts.items()
                     if now - host.seen > _FORGET_SECONDS]:
            del self._hosts[name]
        while len(self._hosts) >= _MOST_HOSTS:
            del self._hosts[min(self._hosts, key=lambda name: self._hosts[name].seen)]

    def _is_to_go(self, image_id: str, held: HeldImage, ordered: bool) -> bool:
        manifest = self._store.load(image_id)
        damaged = manifest is None and self._store.is_damaged(image_id)
        return decisions.is_to_go(
            held.generation, manifest, ordered=ordered, damaged=damaged,
            gone=manifest is None and not damaged and self._is_gone(image_id))

    def _present(self) -> list[tuple[str, _Host, float]]:
        """Return name, host and seconds since its report, by name; call it with the lock held."""
        now = self._clock()
        return [(name, host, now - host.seen) for name, host in sorted(self._hosts.items())
                if now - host.seen <= _FORGET_SECONDS]

    def describe(self) -> list[dict[str, Any]]:
        """Return the hosts: see ``list_hosts`` in bootcache/rpcapi.py."""
        with self._lock:
            present = [(name, host.holdings, seen) for name, host, seen in self._present()]
        return [{'host': name, 'seen': seen, 'images': len(holdings.images),
                 'bytes': _by_tier(holdings.images.values()), 'quotas': dict(holdings.quotas),
                 'rpc': holdings.rpc,
                 'unsettled': holdings.unsettled, 'named': [list(one) for one in holdings.named],
                 'waiting': None if holdings.waiting is None else {
                     'servers': holdings.waiting, 'named': [list(one) for one in holdings.waits]}}
                for name, holdings, seen in present]

    def holders(self, image_id: str) -> list[dict[str, Any]]:
        """Return the hosts that hold an image: see ``image_hosts`` in bootcache/rpcapi.py."""
        with self._lock:
            found = [(name, held, seen) for name, host, seen in self._present()
                     if (held := host.holdings.images.get(image_id)) is not None]
        return [{'host': name, 'medium': held.medium.value, 'bytes': held.bytes,
                 'last_use': held.last_use, 'seen': seen,
                 'leaving': self._is_to_go(image_id, held, image_id in self._orders.of(name))}
                for name, held, seen in found]

    def held_since(self, image_id: str, since: float) -> dict[str, int]:
        """Return the generations that hosts hold of an image, of hosts that reported after a time.

        :param since: monotonic seconds, as of the clock.
        """
        with self._lock:
            return {name: held.generation for name, host in self._hosts.items()
                    if host.seen > since
                    and (held := host.holdings.images.get(image_id)) is not None}

    def seen(self) -> dict[str, float]:
        """Return when each host reported last, in monotonic seconds as of the clock."""
        with self._lock:
            return {name: host.seen for name, host in self._hosts.items()}

    def order_eviction(self, image_id: str, names: Iterable[str]) -> list[str]:
        """Have hosts let go of an image; forgotten once a host reports that it has.

        :returns: names of those that hold it.
        :raises RequestRefused: if a host is not known, or too many orders wait; then none is told.
        """
        with self._lock:
            known = {name: host for name, host, _seen in self._present()}
            wanted = {str(name) for name in names}
            missing = sorted(wanted - set(known))
            if missing:
                raise RequestRefused(
                    f'not heard of: {", ".join(missing)[:_LONGEST_NAME]}; "bootcache host list"'
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
