"""What becomes of snapshots that nobody goes on with: removed, unless Glance has them."""

import dataclasses
import threading
import time
from collections.abc import Callable

from oslo_log import log as logging

from glance_bootcache.snapshots.claims import Claims, ImageStanding
from glance_bootcache.snapshots.records import Record, Records, Stage
from glance_bootcache.snapshots.sending import Sending
from glance_bootcache.snapshots.stores import SnapshotStore

LOG = logging.getLogger(__name__)

# In which Nova registers what is finished.
_REGISTERED_SECONDS = 3600
# What no record names is looked for this often.
_SWEEP_SECONDS = 600


class Removal:
    """Removes snapshots, and finds those that a crash has left.

    :param clock: monotonic seconds.
    """

    def __init__(self, sending: Sending, claims: Claims, records: Records,
                 clock: Callable[[], float]):
        self._sending = sending
        self._claims = claims
        self._records = records
        self._clock = clock
        self._lock = threading.Lock()  # guards the ids
        self._removing: set[str] = set()
        # By store, when what no record names was looked for.
        self._swept_at: dict[str, float] = {}

    def begin(self) -> None:
        """Have be removed what an earlier process had under way.

        :raises OSError: if that cannot be written down.
        """
        for record in self._records.all():
            if record.stage is Stage.BEGUN:
                self._records.put(dataclasses.replace(record, stage=Stage.DOOMED))
            elif record.stage is Stage.UPLOADING:
                self._records.put(dataclasses.replace(record, stage=Stage.WITHDRAWN))

    def remove(self, record: Record) -> None:
        """Remove a snapshot, unless somebody is at it: two at a time would disturb each other.

        :raises Exception: keystoneauth's, glanceclient's or the store's; it is to be tried again.
        """
        with self._lock:
            if record.snapshot_id in self._removing:
                return
            self._removing.add(record.snapshot_id)
        try:
            self._remove_alone(record)
        finally:
            with self._lock:
                self._removing.discard(record.snapshot_id)

    def _remove_alone(self, record: Record) -> None:
        """Remove a snapshot, unless Glance has it; one that it is taking stays for now."""
        store = self._sending.stores.get(record.store)
        if store is None:
            LOG.warning('snapshot %s cannot be removed: nothing is configured for store %s',
                        record.snapshot_id, record.store)
            return
        standing = ImageStanding.ABSENT if record.stage is Stage.DOOMED \
            else self._claims.standing(record.snapshot_id, store.traits(record.snapshot_id))
        if standing is ImageStanding.TAKING:
            return
        if standing is ImageStanding.HAS:
            store.settled(record.snapshot_id)
        elif not self._sending.give_up(store, record.snapshot_id, record.export):
            return
        self._records.drop(record.snapshot_id)

    def once(self) -> None:
        """Remove what is to be removed, and look for what a crash has left.

        :raises Exception: of the last that failed; others are done.
        """
        failed: Exception | None = None
        for record in self._records.all():
            try:
                self._look_at(record)
            except Exception as error:
                failed = error
        for store in self._sending.stores.values():
            try:
                # First what is here: what it tidies may ask Glance.
                self._sweep(store)
                store.tidy()
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed

    def _look_at(self, record: Record) -> None:
        if record.stage in (Stage.DOOMED, Stage.WITHDRAWN):
            self.remove(record)
        elif record.stage is Stage.FINISHED:
            store = self._sending.stores.get(record.store)
            standing = ImageStanding.TAKING if store is None \
                else self._claims.standing(record.snapshot_id, store.traits(record.snapshot_id))
            if standing in (ImageStanding.HAS, ImageStanding.ABSENT) or (
                    standing is ImageStanding.WAITS
                    and time.time() - record.since > _REGISTERED_SECONDS):
                self._records.put(dataclasses.replace(record, stage=Stage.WITHDRAWN))

    def _sweep(self, store: SnapshotStore) -> None:
        now, swept_at = self._clock(), self._swept_at.get(store.name)
        if swept_at is not None and now - swept_at < _SWEEP_SECONDS:
            return
        # Before the records: what is begun meanwhile has one.
        left, finished = store.left(), store.finished()
        known = {record.snapshot_id for record in self._records.all()}
        for snapshot_id in left:
            if snapshot_id not in known and store.discard(snapshot_id):
                LOG.info('snapshot %s, which a crash left, is removed', snapshot_id)
        for snapshot_id in finished:
            if snapshot_id not in known:
                self._records.put(Record(snapshot_id, store.name, '', '', Stage.WITHDRAWN,
                                         time.time()))
        self._swept_at[store.name] = now
