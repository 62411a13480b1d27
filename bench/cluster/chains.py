"""Servers' chains: what the product's placement plans for each is carried out here."""

from collections.abc import Generator
from typing import Any

import simpy

from bench.cluster import calibration
from bench.cluster.bringing import AGAIN_SECONDS, SIZE, Bringing
from bench.cluster.calibration import Measured
from bench.cluster.exchanging import Exchange
from bench.cluster.hosts import Cluster, Host
from bench.cluster.learning import Learning
from bench.cluster.nodes import Nodes, homes_of
from bench.cluster.storage import StorageNode
from bootcache.tier import Medium
from nova_bootcache.asking import placement
from nova_bootcache.asking.placement import HeldHere, Offer, PlanStep, Storage, TierRoom
from nova_bootcache.gateway import arrivingimage

# What a guest waits for while it boots; it gives the seconds.
Reading = Generator[Any, Any, float]


def _nothing() -> Reading:
    """All that the guest reads is on its host."""
    return 0.0
    yield


class Chains:
    """Makes them.

    :param caches: whether there are cache images; without, all is read from the base.
    :ivar exchange: has them come from other hosts.
    """

    def __init__(self, env: simpy.Environment, cluster: Cluster, measured: Measured,
                 storage: StorageNode | Nodes, caches: bool):
        self._env = env
        self._cluster = cluster
        self._storage = homes_of(storage)
        self._caches = caches
        self._learning = Learning(env, caches and cluster.new_images)
        self.exchange = Exchange(env, cluster, storage)
        self._bringing = Bringing(env, measured, storage, self.exchange, cluster.pace)

    def make(self, host: Host, image: int) -> Generator[Any, Any, Reading]:
        """Ask, plan, and do all of the plan but the overlay; what the guest waits for then."""
        if image in host.arriving and image not in host.coming:
            # Its name is taken until it is fetched.
            yield host.arriving[image]
        yield from self._storage.home(image)
        storage = self._ask(image, host)
        there = host.medium(image)
        plan = placement.plan(self._facts(host, image, storage), storage)
        coming, is_watched = host.coming.get(image), False
        for step in plan:
            if step is PlanStep.PROMOTE:
                self._storage.of(image).promote(image)
            elif step is PlanStep.USE_LOCAL and there is not None:
                host.tiers[there].held[image] = host.tiers[there].held[image][0], self._env.now
                host.dirty = True
            elif step in placement.FETCH:
                yield from self._bringing.fetch(host, image, placement.FETCH[step],
                                               storage.medium)
            elif step in placement.ARRIVE:
                coming = yield from self._bringing.arrive(
                    host, image, placement.ARRIVE[step], storage.medium, PlanStep.AWAIT in plan)
            elif step is PlanStep.AWAIT:
                yield from self._bringing.wait(host, image)
            elif step is PlanStep.WATCH:
                is_watched = self._watch(host, image)
        reading = _nothing() if coming is None else self._read_along(host, image, coming)
        if host.medium(image) is None:
            if storage.offer is Offer.COLD and self._caches:
                self._env.process(self._fetch_later(host, image))
            reading = self._read_base(host, image)
        return self._watched(host, image, reading) if is_watched else reading

    # What is decided by.

    def _ask(self, image: int, host: Host | None = None) -> Storage:
        """Ask for the storage service's answer.

        :param host: of the server that asks; None if it is none.
        """
        node = self._storage.of(image)
        offer = node.ask(image) if self._caches else Offer.COLD
        return Storage(offer, node.medium(image), node.has_memory,
                       host is not None and self._learning.asks(image, host.number),
                       # Who is not offered it is not told of it.
                       host is not None and offer is Offer.CACHE
                       and self.exchange.tell(host, image))

    def _facts(self, host: Host, image: int, storage: Storage) -> placement.Host:
        """Return what placement has to know of a host, as the product's chains.py finds it out."""
        if image in host.coming:
            held = HeldHere.ARRIVING
        else:
            held = HeldHere.NOTHING if host.medium(image) is None else HeldHere.CURRENT
        rooms = {Medium.MEMORY: TierRoom.NONE, Medium.DISK: TierRoom.NONE}
        if held is not HeldHere.CURRENT:
            for medium in host.tiers:
                rooms[medium] = self._room(host, image, medium)
        # Looked for only where it matters: the store of a boot that is not watched is left out.
        has_store = storage.wants_report and (
            host.has_store(image) or self._store_medium(host) is not None)
        return placement.Host(held, rooms[Medium.MEMORY], rooms[Medium.DISK], has_store,
                              asks_others=self.exchange.is_on)

    @staticmethod
    def _room(host: Host, image: int, medium: Medium) -> TierRoom:
        one = host.tiers[medium]
        if image in one.held:
            # What comes has its room.
            return TierRoom.ARRIVAL
        if arrivingimage.is_worth_it(SIZE) and not host.has_store(image) \
                and one.plan(host, arrivingimage.room(SIZE)).fits:
            return TierRoom.ARRIVAL
        return TierRoom.FILE if one.plan(host, SIZE).fits else TierRoom.NONE

    def _store_medium(self, host: Host) -> Medium | None:
        """Return the tier that has room for a growing store, memory first."""
        return next((medium for medium in (Medium.MEMORY, Medium.DISK) if medium in host.tiers
                     and host.tiers[medium].plan(host, self._cluster.store_quota).fits), None)

    def _fetch_later(self, host: Host, image: int) -> Generator[Any, Any, None]:
        """After a cold boot: the host fetches the cache image once it is built again."""
        built = self._storage.of(image).built(image)
        if built is None:
            return
        yield built
        yield self._env.timeout(AGAIN_SECONDS)
        yield from self._storage.home(image)
        if not host.has(image) and image not in host.arriving:
            storage = self._ask(image)
            for step in placement.plan_warming(self._facts(host, image, storage), storage):
                if step is PlanStep.PROMOTE:
                    self._storage.of(image).promote(image)
                elif step in placement.FETCH:
                    yield from self._bringing.fetch(host, image, placement.FETCH[step],
                                               storage.medium)

    # What guests read.

    def _read_along(self, host: Host, image: int, begun: Any) -> Reading:
        """Read from a cache image on its way: a guest's own bytes, which come out of turn if need
        be, at its own pace, while the rest of the file comes as well.
        """
        began = self._env.now
        arriving = yield begun
        waited = self._env.now - began
        size = calibration.BOOT_BYTES.value
        if arriving.lost is None:
            behind: float = yield from arriving.read_along(size)
            return waited + behind
        began = self._env.now
        read: Any = self._env.process(arriving.read_along(size))
        yield read | arriving.lost
        if read.triggered:
            return waited + float(read.value)
        # What has come is read meanwhile; the rest comes from the base at the image's new home.
        come = min(size, arriving.come())
        if come < size:
            yield from self._storage.home(image)
            yield from self._read_base(host, image, size - come)
        return waited + max(0.0, self._env.now - began - self._cluster.pace * come)

    def _read_base(self, host: Host, image: int,
                   size: float = calibration.BOOT_BYTES.value) -> Reading:
        """Read from the base: each read waits for its answer, and all of them share the link."""
        began = self._env.now
        yield self._storage.deliver(host.link, size, image, ('part', image))
        yield self._env.timeout(calibration.BOOT_REQUESTS.value * size
                                / calibration.BOOT_BYTES.value * self._storage.node.round_trip)
        return self._env.now - began

    # Boots that are watched.

    def _watch(self, host: Host, image: int) -> bool:
        """Open the growing store that it takes, or share one; False if there is no room by now."""
        if not host.has_store(image):
            medium = self._store_medium(host)
            if medium is None:
                return False
            host.tiers[medium].take(host, self._cluster.store_quota)
            host.tiers[medium].stores[image] = self._cluster.store_quota
            host.dirty = True
        host.watched[image] += 1
        return True

    def _watched(self, host: Host, image: int, reading: Reading) -> Reading:
        behind = yield from reading
        self._env.process(self._report(host, image))
        return behind

    def _report(self, host: Host, image: int) -> Generator[Any, Any, None]:
        """Report a boot when it is over; its store goes."""
        yield self._env.timeout(self._cluster.guest_seconds)
        self._learning.report(image, host.number)
        host.watched[image] -= 1
        if not host.watched[image]:
            for one in host.tiers.values():
                one.stores.pop(image, None)
