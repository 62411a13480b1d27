"""Images that Glance says it does not have: since when, and whether that is believed.

An answer of 404 may be an ingress's default page, another region's Glance, or a lost role.
"""

import collections
import math
import threading
import time
from collections.abc import Callable

import cachetools
from oslo_log import log as logging

from bootcache.manifest import Availability, Manifest
from bootcache.reasons import Cause, Reason
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache import availability
from glance_bootcache.glance.images import Images
from glance_bootcache.images.jobs import Jobs
from glance_bootcache.images.retiring import Retiring
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

_DAY_SECONDS = 86400
# So long a listing of Glance's images counts at most.
_LISTED_SECONDS = 60
# Images that Glance shows to everybody.
_SEEN_BY_ALL = ('public', 'community')
_MOST_UNKNOWN = 10_000
_UNKNOWN_SECONDS = 60


class MissingImages:
    """Withdraws images that Glance does not have, and decides when they are removed.

    :param delay: seconds for which Glance has to answer so; from anew after a restart.
    :param jobs: what is in hand.
    :param clock: monotonic seconds.
    """

    def __init__(self, delay: float, store: ImageStore, images: Images, jobs: Jobs,
                 retiring: Retiring, clock: Callable[[], float] = time.monotonic):
        self._delay = delay
        self._store = store
        self._images = images
        self._jobs = jobs
        self._retiring = retiring
        self._clock = clock
        # Images that Glance does not have, and there is nothing of here.
        self._unknown: cachetools.TTLCache[str, bool] = cachetools.TTLCache(
            _MOST_UNKNOWN, _UNKNOWN_SECONDS)
        self._lock = threading.Lock()  # guards what follows; Glance is asked without it
        self._since: dict[str, float] = {}
        self._throttle = LogThrottle(LOG, math.inf)
        # When deletions were believed that Glance had not notified.
        self._believed: collections.deque[float] = collections.deque()
        self._listing: tuple[float, frozenset[str]] = float('-inf'), frozenset()

    def note_there(self, image_id: str) -> None:
        """Note that Glance has an image."""
        with self._lock:
            self._forget(image_id)
            self._unknown.pop(image_id, None)

    def _forget(self, image_id: str) -> None:
        self._since.pop(image_id, None)
        self._throttle.forget(image_id)

    def is_unknown(self, image_id: str) -> bool:
        """Return whether Glance said a moment ago that it does not have an image."""
        with self._lock:
            return image_id in self._unknown

    def withdraw(self, image_id: str, heard: Availability) -> bool:
        """Give an image out no more, of which nothing is lost by that.

        :param heard: MISSING, or DELETION_NOTIFIED.
        :returns: whether it is to be removed now.
        :raises DatabaseAway: if it cannot be written.
        :raises Exception: keystoneauth's or glanceclient's, if Glance lists no images.
        """
        def withdrawn(known: Manifest) -> Manifest:
            if known.wished.availability in (Availability.DELETED, heard) \
                    or (known.is_missing and heard is not Availability.DELETION_NOTIFIED):
                return known
            return known.wishing(availability=heard)

        before = self._store.load(image_id)
        manifest = self._store.change(image_id, withdrawn)
        if manifest is not None and manifest != before:
            LOG.info('image %s: it is given out no more: %s', image_id,
                     'Glance notified its deletion'
                     if heard is Availability.DELETION_NOTIFIED else Cause(Reason.MISSING))
        self._jobs.cancel(image_id)
        if manifest is None:
            with self._lock:
                self._unknown[image_id] = True
        if manifest is None or not manifest.is_missing:
            return False
        self._retiring.withdraw(image_id)
        if heard is not Availability.MISSING or not self._is_believed(manifest):
            return False
        with self._lock:
            self._forget(image_id)
            self._unknown[image_id] = True
        return True

    def _is_believed(self, manifest: Manifest) -> bool:
        image_id, now = manifest.image_id, self._clock()
        with self._lock:
            waited = now - self._since.setdefault(image_id, now)
        if manifest.wished.availability is Availability.DELETION_NOTIFIED or waited < self._delay:
            return waited >= self._delay
        is_sound = self.is_listed_without(image_id, manifest.wished.visibility,
                                          min(waited, _LISTED_SECONDS))
        with self._lock:
            while self._believed and self._believed[0] <= now - _DAY_SECONDS:
                self._believed.popleft()
            if is_sound and len(self._believed) < availability.budget(
                    len(self._store.manifests())):
                self._believed.append(now)
                return True
        if self._throttle.is_new(image_id):
            LOG.warning('image %s: Glance says that it does not have it, and has notified no'
                        ' deletion; %s. It is given out no more, and kept: "bootcache image delete'
                        ' %s" removes it', image_id,
                        'so it does of many images today' if is_sound else
                        'nor does it list the other known images (is [service_auth]region_name'
                        ' right?)', image_id)
        return False

    def is_listed_without(self, image_id: str, visibility: str = '', counts: float = 0) -> bool:
        """Return whether Glance lists the other known images, and not this one.

        Those that few may see tell which Glance it is, and with which role it is asked.

        :param visibility: the image's.
        :param counts: seconds for which a listing does, as the image was missing all that time.
        :raises Exception: keystoneauth's or glanceclient's, if Glance lists no images.
        """
        (begun, listed), now = self._listing, self._clock()
        if now - begun >= counts:
            listed = frozenset(image.image_id for image in self._images.all())
            self._listing = now, listed
        known = [each for each in self._store.manifests() if each.image_id != image_id
                 and each.wished.availability not in (Availability.DELETION_NOTIFIED,
                                                      Availability.DELETED)]
        others = {each.image_id for each in known if each.wished.visibility not in _SEEN_BY_ALL}
        if not others and visibility in _SEEN_BY_ALL:
            others = {each.image_id for each in known}
        return image_id not in listed and availability.shows_others(len(others & listed),
                                                                    len(others))
