"""Changes of images that could not be followed when they came: Glance, or the database, was away.

Glance tells of a change once. What follows from it is found out anew from Glance in a later round;
that fewer people may see an image, or that its deletion was notified, is not, and so it is noted.
It ends with the process: an image
that has a manifest is looked at by the next one, and one that has none yet is known with its next
change, by a sweep, or with the next server that boots from it.
"""

import contextlib
import threading
from collections.abc import Iterator

from oslo_log import log as logging

from bootcache.exception import DatabaseAway
from bootcache.manifest import Availability

LOG = logging.getLogger(__name__)

_MOST_IMAGES = 10_000


class RetriedLooks:
    """The images that are to be looked at again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the dictionary; held for its steps
        # What was heard of each; another change is another set.
        self._images: dict[str, set[Availability]] = {}

    def images(self) -> list[str]:
        """Return their ids."""
        with self._lock:
            return list(self._images)

    def add(self, image_id: str, error: Exception,
            heard: Availability = Availability.ACTIVE) -> None:
        """Note an image.

        :param error: why its change could not be followed.
        :param heard: what Glance does not tell again.
        """
        with self._lock:
            known = self._images.get(image_id)
            is_kept = known is not None or len(self._images) < _MOST_IMAGES
            if is_kept:
                self._images[image_id] = {heard, *(known or ())}
        if not is_kept:
            LOG.error('image %s: its change cannot be followed (%s), and is lost, as those of %d'
                      ' images wait already; "bootcache image build %s" takes it up', image_id,
                      error, _MOST_IMAGES, image_id)
        elif known is None and isinstance(error, DatabaseAway | OSError):
            LOG.warning('image %s: its change cannot be written: %s. It is tried again by itself',
                        image_id, error)

    @contextlib.contextmanager
    def noted(self, image_id: str, heard: Availability = Availability.ACTIVE) -> Iterator[None]:
        """Note an image if the block cannot write its row; whoever asked is not told.

        :param heard: as for ``add``.
        """
        try:
            yield
        except (DatabaseAway, OSError) as error:
            self.add(image_id, error, heard)

    @contextlib.contextmanager
    def follow(self, image_id: str) -> Iterator[set[Availability]]:
        """Follow an image's change in the block: it is noted on if that raises.

        :returns: what was heard of it.
        """
        with self._lock:
            noted = self._images.get(image_id, set())
        yield noted
        with self._lock:
            # It may have changed once more.
            if self._images.get(image_id) is noted:
                del self._images[image_id]
