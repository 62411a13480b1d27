"""When it is believed that Glance does not have an image.

An answer of 404 may be an ingress's default page, another region's Glance, or a lost role.
"""

import collections
import math
import threading
import time
from collections.abc import Callable

from oslo_log import log as logging

from bootcache.manifest import Availability, Manifest
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache import availability
from glance_bootcache.glance.images import Images
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

_DAY_SECONDS = 86400
# So long a listing of Glance's images counts at most.
_LISTED_SECONDS = 60
# Images that Glance shows to everybody.
_SEEN_BY_ALL = ('public', 'community')


class Deletions:
    """Decides when images are removed that Glance does not have.

    :param delay: seconds for which Glance has to answer so; from anew after a restart.
    :param clock: monotonic seconds.
    """

    def __init__(self, delay: float, store: ImageStore, images: Images,
                 clock: Callable[[], float] = time.monotonic):
        self._delay = delay
        self._store = store
        self._images = images
        self._clock = clock
        self._lock = threading.Lock()  # guards what follows; Glance is asked without it
        self._since: dict[str, float] = {}
        self._throttle = LogThrottle(LOG, math.inf)
        # When deletions were believed that Glance had not notified.
        self._believed: collections.deque[float] = collections.deque()
        self._listing: tuple[float, frozenset[str]] = float('-inf'), frozenset()

    def forget(self, image_id: str) -> None:
        """Forget that an image was missing."""
        with self._lock:
            self._since.pop(image_id, None)
            self._throttle.forget(image_id)

    def seconds_left(self, image_id: str) -> float:
        """Return the seconds for which Glance has yet to answer that it does not have an image."""
        now = self._clock()
        with self._lock:
            return max(0.0, self._since.setdefault(image_id, now) + self._delay - now)

    def is_believed(self, record: Manifest) -> bool:
        """Tell whether an image is to be removed, that Glance said just now not to have.

        :raises Exception: keystoneauth's or glanceclient's, if Glance lists no images.
        """
        image_id, now = record.image_id, self._clock()
        with self._lock:
            waited = now - self._since.setdefault(image_id, now)
        if record.wished.availability is Availability.DELETION_NOTIFIED or waited < self._delay:
            return waited >= self._delay
        most = availability.budget(len(self._store.everywhere()))
        with self._lock:
            while self._believed and self._believed[0] <= now - _DAY_SECONDS:
                self._believed.popleft()
            are_many = len(self._believed) >= most
        # Listing a large Glance takes minutes: not where nothing would follow.
        if not are_many and self.is_listed_without(image_id, record.wished.visibility,
                                                   min(waited, _LISTED_SECONDS)):
            with self._lock:
                are_many = len(self._believed) >= most
                if not are_many:
                    self._believed.append(now)
                    return True
        if self._throttle.is_new(image_id):
            LOG.warning('image %s: Glance says that it does not have it, and has notified no'
                        ' deletion; %s. It is given out no more, and kept: "bootcache image delete'
                        ' %s" removes it', image_id,
                        'so it does of many images today' if are_many else
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
        known = [each for each in self._store.everywhere() if each.image_id != image_id
                 and each.wished.availability not in (Availability.DELETION_NOTIFIED,
                                                      Availability.DELETED)]
        others = {each.image_id for each in known if each.wished.visibility not in _SEEN_BY_ALL}
        if not others and visibility in _SEEN_BY_ALL:
            others = {each.image_id for each in known}
        return image_id not in listed and availability.shows_others(len(others & listed),
                                                                    len(others))
