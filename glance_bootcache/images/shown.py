"""What Glance shows of an image's state: made equal to what its manifest says, also later.

Glance may be away at the moment at which an image becomes ready. So what it shows is compared with
the manifest whenever an image is looked at, and shown again where Glance did not take it.
"""

import random
import threading

from glance_bootcache.decisions import ImageFacts
from glance_bootcache.glance.images import Images
from glance_bootcache.images.jobs import Jobs
from glance_bootcache.storage.store import ImageStore

# A state may change while it is shown; the last one of several threads shows the last one.
_TRIES = 5
# In a row, after which Glance counts as being away.
_MOST_REFUSED = 3


class Shown:
    """Shows images' states.

    :param store: the manifests.
    :param images: Glance.
    :param jobs: what is in hand.
    """

    def __init__(self, store: ImageStore, images: Images, jobs: Jobs):
        self._store = store
        self._images = images
        self._jobs = jobs
        self._lock = threading.Lock()  # guards the set
        self._unshown: set[str] = set()

    def show(self, image_id: str) -> None:
        """Show what an image's manifest says; where Glance does not take it, ``again`` does."""
        for _try in range(_TRIES):
            manifest = self._store.load(image_id)
            seen = None if manifest is None else (self._jobs.state(manifest), manifest.reason)
            taken = seen is None or self._images.show_state(image_id, *seen)
            with self._lock:
                (self._unshown.discard if taken else self._unshown.add)(image_id)
            now = self._store.load(image_id)
            if seen is None or now is None or (self._jobs.state(now), now.reason) == seen:
                return

    def compare(self, image: ImageFacts) -> None:
        """Show what an image's manifest says, if Glance shows another state or reason.

        :param image: as Glance described it.
        """
        manifest = self._store.load(image.image_id)
        if manifest is not None and not self._images.shows(
                image, self._jobs.state(manifest), manifest.reason):
            self.show(image.image_id)

    def again(self) -> None:
        """Show what Glance did not take; when it takes several in a row not, the others wait."""
        with self._lock:
            unshown = list(self._unshown)
        # One that Glance refuses for good, as one of a protected property, holds up no other.
        random.shuffle(unshown)
        refused = 0
        for image_id in unshown:
            self.show(image_id)
            with self._lock:
                refused = refused + 1 if image_id in self._unshown else 0
            if refused == _MOST_REFUSED:
                return
