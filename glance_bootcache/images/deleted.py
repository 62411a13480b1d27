"""Images of which hosts hold something and no manifest tells: whether Glance still gives them out.

A manifest is missing where an image was deleted, and where ``state_dir`` was lost, or is not
mounted. Hosts are to let go in the first case only: in the other one what they hold is as right as
ever, and all of the cloud would be cold.
"""

import threading
import time
from collections.abc import Callable

from glance_bootcache.glance.images import Images

# At one time, so that the service's other work does not wait for long.
_ASKED_AT_ONCE = 100
_ASKED_AGAIN_SECONDS = 3600
_MOST_IMAGES = 10_000


class DeletedImages:
    """What Glance said of such images; forgotten with a restart.

    :param images: Glance.
    :param clock: monotonic seconds.
    """

    def __init__(self, images: Images, clock: Callable[[], float] = time.monotonic):
        self._images = images
        self._clock = clock
        self._lock = threading.Lock()  # guards the dictionaries; Glance is asked without it
        # Whether it is gone, and until when that is believed; the oldest answer first.
        self._known: dict[str, tuple[bool, float]] = {}
        self._wanted: dict[str, None] = {}

    def is_gone(self, image_id: str) -> bool:
        """Tell whether Glance gives an image out no more; False while that is not known.

        Where it is not known Glance is asked later.
        """
        with self._lock:
            gone, until = self._known.get(image_id, (False, float('-inf')))
            if until < self._clock() and len(self._wanted) < _MOST_IMAGES:
                self._wanted[image_id] = None
            return gone

    def note(self, image_id: str, gone: bool = True) -> None:
        """Note what Glance says of an image."""
        with self._lock:
            self._wanted.pop(image_id, None)
            self._known.pop(image_id, None)
            if len(self._known) >= _MOST_IMAGES:
                del self._known[next(iter(self._known))]
            self._known[image_id] = gone, self._clock() + _ASKED_AGAIN_SECONDS

    def ask(self) -> None:
        """Ask Glance for some of the images that are not known.

        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        with self._lock:
            wanted = list(self._wanted)[:_ASKED_AT_ONCE]
        for image_id in wanted:
            image = self._images.get(image_id)
            self.note(image_id, image is None or image.status != 'active')
