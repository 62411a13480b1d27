"""The storage nodes: their link, their disks, their memory, and their two tiers."""

import collections
import dataclasses
import math
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import simpy

from bench.cluster import calibration
from bench.cluster.links import Coming, FairLink
from bootcache import tier
from bootcache.tier import Item, Medium, TierLimits
from nova_bootcache.asking.placement import Offer

# A host may be fetching what was asked for just now (glance_bootcache/storage/tiers.py).
_FETCH_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class Node:
    """A storage node, and how many there are: assumptions but for the quotas, the operator's.

    :ivar link: bytes a second.
    :ivar disk: bytes a second that its disk reads.
    :ivar memory_quota: bytes of its memory tier; 0 for none.
    :ivar disk_quota: bytes of its disk tier.
    :ivar page_cache: bytes of memory that keep what was read from the disk last. A node that serves
        no cache images has those of the memory tier for that, too.
    :ivar round_trip: seconds of a request from a host and back.
    :ivar settle_slots: hosts that get full bases from it at the same time, where images have homes:
        ``[bootcache]settle_slots``. A node that stands for all of them has no such bound.
    :ivar count: of such nodes; taken as one that is as many times as large, unless images have
        homes.
    """

    link: float = 10e9 / 8
    disk: float = 500e6
    memory_quota: int = 4 << 30
    disk_quota: int = 100 << 30
    page_cache: int = 4 << 30
    round_trip: float = 0.0002
    settle_slots: int = 4
    count: int = 1

    def alone(self) -> 'Node':
        """Return one of them."""
        return dataclasses.replace(self, count=1)


