"""Which image a snapshot's server was made of: a host that is warm for that is nearly warm for it.

Nova's scheduler is not given ``base_image_ref``: Glance is asked, as the user who asks for the
server. What a tenant writes there moves servers of its own image to other hosts, and nothing else.
"""

import threading
from typing import Any

import cachetools
from nova.image import glance
from oslo_log import log as logging

from bootcache import naming
from bootcache.properties import is_snapshot

LOG = logging.getLogger(__name__)

# It never changes, as a rule; and one that Glance does not tell is not asked for by each request.
_REMEMBERED_SECONDS = 60
_REMEMBERED_IMAGES = 1024


class SnapshotParents:
    """Knows snapshots' parents, as Glance tells."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        # In a tuple, as None is an answer. The scheduler's threads share it, by the lock.
        self._known: Any = cachetools.TTLCache(_REMEMBERED_IMAGES, _REMEMBERED_SECONDS)
        self._lock = threading.Lock()

    def of(self, image_id: str, request_spec: Any) -> str | None:
        """Return the id of an image's parent; None if it has none, or Glance does not tell."""
        with self._lock:
            known = self._known.get(image_id)
        if known is not None:
            return known[0]  # type: ignore[no-any-return]
        parent = None
        try:
            context = request_spec._context
            image = glance.API().get(context, image_id)
            parent = _parent(image.get('properties') or {})
        except Exception as error:
            LOG.info('image %s: Glance cannot be asked whether it is a snapshot (%s); hosts that'
                     ' are warm for its parent weigh as cold ones', image_id, error)
        with self._lock:
            self._known[image_id] = parent,
        return parent


def _parent(properties: Any) -> str | None:
    if not is_snapshot(properties):
        return None
    try:
        return naming.canonical_image_id(str(properties.get('base_image_ref')))
    except ValueError:
        return None


# Of this process.
PARENTS = SnapshotParents()
