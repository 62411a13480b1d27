"""The hosts that have asked for each file that is exchanged, in their order: soft state, in memory.

After a restart of the service there are no lines; hosts that ask then begin new ones, with the
storage node at their head.
"""

import dataclasses
import threading
import time
from collections.abc import Callable

import cachetools

from bootcache.exchange import patience
from glance_bootcache.exchange import order
from glance_bootcache.exchange.order import Member, Peer

# Files, and hosts of each: whoever can write to the message bus can make up names.
_MOST_FILES = 500
# Hosts that are told of a file: of two, one is another than the one that asks.
_MOST_TOLD = 2
_MOST_MEMBERS = 20_000


class Lines:
    """Who stands in which line.

    :param seconds: for which a host that has asked for a file counts as one that gives it.
    :param storage: where the storage node's exchange listens.
    :param clock: monotonic seconds.
    """

    def __init__(self, seconds: float, storage: Peer,
                 clock: Callable[[], float] = time.monotonic):
        self._seconds = seconds
        self._storage = storage
        self._clock = clock
        self._lock = threading.Lock()  # guards the lines, for steps in memory
        self._lines: cachetools.LRUCache[str, dict[str, Member]] = cachetools.LRUCache(_MOST_FILES)
        # Hosts that were told of a file, with until when that counts, in monotonic seconds.
        self._told: cachetools.LRUCache[str, dict[str, float]] = cachetools.LRUCache(_MOST_FILES)

    def tell(self, file: str, host: str) -> bool:
        """Note that a host is told of a file: it is about to get it, and may join its line.

        :param file: its name.
        :returns: whether another host was just now, so that servers there may be waiting for it
            still: many hosts get it at once, which one by one copy it as fast.
        """
        with self._lock:
            now = self._clock()
            told = {name: until for name, until in self._told.get(file, {}).items()
                    if until > now and name != host}
            self._told[file] = dict(list(told.items())[1 - _MOST_TOLD:]) | {
                host: now + patience.SERVERS_WAIT}
            return bool(told)

    def join(self, file: str, host: str, peer: Peer, rack: str,
             may_ask_storage: Callable[[bool], bool] = lambda needs: True) -> tuple[Peer, ...]:
        """Have a host stand at the end of a file's line.

        One that stands there already has failed, or was evicted: it comes to the end.

        :param file: its name.
        :param peer: where the host's exchange listens.
        :param may_ask_storage: tells whether it may get pieces from the storage node; called where
            it would, with whether it has nobody else, and the lock of the lines: for a step in
            memory.
        :returns: from whom it gets pieces; none if there is nobody but the storage node, and it may
            not. It does not stand in the line then.
        """
        with self._lock:
            now = self._clock()
            line = self._lines.setdefault(file, {})
            for name in [name for name, member in line.items()
                         if member.until <= now or member.peer == peer or name == host]:
                del line[name]
            found = order.predecessors(list(line.values()), rack, self._storage)
            if self._storage in found and not may_ask_storage(len(found) == 1):
                found = tuple(peer for peer in found if peer != self._storage)
                if not found:
                    return ()
            if len(line) < _MOST_MEMBERS:
                line[host] = Member(host, peer, rack, now + self._seconds)
            return found

    def has_come(self, file: str, host: str, gives: bool) -> dict[str, str] | None:
        """Note that a host has all of a file.

        :param gives: whether it gives it to others; it leaves the line if it does not.
        :returns: the names of who stands in the line, by address; None if the host does not.
        """
        with self._lock:
            line = self._lines.get(file, {})
            if host not in line:
                return None
            names = {member.peer[0]: name for name, member in line.items()}
            if gives:
                line[host] = dataclasses.replace(line[host], is_complete=True,
                                                 until=self._clock() + self._seconds)
            else:
                del line[host]
            return names
