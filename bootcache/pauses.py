"""Growing pauses between tries: what did not come off is tried later, and later each time.

Each thing that is tried has a key, an image's id for instance. ``breaker.py`` is about a neighbour
that many ask: it is left alone after some failures, and for one pause of a fixed length.
"""

import threading
import time
from collections.abc import Callable, Collection

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
