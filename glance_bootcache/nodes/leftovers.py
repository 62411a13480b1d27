"""What a storage node serves and has on its disk of images that it need not: those that another
node works on, or nobody, and what their rows do not name."""

import os
import time
from collections.abc import Callable, Collection

from oslo_log import log as logging

from bootcache import exception, steps
from bootcache.util.backoff import Backoff
from glance_bootcache.nodes.membership import Membership, NodeState
from glance_bootcache.snapshots.records import Records
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

# Between questions to Nova about an image.
_PAUSE_SECONDS, _LONGEST_PAUSE = 10.0, 300.0


class Leftovers:
    """Finds and gives up what this node need not have.

    A boot or a start may serve a base just as its image is given up, whichever asks first: what is
    served is compared with the rows, and who did it does not matter.

    :param why_needed: tells what may need an image's base: see ``Retiring``.
    :param clock: monotonic seconds.
    """

    def __init__(self, store: ImageStore, membership: Membership, exporters: Exporters,
                 tiers: StorageTiers, records: Records, why_needed: Callable[[str], str],
                 clock: Callable[[], float] = time.monotonic):
        self._store = store
        self._membership = membership
        self._exporters = exporters
        self._tiers = tiers
        self._records = records
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
        # Snapshots that are made here open the base when all of them has come.
        read = {os.path.dirname(record.base) for record in self._records.all()}
        self._needed.keep_only(here | files.keys())
        failed = None
        for image_id in sorted(here | files.keys()):
            if self._store.directory(image_id) in read:
                continue
            try:
                self._remove(image_id, files.get(image_id, ()))
            except exception.StorageDaemonError as error:
                failed = error
        if failed is not None:
            raise failed

    def _remove(self, image_id: str, names: Collection[str]) -> None:
        record = self._store.known(image_id)
        if record is not None and record.made.base_path:
            self._store.give_up(image_id, names)
        elif self._may_go(image_id) and self._exporters.retire(image_id, with_base=True) and names:
            self._tiers.forget(image_id)
            steps.reached('give up: withdrawn')
            self._store.give_up(image_id, names)
            LOG.info('image %s: its files are removed here, as another storage node has them, or'
                     ' nothing needs them', image_id)

    def _may_go(self, image_id: str) -> bool:
        record, home = self._store.anywhere(image_id), self._store.home(image_id)
        if record is not None and record.made.base_path:
            return home is not None and self._is_there(home)
        # What no row names is served on, unless its row was seen to go.
        if record is None and not self._store.was_removed(image_id):
            return False
        return self._needed.acquire(image_id) and not self._why_needed(image_id) \
            and self._store.anywhere(image_id) is record

    def _is_there(self, home: int) -> bool:
        node = self._membership.node(home)
        return node is not None and node.state is NodeState.UP and self._membership.may_judge
