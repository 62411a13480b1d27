"""Snapshots under way: the one owner of them.

A host begins one, sends what its server's overlay holds, says that this was all, and registers what
it is told with Glance. It asks again and again meanwhile, which also says that it is alive: nothing
that takes time is done while a message waits. What was under way when the service ended is removed
at its next start; the host hears that nobody knows of it, and goes stock Nova's way.
"""

import dataclasses
import enum
import hmac
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import cachetools
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception
from bootcache.manifest import Manifest
from glance_bootcache import away, snapshotconf
from glance_bootcache.snapshots.claims import Claims, ImageStanding
from glance_bootcache.snapshots.records import Record, Records, Stage
from glance_bootcache.snapshots.sending import Sending, new_export
from glance_bootcache.snapshots.stores import SnapshotStore
from glance_bootcache.storage.exporters import COMMON, Exporters
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

_AT_ONCE = 4
# Of all hosts, and with those of which the outcome was not asked for yet.
_MOST = 256
# In which Nova registers what is finished.
_REGISTERED_SECONDS = 3600
_LOOK_SECONDS = 10
_TOLD_SECONDS = 3600
# What no record names is looked for this often.
_SWEEP_SECONDS = 600
# For which it is remembered what was begun, and of how many: no host waits for so long.
_OVER_SECONDS, _MOST_OVER = 86400, 10_000


class _Step(enum.Enum):
    BEGINNING = 'beginning'
    READY = 'ready'
    FINISHING = 'finishing'
    FINISHED = 'finished'
    FAILED = 'failed'


@dataclasses.dataclass
class _Job:
    """A snapshot that this process has begun; what changes is guarded by the jobs' lock."""

    snapshot_id: str
    base: Manifest
    host: str
    token: str
    virtual_bytes: int
    export: str
    heard_at: float
    step: _Step = _Step.BEGINNING
    # What the host is told.
    told: dict[str, Any] = dataclasses.field(default_factory=dict)
    store: SnapshotStore | None = None


