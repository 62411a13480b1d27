"""Changes of images that could not be written into their manifests: they are followed later.

Glance tells of a change once, and a full disk has room again. What follows from a change is found
out anew from Glance then; that fewer people may see an image is not, and so it is noted. What was
noted ends with the process: an image that has a manifest is looked at by the next one, and one that
has none yet is known with its next change, or with the next server that boots from it.
"""

import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator

from oslo_log import log as logging

from bootcache.pauses import GrowingPauses

LOG = logging.getLogger(__name__)

# All images have one state directory, and so one pause: when it can be written again, all are
# looked at.
_ALL = 'state directory'
_LONGEST_PAUSE = 300
# In a row, after which the state directory counts as one that cannot be written.
_MOST_FAILURES = 3
_MOST_IMAGES = 10_000


@dataclasses.dataclass(frozen=True, eq=False)
class _Change:
    """What could not be written of an image; another change is another one.

    :ivar let_go: fewer people may see it than hosts that hold its cache image know of.
    """

    let_go: bool


class Unwritten:
    """The images whose changes are to be followed again.

    :param first: seconds until they are; doubled each time, up to five minutes.
    :param clock: monotonic seconds.
    """

    def __init__(self, first: float, clock: Callable[[], float] = time.monotonic):
        self._pauses = GrowingPauses(first, _LONGEST_PAUSE, clock)
        self._changes: dict[str, _Change] = {}
        self._lock = threading.Lock()  # guards the dictionary; held for its steps

    @contextlib.contextmanager
    def noted(self, image_id: str, let_go: bool = False) -> Iterator[None]:
        """Note an image if the block cannot write its manifest; whoever asked is not told."""
        try:
            yield
        except OSError as error:
            self._note(image_id, let_go, error)

    def _note(self, image_id: str, let_go: bool, error: OSError) -> None:
        with self._lock:
            known = self._changes.get(image_id)
            is_kept = known is not None or len(self._changes) < _MOST_IMAGES
            if is_kept:
                self._changes[image_id] = _Change(let_go or (known is not None and known.let_go))
        self._pauses.wait(_ALL)
        if not is_kept:
            LOG.error('image %s: its change cannot be written (%s), and is lost, as those of %d'
                      ' images wait already; "bootcache image build %s" takes it up', image_id,
                      error, _MOST_IMAGES, image_id)
        elif known is None:
            LOG.warning('image %s: its change cannot be written: %s; make room in'
                        ' [bootcache]state_dir. It is tried again by itself', image_id, error)

    def again(self, follow: Callable[[str, bool], None]) -> None:
        """Follow all changes, if it is time; several that fail in a row are enough.

        :param follow: called with an image's id, and whether hosts are to let go of it.
        :raises Exception: what it raises, but for OSError, which says that it cannot be written.
        """
        with self._lock:
            waiting = list(self._changes.items())
        if not waiting or not self._pauses.is_time(_ALL):
            return
        # One that never can be, as somebody has spoilt its directory, holds up no other.
        random.shuffle(waiting)
        failures = 0
        for image_id, change in waiting:
            try:
                follow(image_id, change.let_go)
            except OSError:
                failures += 1
                if failures == _MOST_FAILURES:
                    break
                continue
            failures = 0
            LOG.info('image %s: its change is written', image_id)
            with self._lock:
                # It may have changed once more.
                if self._changes.get(image_id) is change:
                    del self._changes[image_id]
        with self._lock:
            is_over = not self._changes
        if is_over:
            self._pauses.forget(_ALL)
        else:
            self._pauses.postpone(_ALL)
