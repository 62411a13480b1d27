"""A circuit breaker: what has just not answered is left alone for a while, and then asked once.

Of the libraries, pybreaker holds a lock over the call, so that servers that boot at the same time
would wait for each other, and circuitbreaker lets all who wait try at once.
"""

import threading
import time
from collections.abc import Callable, Collection


class Breaker:
    """Remembers how a neighbour answers, for all threads that ask it.

    After a pause one asks. If nothing is heard of that one, either, another does after a pause.

    :param limit: failures in a row after which nobody asks for a while.
    :param pause: seconds of it.
    :param clock: gives monotonic seconds.
    """

    def __init__(self, limit: int, pause: float, clock: Callable[[], float] = time.monotonic):
        self._limit = limit
        self._pause = pause
        self._clock = clock
        # In a row; and before which time nobody asks, if these are as many as the limit.
        self._failures, self._until = 0, 0.0
        # Guards both; held for their exchange only, never while somebody asks.
        self._lock = threading.Lock()

    def may_ask(self) -> bool:
        """Tell whether to ask now; who is told so tells ``answered`` or ``failed`` afterwards."""
        with self._lock:
            if self._failures >= self._limit:
                if self._clock() < self._until:
                    return False
                self._until = self._clock() + self._pause
            return True

    def seconds_left(self) -> float:
        """Return the seconds until somebody may ask again, 0 if that is now."""
        with self._lock:
            return max(0.0, self._until - self._clock()) if self._failures >= self._limit else 0.0

    def answered(self) -> None:
        """Note that the neighbour has answered, whatever it said."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """Note that it has not answered in its time."""
        with self._lock:
            self._failures += 1
            self._until = self._clock() + self._pause


_MOST_KEYS = 10_000
# Doubled so often, a second is longer than any pause.
_MOST_DOUBLED = 32


def length(times: int, first: float, longest: float) -> float:
    """Return how many seconds to wait after so many tries in a row. Pure.

    :param times: one or more.
    :param first: seconds after the first one; doubled each time.
    :param longest: seconds at most.
    """
    return float(min(first * (1 << min(times - 1, _MOST_DOUBLED)), longest))


class GrowingPauses:
    """When to try again, by key. Any thread may ask and tell.

    :param first: seconds of the pause after the first try.
    :param longest: seconds of a pause at most.
    :param clock: gives monotonic seconds.
    :param most: keys that are remembered. Of more than that, the one that is due next is forgotten,
        and so tried whenever somebody asks: a bound of memory, which nobody should come near.
    """

    def __init__(self, first: float, longest: float,
                 clock: Callable[[], float] = time.monotonic, most: int = _MOST_KEYS):
        self._first = first
        self._longest = longest
        self._clock = clock
        self._most = most
        # How often each was tried, and when it is due. Guarded by the lock, held for its steps.
        self._tried: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: object) -> bool:
        """Tell whether a key was postponed, or waits, and was not forgotten since."""
        return key in self._tried

    def due(self, key: str) -> float:
        """Return the monotonic second from which on to try; 0 for a key that is not known."""
        return self._tried.get(key, (0, 0.0))[1]

    def times(self, key: str) -> int:
        """Return how often a key was postponed since it was forgotten."""
        return self._tried.get(key, (0, 0.0))[0]

    def is_time(self, key: str) -> bool:
        """Tell whether to try now."""
        return self._clock() >= self.due(key)

    def postpone(self, key: str) -> float:
        """Try again later, and later each time.

        :returns: in how many seconds.
        """
        with self._lock:
            times = self._tried.get(key, (0, 0.0))[0] + 1
            pause = length(times, self._first, self._longest)
            self._note(key, times, self._clock() + pause)
        return pause

    def wait(self, key: str) -> None:
        """Have the first try wait for the first pause; it does not count as one that failed."""
        with self._lock:
            if key not in self._tried:
                self._note(key, 0, self._clock() + self._first)

    def forget(self, key: str) -> None:
        """Try at once the next time, and begin with the first pause after that."""
        with self._lock:
            self._tried.pop(key, None)

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget all but some."""
        with self._lock:
            self._tried = {key: tried for key, tried in self._tried.items() if key in keys}

    def _note(self, key: str, times: int, due: float) -> None:
        self._tried[key] = times, due
        if len(self._tried) > self._most:
            del self._tried[min(self._tried, key=lambda other: self._tried[other][1])]
