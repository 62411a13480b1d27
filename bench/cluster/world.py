"""Servers and their boots: each boot is decided by the product's placement and eviction."""

import dataclasses
import uuid
from collections.abc import Generator
from typing import Any

import numpy
import simpy

from bench.cluster import calibration, settling, workload
from bench.cluster.calibration import Measured
from bench.cluster.hosts import Cluster, Host
from bench.cluster.policies import Policy
from bench.cluster.scheduling import Scheduler
from bench.cluster.settling import Settling
from bench.cluster.storage import StorageNode
from bench.cluster.workload import Flavor
from bootcache.tier import Medium
from nova_bootcache.asking import placement
from nova_bootcache.asking.placement import HeldHere, Offer, PlanStep, Storage, TierRoom
from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Holding, Level

_PUBLISH_SECONDS = 60       # Nova's update_resources_interval
_SWEEP_SECONDS = 2400       # Nova's image_cache.manager_interval
_AGAIN_SECONDS = 10         # after a cold boot, until the host asks for a cache image
_LEVELS = {Medium.DISK: Level.DISK, Medium.MEMORY: Level.MEMORY}


@dataclasses.dataclass
class Boot:
    """What became of one server's boot.

    :ivar delay: seconds from the request until nothing but the guest itself took time.
    :ivar hit: its data was whole on the host when it was asked for, base or cache image.
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
        self.storage = StorageNode(env, cluster.node, cluster.host_link, measured.hash_rate,
                                   policy.cache)
        if policy.cache:
            self.storage.register(
                numpy.random.default_rng(seed).permutation(cluster.load.images).tolist())
        self._settling = Settling(env, self.storage, cluster.settle_rate)
        self.hosts = [Host(env, number, cluster) for number in range(cluster.hosts)]
        self.scheduler = Scheduler(cluster.hosts, cluster.hardware, policy.multiplier,
                                   policy.by_properties, cluster.candidates, names, seed)
        self.boots: list[Boot] = []
        self.refused = 0
        self._under_way = 0

    def run(self) -> None:
        """Run it to the last boot."""
        last = self.env.process(self._ask())
        self.env.process(self._publish())
        self.env.process(self._sweep())
        self.env.run(until=last)

    def _ask(self) -> Generator[Any, Any, Any]:
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
                self._under_way += 1
                self.env.process(self._serve(boot, request.flavor, life))
        # Whose boot is not over has no delay yet.
        while self._under_way:
            yield self.env.timeout(1)

    # A server's life.

    def _serve(self, boot: Boot, flavor: Flavor, life: float) -> Generator[Any, Any, Any]:
        host, image = self.hosts[boot.host], boot.image
        boot.hit = host.has(image)
        chained = image not in host.bases and not self._policy.whole
        (host.busy if chained else host.base_users)[image] += 1
        if chained:
            yield from self._chain(host, image)
        elif image not in host.bases:
            yield from self._download(host, image)
        yield self.env.timeout(self._measured.overlay_seconds)
        boot.delay = self.env.now - boot.at
        self._under_way -= 1
        self.scheduler.built(host.number)
        if not chained:
            host.bases[image] = self.env.now
        end = self.env.timeout(life)
        if chained and self._policy.cache and self.cluster.settle and life > settling.DELAY:
            yield self.env.timeout(settling.DELAY)
            yield self._settling.base(host, image) | end
            if not end.processed:
                host.bases[image] = self.env.now
                host.busy[image] -= 1
                host.base_users[image] += 1
                chained = False
        yield end
        (host.busy if chained else host.base_users)[image] -= 1
        self.scheduler.release(host.number, image, flavor)

    def _download(self, host: Host, image: int) -> Generator[Any, Any, Any]:
        """Get the whole image and convert it, as stock Nova does; servers of one image wait."""
        if image in host.arriving:
            yield host.arriving[image]
            return
        host.arriving[image] = self.env.event()
        size = calibration.IMAGE_BYTES.value
        yield self.storage.send(host.link, size, ('base', image))
        yield self.env.timeout(size / self._measured.convert_rate)
        host.bases[image] = self.env.now
        host.arriving.pop(image).succeed()

    def _chain(self, host: Host, image: int) -> Generator[Any, Any, Any]:
        """Carry out the plan of the product's placement."""
        if image in host.arriving:
            yield host.arriving[image]
        storage = self._ask_storage(image)
        there = host.medium(image)
        plan = placement.plan(self._state(host, image), storage)
        for step in plan:
            if step is PlanStep.USE_LOCAL:
                assert there is not None
                host.tiers[there].held[image] = int(calibration.CACHE_BYTES.value), self.env.now
                host.dirty = True
        yield from self._fetch(host, image, plan, storage.medium)
        if host.medium(image) is None:
            if storage.offer is Offer.COLD and self._policy.cache:
                self.env.process(self._fetch_later(host, image))
            # Each read waits for its answer, and all of them share the link.
            yield self.storage.send(host.link, calibration.BOOT_BYTES.value, ('part', image))
            yield self.env.timeout(calibration.BOOT_REQUESTS.value * self.storage.node.round_trip)

    def _ask_storage(self, image: int) -> Storage:
        return Storage(self.storage.ask(image) if self._policy.cache else Offer.COLD,
                       self.storage.medium(image), self.storage.has_memory)

    def _state(self, host: Host, image: int) -> placement.Host:
        """Return what the placement has to know; servers wait for what is fetched.

        Where the product has a cache image arrive while its server boots, that waits less: the
        delays here are those of a host that has no room for the tables of an arrival.
        """
        size = int(calibration.CACHE_BYTES.value)
        rooms = {medium: TierRoom.FILE if medium in host.tiers
                 and host.tiers[medium].plan(host, size).fits else TierRoom.NONE
                 for medium in Medium}
        return placement.Host(HeldHere.NOTHING if host.medium(image) is None else HeldHere.CURRENT,
                              rooms[Medium.MEMORY], rooms[Medium.DISK], False)

    def _fetch(self, host: Host, image: int, plan: placement.Plan,
               source: Medium) -> Generator[Any, Any, Any]:
        """Do what a plan says of fetching, if it does."""
        size = int(calibration.CACHE_BYTES.value)
        for step in plan:
            if step is PlanStep.PROMOTE:
                self.storage.promote(image)
            elif step in placement.FETCH:
                target = host.tiers[placement.FETCH[step]]
                for victim in target.plan(host, size).evict:
                    del target.held[int(victim)]
                # It counts from now on, as the product reserves its room.
                target.held[image] = size, self.env.now
                host.arriving[image] = self.env.event()
                host.dirty = True
                self.storage.fetching[image] += 1
                yield self.storage.send(host.link, size,
                                        ('cache', image) if source is Medium.DISK else None)
                self.storage.fetching[image] -= 1
                yield self.env.timeout(size / self._measured.hash_rate)
                host.arriving.pop(image).succeed()
                host.dirty = True

    def _fetch_later(self, host: Host, image: int) -> Generator[Any, Any, Any]:
        """After a cold boot: the host fetches the cache image once it is built again."""
        built = self.storage.built(image)
        if built is None:
            return
        yield built
        yield self.env.timeout(_AGAIN_SECONDS)
        if not host.has(image) and image not in host.arriving:
            storage = self._ask_storage(image)
            yield from self._fetch(host, image, placement.plan_warming(
                self._state(host, image), storage), storage.medium)

    # What hosts do by themselves.

    def _publish(self) -> Generator[Any, Any, Any]:
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

    def _sweep(self) -> Generator[Any, Any, Any]:
        """Nova's image cache manager: what no server uses goes when it is old."""
        while True:
            yield self.env.timeout(_SWEEP_SECONDS)
            for host in self.hosts:
                host.forget_unused(self.env.now, self.cluster.base_age)
