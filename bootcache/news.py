"""Log lines about what goes on for long: said when it begins, seldom meanwhile, and at its end."""

import time
from typing import Any

# A line that says the same is not repeated sooner.
AGAIN_SECONDS = 1800.0
_MOST = 50


class News:
    """Keeps a thread that looks again and again from saying the same each time.

    :param log: where to.
    """

    def __init__(self, log: Any):
        self._log = log
        # What is wrong, by topic, with the monotonic second in which it was said; empty: nothing.
        self._wrong: dict[str, dict[str, float]] = {}

    def bad(self, topic: str, text: str, *arguments: object) -> None:
        """Warn of something that is not right, if the same was not said just now."""
        said = self._wrong.setdefault(topic, {})
        what, now = text % arguments, time.monotonic()
        if now - said.get(what, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return
        if len(said) >= _MOST:
            said.clear()
        said[what] = now
        self._log.warning('%s', what)

    def good(self, topic: str, text: str, *arguments: object) -> None:
        """Say that something is right: the first time, and if it was wrong meanwhile."""
        if self._wrong.get(topic, True):
            self._log.info(text, *arguments)
        self._wrong[topic] = {}

    def mended(self, topic: str, text: str, *arguments: object) -> None:
        """Say that something is right again, if it was wrong."""
        if self._wrong.get(topic):
            self.good(topic, text, *arguments)
