"""Log lines of what is looked at again and again: at the begin, seldom meanwhile, at the end."""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

# A line is not repeated sooner.
REPEAT_SECONDS = 1800.0
_MOST_TOPICS, _MOST_TEXTS = 10_000, 50


class LogThrottle:
    """Keeps a loop from logging the same at each round. Any thread may call it.

    :param log: the logger.
    :param seconds: in which a text is logged once for its topic; infinity for once.
    :param clock: returns seconds.
    """

    def __init__(self, log: Any, seconds: float = REPEAT_SECONDS,
                 clock: Callable[[], float] = lambda: time.monotonic()):
        self._log = log
        self._seconds = seconds
        self._clock = clock
        # What was logged of each topic's failure, with when; empty: it does not fail. The one that
        # was logged last is the last one.
        self._logged: dict[str, dict[str, float]] = {}
        self._full_at = -math.inf  # when it was logged last that there are too many topics
        self._lock = threading.Lock()  # guards the topics, for steps in memory

    def is_new(self, topic: str, text: str = '') -> bool:
        """Return whether a text is to be logged for a topic, which counts as done from now on.

        While 10,000 topics are remembered no other one is logged, but a line that says so.
        """
        now = self._clock()
        with self._lock:
            if topic in self._logged or self._has_room(now):
                return self._remember(topic, text, now)
            if self._is_fresh(self._full_at, now):
                return False
            self._full_at = now
        self._log.warning('%d failures are logged already; what fails beside them is not logged',
                          _MOST_TOPICS)
        return False

    def _remember(self, topic: str, text: str, now: float) -> bool:
        """Return whether a text is new, and note it for its topic."""
        logged = self._logged.get(topic, {})
        if self._is_fresh(logged.get(text, -math.inf), now):
            return False
        if len(logged) >= _MOST_TEXTS:
            logged.clear()
        logged[text] = now
        self._logged.pop(topic, None)
        self._logged[topic] = logged
        return True

    def _is_fresh(self, logged_at: float, now: float) -> bool:
        # A clock may be set back.
        return 0 <= now - logged_at < self._seconds

    def _has_room(self, now: float) -> bool:
        """Return whether one more topic can be remembered; the oldest one is forgotten for it."""
        if len(self._logged) < _MOST_TOPICS:
            return True
        oldest = next(iter(self._logged))
        if self._is_fresh(max(self._logged[oldest].values(), default=-math.inf), now):
            return False
        del self._logged[oldest]
        return True

    def warning(self, topic: str, text: str, *arguments: object) -> None:
        """Warn of a topic's failure, unless the same was logged just now."""
        message = text % arguments
        if self.is_new(topic, message):
            self._log.warning('%s', message)

    def ready(self, topic: str, text: str, *arguments: object) -> None:
        """Log that a topic does not fail: the first time, and if it has failed meanwhile."""
        with self._lock:
            is_new, self._logged[topic] = bool(self._logged.get(topic, True)), {}
        if is_new:
            self._log.info(text, *arguments)

    def recovered(self, topic: str, text: str, *arguments: object) -> None:
        """Log that a topic does not fail any more, if it has failed."""
        with self._lock:
            has_failed = bool(self._logged.get(topic))
            if has_failed:
                del self._logged[topic]
        if has_failed:
            self._log.info(text, *arguments)

    def forget(self, topic: str) -> None:
        """Log the next failure of a topic, whatever was logged."""
        with self._lock:
            self._logged.pop(topic, None)
