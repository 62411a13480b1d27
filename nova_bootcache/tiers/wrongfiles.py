"""Cache images that came to this host as another file than was built, and when to try again."""

import time
from collections.abc import Callable

from oslo_log import log as logging

from bootcache.pauses import GrowingPauses
from nova_bootcache.asking.placement import Trust
from nova_bootcache.storagenode import Remote

LOG = logging.getLogger(__name__)

_FIRST_SECONDS, _LONGEST_SECONDS = 60.0, 3600.0
_TIMES_AGAIN = 3
_DAY = 86400.0


class WrongFiles:
    """What became of fetches, by image and content; what the storage node builds anew is trusted.

    :param clock: gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._again = GrowingPauses(_FIRST_SECONDS, _LONGEST_SECONDS, clock)
        self._given_up = GrowingPauses(_DAY, _DAY, clock)

    def trust(self, image_id: str, sha256: str) -> Trust:
        """Return whether a cache image is to be fetched."""
        key = _key(image_id, sha256)
        if not self._given_up.is_time(key):
            return Trust.NONE
        return Trust.FULL if self._again.is_time(key) else Trust.PAUSED

    def note(self, remote: Remote, sha256: str, reason: str) -> None:
        """Note that one has come wrong."""
        key = _key(remote.image_id, sha256)
        if self._again.times(key) < _TIMES_AGAIN:
            LOG.error('image %s: its cache image came wrong from %s:%d: %s. Servers read from the'
                      ' base; it is fetched again in %.0f s at the earliest', remote.image_id,
                      remote.host, remote.port, reason, self._again.postpone(key))
            return
        self._given_up.postpone(key)
        self._again.forget(key)
        LOG.error('image %s: its cache image came wrong from %s:%d for the %dth time: %s. Servers'
                  ' of it boot the stock way on this host for a day, or until the storage service'
                  ' has another one. Look at that node\'s disk, memory and network',
                  remote.image_id, remote.host, remote.port, _TIMES_AGAIN + 1, reason)

    def forget(self, image_id: str, sha256: str) -> None:
        """Note that one has come as it was built."""
        self._again.forget(_key(image_id, sha256))
        self._given_up.forget(_key(image_id, sha256))


def _key(image_id: str, sha256: str) -> str:
    return f'{image_id} {sha256}'
