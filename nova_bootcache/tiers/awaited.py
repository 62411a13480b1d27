"""The cache images that servers of one host wait for, as other hosts are to give all of them."""

import threading
import time

from oslo_log import log as logging

from bootcache.exchange import patience
from bootcache.locks import leaf

LOG = logging.getLogger(__name__)


class Awaited:
    """Holds servers up while others give what they would read from the storage node else.

    What many cold hosts read from there meanwhile fills the link that the exchange's first copies
    wait for.
    """

    def __init__(self) -> None:
        self._lock = leaf('the lock of the list of awaited cache images')
        # By image: since when, in monotonic seconds, and what is set when it is over. Guarded by
        # the lock, held for dictionary steps.
        self._awaited: dict[str, tuple[float, threading.Event]] = {}

    def begin(self, image_id: str) -> None:
        """Have servers of an image wait from now on."""
        with self._lock:
            self._awaited[image_id] = time.monotonic(), threading.Event()

    def end(self, image_id: str) -> None:
        """Have them go on: it is here, or others do not give it."""
        with self._lock:
            known = self._awaited.pop(image_id, None)
        if known is not None:
            known[1].set()

    def is_overdue(self, image_id: str) -> bool:
        """Tell whether servers of an image have waited for as long as they may."""
        with self._lock:
            known = self._awaited.get(image_id)
        return known is not None and not patience.servers_wait(known[0], time.monotonic())

    def wait(self, image_id: str) -> None:
        """Wait until servers of an image are to go on; not at all if they are by now.

        However many there are, none of them waits for longer than ``patience.SERVERS_WAIT``.
        """
        with self._lock:
            known = self._awaited.get(image_id)
        if known is None:
            return
        since, over = known
        if not over.wait(patience.servers_wait(since, time.monotonic())):
            LOG.info('image %s: other hosts have not given all of its cache image within %.1f s; a'
                     ' server reads from the storage node meanwhile', image_id,
                     time.monotonic() - since)
