"""Publishes images' final states to Glance's properties; what lies between is for operators.

Whoever may see an image sees its properties, and each write of one is an update of all of Glance's
record. So nothing is written that is soon to change, nor while Glance itself is at work on it.
"""

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import properties
from bootcache.manifest import Availability, ImageState, Manifest
from bootcache.reasons import Reason
from glance_bootcache import away, decisions, snapshotrules
from glance_bootcache.decisions import ImageFacts
from glance_bootcache.glance import images as glance_images
from glance_bootcache.glance import tenants
from glance_bootcache.glance.images import Images
from glance_bootcache.images.jobs import Jobs
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

# In a row that Glance did not answer, after which it counts as being away.
_MOST_FAILURES = 3
# Of one image, as long as it does not change.
_MOST_TRIES = 3
_ROUND_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class _Seen:
    """An image as Glance described it last.

    :ivar image: what of that is needed here.
    :ivar refused: how often Glance has refused to change it since.
    """

    image: ImageFacts
    refused: int = 0


def final(manifest: Manifest, state: ImageState) -> dict[str, str]:
    """Return the properties that an image is to have; none while its state is not final. Pure.

    :param state: with what is in hand.
    """
    if manifest.wished.availability in (Availability.ACTIVE, Availability.HIDDEN):
        stays = {ImageState.READY: True, ImageState.FAILED: not decisions.waits_for_older(manifest),
                 ImageState.SKIPPED: not snapshotrules.is_left(manifest)
                 and manifest.cause.reason is not Reason.INSPECTION_RULES}.get(state, False)
    else:
        stays = manifest.wished.availability is Availability.OFF and state is ImageState.SKIPPED
    if not stays:
        return {}
    reason = tenants.told(state, manifest.cause)
    return {properties.STATE: state.value, **({properties.REASON: reason} if reason else {})}


class GlanceStatusPublisher:
    """Makes the properties equal to the manifests, in each round of upkeep.

    :param conf: configuration of the storage service.
    :param jobs: what is in hand.
    :param wall: seconds since the epoch.
    """

    def __init__(self, conf: cfg.ConfigOpts, store: ImageStore, images: Images, jobs: Jobs,
                 wall: Callable[[], float] = time.time):
        self._after = conf[bootcache_conf.GROUP].show_state_after
        self._store = store
        self._images = images
        self._jobs = jobs
        self._wall = wall
        self._lock = threading.Lock()  # guards the dictionary; Glance is asked without it
        self._seen: dict[str, _Seen] = {}

    def note_seen(self, image: ImageFacts) -> None:
        """Note what Glance says of an image; one that has changed is tried again."""
        image = dataclasses.replace(image, properties={
            name: image.properties[name] for name in glance_images.WATCHED
            if name in image.properties})
        with self._lock:
            known = self._seen.get(image.image_id)
            if known is None or known.image != image:
                self._seen[image.image_id] = _Seen(image)

    def has_changed(self, image: ImageFacts) -> bool:
        """Return whether an image is another than when it was looked at last."""
        with self._lock:
            known = self._seen.get(image.image_id)
        return known is not None and known.image.updated_at != image.updated_at

    def publish(self, manifests: Iterable[Manifest]) -> None:
        """Publish what has changed; if Glance is away, the others wait.

        :param manifests: of all images; one that came since is published in the next round.
        """
        listed = {manifest.image_id: manifest for manifest in manifests}
        with self._lock:
            seen = dict(self._seen)
        for image_id in seen.keys() - listed.keys():
            if self._store.known(image_id) is None:
                with self._lock:
                    self._seen.pop(image_id, None)
        due = [image_id for image_id, known in seen.items() if known.refused < _MOST_TRIES
               and image_id in listed and self._is_due(known.image, listed[image_id])]
        # One whose property Glance refuses holds up no other.
        random.shuffle(due)
        until, failures = time.monotonic() + _ROUND_SECONDS, 0
        for image_id in due:
            manifest, known = self._store.known(image_id), seen[image_id]
            if manifest is None or not self._is_due(known.image, manifest):
                continue
            failures = 0 if self._publish(manifest, known) else failures + 1
            if failures == _MOST_FAILURES or time.monotonic() > until:
                return

    def _wanted(self, manifest: Manifest) -> dict[str, str]:
        return {} if self._after < 0 else final(manifest, self._jobs.state(manifest))

    def _is_due(self, image: ImageFacts, manifest: Manifest) -> bool:
        wanted = self._wanted(manifest)
        return not manifest.is_missing and glance_images.published(image) != wanted \
            and self._is_time(image, wanted)

    def _is_time(self, image: ImageFacts, wanted: Mapping[str, str]) -> bool:
        return not wanted or (image.status == 'active' and self._quiet(image) >= self._after)

    def _quiet(self, image: ImageFacts) -> float:
        """Return for how many seconds an image was not changed."""
        return self._wall() - glance_images.changed_at(image)

    def _publish(self, manifest: Manifest, seen: _Seen) -> bool:
        """Publish an image's state.

        :returns: False if Glance is away; one that it refuses says nothing of the others.
        """
        image_id, wanted = manifest.image_id, self._wanted(manifest)
        try:
            # Glance does not tell when it is done with an image: it is looked at in each round.
            image = self._images.publish(
                image_id, wanted, lambda image: self._is_time(image, wanted)
                and not glance_images.is_at_work(image, self._quiet(image)))
        except Exception as error:
            if away.passes(error):
                LOG.warning('image %s: %s cannot be set: %s', image_id, properties.STATE,
                            away.told(error))
                return False
            self._refused(image_id, seen, error)
            return True
        if image is not None:
            self.note_seen(image)
        return True

    def _refused(self, image_id: str, seen: _Seen, error: Exception) -> None:
        tried = seen.refused + 1
        with self._lock:
            if self._seen.get(image_id) == seen:
                self._seen[image_id] = dataclasses.replace(seen, refused=tried)
        if tried == _MOST_TRIES:
            LOG.warning('image %s: %s cannot be set%s: %s. It is tried again when the image'
                        ' changes; its servers start all the same', image_id, properties.STATE,
                        ', as the image has as many properties as [DEFAULT]image_property_quota of'
                        ' glance-api.conf allows' if away.status(error) == 413 else '', error)
