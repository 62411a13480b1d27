"""Settling: hosts complete full bases, one at a time, and servers move onto them."""

import dataclasses
from collections.abc import Generator
from typing import Any

import simpy

from bench.cluster import calibration
from bench.cluster.hosts import Host
from bench.cluster.nodes import Nodes, homes_of
from bench.cluster.storage import StorageNode

# An image is copied, hashed and converted, each at the rate; it has about as much data as bytes.
_LOCAL_STEPS = 2


@dataclasses.dataclass
class Copied:
    """A base that was copied to a host.

    :ivar is_over: whether that has ended.
    :ivar used: the most seconds that a server ran which moved onto it; 0 if none did.
    :ivar later: servers that came afterwards, and had it from the start.
    """

    is_over: bool = False
    used: float = 0.0
    later: int = 0


class Settling:
    """What hosts do beside the boots.

    :param rate: ``[bootcache]settle_bandwidth``, bytes a second.
    :ivar copied: all bases that were copied, in their order.
    """

    def __init__(self, env: simpy.Environment, storage: StorageNode | Nodes, rate: float):
        self._env = env
        self.copied: list[Copied] = []
        self._latest: dict[tuple[int, int], Copied] = {}
        self._storage = homes_of(storage)
        self._one_at_a_time: dict[int, simpy.Resource] = {}
        self._rate = rate

    def base(self, host: Host, image: int) -> Any:
        """Return the event after which an image's base is on the host, if servers still wait."""
        if image in host.bases:
            return self._env.timeout(0)
        if image not in host.settling:
            host.settling[image] = self._env.event()
            slot = self._storage.slot(image)
            if slot is not None:
                self._env.process(self._in_turn(host, image, slot))
            elif len(host.settling) == 1:
                self._env.process(self._work(host))
        return host.settling[image]

    def moves(self, host: Host, image: int, seconds: float) -> None:
        """A server moves onto a base, and runs for some seconds more."""
        copied = self._latest.get((host.number, image))
        if copied is not None:
            copied.used = max(copied.used, seconds)

    def comes_later(self, host: Host, image: int) -> None:
        """A server begins on a base."""
        copied = self._latest.get((host.number, image))
        if copied is not None:
            copied.later += 1

    def _work(self, host: Host) -> Generator[Any, Any, Any]:
        while host.settling:
            image = next(iter(host.settling))
            done = yield from self._complete(host, image)
            self._end(host, image, done)

    def _in_turn(self, host: Host, image: int, slot: Any) -> Generator[Any, Any, Any]:
        """Complete a base when the storage node has a slot; the host has one at a time copied."""
        yield slot
        one = self._one_at_a_time.setdefault(host.number, simpy.Resource(self._env, 1))
        with one.request() as mine:
            yield mine
            done = yield from self._complete(host, image, slot)
        self._end(host, image, done)

    def _end(self, host: Host, image: int, done: bool) -> None:
        if done:
            host.bases[image] = self._env.now
            host.dirty = True
        host.settling.pop(image).succeed()

    def _complete(self, host: Host, image: int, slot: Any = None) -> Generator[Any, Any, Any]:
        """Complete a base, unless the host's last server of the image leaves: whether it did.

        :param slot: of the storage node, which is given back; None if none is needed.
        """
        # Another server's boot, the stock way, may have brought it.
        if not host.busy[image] or image in host.bases:
            if slot is not None:
                slot.resource.release(slot)
            return False
        copied = self._latest[host.number, image] = Copied()
        self.copied.append(copied)
        yield self._storage.deliver_base(host.link, image, self._rate)
        if slot is not None:
            slot.resource.release(slot)
        for _step in range(_LOCAL_STEPS):
            if not host.busy[image]:
                break
            yield self._env.timeout(calibration.IMAGE_BYTES.value / self._rate)
        copied.is_over = True
        return host.busy[image] > 0
