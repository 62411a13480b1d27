"""What was said on the message bus and not believed: counted, and told now and then."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import cachetools
from oslo_log import log as logging

from bootcache.exception import MessageRefused

LOG = logging.getLogger(__name__)

# What a host says wrong is told so often, and of so many hosts and reasons: a name costs nothing.
_TOLD_SECONDS = 3600
_MOST_TOLD = 1000
_LATE = 'not looked at, as a restart of this service, or a host that is late, has it'
_NOBODY = 'a sender that does not say who it is'


Refuse = Callable[[MessageRefused], None]


def pass_over(refusal: MessageRefused) -> None:
    """Hear of what is refused, and tell nobody."""


@contextlib.contextmanager
def left_out(refuse: Refuse) -> Iterator[None]:
    """Tell of what is refused within the block, and go on."""
    try:
        yield
    except MessageRefused as refusal:
        refuse(refusal)


class Refusals:
    """How many messages were refused, by method and field, since the service started.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._lock = threading.Lock()  # guards what is below; nothing is called under it
        # Both parts of a key are names of the service's own, so there are a hundred at most.
        self._counts: dict[tuple[str, str], int] = {}
        self._told: cachetools.TTLCache[tuple[str, str, str], bool] = cachetools.TTLCache(
            _MOST_TOLD, _TOLD_SECONDS, timer=clock)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many were refused, by method and field."""
        with self._lock:
            return dict(self._counts)

    def note(self, method: str, refusal: MessageRefused, host: str = '',
             is_harmless: bool = False) -> None:
        """Count a refusal, and log it if its like was not within the hour.

        :param method: of bootcache/rpcapi.py; empty for a message that is none.
        :param host: as the message says; empty if it does not.
        :param is_harmless: hosts that do not lie come to it, too.
        """
        key = method, refusal.field
        with self._lock:
            count = self._counts[key] = self._counts.get(key, 0) + 1
            self._told.expire()
            is_news = (host, *key) not in self._told
            room = self._told.maxsize - self._told.currsize
            if is_news and room > 0:
                self._told[host, *key] = True
        if is_news and room > 0:
            LOG.log(logging.INFO if is_harmless else logging.WARNING,
                    '%s: %s is %s: %s (number %d since the service started; told once an hour)',
                    f'host {host}' if host else _NOBODY, method or 'a message',
                    _LATE if is_harmless else 'refused', refusal, count)
        if is_news and room == 1:
            LOG.warning('of so many hosts messages are refused that no more are told of for an'
                        ' hour: whoever sends them has a password of [bootcache]transport_url')
