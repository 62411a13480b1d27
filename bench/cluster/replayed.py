"""The replay's boots on paper: what the model of links makes of them, beside what was measured."""

import dataclasses
from collections.abc import Generator
from typing import Any

import simpy

from bench.cluster import calibration
from bench.cluster.links import FairLink
from bench.cluster.storage import Node, StorageNode

# doc/source/report/index.md, "One image on many hosts", the run of 2026-11-26T05:07:59Z: image
# small, links of 100 Mbit/s, think times x 6. 64 hosts were sent 934.4 MB of cache images, which
# are compressed, or 1203.8 MB of the base.
LINK = 100e6 / 8
GUEST_SECONDS = 16.0
CACHE_BYTES = 934.4e6 / 64
BOOT_BYTES = 1203.8e6 / 64
# A boot's requests, in the page's table of whether a replay is the real boot.
BOOT_REQUESTS = 535
_COLD = 'bootcache zstd cold'
# Boot times over that of one host which has the full base.
MEASURED = {_COLD: {1: 1.0086, 8: 1.1293, 64: 4.3798},
            'on demand': {1: 1.0439, 8: 1.6029, 64: 6.8681}}


@dataclasses.dataclass(frozen=True)
class Compared:
    """A way to boot on some hosts at the same time.

    :ivar model: its boot times over that of one host which has all, as the model has them.
    :ivar measured: the same, as the replay measured them.
    """

    way: str
    hosts: int
    model: float
    measured: float


def model(way: str, hosts: int) -> float:
    """Return the mean boot time of hosts that boot at once, over that of one which has all."""
    env = simpy.Environment()
    # A guest reads all that is in the cache image, in its time.
    size = CACHE_BYTES if way == _COLD else BOOT_BYTES
    pace = GUEST_SECONDS / size
    # All is in the storage node's page cache.
    node = StorageNode(env, Node(link=LINK), LINK, 1e9, True, pace)
    seconds = []

    def boot() -> Generator[Any, Any, None]:
        link, began = FairLink(env, LINK, LINK, pace), env.now
        if way == _COLD:
            yield env.timeout(calibration.ARRIVAL_SECONDS.value)
            arriving = node.arrive(link, size, None)
            made = env.now
            behind = yield from arriving.read_along(size)
            seconds.append(made - began + GUEST_SECONDS + behind)
        else:
            yield node.send(link, size, None)
            yield env.timeout(BOOT_REQUESTS * node.node.round_trip)
            seconds.append(env.now - began + GUEST_SECONDS)

    for _host in range(hosts):
        env.process(boot())
    env.run()
    return sum(seconds) / hosts / GUEST_SECONDS


def compare() -> list[Compared]:
    """Return what was measured, beside the model's."""
    return [Compared(way, hosts, round(model(way, hosts), 2), measured)
            for way, points in MEASURED.items() for hosts, measured in points.items()]
