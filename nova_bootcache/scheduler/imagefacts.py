"""What an image says of the hosts of its servers: what it requires, and of what it is a snapshot.

Nova's scheduler is not given such properties: Glance is asked, as the user who asks for the server.
What a tenant writes there moves servers of its own image to other hosts, and nothing else.
"""

import concurrent.futures
import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Any

import cachetools
from nova.image import glance
from oslo_log import log as logging

from bootcache import exception, properties
from bootcache.util import threads
from bootcache.util.backoff import CircuitBreaker

LOG = logging.getLogger(__name__)

# An image's properties seldom change; a request of many servers asks Glance once.
_REMEMBERED_SECONDS = 60
_REMEMBERED_IMAGES = 1024
# For which requests wait for an answer about one image; Nova's own patience with Glance has no end.
_PATIENCE_SECONDS = 1.0
# For which nobody asks a Glance that did not answer, and how many may be asked for at a time.
_SILENCE_SECONDS = 60
_MOST_ASKED = 8


@dataclasses.dataclass(frozen=True)
class RequestedImage:
    """What an image says.

    :ivar required: of hosts: ``driver``, ``warm`` or None.
    :ivar parent: id of the image of which it is a snapshot, or None. A host that is warm for that
        is nearly warm for it.
    """

    required: str | None = None
    parent: str | None = None


def _facts(image_id: str, found: Mapping[str, Any]) -> RequestedImage:
    try:
        required = properties.requirement(found)
    except exception.InvalidProperty as error:
        LOG.warning('image %s: %s; all hosts pass', image_id, error)
        required = None
    if required == properties.REQUIRE_WARM and properties.is_snapshot(found):
        # It has that from its server's image. No host is warm for a snapshot, as a rule, and
        # what was shelved could not come back.
        required = properties.REQUIRE_DRIVER
    return RequestedImage(required, properties.snapshot_parent(found))


class ImageLookup:
    """Knows what images say, as Glance tells; requests do not wait for a Glance that hangs."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        # By image, with when it was asked for, in monotonic seconds. The scheduler's threads share
        # these, by the lock, which is held for steps in memory.
        self._known: Any = cachetools.TTLCache(_REMEMBERED_IMAGES, _REMEMBERED_SECONDS)
        self._asked: list[concurrent.futures.Future[RequestedImage | None]] = []
        self._lock = threading.Lock()
        self._health = CircuitBreaker(1, _SILENCE_SECONDS)

    def of(self, image_id: str, request_spec: Any,
           is_needed: bool = False) -> RequestedImage | None:
        """Return what an image says; None if Glance does not tell soon.

        :param is_needed: whether to ask again where Glance has refused to tell just now.
        """
        with self._lock:
            known = self._known.get(image_id)
            if known is None or (is_needed and known[0].done() and known[0].result() is None):
                self._asked = [asked for asked in self._asked if not asked.done()]
                if len(self._asked) >= _MOST_ASKED or not self._health.may_ask():
                    return None
                context = request_spec._context
                asked = threads.daemon_thread(
                    lambda: self._ask(image_id, context), 'bootcache-image')
                self._asked.append(asked)
                known = self._known[image_id] = asked, time.monotonic()
        asked, since = known
        try:
            answer: RequestedImage | None = asked.result(
                max(0.0, since + _PATIENCE_SECONDS - time.monotonic()))
        except concurrent.futures.TimeoutError:
            self._health.failed()
            LOG.info('image %s: Glance has not told its properties within %d s', image_id,
                     _PATIENCE_SECONDS)
            return None
        return answer

    def _ask(self, image_id: str, context: Any) -> RequestedImage | None:
        try:
            found = glance.API().get(context, image_id).get('properties') or {}
        except Exception as error:
            LOG.info('image %s: Glance does not tell its properties: %s', image_id, error)
            return None
        finally:
            self._health.answered()
        return _facts(image_id, found)


# Of this process; the weigher and the filter share it.
IMAGES = ImageLookup()
