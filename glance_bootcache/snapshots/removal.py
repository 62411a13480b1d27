"""What becomes of snapshots that nobody goes on with: removed, unless Glance has them."""

import dataclasses
import threading
import time
from collections.abc import Callable

import cachetools
from oslo_log import log as logging

from bootcache.util.backoff import Backoff
from glance_bootcache.snapshots.claims import Claims, ImageStanding
from glance_bootcache.snapshots.records import Record, Records, Stage
from glance_bootcache.snapshots.sending import Sending
from glance_bootcache.snapshots.stores import SnapshotStore

LOG = logging.getLogger(__name__)

# In which Nova registers what is finished.
_REGISTERED_SECONDS = 3600
# What no record names is looked for this often.
_SWEEP_SECONDS = 600
# For which it is remembered what was begun, and of how many: no host waits for so long.
_OVER_SECONDS, _MOST_OVER = 86400, 10_000


class Removal:
    """Removes snapshots, and finds those that a crash has left.

    :param clock: monotonic seconds.
    """

    def __init__(self, sending: Sending, claims: Claims, records: Records,
                 clock: Callable[[], float]):
        self._sending = sending
        self._claims = claims
        self._records = records
        self._lock = threading.Lock()  # guards what follows
        # What is being removed, and of that what has come anew meanwhile, by id.
        self._removing: dict[str, Record] = {}
        self._anew: dict[str, Record] = {}
        # Begun once, here or by an earlier process. A host that goes on with one, as it has not
        # heard that it is over, would be given a new copy of the base, and what it sent is not
        # there.
        self._over: cachetools.TTLCache[str, bool] = cachetools.TTLCache(
            _MOST_OVER, _OVER_SECONDS, timer=clock)
        # When what no record names is looked for, by store.
        self._sweeps = Backoff(_SWEEP_SECONDS, clock=clock)

    def note_begun(self, snapshot_id: str) -> None:
        """Note that a snapshot is begun: it is not begun a second time."""
        with self._lock:
            self._over[snapshot_id] = True

    def is_over(self, snapshot_id: str) -> bool:
        """Tell whether a snapshot was begun before, as far as is remembered."""
        with self._lock:
            return snapshot_id in self._over

    def remove(self, record: Record) -> None:
        """Remove a snapshot, unless somebody is at it: two at a time would disturb each other.

        :raises Exception: keystoneauth's, glanceclient's or the store's; it is to be tried again.
        """
        snapshot_id = record.snapshot_id
        with self._lock:
            if (removing := self._removing.get(snapshot_id)) is not None:
                if removing != record:
                    # More of it was made meanwhile: whoever is at it goes on with that.
                    self._anew[snapshot_id] = record
                return
            self._removing[snapshot_id] = record
        try:
            while True:
                self._remove_alone(record)
                with self._lock:
                    if snapshot_id not in self._anew:
                        del self._removing[snapshot_id]
                        return
                    record = self._removing[snapshot_id] = self._anew.pop(snapshot_id)
                # It went with the one before.
                self._records.put(record)
        except BaseException:
            with self._lock:
                self._anew.pop(snapshot_id, None)
                self._removing.pop(snapshot_id, None)
            raise

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
            # By stock Nova's way, maybe: then a host may write here still.
            self._sending.end(record.export)
            store.settled(record.snapshot_id)
        elif not self._sending.give_up(store, record.snapshot_id, record.export):
            return
        self.note_begun(record.snapshot_id)
        self._records.drop(record.snapshot_id)

    def once(self, goes_on: Callable[[str], bool]) -> None:
        """Remove what is to be removed, and look for what a crash has left.

        :param goes_on: tells whether this process has a snapshot in hand.
        :raises Exception: of the last that failed; others are done.
        """
        failed: Exception | None = None
        for record in self._records.all():
            try:
                self._look_at(record, goes_on)
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

    def _look_at(self, record: Record, goes_on: Callable[[str], bool]) -> None:
        if record.stage in (Stage.DOOMED, Stage.WITHDRAWN):
            self.remove(record)
        elif record.stage in (Stage.BEGUN, Stage.UPLOADING):
            if not goes_on(record.snapshot_id):
                # Of an earlier process; or the database was away when that was to be written.
                # Glance may have also what was only begun, where the database is a backup.
                self._records.put(dataclasses.replace(record, stage=Stage.WITHDRAWN))
        elif record.stage is Stage.FINISHED:
            store = self._sending.stores.get(record.store)
            standing = ImageStanding.TAKING if store is None \
                else self._claims.standing(record.snapshot_id, store.traits(record.snapshot_id))
            if standing in (ImageStanding.HAS, ImageStanding.ABSENT) or (
                    standing is ImageStanding.WAITS
                    and time.time() - record.since > _REGISTERED_SECONDS):
                self._records.put(dataclasses.replace(record, stage=Stage.WITHDRAWN))

    def _sweep(self, store: SnapshotStore) -> None:
        if not self._sweeps.is_due(store.name):
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
        self._sweeps.postpone(store.name)
