"""Servers and their boots: where they are, what they wait for, and what hosts publish."""

import collections
import dataclasses
import uuid
from collections.abc import Generator
from typing import Any

import numpy
import simpy

from bench.cluster import calibration, workload
from bench.cluster.calibration import Measured
from bench.cluster.chains import Chains, Reading
from bench.cluster.hosts import Cluster, Host
from bench.cluster.nodes import Nodes
from bench.cluster.policies import Policy
from bench.cluster.scheduling import Scheduler
from bench.cluster.settling import Settling
from bench.cluster.storage import StorageNode
from bench.cluster.workload import Flavor
from bootcache.tier import Medium
from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Holding, Level

_PUBLISH_SECONDS = 60       # Nova's update_resources_interval
_SWEEP_SECONDS = 2400       # Nova's image_cache.manager_interval
_SAMPLE_SECONDS = 60
_LEVELS = {Medium.DISK: Level.DISK, Medium.MEMORY: Level.MEMORY}


@dataclasses.dataclass
class Boot:
    """What became of one server's boot.

    :ivar delay: seconds that it took longer than the guest itself takes: until its disk was made,
        and for what it read and was not there yet.
    :ivar hit: its data was whole on the host when it was asked for, base or cache image.
    """

    at: float
    image: int
    host: int
    storm: int
    delay: float = 0.0
    hit: bool = False


@dataclasses.dataclass(frozen=True)
class Sample:
    """What is seen of storage nodes that are images' homes, at a time.

    :ivar passed: bytes that each one's link has passed on until then.
    :ivar unsettled: running servers that need each one.
    """

    at: float
    passed: tuple[float, ...]
    unsettled: tuple[int, ...]


class World:
    """One run.

    :ivar boots: of all servers, in the order of their requests.
    :ivar samples: one a minute, where images have homes.
    :ivar unsettled: running servers that need their image's home, by image.
    :ivar depended: of these, how many needed the node that was lost, when it was.
    :ivar largest: number of the largest batch of real arrivals, as in ``Boot.storm``; -1 if there
        is none.
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
        self.storage: Any
        if cluster.homes:
            self.storage = Nodes(env, cluster.node, cluster.host_link, measured.hash_rate,
                                 policy.cache, cluster.pace, cluster.load.images, seed)
        else:
            self.storage = StorageNode(env, cluster.node, cluster.host_link, measured.hash_rate,
                                       policy.cache, cluster.pace)
        if policy.cache:
            self.storage.register(
                numpy.random.default_rng(seed).permutation(cluster.load.images).tolist())
        self._chains = Chains(env, cluster, measured, self.storage, policy.cache)
        self.settling = Settling(env, self.storage, cluster.settle_rate)
        self.hosts = [Host(env, number, cluster) for number in range(cluster.hosts)]
        self.scheduler = Scheduler(cluster.hosts, cluster.hardware, policy.multiplier,
                                   policy.by_properties, cluster.candidates, names, seed)
        self.boots: list[Boot] = []
        self.refused = 0
        self.samples: list[Sample] = []
        self.unsettled: collections.Counter[int] = collections.Counter()
        self.depended = 0
        self.largest = -1
        self._under_way = 0

    @property
    def waits(self) -> list[tuple[float, bool]]:
        """Of each server that waited for other hosts: the seconds, and whether it was in vain."""
        return self._chains.exchange.waits

    def run(self) -> None:
        """Run it to the last boot."""
        last = self.env.process(self._ask())
        self.env.process(self._publish())
        self.env.process(self._sweep())
        if self.cluster.homes:
            self.env.process(self._sample())
        self.env.run(until=last)
        if self.cluster.homes and self.env.now > self.samples[-1].at:
            self._note_sample()

    def _ask(self) -> Generator[Any, Any, Any]:
        for number, request in enumerate(workload.requests(self.cluster.load, self._seed)):
            yield self.env.timeout(request.at - self.env.now)
            storm = number if len(request.lives) > 1 else -1
            if request.is_largest:
                self.largest = storm
                if self.cluster.lost_after is not None:
                    self.env.process(self._lose(request.image, self.cluster.lost_after))
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
        reading = None
        if chained:
            reading = yield from self._chains.make(host, image)
        elif image not in host.bases:
            yield from self._download(host, image)
        yield self.env.timeout(self._measured.overlay_seconds)
        self.env.process(self._boot(boot, reading))
        self.scheduler.built(host.number)
        if not chained:
            host.bases[image] = self.env.now
            self.settling.comes_later(host, image)
        self.unsettled[image] += chained
        end, delay = self.env.timeout(life), self.cluster.settle_delay
        ends_at = self.env.now + life
        if chained and self._policy.cache and self.cluster.settle and life > delay:
            yield self.env.timeout(delay)
            yield self.settling.base(host, image) | end
            if not end.processed:
                self.settling.moves(host, image, ends_at - self.env.now)
                self.unsettled[image] -= 1
                host.bases[image] = self.env.now
                host.busy[image] -= 1
                host.base_users[image] += 1
                chained = False
        yield end
        self.unsettled[image] -= chained
        (host.busy if chained else host.base_users)[image] -= 1
        self.scheduler.release(host.number, image, flavor)

    def _boot(self, boot: Boot, reading: Reading | None) -> Generator[Any, Any, Any]:
        """Boot the guest, whose disk is made."""
        boot.delay = self.env.now - boot.at
        if reading is not None:
            boot.delay += yield from reading
        self._under_way -= 1

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

    def _lose(self, image: int, after: float) -> Generator[Any, Any, Any]:
        """Lose the home of an image."""
        yield self.env.timeout(after)
        self.storage.lose(image)
        self.depended = sum(self.unsettled[moved] for moved in self.storage.moved)

    def _sample(self) -> Generator[Any, Any, Any]:
        while True:
            self._note_sample()
            yield self.env.timeout(_SAMPLE_SECONDS)

    def _note_sample(self) -> None:
        unsettled = [0] * len(self.storage.nodes)
        for image, servers in self.unsettled.items():
            unsettled[self.storage.number(image)] += servers
        self.samples.append(Sample(self.env.now, tuple(
            one.passed for one in self.storage.nodes), tuple(unsettled)))

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
