"""The scheduler of the simulation: Nova's weighers and ours, on Nova's own host states.

Ours is the product's. Nova's are computed for all hosts at once, as its handler takes a hundred
times as long; tests/unit/bench holds that the two give the same. Placement hands a bounded number
of candidates to the scheduler, taken at random as with ``randomize_allocation_candidates``.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
from nova import objects
from nova.scheduler import host_manager, weights

from bench.cluster.workload import Flavor
from nova_bootcache.published import warmth
from nova_bootcache.scheduler import hostwarmth as scheduler_hosts
from nova_bootcache.scheduler.hostwarmth import HostWarmth
from nova_bootcache.scheduler.weights import BootCacheWeigher


@dataclasses.dataclass(frozen=True)
class Hardware:
    """Every host's size: an assumption."""

    vcpus: int = 64
    memory: int = 256 << 10
    disk: int = 4 << 10


@contextlib.contextmanager
def memory_of_choices(clock: Callable[[], float]) -> Iterator[HostWarmth]:
    """Give the product's scheduler code a memory of this simulation alone."""
    before = scheduler_hosts.HOSTS
    stock = host_manager.HostState.consume_from_request
    scheduler_hosts.HOSTS = HostWarmth(clock)
    scheduler_hosts.follow_choices(scheduler_hosts.HOSTS)
    try:
        yield scheduler_hosts.HOSTS
    finally:
        scheduler_hosts.HOSTS = before
        host_manager.HostState.consume_from_request = stock


def stock_weights(free: numpy.ndarray, building: numpy.ndarray) -> numpy.ndarray:
    """Return what Nova's own weighers make of hosts, with their default multipliers.

    Memory, CPU and disk count for emptier hosts, building servers against; each is divided by the
    highest, as all of them have a minimum of 0.

    :param free: by resource (three rows) and host.
    :param building: servers that are being built, by host.
    """
    total = -_normal(building)
    for row in free:
        total = total + _normal(row)
    return total


def _normal(values: numpy.ndarray) -> numpy.ndarray:
    values = numpy.maximum(values, 0)
    highest = values.max()
    return values / highest if highest else numpy.zeros(len(values))


def stretched(values: numpy.ndarray) -> numpy.ndarray:
    """Return weights as Nova stretches those without a minimum: from 0 to 1."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else numpy.zeros(len(values))


class Scheduler:
    """Chooses hosts.

    :param multiplier: of the product's weigher; 0 for none.
    :param by_properties: multiplier of Nova's image properties weigher, for images that differ in
        one property each: the best case for it; 0 for none.
    :param candidates: how many hosts Placement hands over for one server.
    """

    def __init__(self, count: int, hardware: Hardware, multiplier: float, by_properties: float,
                 candidates: int, images: Sequence[str], seed: int):
        self._multiplier = multiplier
        self._by_properties = by_properties
        self._candidates = candidates
        self._images = images
        self._source = numpy.random.default_rng(seed)
        self._weigher = BootCacheWeigher() if multiplier else None
        self.free = numpy.array([[hardware.memory] * count, [hardware.vcpus] * count,
                                 [hardware.disk] * count], dtype=float)
        self.building = numpy.zeros(count)
        # Servers of each image on each host, for Nova's image properties weigher.
        self.servers = numpy.zeros((len(images), count), dtype=numpy.int32) if by_properties \
            else None
        self.states = []
        for number in range(count):
            state = host_manager.HostState(f'host-{number}', f'host-{number}', 'cell')
            state.stats = {warmth.STATS_KEY: warmth.encode([])}
            self.states.append(state)
        self._weighed = [weights.WeighedHost(state, 0.0) for state in self.states]
        self._specs: dict[tuple[int, Flavor], Any] = {}

    def _spec(self, image: int, flavor: Flavor) -> Any:
        key = image, flavor
        if key not in self._specs:
            self._specs[key] = objects.RequestSpec(
                image=objects.ImageMeta(id=self._images[image]), pci_requests=None,
                numa_topology=None, scheduler_hints=None,
                flavor=objects.Flavor(root_gb=flavor.disk, ephemeral_gb=0, vcpus=flavor.vcpus,
                                      memory_mb=flavor.memory))
        return self._specs[key]

    def choose(self, image: int, flavor: Flavor) -> int | None:
        """Return the number of the host for a server, and take its room; None if there is none."""
        wanted = numpy.array([[flavor.memory], [flavor.vcpus], [flavor.disk]])
        fitting = numpy.flatnonzero((self.free >= wanted).all(axis=0))
        if not len(fitting):
            return None
        if len(fitting) > self._candidates:
            fitting = self._source.choice(fitting, self._candidates, replace=False)
        total = stock_weights(self.free[:, fitting], self.building[fitting])
        spec = self._spec(image, flavor)
        if self._weigher is not None:
            weighed = [self._weighed[number] for number in fitting.tolist()]
            total = total + self._multiplier * numpy.array(
                self._weigher.weigh_objects(weighed, spec))
        if self.servers is not None:
            total = total + self._by_properties * stretched(self.servers[image, fitting])
        chosen = int(fitting[int(total.argmax())])
        self.states[chosen].consume_from_request(spec)
        self.free[:, chosen] -= wanted[:, 0]
        self.building[chosen] += 1
        if self.servers is not None:
            self.servers[image, chosen] += 1
        return chosen

    def built(self, host: int) -> None:
        """A server of a host is built."""
        self.building[host] -= 1

    def release(self, host: int, image: int, flavor: Flavor) -> None:
        """A server is gone."""
        self.free[:, host] += (flavor.memory, flavor.vcpus, flavor.disk)
        if self.servers is not None:
            self.servers[image, host] -= 1

    def publish(self, host: int, entry: str) -> None:
        """A host publishes what it holds."""
        self.states[host].stats = {warmth.STATS_KEY: entry}
