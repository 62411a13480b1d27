"""A circuit breaker: what has just not answered is left alone for a while, and then asked once.

Of the libraries, pybreaker holds a lock over the call, so that servers that boot at the same time
would wait for each other, and circuitbreaker lets all who wait try at once.
"""

import dataclasses
import threading
import time
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Health:
    """What is known of a neighbour.

    :ivar failures: in a row.
    :ivar until: before that time nobody asks; seconds of a monotonic clock.
    """

    failures: int = 0
    until: float = 0.0


def asked(state: Health, limit: int, pause: float, now: float) -> tuple[bool, Health]:
    """Return whether to ask now, and what is known then. Pure.

    After a pause one asks. If nothing is heard of that one, either, another does after a pause.

    :param limit: failures in a row after which nobody asks for a while.
    :param pause: seconds of it.
    :param now: monotonic seconds.
    """
    if state.failures < limit:
        return True, state
    if now < state.until:
        return False, state
    return True, dataclasses.replace(state, until=now + pause)


def failed(state: Health, limit: int, pause: float, now: float) -> Health:
    """Return what is known after a failure. Pure; the parameters are those of ``asked``."""
    failures = state.failures + 1
    return Health(failures, now + pause if failures >= limit else state.until)


class Breaker:
    """Remembers how a neighbour answers, for all threads that ask it.

    :param limit: failures in a row after which nobody asks for a while.
    :param pause: seconds of it.
    :param clock: gives monotonic seconds.
    """

    def __init__(self, limit: int, pause: float, clock: Callable[[], float] = time.monotonic):
        self._limit = limit
        self._pause = pause
        self._clock = clock
        self._state = Health()
        # Guards the state; held for its exchange only, never while somebody asks.
        self._lock = threading.Lock()

    def may_ask(self) -> bool:
        """Tell whether to ask now; who is told so tells ``answered`` or ``failed`` afterwards."""
        with self._lock:
            may, self._state = asked(self._state, self._limit, self._pause, self._clock())
        return may

    def seconds_left(self) -> float:
        """Return the seconds until somebody may ask again, 0 if that is now."""
        with self._lock:
            state = self._state
        return max(0.0, state.until - self._clock()) if state.failures >= self._limit else 0.0

    def answered(self) -> None:
        """Note that the neighbour has answered, whatever it said."""
        with self._lock:
            self._state = Health()

    def failed(self) -> None:
        """Note that it has not answered in its time."""
        with self._lock:
            self._state = failed(self._state, self._limit, self._pause, self._clock())
