"""Locks that are taken in one order, and locks of which there is one for each of many things.

Two threads that take the same locks in another order wait for good, once in a thousand runs.
So each lock here has a rank, and a thread takes one of a higher rank than all that it has: never
two of one rank. Whoever does not is told of it whenever that happens, not only when it hurts: in
the log, as the mistake need not hurt a server, and by an error where ``complain`` is replaced by
one that raises, as the tests do. That costs a microsecond, so it is always on.

nova_bootcache/locks.py has the ranks of a compute host's locks, glance_bootcache/locks.py those of
the storage service's.
"""

import collections
import contextlib
import threading
import traceback
import weakref
from collections.abc import Iterator
from typing import Any

from oslo_log import log as logging

LOG = logging.getLogger(__name__)

# Of a storage daemon's monitor, and of locks under which no other one is taken.
MONITOR, LEAF = 90, 100

_local = threading.local()
_told: set[str] = set()
_MOST_TOLD = 20


def complain(what: str) -> None:
    """Tell of a lock that was taken out of its turn.

    :param what: names the locks.
    """
    if what not in _told and len(_told) < _MOST_TOLD:
        _told.add(what)
        LOG.error('bootcache: please report this: %s\n%s', what,
                  ''.join(traceback.format_stack()))


def _held() -> list['OrderedLock']:
    """Return the locks that this thread has."""
    found: list[OrderedLock] | None = getattr(_local, 'held', None)
    if found is None:
        found = _local.held = []
    return found


class OrderedLock:
    """A lock with a rank; its thread may take it again.

    :ivar rank: threads take those of higher ranks later.
    :ivar name: for messages.
    """

    def __init__(self, rank: int, name: str):
        self.rank = rank
        self.name = name
        self._lock = threading.RLock()

    def acquire(self, seconds: float = -1) -> bool:
        """Take it; False if it is not free in time.

        :param seconds: for which to wait; 0 not to, less for ever.
        """
        held = _held()
        if held and self not in held:
            last = max(held, key=lambda lock: lock.rank)
            if last.rank >= self.rank:
                complain(f'{self.name} is taken by a thread that has {last.name}')
        found = self._lock.acquire(timeout=seconds) if seconds else self._lock.acquire(False)
        if found:
            held.append(self)
        return found

    def release(self) -> None:
        """Let go of it."""
        _held().remove(self)
        self._lock.release()

    def __enter__(self) -> 'OrderedLock':
        self.acquire()
        return self

    def __exit__(self, *_error: Any) -> None:
        self.release()


def held() -> list[str]:
    """Return the names of the locks that this thread has."""
    return [lock.name for lock in _held()]


def leaf(name: str) -> OrderedLock:
    """Return a lock under which no other one is taken: it is held for steps in memory.

    :param name: for messages.
    """
    return OrderedLock(LEAF, name)


class UsageCounts:
    """How often something is under way, by key. Any thread may ask and tell.

    :param name: of what is under way, for messages.
    """

    def __init__(self, name: str):
        self._counts: collections.Counter[str] = collections.Counter()
        self._lock = leaf(f'the lock of the count of {name}')

    def begin(self, key: str) -> None:
        """Note that it begins once more."""
        with self._lock:
            self._counts[key] += 1

    def end(self, key: str) -> None:
        """Note that it has ended once."""
        with self._lock:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]

    @contextlib.contextmanager
    def of(self, key: str) -> Iterator[None]:
        """Note it while the block runs."""
        self.begin(key)
        try:
            yield
        finally:
            self.end(key)

    def __contains__(self, key: object) -> bool:
        """Tell whether it is under way."""
        return key in self._counts

    def __len__(self) -> int:
        """Return of how many keys it is."""
        return len(self._counts)


class KeyedLocks:
    """One lock for each key, which is there as long as somebody has it or waits for it.

    :param rank: of each.
    :param name: of what they guard, for messages.
    """

    def __init__(self, rank: int, name: str):
        self._rank = rank
        self._name = name
        self._locks: weakref.WeakValueDictionary[str, OrderedLock] = weakref.WeakValueDictionary()
        # Held for dictionary steps.
        self._lock = threading.Lock()

    def of(self, key: str) -> OrderedLock:
        """Return a key's lock."""
        with self._lock:
            lock = self._locks.get(key)
            if lock is None:
                lock = self._locks[key] = OrderedLock(self._rank, f'{self._name} {key}')
            return lock
