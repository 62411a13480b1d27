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

    def ask(self, part: int) -> None:
        """Note that somebody is asked for a part."""
        del self.wanted[part]
        if not self.wanted:
            self.all_asked.succeed()

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

    def __init__(self, env: simpy.Environment, cluster: Cluster, storage: StorageNode):
        self._env = env
        self.is_on = cluster.exchange
        self._parts = cluster.exchange_parts
        self._storage = storage
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
                self._env.process(self._get(own, None, what))
                continue
            other = self._copies[image, name]
            self._env.process(self._get(own, other, what))
            if other.comes_apart:
                # They are connected, and give to each other.
                self._env.process(self._get(other, own, what))
        yield own.here

    def has_come(self, host: Host, image: int) -> None:
        """A cache image is here, and given on to those that were told of this host."""
        self._copies[image, str(host.number)].give(range(self._parts))
        self._lines.has_come(str(image), str(host.number), True)

    def _get(self, own: _Copy, other: _Copy | None,
             what: tuple[str, int] | None) -> Generator[Any, Any, None]:
        """Get parts from one that has them, one after the other, while any are wanted.

        :param other: None for the storage node, which has all of them.
        """
        size = calibration.CACHE_BYTES.value / self._parts
        while own.wanted:
            part = next((part for part in own.wanted if other is None or part in other.parts), None)
            if part is None:
                assert other is not None
                yield other.news | own.all_asked
                continue
            own.ask(part)
            sent = self._storage.send(own.host.link, size, what) if other is None else \
                own.host.link.transfer(size) & other.host.giving.transfer(size)
            yield sent & own.host.getting.transfer(size)
            own.got(part)


class OnDemand:
    """A cache image on its way, of which servers read what they ask for from the storage node.

    :param done: the event of its being here.
    :param what: that the storage node's disk reads for it; see its ``send``.
    :param pace: seconds a byte of a guest that reads what is there.
    """

    def __init__(self, env: simpy.Environment, storage: StorageNode, host: Host, done: Any,
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
