"""Which image a snapshot's server was made of: a host that is warm for that is nearly warm for it.

Nova's scheduler is not given ``base_image_ref``: Glance is asked, as the user who asks for the
server. What a tenant writes there moves servers of its own image to other hosts, and nothing else.
"""

import concurrent.futures
import threading
import time
from typing import Any

import cachetools
from nova import exception
from nova.image import glance
from oslo_log import log as logging

from bootcache import beside
from bootcache.breaker import Breaker
from bootcache.properties import snapshot_parent

LOG = logging.getLogger(__name__)

# It never changes, as a rule; and one that Glance does not tell is not asked for by each request.
_REMEMBERED_SECONDS = 60
_REMEMBERED_IMAGES = 1024
# For which requests wait for an answer about one image; Nova's own patience with Glance has no end.
_PATIENCE_SECONDS = 1.0
# For which nobody asks a Glance that did not answer, and how many may be asked for at a time.
_SILENCE_SECONDS = 60
_MOST_ASKED = 8


class SnapshotParents:
    """Knows snapshots' parents, as Glance tells; requests do not wait for a Glance that hangs."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        # By image, with when it was asked for, in monotonic seconds. The scheduler's threads share
        # these, by the lock, which is held for steps in memory.
        self._known: Any = cachetools.TTLCache(_REMEMBERED_IMAGES, _REMEMBERED_SECONDS)
        self._asked: list[concurrent.futures.Future[str | None]] = []
        self._lock = threading.Lock()
        self._health = Breaker(1, _SILENCE_SECONDS)

    def of(self, image_id: str, request_spec: Any) -> str | None:
        """Return the id of an image's parent; None if it has none, or Glance does not tell soon."""
        with self._lock:
            known = self._known.get(image_id)
            if known is None:
                self._asked = [asked for asked in self._asked if not asked.done()]
                if len(self._asked) >= _MOST_ASKED or not self._health.may_ask():
                    return None
                context = request_spec._context
                asked = beside.begin(lambda: self._ask(image_id, context), 'bootcache-parent')
                self._asked.append(asked)
                known = self._known[image_id] = asked, time.monotonic()
        asked, since = known
        try:
            answer: str | None = asked.result(
                max(0.0, since + _PATIENCE_SECONDS - time.monotonic()))
        except concurrent.futures.TimeoutError:
            self._health.failed()
            LOG.info('image %s: Glance has not said within %d s whether it is a snapshot; hosts'
                     ' that are warm for its parent weigh as cold ones', image_id,
                     _PATIENCE_SECONDS)
            return None
        return answer

    def _ask(self, image_id: str, context: Any) -> str | None:
        try:
            image = glance.API().get(context, image_id)
        except (exception.ImageNotFound, exception.ImageNotAuthorized):
            self._health.answered()
            return None
        except Exception as error:
            self._health.failed()
            LOG.info('image %s: Glance cannot be asked whether it is a snapshot (%s); hosts that'
                     ' are warm for its parent weigh as cold ones', image_id, error)
            return None
        self._health.answered()
        return snapshot_parent(image.get('properties') or {})


# Of this process.
PARENTS = SnapshotParents()
