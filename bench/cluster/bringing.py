"""Cache images come to hosts of the simulation: fetched, or read from on their way."""

from collections.abc import Generator
from typing import Any

import simpy

from bench.cluster import calibration
from bench.cluster.calibration import Measured
from bench.cluster.exchanging import Exchange, OnDemand
from bench.cluster.hosts import Host
from bench.cluster.nodes import Nodes, homes_of
from bench.cluster.storage import Arriving, StorageNode
from bootcache.exchange import patience
from bootcache.exchange.client import Exchanged
from bootcache.tier import Medium
from nova_bootcache.gateway import arrivingimage

SIZE = int(calibration.CACHE_BYTES.value)
AGAIN_SECONDS = 10          # after a cold boot, until the host asks for a cache image


class Bringing:
    """Brings them, from the storage node or from other hosts.

    :param exchange: of hosts that give them to each other.
    :param pace: seconds a byte of a guest that reads what is there.
    """

    def __init__(self, env: simpy.Environment, measured: Measured, storage: StorageNode | Nodes,
                 exchange: Exchange, pace: float):
        self._env = env
        self._measured = measured
        self._storage = homes_of(storage)
        self._exchange = exchange
        self._pace = pace

    def fetch(self, host: Host, image: int, medium: Medium,
              source: Medium) -> Generator[Any, Any, None]:
        """Fetch a cache image: whoever needs it waits."""
        if image in host.arriving:
            yield host.arriving[image]
            return
        self._begin(host, image, medium, SIZE)
        others = self._exchange.ask(host, image)
        if others is None:
            yield self._storage.deliver(host.link, SIZE, image, _file(image, source))
            yield from self._end(host, image, medium, None)
        else:
            yield from self._from_others(host, image, medium, source, others)

    def arrive(self, host: Host, image: int, medium: Medium, source: Medium,
               is_awaited: bool = False) -> Generator[Any, Any, Any]:
        """Have a cache image come, and servers read from it; the event of its having begun to.

        :param is_awaited: whether servers wait while other hosts give it.
        """
        since = self._env.now
        self._begin(host, image, medium, arrivingimage.room(SIZE))
        begun = host.coming[image] = self._env.event()
        if is_awaited:
            host.awaited[image] = self._env.event()
        yield self._env.timeout(calibration.ARRIVAL_SECONDS.value)
        others = self._ask_others(host, image, medium)
        if others is not None and not others.is_first:
            self._env.process(self._apart(
                host, image, medium, source, others,
                patience.servers_wait(since, self._env.now) if is_awaited else 0.0))
            return begun
        self._end_wait(host, image)
        yield from self._storage.home(image)
        arriving = self._storage.arrive(host.link, SIZE, image, _file(image, source))
        ended = self._storage.or_lost(arriving.done, image)

        def land() -> Generator[Any, Any, None]:
            yield ended
            if not arriving.done.triggered:
                # Its servers read from the base first.
                yield from self._storage.cached(image)
                yield self._env.timeout(AGAIN_SECONDS)
                yield self._storage.deliver(host.link, SIZE, image, ('cache', image))
            yield from self._end(host, image, medium, others)

        self._env.process(land())
        return begun.succeed(arriving)

    def wait(self, host: Host, image: int) -> Generator[Any, Any, None]:
        """Wait while other hosts give a cache image, for as long as servers do."""
        if image in host.awaited:
            since = self._env.now
            in_vain = yield host.awaited[image]
            self._exchange.waits.append((self._env.now - since, in_vain))

    def _begin(self, host: Host, image: int, medium: Medium, room: int) -> None:
        """Take the room of what comes; it counts from now on, as the product reserves it."""
        host.tiers[medium].take(host, room)
        host.tiers[medium].held[image] = room, self._env.now
        host.arriving[image] = self._env.event()
        host.dirty = True
        self._storage.of(image).fetching[image] += 1

    def _end(self, host: Host, image: int, medium: Medium,
             others: Exchanged | None) -> Generator[Any, Any, None]:
        """Verify what has come, put it into its place, and give it to hosts that were told of it.

        :param others: from whom it could be had; None if it is not exchanged.
        """
        self._storage.of(image).fetching[image] -= 1
        yield self._env.timeout(SIZE / self._measured.hash_rate)
        # Its tables are gone, if it had any, and what came apart.
        host.tiers[medium].held[image] = SIZE, host.tiers[medium].held[image][1]
        host.coming.pop(image, None)
        host.arriving.pop(image).succeed()
        host.dirty = True
        self._end_wait(host, image)
        if others is not None:
            self._exchange.has_come(host, image)

    # From other hosts.

    def _ask_others(self, host: Host, image: int, medium: Medium) -> Exchanged | None:
        """Ask who gives what servers read, where it has room beside that and nothing goes for it.
        """
        one = host.tiers[medium]
        if not one.has_beside(SIZE):
            return None
        others = self._exchange.ask(host, image)
        if others is not None and not others.is_first:
            size, used = one.held[image]
            one.held[image] = size + SIZE, used
        return others

    def _apart(self, host: Host, image: int, medium: Medium, source: Medium, others: Exchanged,
               seconds: float) -> Generator[Any, Any, None]:
        """Have what servers are to read come from other hosts.

        :param seconds: for which they wait; then they read from the storage node meanwhile.
        """
        begun, here = host.coming[image], host.arriving[image]
        come = self._env.process(self._from_others(host, image, medium, source, others))
        yield come | self._env.timeout(seconds)
        if not come.triggered:
            begun.succeed(OnDemand(self._env, self._storage.at(image), host, here,
                                   _file(image, source), self._pace))
            self._end_wait(host, image, in_vain=True)
        yield come
        if not begun.triggered:
            begun.succeed(Arriving(self._env, ()))

    def _from_others(self, host: Host, image: int, medium: Medium, source: Medium,
                     others: Exchanged) -> Generator[Any, Any, None]:
        yield from self._exchange.bring(host, image, others, _file(image, source))
        yield from self._end(host, image, medium, others)

    @staticmethod
    def _end_wait(host: Host, image: int, in_vain: bool = False) -> None:
        if image in host.awaited:
            host.awaited.pop(image).succeed(in_vain)


def _file(image: int, source: Medium) -> tuple[str, int] | None:
    """Return what the storage node's disk reads for a cache image; None if its memory has it."""
    return ('cache', image) if source is Medium.DISK else None
