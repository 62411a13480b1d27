"""What a storage node serves and has on its disk of images that it need not: those that another
node works on, or nobody, and what their rows do not name."""

import os
import random
import time
from collections.abc import Callable, Mapping

from oslo_log import log as logging

from bootcache import exception, steps
from bootcache.manifest import Manifest
from bootcache.util.backoff import Backoff
from glance_bootcache.nodes.homes import Homes
from glance_bootcache.snapshots.records import Records
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.nodefiles import FileKind
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

# Between questions to Nova about an image.
_PAUSE_SECONDS, _LONGEST_PAUSE = 10.0, 300.0
# In which a round begins with another image: upkeep has more to do, while Nova, or exporters, hang.
_ROUND_SECONDS = 10.0


class Leftovers:
    """Finds and gives up what this node need not have.

    A boot or a start may serve a base just as its image is given up, whichever asks first: what is
    served is compared with the rows, and who did it does not matter.

    :param homes: tells whether the node that works on an image has its base.
    :param why_needed: tells what may need an image's base: see ``Retiring``.
    :param clock: monotonic seconds.
    """

    def __init__(self, store: ImageStore, homes: Homes, exporters: Exporters,
                 tiers: StorageTiers, records: Records, why_needed: Callable[[str], str],
                 clock: Callable[[], float] = time.monotonic):
        self._store = store
        self._homes = homes
        self._exporters = exporters
        self._tiers = tiers
        self._records = records
        self._clock = clock
        self._why_needed = why_needed
        # When it is asked for images that are needed still.
        self._needed = Backoff(_PAUSE_SECONDS, _LONGEST_PAUSE, clock)

    def remove(self) -> None:
        """Serve no more, and remove, what this node has of images that it does not serve as their
        home, as far as no host reads from it, and the home has the base, or nobody needs it.

        :raises DatabaseAway: if the database does not answer.
        :raises StorageDaemonError: if an exporter does not answer.
        """
        if not self._store.files.may_remove():
            return  # The database may be an older state.
        here = self._exporters.served_images()
        files = self._store.files.by_image()
        images = sorted(here | files.keys())
        self._needed.keep_only(images)
        failed, end = None, self._clock() + _ROUND_SECONDS
        # The next round begins with others.
        for image_id in random.sample(images, len(images)):
            if self._clock() > end:
                break
            try:
                self._remove(image_id, files.get(image_id, {}))
            except exception.StorageDaemonError as error:
                failed = error
        if failed is not None:
            raise failed

    def _remove(self, image_id: str, files: Mapping[str, FileKind]) -> None:
        record = self._store.anywhere(image_id)
        if self._is_read(image_id):
            return
        if record is not None and record.made.base_path \
                and self._store.known(image_id) is record:
            self._store.give_up(image_id, files, record)
        elif self._may_go(image_id, record, FileKind.BASE in files.values()) \
                and not self._is_read(image_id) \
                and self._exporters.retire(image_id, with_base=True) and files:
            self._tiers.forget(image_id)
            steps.reached('give up: withdrawn')
            if self._store.give_up(image_id, files, record):
                LOG.info('image %s: its files are removed here, as another storage node has them,'
                         ' or nothing needs them', image_id)

    def _is_read(self, image_id: str) -> bool:
        """Tell whether a snapshot that is made here opens the base when all of it has come."""
        directory = self._store.directory(image_id)
        return any(os.path.dirname(record.base) == directory for record in self._records.all())

    def _may_go(self, image_id: str, record: Manifest | None, has_copy: bool) -> bool:
        return self._homes.other_has_base(image_id, of_its_own=has_copy) or (
            self._needed.acquire(image_id) and not self._why_needed(image_id)
            and self._store.anywhere(image_id) is record)
