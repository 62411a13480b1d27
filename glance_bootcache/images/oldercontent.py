"""Images that have another content in Glance, while servers still need the older one: tried again.

The base of the older content stays as long as it is needed, and the image's new servers go the
stock way. When the last one of the older servers has gone, no event tells: so it is looked at here.
"""

import time
from collections.abc import Callable, Iterable

from oslo_log import log as logging

from bootcache.breaker import GrowingPauses
from bootcache.manifest import Manifest
from bootcache.reasons import Reason
from glance_bootcache import decisions
from glance_bootcache.images.manager import Manager
from glance_bootcache.images.retiring import ROUND_SECONDS
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

# A look asks Nova.
_PAUSE_SECONDS = 60
_LONGEST_PAUSE = 3600
# Where that finds no server, the new content is got, which may be gigabytes. What keeps it from
# being taken may pass, as a full disk, or be in the content.
_LONGEST_PAUSE_OF_TRIES = 24 * 3600


class OlderContent:
    """Looks at such images with growing pauses; all are looked at a minute after a restart.

    :param clock: monotonic seconds.
    """

    def __init__(self, store: ImageStore, manager: Manager,
                 clock: Callable[[], float] = time.monotonic):
        self._store = store
        self._manager = manager
        self._clock = clock
        self._looks = GrowingPauses(_PAUSE_SECONDS, _LONGEST_PAUSE, clock)
        # Those that failed for another reason than that the older content is needed.
        self._tries = GrowingPauses(_PAUSE_SECONDS, _LONGEST_PAUSE_OF_TRIES, clock)

    def retry(self, manifests: Iterable[Manifest]) -> None:
        """Begin again with images that nobody needs the older content of any more.

        :param manifests: of all images.
        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        now, in_hand = self._clock(), self._manager.jobs.images()
        waiting = {manifest.image_id for manifest in manifests
                   if decisions.waits_for_older(manifest) and manifest.image_id not in in_hand}
        # What is tried just now may come back: its pauses are kept.
        for pauses in (self._looks, self._tries):
            pauses.keep_only({*waiting, *in_hand})
        for image_id in waiting:
            self._looks.wait(image_id)
        for image_id in sorted(waiting, key=self._looks.due):
            if not self._looks.is_time(image_id) or self._clock() > now + ROUND_SECONDS:
                return
            self._looks.postpone(image_id)
            self._look(image_id)

    def _look(self, image_id: str) -> None:
        manifest = self._store.load(image_id)
        if manifest is None or not decisions.waits_for_older(manifest):
            return
        if manifest.cause.reason is Reason.OLDER_CONTENT_IN_USE:
            # Nothing was downloaded for that.
            self._tries.forget(image_id)
        if self._tries.is_time(image_id) and not self._manager.retiring.is_needed(image_id):
            self._tries.postpone(image_id)
            LOG.info('image %s: its older content is not needed any more; the one that Glance has'
                     ' is got', image_id)
            self._manager.consider(image_id, again=True)
