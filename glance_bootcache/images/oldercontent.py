"""Images that have another content in Glance, while servers still need the older one: tried again.

The base of the older content stays as long as it is needed, and the image's new servers go the
stock way. When the last one of the older servers has gone, no event tells: so it is looked at here.
"""

import time
from collections.abc import Callable

from oslo_log import log as logging

from bootcache.manifest import Manifest, Standing
from glance_bootcache.decisions import OLDER_READ
from glance_bootcache.images.manager import Manager
from glance_bootcache.images.retiring import ROUND_SECONDS
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

# A look asks Nova; where it finds no server, the new content is got, and may be got in vain, as a
# host is connected that does not tell what it needs.
_PAUSE_SECONDS = 60
_LONGEST_PAUSE = 3600


def is_waiting(manifest: Manifest) -> bool:
    """Tell whether an image waits for the end of those that need its older content. Pure.

    Its last try may have failed for another reason, as Glance was away. And one whose older base
    was given up, while a host is connected to it, has none.
    """
    return (manifest.has_older_base or OLDER_READ in manifest.reason) \
        and manifest.standing in (Standing.FAILED, Standing.DONE)


class OlderContent:
    """Looks at such images with growing pauses; all are looked at a minute after a restart.

    :param clock: monotonic seconds.
    """

    def __init__(self, store: ImageStore, manager: Manager,
                 clock: Callable[[], float] = time.monotonic):
        self._store = store
        self._manager = manager
        self._clock = clock
        # When each image is looked at next, and the pause after that; the upkeep's thread's own.
        self._due: dict[str, tuple[float, float]] = {}

    def retry(self) -> None:
        """Begin again with images that nobody needs the older content of any more.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        now = self._clock()
        waiting = [manifest.image_id for manifest in self._store.manifests()
                   if is_waiting(manifest) and self._manager.jobs.of(manifest.image_id) is None]
        # What is tried just now may come back: its pause is kept.
        self._due = {image_id: due for image_id, due in self._due.items()
                     if image_id in waiting or self._manager.jobs.of(image_id) is not None}
        for image_id in waiting:
            self._due.setdefault(image_id, (now + _PAUSE_SECONDS, _PAUSE_SECONDS))
        for image_id in sorted(waiting, key=self._due.__getitem__):
            due, pause = self._due[image_id]
            if due > now or self._clock() > now + ROUND_SECONDS:
                return
            self._due[image_id] = self._clock() + pause, min(2 * pause, _LONGEST_PAUSE)
            if not self._manager.retiring.is_needed(image_id):
                LOG.info('image %s: its older content is not needed any more; the one that Glance'
                         ' has is got', image_id)
                self._manager.consider(image_id, again=True)
