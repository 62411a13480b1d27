"""Hosts, servers and boots: each boot is decided by the product's placement and eviction."""

import collections
import dataclasses
import uuid
from collections.abc import Iterator
from typing import Any

import simpy

from bootcache import tier
from bootcache.tier import Item, Limits, Medium
from nova_bootcache import placement, warmth
from nova_bootcache.placement import Held, Offer, Step, Storage
from nova_bootcache.warmth import Holding, Level
from tests.bench.cluster import calibration, workload
from tests.bench.cluster.calibration import Measured
from tests.bench.cluster.policies import Policy
from tests.bench.cluster.scheduling import Hardware, Scheduler
from tests.bench.cluster.storage import Node, StorageNode
from tests.bench.cluster.workload import Flavor, Load

_PUBLISH_SECONDS = 60       # Nova's update_resources_interval
_SWEEP_SECONDS = 2400       # Nova's image_cache.manager_interval
_BASE_AGE = 86400           # Nova's remove_unused_original_minimum_age_seconds
_SETTLE_DELAY = 60          # [bootcache]settle_delay
_SETTLE_RATE = 50 << 20     # [bootcache]settle_bandwidth
_LEVELS = {Medium.DISK: Level.DISK, Medium.MEMORY: Level.MEMORY}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """What a run is of.

    :ivar hosts: how many.
    :ivar host_link: bytes a second.
    :ivar disk_quota: bytes of compute disk.
    :ivar memory_quota: bytes of compute memory; 0 for none.
    :ivar candidates: Placement's limit, ``[scheduler]max_placement_results``.
    :ivar settle: whether servers settle.
    """

    hosts: int
    load: Load
    hardware: Hardware = dataclasses.field(default_factory=Hardware)
    node: Node = dataclasses.field(default_factory=Node)
    host_link: float = 10e9 / 8
    disk_quota: int = 10 << 30
    memory_quota: int = 0
    candidates: int = 1000
    settle: bool = True


class Tier:
    """One tier of one host."""

    def __init__(self, quota: int):
        self.limits = Limits.from_percent(quota, 95, 85)
        self.held: dict[int, tuple[int, float]] = {}

    def plan(self, host: 'Host', size: int) -> tier.Room:
        """Ask the product's eviction for room."""
        return tier.make_room((Item(str(image), held, used, busy=bool(host.busy[image]))
                               for image, (held, used) in self.held.items()), self.limits, size)


class Host:
    """One compute host.

    :ivar busy: servers that have an image's cache image open, or wait for it.
    :ivar bases: full bases, and when they were used last.
    :ivar base_users: servers on a full base.
    :ivar arriving: what is being fetched.
    :ivar dirty: it holds something else than it has published.
    """

    def __init__(self, number: int, cluster: Cluster):
        self.number = number
        self.tiers = {Medium.DISK: Tier(cluster.disk_quota)}
        if cluster.memory_quota:
            self.tiers[Medium.MEMORY] = Tier(cluster.memory_quota)
        self.busy: collections.Counter[int] = collections.Counter()
        self.bases: dict[int, float] = {}
        self.base_users: collections.Counter[int] = collections.Counter()
        self.arriving: dict[int, Any] = {}
        self.dirty = False

    def medium(self, image: int) -> Medium | None:
        """Return the tier that has an image's cache image."""
        for medium, one in self.tiers.items():
            if image in one.held:
                return medium
        return None


@dataclasses.dataclass
class Boot:
    """What became of one server's boot.

    :ivar delay: seconds from the request until nothing but the guest itself took time.
    :ivar hit: its data was on the host when it was asked for.
    """

    at: float
    image: int
    host: int
    storm: int
    delay: float = 0.0
    hit: bool = False


