"""Several storage nodes, each image with one home among them, and the loss of one of them."""

from collections.abc import Generator, Iterable
from typing import Any

import numpy
import simpy

from bench.cluster.links import FairLink
from bench.cluster.storage import Arriving, Node, StorageNode
from glance_bootcache.nodes.membership import AWAY_SECONDS


class Nodes:
    """Storage nodes of which each image has one as its home, by chance: the one that heard of it
    first. An image of a node that is lost is taken over by the node that is asked for it, when the
    lost one is away; asking and reading wait until then.

    :param node: what each of them is, and how many there are.
    :param images: how many there are.
    :ivar nodes: all of them.
    :ivar moved: images of the node that is lost; at most one is.
    :ivar lost_at: when it was lost; infinite if none is.
    """

    def __init__(self, env: simpy.Environment, node: Node, host_link: float, hash_rate: float,
                 caches: bool, pace: float, images: int, seed: int):
        self._env = env
        self.node = node
        self._source = numpy.random.default_rng((seed, images))
        self.nodes = [StorageNode(env, node.alone(), host_link, hash_rate, caches, pace)
                      for _ in range(node.count)]
        for one in self.nodes:
            # Where a fetch began is not always where it ends.
            one.fetching = self.nodes[0].fetching
        self._slots = [simpy.Resource(env, node.settle_slots) for _ in self.nodes]
        self._homes = self._source.integers(node.count, size=images).tolist()
        self._lost: StorageNode | None = None
        self.moved: frozenset[int] = frozenset()
        self.lost_at = float('inf')

    @property
    def bytes(self) -> float:
        """Bytes sent to hosts for their boots."""
        return sum(one.bytes for one in self.nodes)

    @property
    def settled_bytes(self) -> float:
        """Bytes sent to hosts that settle servers."""
        return sum(one.settled_bytes for one in self.nodes)

    @property
    def disk_bytes(self) -> float:
        """Bytes read from the disks."""
        return sum(one.disk_bytes for one in self.nodes)

    def register(self, images: Iterable[int]) -> None:
        """As a node's; each has its own."""
        order = list(images)
        for number, one in enumerate(self.nodes):
            one.register([image for image in order if self._homes[image] == number])

    def number(self, image: int) -> int:
        """Return the number of an image's home."""
        return int(self._homes[image])

    def of(self, image: int) -> StorageNode:
        """Return an image's home, also if it is lost."""
        return self.nodes[self._homes[image]]

    def home(self, image: int) -> Generator[Any, Any, StorageNode]:
        """Ask for an image's home, and wait until there is one."""
        if self.of(image) is self._lost:
            left = self.lost_at + AWAY_SECONDS - self._env.now
            if left > 0:
                yield self._env.timeout(left)
        if self.of(image) is self._lost:
            others = [number for number, one in enumerate(self.nodes) if one is not self._lost]
            self._homes[image] = int(self._source.choice(others))
        return self.of(image)

    def cached(self, image: int) -> Generator[Any, Any, None]:
        """Wait until an image's home has its cache image, as far as it has room for one."""
        node = yield from self.home(image)
        node.ask(image)
        built = node.built(image)
        if built is not None:
            yield built

    def lose(self, image: int) -> None:
        """Lose the home of an image: what it sends stands still.

        :raises ValueError: if no other node is left.
        """
        if len(self.nodes) < 2 or self._lost is not None:
            raise ValueError('no storage node is left')
        self._lost, self.lost_at = self.of(image), self._env.now
        self.moved = frozenset(image for image, home in enumerate(self._homes)
                               if self.nodes[home] is self._lost)
        self._lost.stop()

    def or_lost(self, event: Any, image: int) -> Any:
        """Return an event that comes with another one, or with the loss of an image's home."""
        return event | self.of(image).lost

    def deliver(self, link: FairLink, size: float, image: int,
                what: tuple[str, int] | None) -> Any:
        """Send bytes for a boot, as a node's ``send``; all of them anew where the home is lost."""
        return self._env.process(self._deliver(link, size, image, what))

    def at(self, image: int) -> 'Home':
        """Return what sends an image's bytes, wherever its home is then."""
        return Home(self, image)

    def _deliver(self, link: FairLink, size: float, image: int,
                 what: tuple[str, int] | None) -> Generator[Any, Any, None]:
        node = yield from self.home(image)
        sent = node.send(link, size, what)
        yield sent | node.lost
        if not sent.triggered:
            if what is None or what[0] == 'cache':
                yield from self.cached(image)
            node = yield from self.home(image)
            yield node.send(link, size, what or ('cache', image))

    def arrive(self, link: FairLink, size: float, image: int,
               what: tuple[str, int] | None) -> Arriving:
        """Send a file that a booting server reads as it comes, from an image's home."""
        node = self.of(image)
        arriving = node.arrive(link, size, what)
        arriving.lost = node.lost
        return arriving

    def slot(self, image: int) -> Any:
        """Ask for a slot of an image's home, for a full base; the event of having one."""
        return self._slots[self._homes[image]].request()

    def deliver_base(self, link: FairLink, image: int, rate: float) -> Any:
        """Send an image for settling, as a node's; all of it anew where the home is lost."""
        return self._env.process(self._deliver_base(link, image, rate))

    def _deliver_base(self, link: FairLink, image: int,
                      rate: float) -> Generator[Any, Any, None]:
        node = yield from self.home(image)
        sent = node.send_base(link, image, rate)
        yield sent | node.lost
        if not sent.triggered:
            node = yield from self.home(image)
            yield node.send_base(link, image, rate)


class Home:
    """An image's home, whichever that is."""

    def __init__(self, nodes: Nodes, image: int):
        self._nodes = nodes
        self._image = image
        self.node = nodes.node

    def send(self, link: FairLink, size: float, what: tuple[str, int] | None) -> Any:
        """Send bytes for a boot."""
        return self._nodes.deliver(link, size, self._image, what)


class OneNode:
    """One storage node, or several that are taken as one: the home of all images, never lost.

    :ivar only: it.
    """

    def __init__(self, only: StorageNode):
        self.only = only
        self.node = only.node

    def of(self, _image: int) -> StorageNode:
        """Return an image's home."""
        return self.only

    def home(self, _image: int) -> Generator[Any, Any, StorageNode]:
        """Ask for an image's home: it is always there."""
        return self.only
        yield

    def cached(self, _image: int) -> Generator[Any, Any, None]:
        """Wait for nothing: no image moves."""
        return
        yield

    def at(self, _image: int) -> StorageNode:
        """Return what sends an image's bytes."""
        return self.only

    def or_lost(self, event: Any, _image: int) -> Any:
        """Return the event: the node is not lost."""
        return event

    def deliver(self, link: FairLink, size: float, _image: int,
                what: tuple[str, int] | None) -> Any:
        """Send bytes for a boot."""
        return self.only.send(link, size, what)

    def arrive(self, link: FairLink, size: float, _image: int,
               what: tuple[str, int] | None) -> Arriving:
        """Send a file that a booting server reads as it comes."""
        return self.only.arrive(link, size, what)

    def slot(self, _image: int) -> Any:
        """Return None: no slot is needed."""
        return None

    def deliver_base(self, link: FairLink, image: int, rate: float) -> Any:
        """Send an image for settling."""
        return self.only.send_base(link, image, rate)


def homes_of(storage: StorageNode | Nodes) -> 'Nodes | OneNode':
    """Return what tells images' homes."""
    return OneNode(storage) if isinstance(storage, StorageNode) else storage
