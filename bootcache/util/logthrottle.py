"""Log lines of what is looked at again and again: at the begin, seldom meanwhile, at the end."""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import cachetools

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
        # What was logged of each topic's failure, with when; empty: it does not fail.
        self._logged: cachetools.LRUCache[str, dict[str, float]] = cachetools.LRUCache(_MOST_TOPICS)
        self._lock = threading.Lock()  # guards the topics, for steps in memory

    def is_new(self, topic: str, text: str = '') -> bool:
        """Return whether a text is to be logged for a topic, which counts as done from now on."""
        now = self._clock()
        with self._lock:
            logged = self._logged.setdefault(topic, {})
            # A clock may be set back.
            if 0 <= now - logged.get(text, -math.inf) < self._seconds:
                return False
            if len(logged) >= _MOST_TEXTS:
                logged.clear()
            logged[text] = now
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
            self.ready(topic, text, *arguments)

    def forget(self, topic: str) -> None:
        """Log the next failure of a topic, whatever was logged."""
        with self._lock:
            self._logged.pop(topic, None)
