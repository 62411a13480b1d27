"""How many changes of images each owner has followed within an hour: the others of his wait."""

import collections
import threading
import time
from collections.abc import Callable

import cachetools

HOUR = 3600.0
# Owners that are remembered; whoever is forgotten begins anew.
_MOST_OWNERS = 10_000


class Changes:
    """Counts what is begun, by owner.

    :param most: within an hour; 0 for any number.
    :param clock: monotonic seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic):
        self._most, self._clock = most, clock
        self._lock = threading.Lock()  # guards what follows; nothing is called under it
        self._begun: cachetools.LRUCache[str, collections.deque[float]] = \
            cachetools.LRUCache(_MOST_OWNERS)

    def are_too_many(self, owner: str) -> bool:
        """Tell whether an owner's next change has to wait."""
        with self._lock:
            return bool(self._most) and len(self._within_the_hour(owner)) >= self._most

    def begin(self, owner: str) -> bool:
        """Count a change, if it is not one too many; tell whether it is followed now."""
        with self._lock:
            if not self._most:
                return True
            begun = self._within_the_hour(owner)
            if len(begun) >= self._most:
                return False
            begun.append(self._clock())
            self._begun[owner] = begun
            return True

    def _within_the_hour(self, owner: str) -> collections.deque[float]:
        begun = self._begun.get(owner) or collections.deque()
        while begun and begun[0] <= self._clock() - HOUR:
            begun.popleft()
        return begun
