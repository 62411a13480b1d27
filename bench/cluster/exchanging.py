"""Cache images that hosts of the simulation give to each other while servers wait for them.

Which hosts were told of a cache image, who stands in its line and who gets from whom is the
product's own decision. How it comes is a model: in parts, each from one host that has it, over both
hosts' links; exchange.py has that piece by piece, for one file alone.
"""

from collections.abc import Generator, Iterable
from typing import Any

import simpy
from oslo_config import cfg

from bench.cluster import calibration, exchange
from bench.cluster.hosts import Cluster, Host
from bench.cluster.nodes import Home, Nodes, homes_of
from bench.cluster.storage import StorageNode
from bootcache import conf as bootcache_conf
from bootcache.exchange.client import Exchanged
from glance_bootcache.exchange.offers import Lines

# Hosts whose numbers follow begin at parts far from each other.
_GOLDEN_SECTION = 0.618
# What a boot reads on demand is read in so many steps; between them it is seen what is here.
READS = 128
_STORAGE = '', 0


def _linger() -> float:
    """Return for how long a host gives on what it got, ``[bootcache]exchange_linger``."""
    conf = cfg.ConfigOpts()
    conf.register_opts(bootcache_conf.opts)
    return float(conf.exchange_linger)


class _Copy:
    """What a host has of a file, or is about to have.

    :ivar wanted: parts that it has asked nobody for, in the order in which it does.
    :ivar parts: that it gives on.
    :ivar news: the event of there being more of them.
    :ivar all_asked: the event of its wanting no more.
    :ivar here: the event of its having all of them.
    :ivar comes_apart: whether it gets them by exchange.
    :ivar others: from whom, beside the storage node.
    """

    def __init__(self, env: simpy.Environment, host: Host, parts: int):
        self._env = env
        self.host = host
        # An odd one, so that all parts are the first one of some host.
        first = host.number * (int(_GOLDEN_SECTION * parts) | 1)
        self.wanted = {(first + part) % parts: None for part in range(parts)}
        self._left = parts
        self.parts: set[int] = set()
        self.news, self.all_asked, self.here = env.event(), env.event(), env.event()
        self.comes_apart = False
        self.others: list[_Copy] = []

    def ask(self, part: int) -> None:
        """Note that somebody is asked for a part."""
        del self.wanted[part]
        if not self.wanted:
            self.all_asked.succeed()

    def miss(self, part: int) -> None:
        """Note that a part does not come from whom it was asked."""
        self.wanted[part] = None
        if self.all_asked.triggered:
            self.all_asked = self._env.event()

    def got(self, part: int) -> None:
        """Note that a part has come: it is given on when others can have asked for it."""
        self._left -= 1
        if not self._left:
            self.here.succeed()
        self._env.timeout(exchange.LATENCY).callbacks.append(lambda _event: self.give([part]))

    def give(self, parts: Iterable[int]) -> None:
        """Give on these as well."""
        self.parts.update(parts)
        news, self.news = self.news, self._env.event()
        news.succeed()


