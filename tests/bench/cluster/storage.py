"""The storage node: its link, its disk, and its memory tier."""

import dataclasses
from typing import Any

import simpy

from bootcache import tier
from bootcache.tier import Item, Limits, Medium
from tests.bench.cluster.links import FairLink


@dataclasses.dataclass(frozen=True)
class Node:
    """The storage nodes' size, taken as one: assumptions but for the quota, the operator's.

    :ivar link: bytes a second.
    :ivar disk: bytes a second that its disk reads.
    :ivar memory_quota: bytes of its memory tier; 0 for none.
    :ivar round_trip: seconds of a request from a host and back.
    """

    link: float = 10e9 / 8
    disk: float = 500e6
    memory_quota: int = 4 << 30
    round_trip: float = 0.0002


def nodes_for(hosts: int) -> Node:
    """Return the storage of a cluster: one node for each 1,000 hosts, or a part of them."""
    count = -(-hosts // 1000)
    one = Node()
    return Node(count * one.link, count * one.disk, count * one.memory_quota, one.round_trip)


class StorageNode:
    """Serves bases and cache images.

    :param host_link: bytes a second of a compute host.
    """

    def __init__(self, env: simpy.Environment, node: Node, host_link: float):
        self._env = env
        self.node = node
        self._limits = Limits.from_percent(node.memory_quota, 95, 85) if node.memory_quota \
            else None
        self._memory: dict[int, tuple[int, float]] = {}
        self._link = FairLink(env, node.link, host_link)
        self._disk = FairLink(env, node.disk, node.disk)
        # Bytes that settling took, which goes at its own pace and yields to all else.
        self.settled_bytes = 0.0

    @property
    def bytes(self) -> float:
        """Bytes sent to hosts for their boots."""
        return self._link.bytes

    @property
    def disk_bytes(self) -> float:
        """Bytes read from the disk for that."""
        return self._disk.bytes

    @property
    def has_memory(self) -> bool:
        """Whether there is a memory tier."""
        return self._limits is not None

    def medium(self, image: int) -> Medium:
        """Return where an image's cache image is served from."""
        return Medium.MEMORY if image in self._memory else Medium.DISK

    def promote(self, image: int, size: int) -> None:
        """Copy a cache image to memory, where there is room: SC13, Algorithm 1."""
        if self._limits is None or image in self._memory:
            return
        items = [Item(str(other), held, used) for other, (held, used) in self._memory.items()]
        room = tier.make_room(items, self._limits, size)
        if room.fits:
            for victim in room.evict:
                del self._memory[int(victim)]
            self._memory[image] = size, self._env.now

    def send(self, image: int, size: float, medium: Medium) -> Any:
        """Send bytes to a host; the event of their arrival."""
        if image in self._memory:
            self._memory[image] = self._memory[image][0], self._env.now
        moved = self._link.transfer(size)
        return moved if medium is Medium.MEMORY else moved & self._disk.transfer(size)