class World:
    """One run.

    :ivar boots: of all servers, in the order of their requests.
    :ivar refused: servers for which no host had room.
    """

    def __init__(self, env: simpy.Environment, cluster: Cluster, policy: Policy,
                 measured: Measured, seed: int):
        self.env = env
        self.cluster = cluster
        self._policy = policy
        self._measured = measured
        self._seed = seed
        names = [str(uuid.UUID(int=number + 1)) for number in range(cluster.load.images)]
        self._keys = [warmth.image_key(name) for name in names]
        self.storage = StorageNode(self.env, cluster.node, cluster.host_link)
        self.hosts = [Host(number, cluster) for number in range(cluster.hosts)]
        self.scheduler = Scheduler(cluster.hosts, cluster.hardware, policy.multiplier,
                                   policy.by_properties, cluster.candidates, names, seed)
        self.boots: list[Boot] = []
        self.refused = 0

    def run(self) -> None:
        """Run it to the last boot."""
        last = self.env.process(self._ask())
        self.env.process(self._publish())
        self.env.process(self._sweep())
        self.env.run(until=last)

    def _ask(self) -> Iterator[Any]:
        for number, request in enumerate(workload.requests(self.cluster.load, self._seed)):
            yield self.env.timeout(request.at - self.env.now)
            storm = number if len(request.lives) > 1 else -1
            for life in request.lives:
                chosen = self.scheduler.choose(request.image, request.flavor)
                if chosen is None:
                    self.refused += 1
                    continue
                boot = Boot(self.env.now, request.image, chosen, storm)
                self.boots.append(boot)
                self.env.process(self._serve(boot, request.flavor, life))
        # Whose boot is not over has no delay yet.
        while any(boot.delay == 0 for boot in self.boots[-1000:]):
            yield self.env.timeout(1)

    # A server's life.

    def _serve(self, boot: Boot, flavor: Flavor, life: float) -> Iterator[Any]:
        host = self.hosts[boot.host]
        began = self.env.now
        if boot.image in host.bases:
            boot.hit = True
            chained = False
        elif self._policy.whole:
            yield from self._download(host, boot.image)
            chained = False
        else:
            host.busy[boot.image] += 1
            yield from self._chain(host, boot)
            chained = True
        yield self.env.timeout(self._measured.overlay_seconds)
        boot.delay = self.env.now - began
        self.scheduler.built(host.number)
        if not chained:
            host.base_users[boot.image] += 1
            host.bases[boot.image] = self.env.now
        left = life
        if chained and self._policy.cache and self.cluster.settle and left > _SETTLE_DELAY:
            yield self.env.timeout(_SETTLE_DELAY)
            left -= _SETTLE_DELAY
            spent = self._complete(host, boot.image)
            if left > spent:
                yield self.env.timeout(spent)
                left -= spent
                host.bases[boot.image] = self.env.now
                host.dirty = True
                host.busy[boot.image] -= 1
                host.base_users[boot.image] += 1
                chained = False
        yield self.env.timeout(left)
        (host.busy if chained else host.base_users)[boot.image] -= 1
        self.scheduler.release(host.number, boot.image, flavor)

    def _complete(self, host: Host, image: int) -> float:
        """Return the seconds that settling takes; its bytes are counted once a host and image."""
        if image in host.bases:
            return 0.0
        size = calibration.IMAGE_BYTES.value
        if not host.busy[image] > 1:
            self.storage.settled_bytes += size
        return size / _SETTLE_RATE

    def _download(self, host: Host, image: int) -> Iterator[Any]:
        """Get the whole image and convert it, as stock Nova does; servers of one image wait."""
        if image in host.arriving:
            yield host.arriving[image]
            return
        host.arriving[image] = self.env.event()
        size = calibration.IMAGE_BYTES.value
        yield self.storage.send(-1, size, Medium.DISK)
        yield self.env.timeout(size / self._measured.convert_rate)
        host.bases[image] = self.env.now
        host.arriving.pop(image).succeed()

    def _chain(self, host: Host, boot: Boot) -> Iterator[Any]:
        """Carry out the plan of the product's placement."""
        image, size = boot.image, int(calibration.CACHE_BYTES.value)
        if image in host.arriving:
            yield host.arriving[image]
        storage = Storage(Offer.CACHE if self._policy.cache else Offer.COLD,
                          self.storage.medium(image), self.storage.has_memory)
        there = host.medium(image)
        rooms = {medium: medium in host.tiers and host.tiers[medium].plan(host, size).fits
                 for medium in Medium}
        plan = placement.plan(placement.Host(
            Held.CURRENT if there is not None else Held.NOTHING, rooms[Medium.MEMORY],
            rooms[Medium.DISK], False), storage)
        for step in plan:
            if step is Step.PROMOTE:
                self.storage.promote(image, size)
            elif step is Step.USE_LOCAL:
                assert there is not None
                boot.hit = True
                host.tiers[there].held[image] = size, self.env.now
                host.dirty = True
            elif step in placement.MEDIUM:
                yield from self._fetch(host, image, size, placement.MEDIUM[step], storage.medium)
        if host.medium(image) is None:
            # Each read waits for its answer, and all of them share the link.
            yield self.storage.send(image, calibration.BOOT_BYTES.value, Medium.DISK)
            yield self.env.timeout(calibration.BOOT_REQUESTS.value * self.storage.node.round_trip)

    def _fetch(self, host: Host, image: int, size: int, medium: Medium,
               source: Medium) -> Iterator[Any]:
        target = host.tiers[medium]
        for victim in target.plan(host, size).evict:
            del target.held[int(victim)]
        # It counts from now on, as the product reserves its room.
        target.held[image] = size, self.env.now
        host.arriving[image] = self.env.event()
        host.dirty = True
        yield self.storage.send(image, size, source)
        yield self.env.timeout(size / self._measured.hash_rate)
        host.arriving.pop(image).succeed()
        host.dirty = True

    # What hosts do by themselves.

    def _publish(self) -> Iterator[Any]:
        """Each host publishes once a minute, at its own second."""
        while True:
            second = int(self.env.now) % _PUBLISH_SECONDS
            for host in self.hosts[second::_PUBLISH_SECONDS]:
                if host.dirty:
                    self.scheduler.publish(host.number, self._entry(host))
                    host.dirty = False
            yield self.env.timeout(1)

    def _entry(self, host: Host) -> str:
        holdings = [Holding(self._keys[image], Level.BASE, used)
                    for image, used in host.bases.items()]
        for medium, one in host.tiers.items():
            holdings += [Holding(self._keys[image], Level.ARRIVING if image in host.arriving
                                 else _LEVELS[medium], used)
                         for image, (_size, used) in one.held.items()]
        return warmth.encode(holdings)

    def _sweep(self) -> Iterator[Any]:
        """Nova's image cache manager: bases without servers go when they are old."""
        while True:
            yield self.env.timeout(_SWEEP_SECONDS)
            for host in self.hosts:
                for image in [image for image, used in host.bases.items()
                              if not host.base_users[image] and self.env.now - used > _BASE_AGE]:
                    del host.bases[image]
                    host.dirty = True
