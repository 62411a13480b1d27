"""Settling: hosts complete full bases, one at a time, and servers move onto them."""

from collections.abc import Generator
from typing import Any

import simpy

from bench.cluster import calibration
from bench.cluster.hosts import Host
from bench.cluster.storage import StorageNode

DELAY = 60  # [bootcache]settle_delay
# An image is copied, hashed and converted, each at the rate; it has about as much data as bytes.
_LOCAL_STEPS = 2


class Settling:
    """What hosts do beside the boots.

    :param rate: ``[bootcache]settle_bandwidth``, bytes a second.
    """

    def __init__(self, env: simpy.Environment, storage: StorageNode, rate: float):
        self._env = env
        self._storage = storage
        self._rate = rate

    def base(self, host: Host, image: int) -> Any:
        """Return the event after which an image's base is on the host, if servers still wait."""
        if image in host.bases:
            return self._env.timeout(0)
        if image not in host.settling:
            host.settling[image] = self._env.event()
            if len(host.settling) == 1:
                self._env.process(self._work(host))
        return host.settling[image]

    def _work(self, host: Host) -> Generator[Any, Any, Any]:
        while host.settling:
            image = next(iter(host.settling))
            done = yield from self._complete(host, image)
            if done:
                host.bases[image] = self._env.now
                host.dirty = True
            host.settling.pop(image).succeed()

    def _complete(self, host: Host, image: int) -> Generator[Any, Any, Any]:
        """Complete a base, unless the host's last server of the image leaves: whether it did."""
        # Another server's boot, the stock way, may have brought it.
        if not host.busy[image] or image in host.bases:
            return False
        yield self._storage.send_base(host.link, image, self._rate)
        for _step in range(_LOCAL_STEPS):
            if not host.busy[image]:
                return False
            yield self._env.timeout(calibration.IMAGE_BYTES.value / self._rate)
        return host.busy[image] > 0
