"""When to try again: growing pauses by key, and a circuit breaker. Tenacity retries in place.

Of the libraries, pybreaker holds a lock over the call, so that servers that boot at the same time
would wait for each other, and circuitbreaker lets all who wait try at once.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any

_MOST_KEYS = 10_000
# Doubled so often, a second is longer than any pause.
_MOST_DOUBLED = 32


def pause_seconds(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait after so many failures in a row. Pure.

    :param failures: one or more.
    :param first: seconds after the first failure; doubled with each further one.
    :param longest: seconds at most.
    """
    return float(min(first * (1 << min(failures - 1, _MOST_DOUBLED)), longest))


class Backoff:
    """When a loop tries again, by key. Any thread may call it.

    :param first: seconds of the pause after the first try.
    :param longest: seconds of a pause at most; None for pauses that do not grow.
    :param clock: returns monotonic seconds.
    :param most: keys that are remembered. Beyond that the key that is due next is forgotten, and so
        due at once: a bound of memory, which nobody should come near.
    """

    def __init__(self, first: float, longest: float | None = None,
                 clock: Callable[[], float] = time.monotonic, most: int = _MOST_KEYS):
        self._first = first
        self._longest = first if longest is None else longest
        self._clock = clock
        self._most = most
        # Failures of each key, and when it is due. Guarded by the lock, held for steps in memory.
        self._known: dict[Any, tuple[int, float]] = {}
        self._lock = threading.RLock()

    def __contains__(self, key: Hashable) -> bool:
        """Return whether a key was postponed or delayed, and was not forgotten since."""
        return key in self._known

    def known(self) -> set[Any]:
        """Return the keys that are remembered."""
        return set(self._known)

    def due_at(self, key: Hashable = '') -> float:
        """Return the monotonic second from which on to try; 0 for a key that is not known."""
        return self._known.get(key, (0, 0.0))[1]

    def failures(self, key: Hashable = '') -> int:
        """Return how often a key was postponed since it was forgotten."""
        return self._known.get(key, (0, 0.0))[0]

    def is_due(self, key: Hashable = '') -> bool:
        """Return whether to try now."""
        return self._clock() >= self.due_at(key)

    def acquire(self, key: Hashable = '') -> bool:
        """Return whether to try now; if so the next try is postponed, until ``forget``."""
        with self._lock:
            is_due = self.is_due(key)
            if is_due:
                self.postpone(key)
        return is_due

    def postpone(self, key: Hashable = '', seconds: float | None = None) -> float:
        """Try a key again later, and later each time.

        :param seconds: of this pause, where another party says them; None for the next one.
        :returns: seconds of the pause.
        """
        with self._lock:
            failures = self.failures(key) + 1
            if seconds is None:
                seconds = pause_seconds(failures, self._first, self._longest)
            self._set(key, failures, self._clock() + seconds)
        return seconds

    def delay_first(self, key: Hashable = '') -> None:
        """Have a key's first try wait for the first pause, which does not count as a failure."""
        with self._lock:
            if key not in self._known:
                self._set(key, 0, self._clock() + self._first)

    def forget(self, key: Hashable = '') -> bool:
        """Have a key be due at once, and its pauses begin with the first one again.

        :returns: whether it was remembered.
        """
        with self._lock:
            return self._known.pop(key, None) is not None

    def keep_only(self, keys: Collection[Hashable]) -> None:
        """Forget all keys but some."""
        with self._lock:
            self._known = {key: known for key, known in self._known.items() if key in keys}

    def _set(self, key: Hashable, failures: int, due: float) -> None:
        self._known[key] = failures, due
        if len(self._known) > self._most:
            del self._known[min(self._known, key=lambda other: self._known[other][1])]


class CircuitBreaker:
    """Keeps all threads from calling a peer for a while that has not answered; one then tries.

    If nothing is heard of that try, either, the next one is allowed after a pause.

    :param limit: failures in a row after which no call is allowed for a while.
    :param pause: seconds of it.
    :param clock: returns monotonic seconds.
    """

    def __init__(self, limit: int, pause: float, clock: Callable[[], float] = time.monotonic):
        self._limit = limit
        self._pause = pause
        self._clock = clock
        # In a row; and before which time no call is allowed, if these are as many as the limit.
        self._failures, self._until = 0, 0.0
        # Guards both; held for their exchange only, never over a call.
        self._lock = threading.Lock()

    def may_ask(self) -> bool:
        """Return whether to call now; after True the caller calls ``answered`` or ``failed``."""
        with self._lock:
            if self._failures >= self._limit:
                if self._clock() < self._until:
                    return False
                self._until = self._clock() + self._pause
            return True

    def seconds_left(self) -> float:
        """Return the seconds until a call is allowed again, 0 if it is now."""
        with self._lock:
            return max(0.0, self._until - self._clock()) if self._failures >= self._limit else 0.0

    def answered(self) -> None:
        """Note that the peer has answered, whatever it said."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """Note that the peer has not answered in its time."""
        with self._lock:
            self._failures += 1
            self._until = self._clock() + self._pause

    @contextlib.contextmanager
    def hearing(self, is_silence: Callable[[Exception], bool]) -> Iterator[None]:
        """Note whether the peer answers what the block asks it.

        :param is_silence: tells of an error whether the peer has not answered in its time.
        """
        try:
            yield
        except Exception as error:
            (self.failed if is_silence(error) else self.answered)()
            raise
        self.answered()