class Exchange:
    """Has cache images come from other hosts.

    :param cluster: tells whether its hosts do so at all.
    :ivar waits: of each server that waited: the seconds, and whether it was in vain.
    """

    def __init__(self, env: simpy.Environment, cluster: Cluster,
                 storage: StorageNode | Nodes):
        self._env = env
        self.is_on = cluster.exchange
        self._parts = cluster.exchange_parts
        self._storage = homes_of(storage)
        self._lines = Lines(_linger(), _STORAGE, lambda: env.now)
        # By image and host.
        self._copies: dict[tuple[int, str], _Copy] = {}
        self.waits: list[tuple[float, bool]] = []

    def tell(self, host: Host, image: int) -> bool:
        """Tell a host of a cache image: whether others were told, as ``plan_boot`` has it."""
        return self.is_on and self._lines.tell(str(image), str(host.number))

    def ask(self, host: Host, image: int) -> Exchanged | None:
        """Ask from which hosts a cache image can be had; later ones are told of this one.

        :returns: None if hosts exchange nothing.
        """
        if not self.is_on:
            return None
        name = str(host.number)
        self._copies[image, name] = _Copy(self._env, host, self._parts)
        return Exchanged(b'', str(image), self._lines.join(
            str(image), name, (name, 1), str(host.number // exchange.RACK_HOSTS)), (_STORAGE,))

    def bring(self, host: Host, image: int, others: Exchanged,
              what: tuple[str, int] | None) -> Generator[Any, Any, None]:
        """Have a cache image come from other hosts.

        :param others: what :meth:`ask` has returned.
        :param what: that the storage node's disk reads for it, if it gives; see its ``send``.
        """
        own = self._copies[image, str(host.number)]
        own.comes_apart = True
        for name, number in others.peers:
            if (name, number) == _STORAGE:
                self._env.process(self._get_from_storage(own, image, what))
                continue
            other = self._copies[image, name]
            own.others.append(other)
            self._env.process(self._get(own, other))
            if other.comes_apart:
                # They are connected, and give to each other.
                other.others.append(own)
                self._env.process(self._get(other, own))
        yield own.here

    def has_come(self, host: Host, image: int) -> None:
        """A cache image is here, and given on to those that were told of this host."""
        self._copies[image, str(host.number)].give(range(self._parts))
        self._lines.has_come(str(image), str(host.number), True)

    def _get(self, own: _Copy, other: _Copy) -> Generator[Any, Any, None]:
        """Get parts from one that has them, one after the other, while any are wanted."""
        size = calibration.CACHE_BYTES.value / self._parts
        while own.wanted:
            part = next((part for part in own.wanted if part in other.parts), None)
            if part is None:
                yield other.news | own.all_asked
                continue
            own.ask(part)
            sent = own.host.link.transfer(size) & other.host.giving.transfer(size)
            yield sent & own.host.getting.transfer(size)
            own.got(part)

    def _get_from_storage(self, own: _Copy, image: int,
                          what: tuple[str, int] | None) -> Generator[Any, Any, None]:
        """Get parts from the storage node, which has all of them, likewise; if it is lost, from
        other hosts, and from the image's new home when that has a cache image."""
        size = calibration.CACHE_BYTES.value / self._parts
        yield from self._storage.home(image)
        while own.wanted:
            part = next(iter(own.wanted))
            own.ask(part)
            sent = self._storage.of(image).send(own.host.link, size, what) \
                & own.host.getting.transfer(size)
            yield self._storage.or_lost(sent, image)
            if sent.triggered:
                own.got(part)
                continue
            own.miss(part)
            for other in own.others:
                self._env.process(self._get(own, other))
            yield from self._storage.cached(image)


class OnDemand:
    """A cache image on its way, of which servers read what they ask for from the storage node.

    :param done: the event of its being here.
    :param what: that the storage node's disk reads for it; see its ``send``.
    :param pace: seconds a byte of a guest that reads what is there.
    """

    lost = None

    def __init__(self, env: simpy.Environment, storage: StorageNode | Home, host: Host, done: Any,
                 what: tuple[str, int] | None, pace: float = 0.0):
        self._env = env
        self._storage = storage
        self._host = host
        self._done = done
        self._what = what
        self._pace = pace

    def read_along(self, size: float) -> Generator[Any, Any, float]:
        """Read bytes from now on; as ``Arriving.read_along``, but each read waits for its own."""
        began, paced = self._env.now, 0.0
        for _part in range(READS):
            if self._done.triggered:
                break
            yield self._storage.send(self._host.link, size / READS, self._what)
            yield self._env.timeout(calibration.BOOT_REQUESTS.value / READS
                                    * self._storage.node.round_trip)
            paced += self._pace * size / READS
            yield self._env.timeout(self._pace * size / READS)
        return self._env.now - began - paced