class SnapshotJobs:
    """Begins snapshots, ends them, and removes those that nobody goes on with.

    :param conf: configuration of the storage service.
    :param images: the images' manifests.
    :param clock: monotonic seconds.
    """

    def __init__(self, conf: cfg.ConfigOpts, images: ImageStore, exporters: Exporters,
                 sending: Sending, claims: Claims, records: Records,
                 clock: Callable[[], float] = time.monotonic):
        self._conf = conf[bootcache_conf.GROUP]
        self._images = images
        self._exporters = exporters
        self._sending = sending
        self._claims = claims
        self._records = records
        self._clock = clock
        self._lock = threading.Lock()  # guards what is below, and the jobs
        self._jobs: dict[str, _Job] = {}
        self._removing: set[str] = set()
        # Begun once, here or by an earlier process. A host that goes on with one, as it has not
        # heard that it is over, would be given a new copy of the base, and what it sent is not
        # there.
        self._over: cachetools.TTLCache[str, bool] = cachetools.TTLCache(
            _MOST_OVER, _OVER_SECONDS, timer=clock)
        self._workers = futures.ThreadPoolExecutor(_AT_ONCE, 'bootcache-snapshot')
        self._stopping = threading.Event()
        self._swept_at: float | None = None

    def start(self) -> None:
        """Remove what an earlier process left, and look after what comes.

        :raises OSError: if a file of its cannot be removed.
        """
        self._sending.sweep()
        threading.Thread(target=self._run, name='bootcache-snapshots', daemon=True).start()

    def stop(self) -> None:
        """Begin nothing more. What is under way is removed at the next start."""
        self._stopping.set()
        self._workers.shutdown(wait=False, cancel_futures=True)

    # What hosts ask: see rpcapi.py. Nothing here waits.

    def begin(self, image_id: str, snapshot_id: str, host: str, certificate: str, token: str,
              virtual_bytes: int) -> dict[str, Any]:
        """A host asks for a snapshot, or how far it is."""
        with self._lock:
            job = self._jobs.get(snapshot_id)
            if job is not None:
                return self._heard(job, token)
            base = self._images.load(image_id)
            if reason := self._refusal(base, snapshot_id, host):
                return {'refused': reason}
            assert base is not None
            job = self._jobs[snapshot_id] = _Job(snapshot_id, base, host, token, virtual_bytes,
                                                 new_export(), self._clock())
            self._over[snapshot_id] = True
        self._submit(job, lambda: self._begin(job, image_id, certificate))
        return {}

    def _refusal(self, base: Manifest | None, snapshot_id: str, host: str) -> str:
        if self._stopping.is_set():
            return 'the storage service ends'
        if base is None or not base.made.base_path:
            return 'the storage service does not have the base'
        if len(self._jobs) >= _MOST:
            return f'{_MOST} snapshots are under way'
        under_way = sum(job.host == host and job.step is not _Step.FAILED
                        and job.step is not _Step.FINISHED for job in self._jobs.values())
        if under_way >= self._conf.snapshots_per_host:
            return f'the host sends {under_way} others ([bootcache]snapshots_per_host)'
        if snapshot_id in self._over \
                or any(record.snapshot_id == snapshot_id for record in self._records.all()):
            return 'it was under way before, and is given up'
        return ''

    def finish(self, snapshot_id: str, token: str) -> dict[str, Any]:
        """A host has sent all of a snapshot, or asks how far it is."""
        with self._lock:
            job = self._jobs.get(snapshot_id)
            if job is None:
                return {'refused': 'the storage service does not know it any more'}
            told = self._heard(job, token)
            if 'refused' in told or job.step is not _Step.READY:
                return {key: told[key] for key in ('refused', 'url') if key in told}
            job.step = _Step.FINISHING
        self._submit(job, lambda: self._finish(job))
        return {}

    def abandon(self, snapshot_id: str, token: str) -> None:
        """A host does not go on with a snapshot."""
        with self._lock:
            job = self._jobs.get(snapshot_id)
            if job is None or not hmac.compare_digest(job.token, token):
                return
            was, job.step, job.told = job.step, _Step.FAILED, {'refused': 'it was given up'}
            job.heard_at = self._clock()
        if was is not _Step.FAILED:
            self._submit(job, lambda: self._doom(job))

    def _heard(self, job: _Job, token: str) -> dict[str, Any]:
        if not hmac.compare_digest(job.token, token):
            return {'refused': 'another host sends it'}
        job.heard_at = self._clock()
        return dict(job.told)

    # The work, one step of a snapshot after the other.

    def _submit(self, job: _Job, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:
                expected = isinstance(error, (exception.BootcacheError, OSError))
                LOG.warning('snapshot %s of host %s goes stock Nova\'s way: %s', job.snapshot_id,
                            job.host, error, exc_info=None if expected else error)
                self._fail(job, str(error) if expected else away.told(error))

        try:
            self._workers.submit(guarded)
        except RuntimeError:
            self._fail(job, 'the storage service ends')

    def _begin(self, job: _Job, image_id: str, certificate: str) -> None:
        certificate = self._exporters.know(job.host, certificate)
        if certificate == COMMON and self._conf.snapshot_exporters == snapshotconf.OWN:
            raise exception.RequestRefused(
                'the host has no exporter of its own ([bootcache]export_ports, and'
                ' snapshot_exporters = own)')
        store = self._sending.choose(job.base)
        if reason := self._claims.refusal(image_id, job.snapshot_id, job.host):
            raise exception.RequestRefused(reason)
        self._put(job, store, Stage.BEGUN)
        told = self._sending.begin(store, job.base, job.snapshot_id, job.export, job.virtual_bytes,
                                   certificate)
        LOG.info('snapshot %s of host %s is being sent', job.snapshot_id, job.host)
        self._moved(job, _Step.BEGINNING, _Step.READY, told)

    def _finish(self, job: _Job) -> None:
        assert job.store is not None
        stored = self._sending.finish(job.store, job.snapshot_id, job.export, job.virtual_bytes)
        if not stored.url:
            raise exception.BootcacheError(f'{job.store.name} has no location for Glance')
        self._put(job, job.store, Stage.FINISHED)
        LOG.info('snapshot %s of host %s is %s', job.snapshot_id, job.host, stored.url)
        self._moved(job, _Step.FINISHING, _Step.FINISHED, {'url': stored.url})

    def _put(self, job: _Job, store: SnapshotStore, stage: Stage) -> None:
        job.store = store
        self._records.put(Record(job.snapshot_id, store.name, job.host, job.export, stage,
                                 time.time()))

    def _moved(self, job: _Job, was: _Step, step: _Step, told: dict[str, Any]) -> None:
        with self._lock:
            given_up = job.step is not was
            if not given_up:
                job.step, job.told = step, told
        if given_up:
            self._doom(job)

    def _fail(self, job: _Job, reason: str) -> None:
        with self._lock:
            job.step, job.told = _Step.FAILED, {'refused': reason}
        self._doom(job)

    def _doom(self, job: _Job) -> None:
        """Have a snapshot be removed, now if that can be."""
        if job.store is None:
            return
        try:
            known = {record.snapshot_id: record for record in self._records.all()}
            record = known.get(job.snapshot_id)
            # Something of it may have come after it was removed.
            is_finished = record is not None and record.stage is Stage.FINISHED
            self._put(job, job.store, Stage.WITHDRAWN if is_finished else Stage.DOOMED)
            for record in self._records.all():
                if record.snapshot_id == job.snapshot_id:
                    self._remove(record)
        except Exception as error:
            LOG.warning('snapshot %s cannot be removed yet: %s', job.snapshot_id, away.told(error))

    def _remove(self, record: Record) -> None:
        """Remove a snapshot, unless somebody is at it: two at a time would disturb each other."""
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
            else self._claims.standing(record.snapshot_id, store.disk_format)
        if standing is ImageStanding.TAKING:
            return
        if standing is ImageStanding.HAS:
            store.settled(record.snapshot_id)
        elif not self._sending.give_up(store, record.snapshot_id, record.export):
            return
        with self._lock:
            self._over[record.snapshot_id] = True
        self._records.drop(record.snapshot_id)

    # Now and then.

    def _run(self) -> None:
        told_at: float | None = None
        while not self._stopping.is_set():
            fault = ''
            try:
                self.once()
            except Exception as error:
                fault = away.told(error)
            now = self._clock()
            # Not where it was caught: oslo.log would add the error to a line that has it already.
            if fault and (told_at is None or now - told_at >= _TOLD_SECONDS):
                LOG.warning('snapshots that servers send, or have sent, cannot be looked after, nor'
                            ' what is left of some be removed; it is tried every %d s, and told'
                            ' once an hour: %s', _LOOK_SECONDS, fault)
                told_at = now
            elif not fault:
                told_at = None
            self._stopping.wait(_LOOK_SECONDS)

    def once(self) -> None:
        """Give up what nobody goes on with, and remove what is given up.

        :raises Exception: of the last that failed; others are done.
        """
        self._forget()
        failed: Exception | None = None
        for record in self._records.all():
            try:
                self._look_at(record)
            except Exception as error:
                failed = error
        for store in self._sending.stores.values():
            try:
                self._sweep(store)
            except Exception as error:
                failed = error
        with self._lock:
            if not self._jobs and not any(record.stage is Stage.BEGUN
                                          for record in self._records.all()):
                self._sending.rest()
        if failed is not None:
            raise failed

    def _forget(self) -> None:
        before = self._clock() - self._conf.snapshot_idle
        with self._lock:
            silent = [job for job in self._jobs.values() if job.heard_at < before]
            for job in silent:
                if job.step in (_Step.FAILED, _Step.FINISHED):
                    del self._jobs[job.snapshot_id]
        for job in silent:
            if job.step in (_Step.BEGINNING, _Step.READY):
                LOG.warning('snapshot %s: host %s has not been heard of for %d s; it is given up',
                            job.snapshot_id, job.host, self._conf.snapshot_idle)
                self.abandon(job.snapshot_id, job.token)

    def _look_at(self, record: Record) -> None:
        if record.stage in (Stage.DOOMED, Stage.WITHDRAWN):
            self._remove(record)
        elif record.stage is Stage.BEGUN:
            with self._lock:
                job = self._jobs.get(record.snapshot_id)
            if job is None or job.step is _Step.FAILED:
                # Of an earlier process; or the disk was full when that was to be written.
                self._records.put(dataclasses.replace(record, stage=Stage.DOOMED))
        elif record.stage is Stage.FINISHED:
            store = self._sending.stores.get(record.store)
            standing = ImageStanding.TAKING if store is None \
                else self._claims.standing(record.snapshot_id, store.disk_format)
            if standing in (ImageStanding.HAS, ImageStanding.ABSENT) or (
                    standing is ImageStanding.WAITS
                    and time.time() - record.since > _REGISTERED_SECONDS):
                self._records.put(dataclasses.replace(record, stage=Stage.WITHDRAWN))

    def _sweep(self, store: SnapshotStore) -> None:
        store.tidy()
        now = self._clock()
        if self._swept_at is not None and now - self._swept_at < _SWEEP_SECONDS:
            return
        # Before the records: what is begun meanwhile has one.
        left = store.left()
        known = {record.snapshot_id for record in self._records.all()}
        for snapshot_id in left:
            if snapshot_id not in known and store.discard(snapshot_id):
                LOG.info('snapshot %s, which a crash left, is removed', snapshot_id)
        self._swept_at = now
