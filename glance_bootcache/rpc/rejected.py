"""Messages that the storage service rejects: counted, and logged within bounds."""

import threading
import time
from collections.abc import Callable

import cachetools
from oslo_log import log as logging

from bootcache.exception import MessageRefused

LOG = logging.getLogger(__name__)

# What a host sends wrong is logged so often, and of so many hosts and reasons: a host's name is
# made up easily.
_LOGGED_SECONDS = 3600
_MOST_LOGGED = 1000
_LATE = 'not looked at, as a restart of this service, or a host that is late, has it'
_NOBODY = 'a sender that does not say who it is'


class RejectedMessages:
    """How many messages were rejected, by method and field, since the service started.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._lock = threading.Lock()  # guards what is below; nothing is called under it
        # Both parts of a key are declared names, so there are some two hundred at most.
        self._counts: dict[tuple[str, str], int] = {}
        self._logged: cachetools.TTLCache[tuple[str, str, str], bool] = cachetools.TTLCache(
            _MOST_LOGGED, _LOGGED_SECONDS, timer=clock)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many were rejected, by method and field."""
        with self._lock:
            return dict(self._counts)

    def record(self, method: str, refusal: MessageRefused, host: str = '',
               is_harmless: bool = False) -> None:
        """Count a rejected message, and log it if the same was not logged within the hour.

        :param method: of bootcache.rpc.messages; empty for an unknown one.
        :param host: as the message says; empty if it does not.
        :param is_harmless: hosts that do not lie come to it, too.
        """
        key = method, refusal.field
        with self._lock:
            count = self._counts[key] = self._counts.get(key, 0) + 1
            self._logged.expire()
            is_news = (host, *key) not in self._logged
            room = self._logged.maxsize - self._logged.currsize
            if is_news and room > 0:
                self._logged[host, *key] = True
        if is_news and room > 0:
            LOG.log(logging.INFO if is_harmless else logging.WARNING,
                    '%s: %s is %s: %s (number %d since the service started; told once an hour)',
                    f'host {host}' if host else _NOBODY, method or 'a message',
                    _LATE if is_harmless else 'refused', refusal, count)
        if is_news and room == 1:
            LOG.warning('of so many hosts messages are refused that no more are told of for an'
                        ' hour: whoever sends them has a password of [bootcache]transport_url')