def nodes_for(hosts: int) -> Node:
    """Return the storage of a cluster: one node for each 1,000 hosts, or a part of them."""
    return Node(count=-(-hosts // 1000))


@dataclasses.dataclass
class _Copy:
    """A cache image in a tier.

    :ivar used: when a server last asked for it.
    :ivar ready: the event after which it is served.
    """

    size: int
    used: float
    ready: Any


class Arriving:
    """A file on its way to a host, which can be read in its order as it comes.

    :param ways: the links and disks that it passes.
    :ivar done: the event of its end.
    :ivar lost: the event of the loss of the node that sends it; None if that is not lost.
    """

    def __init__(self, env: simpy.Environment, ways: Sequence[Coming]):
        self._ways = ways
        self.done = env.all_of([way.done for way in ways])
        self.lost: Any = None

    def come(self) -> float:
        """Return how many of its bytes have come; infinite if all have."""
        return min((way.come() for way in self._ways), default=math.inf)

    def read_along(self, size: float) -> Generator[Any, Any, float]:
        """Read its first bytes from now on, until they have come.

        :returns: how many seconds longer that takes than if all of them had been there. What has
            come is what the slowest way has passed on, so one who waits, waits for that.
        """
        behind = 0.0
        for come in [way.read_along(size) for way in self._ways]:
            behind = max(behind, (yield come))
        return behind


class StorageNode:
    """Serves bases and cache images.

    :param host_link: bytes a second of a compute host.
    :param hash_rate: bytes a second at which a cache image is verified.
    :param caches: whether it makes and serves cache images.
    :param pace: seconds a byte of a guest that reads what is there.
    :ivar bytes: sent to hosts for their boots.
    :ivar settled_bytes: sent to hosts that settle servers.
    :ivar disk_bytes: read from the disks for all of that.
    :ivar fetching: hosts that fetch an image's cache image.
    :ivar lost: the event of its loss.
    """

    def __init__(self, env: simpy.Environment, node: Node, host_link: float, hash_rate: float,
                 caches: bool, pace: float = 0.0):
        self._env = env
        self.node = node
        self._hash_rate = hash_rate
        self.has_memory = caches and node.memory_quota > 0
        self._memory_limits = TierLimits.from_percent(node.count * node.memory_quota, 95, 85)
        self._disk_limits = TierLimits.from_percent(node.count * node.disk_quota, 95, 85)
        self._memory: dict[int, _Copy] = {}
        self._disk: dict[int, _Copy] = {}
        # Files and parts of files that were read last, with their bytes and the reading of them.
        self._pages: collections.OrderedDict[tuple[str, int], tuple[float, Coming]] = \
            collections.OrderedDict()
        self._pages_left = float(node.count * (
            node.page_cache + (0 if caches else node.memory_quota)))
        self._link = FairLink(env, node.count * node.link, min(host_link, node.link), pace)
        self._spindle = FairLink(env, node.count * node.disk, node.disk, pace)
        self.bytes = 0.0
        self.settled_bytes = 0.0
        self.fetching: collections.Counter[int] = collections.Counter()
        self.lost = env.event()

    def stop(self) -> None:
        """Lose it: what it sends and reads stands still."""
        self._link.stop()
        self._spindle.stop()
        self.lost.succeed()

    @property
    def passed(self) -> float:
        """Bytes that its link has passed on until now."""
        return self._link.passed

    @property
    def disk_bytes(self) -> float:
        """Bytes read from the disks."""
        return self._spindle.bytes

    # The tiers.

    def register(self, images: Iterable[int]) -> None:
        """Have the cache images of images that are registered one by one, before all boots."""
        size = int(calibration.CACHE_BYTES.value)
        order = list(images)
        for number, image in enumerate(order):
            # What stays below the watermark evicts nothing, and need not be asked each time.
            if (number + 1) * size <= self._disk_limits.high or self._make_disk_room(size):
                self._disk[image] = _Copy(size, number - len(order), self._env.event().succeed())

    def ask(self, image: int) -> Offer:
        """A server's host asks what there is; a cache image that is gone is built again."""
        for held in (self._disk, self._memory):
            if image in held:
                held[image].used = self._env.now
        if image not in self._disk and self._make_disk_room(int(calibration.CACHE_BYTES.value)):
            self._disk[image] = _Copy(int(calibration.CACHE_BYTES.value), self._env.now,
                                      self._env.event())
            self._env.process(self._build(image))
        copy = self._disk.get(image)
        return Offer.CACHE if copy is not None and copy.ready.triggered else Offer.COLD

    def built(self, image: int) -> Any:
        """Return the event of an image's having a cache image; None if there is no room for one."""
        return self._disk[image].ready if image in self._disk else None

    def _build(self, image: int) -> Generator[Any, Any, Any]:
        yield self._read(('part', image), self._disk[image].size).done
        yield self._env.timeout(self._disk[image].size / self._hash_rate)
        self._disk[image].ready.succeed()

    def _make_disk_room(self, size: int) -> bool:
        room = tier.make_room(
            (Item(str(image), copy.size, copy.used,
                  busy=self.fetching[image] > 0 or not copy.ready.triggered)
             for image, copy in self._disk.items()), self._disk_limits, size)
        for victim in room.evict:
            del self._disk[int(victim)]
            # What is in memory is a copy of what is on the disk.
            self._memory.pop(int(victim), None)
        return room.fits

    def medium(self, image: int) -> Medium:
        """Return where an image's cache image is served from."""
        copy = self._memory.get(image)
        return Medium.MEMORY if copy is not None and copy.ready.triggered else Medium.DISK

    def promote(self, image: int) -> None:
        """Copy a cache image to memory, where there is room: SC13, Algorithm 1."""
        if not self.has_memory or image in self._memory:
            return
        now, size = self._env.now, int(calibration.CACHE_BYTES.value)
        room = tier.make_room((Item(str(other), copy.size, copy.used,
                                    busy=now - copy.used < _FETCH_SECONDS)
                               for other, copy in self._memory.items()), self._memory_limits, size)
        if room.fits:
            for victim in room.evict:
                del self._memory[int(victim)]
            self._memory[image] = _Copy(size, now, self._read(('cache', image), size).done)

    # Bytes.

    def _read(self, what: tuple[str, int], size: float, bound: float = math.inf) -> Coming:
        """Read from the page cache, or else from a disk.

        It is the same for all policies: least recently read first out, by files or the parts of
        them that are read. Who reads what another one reads already waits for that.
        """
        if what in self._pages:
            self._pages.move_to_end(what)
            return self._pages[what][1]
        coming = self._spindle.begin(size, bound)
        self._pages[what] = size, coming
        self._pages_left -= size
        while self._pages_left < 0:
            self._pages_left += self._pages.popitem(last=False)[1][0]
        return coming

    def _send(self, link: FairLink, size: float, what: tuple[str, int] | None,
              bound: float = math.inf) -> Arriving:
        ways = [self._link.begin(size, bound), link.begin(size, bound)]
        if what is not None:
            ways.append(self._read(what, size, bound))
        return Arriving(self._env, ways)

    def send(self, link: FairLink, size: float, what: tuple[str, int] | None) -> Any:
        """Send bytes for a boot; the event of their arrival.

        :param link: the host's.
        :param what: is read from the disk or its page cache: the kind of file, and the image; None
            for what is in the memory tier.
        """
        return self.arrive(link, size, what).done

    def arrive(self, link: FairLink, size: float, what: tuple[str, int] | None) -> Arriving:
        """Send a file that a booting server reads as it comes; as :meth:`send`."""
        self.bytes += size
        return self._send(link, size, what)

    def send_base(self, link: FairLink, image: int, rate: float) -> Any:
        """Send an image for settling, at a bounded rate; the event of its arrival."""
        size = calibration.IMAGE_BYTES.value
        self.settled_bytes += size
        return self._send(link, size, ('base', image), rate).done
