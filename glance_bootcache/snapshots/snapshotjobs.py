"""Snapshots under way: the one owner of them.

A host begins one, sends what its server's overlay holds, says that this was all, and registers what
it is told with Glance; or, once Nova has described the image, has it be uploaded. It asks again and
again meanwhile, which also says that it is alive: nothing that takes time is done while a message
waits. What was under way when the service ended is removed at its next start; the host hears that
nobody knows of it, and goes stock Nova's way.
"""

import contextlib
import dataclasses
import enum
import hmac
import threading
import time
from collections.abc import Callable
from concurrent import futures

from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception
from bootcache.manifest import Manifest
from bootcache.rpc.messages import BeginSnapshot, SnapshotProgress
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache import away
from glance_bootcache import conf as glance_conf
from glance_bootcache.glance.images import Images
from glance_bootcache.snapshots.claims import Claims
from glance_bootcache.snapshots.records import Record, Records, Stage
from glance_bootcache.snapshots.removal import Removal
from glance_bootcache.snapshots.sending import Sending, new_export
from glance_bootcache.snapshots.stores import SnapshotStore, SnapshotUnfit
from glance_bootcache.snapshots.uploading import upload
from glance_bootcache.storage.exporters import COMMON, Exporters
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

_AT_ONCE = 4
# Each reads and hashes a whole image; others wait their turn.
_UPLOADS_AT_ONCE = 2
# Of all hosts, and with those of which the outcome was not asked for yet.
_MOST = 256
_LOOK_SECONDS = 10
# Without a word of the host, which tells every few seconds that it goes on.
_IDLE = 120


class _Step(enum.Enum):
    BEGINNING = 'beginning'
    READY = 'ready'
    FINISHING = 'finishing'
    # Its host is to say when it can be uploaded.
    HELD = 'held'
    UPLOADING = 'uploading'
    FINISHED = 'finished'
    FAILED = 'failed'


# What a host hears of the outcome of each.
_OUTCOMES = {_Step.FINISHING: ('refused', 'url', 'upload', 'uploaded'),
             _Step.UPLOADING: ('refused', 'uploaded')}


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
    told: SnapshotProgress = dataclasses.field(default_factory=SnapshotProgress)
    store: SnapshotStore | None = None
    # Of the file that is uploaded.
    path: str = ''


def _record(job: _Job, store: SnapshotStore, stage: Stage) -> Record:
    return Record(job.snapshot_id, store.name, job.host, job.export, stage, time.time())


