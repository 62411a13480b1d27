"""Publishes images' final states to Glance's properties; what lies between is for operators.

Whoever may see an image sees its properties, and each write of one is an update of all of Glance's
record. So nothing is written that is soon to change, nor while Glance itself is at work on it.
"""

import time
from collections.abc import Callable, Mapping

import cachetools
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import properties
from bootcache.manifest import Availability, ImageState, Manifest
from bootcache.reasons import Reason
from bootcache.util.backoff import CircuitBreaker
from glance_bootcache import away, snapshotrules
from glance_bootcache.glance import images as glance_images
from glance_bootcache.glance import tenants
from glance_bootcache.glance.images import Images
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images import policy

LOG = logging.getLogger(__name__)

# Of one image, as long as it does not change.
_MOST_TRIES = 3
_MOST_REFUSED = 10_000
_LONGEST_PAUSE = 3600.0
# After so many calls in a row without an answer Glance is asked to change no image for a while: it
# may describe them as ever, and each such call takes a minute of the threads of all images' looks.
_ERRORS, _SECONDS = 3, 60.0


def final(manifest: Manifest, state: ImageState) -> dict[str, str]:
    """Return the properties that an image is to have; none while its state is not final. Pure.

    :param state: with what is in hand.
    """
    if manifest.wished.availability in (Availability.ACTIVE, Availability.HIDDEN):
        stays = {ImageState.READY: True, ImageState.FAILED: not policy.waits_for_older(manifest),
                 ImageState.SKIPPED: not snapshotrules.is_left(manifest)
                 and manifest.cause.reason is not Reason.INSPECTION_RULES}.get(state, False)
    else:
        stays = manifest.wished.availability is Availability.OFF and state is ImageState.SKIPPED
    if not stays:
        return {}
    reason = tenants.told(state, manifest.cause)
    return {properties.STATE: state.value, **({properties.REASON: reason} if reason else {})}


class StatePublisher:
    """Makes an image's properties equal to its record.

    :param conf: configuration of the storage service.
    :param wall: seconds since the epoch.
    :param clock: monotonic seconds.
    """

    def __init__(self, conf: cfg.ConfigOpts, images: Images,
                 wall: Callable[[], float] = time.time,
                 clock: Callable[[], float] = time.monotonic):
        self._after: float = conf[bootcache_conf.GROUP].show_state_after
        self._pause: float = conf[bootcache_conf.GROUP].poll_interval
        self._images = images
        self._wall = wall
        self._glance = CircuitBreaker(_ERRORS, _SECONDS, clock)
        # How often Glance has refused to change an image, as it is.
        self._refused: cachetools.LRUCache[tuple[str, str], int] = \
            cachetools.LRUCache(_MOST_REFUSED)

    def publish(self, image: ImageFacts, record: Manifest, state: ImageState) -> float | None:
        """Publish an image's state, if it is time.

        :param image: as Glance described it just now.
        :returns: seconds after which it is to be tried again; None if there is nothing to do.
        """
        wanted = {} if self._after < 0 else final(record, state)
        key = image.image_id, image.updated_at
        if record.is_missing or glance_images.published(image) == wanted \
                or self._refused.get(key, 0) >= _MOST_TRIES:
            return None
        if not self._is_time(image, wanted):
            return max(self._after - self._quiet(image), 1.0) \
                if image.status == 'active' else self._until_glance_is_done(image)
        if not self._glance.may_ask():
            return self._pause
        try:
            # Glance does not tell when it is done with an image.
            changed = self._images.publish(
                image.image_id, wanted, lambda image: self._is_time(image, wanted)
                and not glance_images.is_at_work(image, self._quiet(image)))
        except Exception as error:
            if away.status(error):
                self._glance.answered()
            else:
                self._glance.failed()
            if away.passes(error):
                LOG.warning('image %s: %s cannot be set: %s', image.image_id, properties.STATE,
                            away.told(error))
            elif not self._has_to_be_tried(key, error):
                return None
            return self._pause
        self._glance.answered()
        return None if changed is None or glance_images.published(changed) == wanted \
            else self._until_glance_is_done(changed)

    def _is_time(self, image: ImageFacts, wanted: Mapping[str, str]) -> bool:
        return not wanted or (image.status == 'active' and self._quiet(image) >= self._after)

    def _until_glance_is_done(self, image: ImageFacts) -> float:
        # Its owner may leave any number of images so: the longer it has not changed, the later.
        return self._pause if image.status == 'active' \
            else max(self._pause, min(self._quiet(image), _LONGEST_PAUSE))

    def _quiet(self, image: ImageFacts) -> float:
        """Return for how many seconds an image was not changed."""
        return self._wall() - glance_images.changed_at(image)

    def _has_to_be_tried(self, key: tuple[str, str], error: Exception) -> bool:
        tried = self._refused[key] = self._refused.get(key, 0) + 1
        if tried == _MOST_TRIES:
            LOG.warning('image %s: %s cannot be set%s: %s. It is tried again when the image'
                        ' changes; its servers start all the same', key[0], properties.STATE,
                        ', as the image has as many properties as [DEFAULT]image_property_quota of'
                        ' glance-api.conf allows' if away.status(error) == 413 else '', error)
        return tried < _MOST_TRIES