class SnapshotJobs:
    """Begins snapshots, ends them, and removes those that nobody goes on with.

    :param conf: configuration of the storage service.
    :param images: the images' manifests.
    :param glance: takes what is uploaded.
    :param clock: monotonic seconds.
    """

    def __init__(self, conf: cfg.ConfigOpts, images: ImageStore, exporters: Exporters,
                 sending: Sending, claims: Claims, records: Records, glance: Images,
                 clock: Callable[[], float] = time.monotonic):
        self._conf = conf[bootcache_conf.GROUP]
        self._images = images
        self._exporters = exporters
        self._sending = sending
        self._claims = claims
        self._records = records
        self._glance = glance
        self._clock = clock
        self._removal = Removal(sending, claims, records, clock)
        self._lock = threading.Lock()  # guards what is below, and the jobs
        self._jobs: dict[str, _Job] = {}
        self._workers = futures.ThreadPoolExecutor(_AT_ONCE, 'bootcache-snapshot')
        self._uploads = futures.ThreadPoolExecutor(_UPLOADS_AT_ONCE, 'bootcache-upload')
        self._stopping = threading.Event()
        self._throttle = LogThrottle(LOG)

    def start(self) -> None:
        """Remove what an earlier process left, and look after what comes.

        :raises OSError: if a file of its cannot be removed.
        """
        self._sending.sweep()
        threading.Thread(target=self._run, name='bootcache-snapshots', daemon=True).start()

    def stop(self) -> None:
        """Begin nothing more. What is under way is removed at the next start."""
        self._stopping.set()
        for workers in (self._workers, self._uploads):
            workers.shutdown(wait=False, cancel_futures=True)

    # What hosts ask: see bootcache.rpc.messages. Nothing here waits.

    def begin(self, message: BeginSnapshot) -> SnapshotProgress:
        """A host asks for a snapshot, or how far it is."""
        snapshot_id = message.snapshot_id
        with self._lock:
            job = self._jobs.get(snapshot_id)
            if job is not None:
                return self._heard(job, message.token)
            base = self._images.load(message.image_id)
            if reason := self._refusal(base, snapshot_id, message.host):
                return SnapshotProgress(refused=reason)
            assert base is not None
            job = self._jobs[snapshot_id] = _Job(
                snapshot_id, base, message.host, message.token, message.virtual_bytes,
                new_export(), self._clock())
            self._removal.note_begun(snapshot_id)
        self._submit(job, lambda: self._begin(job, message.image_id, message.certificate))
        return SnapshotProgress()

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
        if self._removal.is_over(snapshot_id) or self._records.get(snapshot_id):
            return 'it was under way before, and is given up'
        return ''

    def finish(self, snapshot_id: str, token: str) -> SnapshotProgress:
        """A host has sent all of a snapshot, or asks how far it is."""
        return self._go_on(snapshot_id, token, _Step.READY, _Step.FINISHING, self._finish)

    def upload(self, snapshot_id: str, token: str) -> SnapshotProgress:
        """Glance knows what the image is: its data can be uploaded; or a host asks how far that is.
        """
        return self._go_on(snapshot_id, token, _Step.HELD, _Step.UPLOADING, self._upload)

    def _go_on(self, snapshot_id: str, token: str, from_step: _Step, to_step: _Step,
               work: Callable[[_Job], None]) -> SnapshotProgress:
        with self._lock:
            job = self._jobs.get(snapshot_id)
            if job is None:
                return SnapshotProgress(refused='the storage service does not know it any more')
            told = self._heard(job, token)
            if told.refused or job.step is not from_step:
                return SnapshotProgress(
                    **{name: getattr(told, name) for name in _OUTCOMES[to_step]})
            job.step = to_step
        self._submit(job, lambda: work(job))
        return SnapshotProgress()

    def abandon(self, snapshot_id: str, token: str) -> bool:
        """A host does not go on with a snapshot; returns whether nothing is left of it."""
        with self._lock:
            job = self._jobs.get(snapshot_id)
            if job is None or not hmac.compare_digest(job.token, token):
                return job is not None or self._records.get(snapshot_id) is None
            was, job.step, job.told = job.step, _Step.FAILED, SnapshotProgress(
                refused='it was given up')
            job.heard_at = self._clock()
        if was is not _Step.FAILED:
            self._submit(job, lambda: self._doom(job))
        return self._records.get(snapshot_id) is None

    def _heard(self, job: _Job, token: str) -> SnapshotProgress:
        if not hmac.compare_digest(job.token, token):
            return SnapshotProgress(refused='another host sends it')
        job.heard_at = self._clock()
        return job.told

    def counts(self) -> dict[str, int]:
        """Return how many snapshots are in each step."""
        with self._lock:
            steps = [job.step for job in self._jobs.values()]
        return {step.value: steps.count(step) for step in _Step}

    # The work, one step of a snapshot after the other.

    def _submit(self, job: _Job, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:
                expected = isinstance(error, (exception.BootcacheError, OSError))
                # Nothing has failed where stores and exporters are not configured for it.
                LOG.log(logging.INFO if isinstance(error, SnapshotUnfit) else logging.WARNING,
                        'snapshot %s of host %s goes stock Nova\'s way: %s', job.snapshot_id,
                        job.host, error, exc_info=None if expected else error)
                self._fail(job, str(error) if expected else away.told(error))

        try:
            (self._uploads if job.step is _Step.UPLOADING else self._workers).submit(guarded)
        except RuntimeError:
            self._fail(job, 'the storage service ends')

    def _begin(self, job: _Job, image_id: str, certificate: str) -> None:
        certificate = self._exporters.know(job.host, certificate)
        if certificate == COMMON and self._conf.snapshot_exporters == glance_conf.OWN:
            raise SnapshotUnfit(
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
        stored = self._sending.finish(job.store, job.snapshot_id, job.export, job.virtual_bytes,
                                      lambda: self._check(job, _Step.FINISHING))
        if not stored.url:
            job.path = stored.path
            LOG.info('snapshot %s of host %s is to be uploaded', job.snapshot_id, job.host)
            self._moved(job, _Step.FINISHING, _Step.HELD, SnapshotProgress(upload=True))
            return
        self._put(job, job.store, Stage.FINISHED)
        LOG.info('snapshot %s of host %s is %s', job.snapshot_id, job.host, stored.url)
        self._moved(job, _Step.FINISHING, _Step.FINISHED, SnapshotProgress(url=stored.url))

    def _upload(self, job: _Job) -> None:
        assert job.store is not None
        self._check(job, _Step.UPLOADING)
        self._put(job, job.store, Stage.UPLOADING)
        upload(self._glance, job.snapshot_id, job.path,
               lambda: self._check(job, _Step.UPLOADING))
        job.store.settled(job.snapshot_id)
        self._records.drop(job.snapshot_id)
        LOG.info('snapshot %s of host %s is uploaded', job.snapshot_id, job.host)
        with self._lock:
            # Also if it was given up meanwhile: it is Glance's.
            job.step, job.told = _Step.FINISHED, SnapshotProgress(uploaded=True)

    def _check(self, job: _Job, step: _Step) -> None:
        if job.step is not step or self._stopping.is_set():
            raise exception.Cancelled(f'it was given up ({step.value})')

    def _put(self, job: _Job, store: SnapshotStore, stage: Stage) -> None:
        job.store = store
        self._records.put(_record(job, store, stage))

    def _moved(self, job: _Job, was: _Step, step: _Step, told: SnapshotProgress) -> None:
        with self._lock:
            given_up = job.step is not was
            if not given_up:
                job.step, job.told = step, told
        if given_up:
            self._doom(job)

    def _fail(self, job: _Job, reason: str) -> None:
        with self._lock:
            job.step, job.told = _Step.FAILED, SnapshotProgress(
                refused=reason or 'it failed')
        self._doom(job)

    def _doom(self, job: _Job) -> None:
        """Have a snapshot be removed, now if that can be."""
        if job.store is None:
            return
        try:
            record = self._records.get(job.snapshot_id)
            # Something of it may have come after it was removed.
            is_told = record is not None and record.stage in (Stage.FINISHED, Stage.UPLOADING,
                                                              Stage.WITHDRAWN)
            doomed = _record(job, job.store, Stage.WITHDRAWN if is_told else Stage.DOOMED)
            # Stock Nova's way has no place in Glance's store before it is gone, and the record of
            # before has what is left removed as well.
            with contextlib.suppress(exception.DatabaseAway):
                self._records.put(doomed)
            self._removal.remove(doomed)
        except Exception as error:
            LOG.warning('snapshot %s cannot be removed yet: %s', job.snapshot_id, away.told(error))

    # Now and then.

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.once()
                self._throttle.recovered('', 'snapshots can be looked after again')
            except Exception as error:
                self._throttle.warning(
                    '', 'snapshots that servers send, or have sent, cannot be looked after, nor'
                    ' what is left of some be removed; it is tried every %d s: %s', _LOOK_SECONDS,
                    away.lasting(away.told(error)))
            self._stopping.wait(_LOOK_SECONDS)

    def once(self) -> None:
        """Give up what nobody goes on with, or has no room, and remove what is given up.

        :raises Exception: of the last that failed; others are done.
        """
        self._forget()
        self._check_room()
        try:
            self._removal.once(self._goes_on)
        finally:
            self._sending.rest(self._is_idle)

    def _check_room(self) -> None:
        """Give up what hosts write where there is no room for others: Glance writes there, too."""
        with self._lock:
            written = [(job, job.store) for job in self._jobs.values() if job.step is _Step.READY]
        for job, store in written:
            try:
                assert store is not None
                store.check_room(job.snapshot_id)
            except (exception.BootcacheError, OSError) as error:
                LOG.warning('snapshot %s of host %s goes stock Nova\'s way: %s', job.snapshot_id,
                            job.host, error)
                self._fail(job, str(error))

    def _is_idle(self) -> bool:
        with self._lock:
            if self._jobs:
                return False
        return not any(record.stage is Stage.BEGUN for record in self._records.all())

    def _goes_on(self, snapshot_id: str) -> bool:
        with self._lock:
            job = self._jobs.get(snapshot_id)
            return job is not None and job.step is not _Step.FAILED

    def _forget(self) -> None:
        before = self._clock() - _IDLE
        with self._lock:
            silent = [job for job in self._jobs.values() if job.heard_at < before]
            for job in silent:
                if job.step in (_Step.FAILED, _Step.FINISHED):
                    del self._jobs[job.snapshot_id]
        for job in silent:
            if job.step in (_Step.BEGINNING, _Step.READY, _Step.HELD, _Step.UPLOADING):
                LOG.warning('snapshot %s: host %s has not been heard of for %d s; it is given up',
                            job.snapshot_id, job.host, _IDLE)
                self.abandon(job.snapshot_id, job.token)
