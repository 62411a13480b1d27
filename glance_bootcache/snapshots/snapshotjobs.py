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
import functools
import hmac
import threading
import time
from collections.abc import Callable
from concurrent import futures

import cachetools
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
from glance_bootcache.snapshots.claims import Claims, ImageStanding
from glance_bootcache.snapshots.records import Record, Records, Stage
from glance_bootcache.snapshots.sending import Sending, new_export
from glance_bootcache.snapshots.stores import SnapshotStore, SnapshotUnfit
from glance_bootcache.snapshots.uploading import upload
from glance_bootcache.storage.exporters import COMMON, Exporters
from glance_bootcache.storage.nodefiles import tell_unnamed
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

_AT_ONCE = 4
# Each reads and hashes a whole image; others wait their turn.
_UPLOADS_AT_ONCE = 2
# Of all hosts, and with those of which the outcome was not asked for yet.
_MOST = 256
_LOOK_SECONDS = 10
# For which a look has uploaded ones share what is equal; the rest is left to the next.
_SHARE_SECONDS = 10
# Without a word of the host, which tells every few seconds that it goes on.
_IDLE = 120
# In which Nova registers what is finished.
_REGISTERED_SECONDS = 3600
# For which it is remembered what was begun, and of how many: no host waits for so long.
_OVER_SECONDS, _MOST_OVER = 86400, 10_000


class _Step(enum.Enum):
    BEGINNING = 'beginning'
    READY = 'ready'
    FINISHING = 'finishing'
    # Its host is to say when it can be uploaded.
    HELD = 'held'
    UPLOADING = 'uploading'
    FINISHED = 'finished'
    FAILED = 'failed'


@dataclasses.dataclass
class _Job:
    """A snapshot that this process has begun.

    What changes is guarded by the jobs' lock, but for the record, which is replaced by its work.
    """

    record: Record
    base: Manifest
    token: str
    virtual_bytes: int
    heard_at: float
    step: _Step = _Step.BEGINNING
    # What the host is told.
    told: SnapshotProgress = dataclasses.field(default_factory=SnapshotProgress)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is done for its host."""
        return self.step in (_Step.FINISHED, _Step.FAILED)


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
        self._lock = threading.Lock()  # guards what follows, and the jobs
        self._jobs: dict[str, _Job] = {}
        # Those that are being removed: two at a time would disturb each other.
        self._removing: set[str] = set()
        # Begun once, here or by an earlier process. A host that goes on with one, as it has not
        # heard that it is over, would be given a new copy of the base, and what it sent is not
        # there.
        self._over: cachetools.TTLCache[str, bool] = cachetools.TTLCache(
            _MOST_OVER, _OVER_SECONDS, timer=clock)
        # Stores of which it was told what no record names.
        self._told: set[str] = set()
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
            if (job := self._jobs.get(snapshot_id)) is not None:
                return self._heard(job, message.token)
            base = self._images.load(message.image_id)
            if base is None or not base.made.base_path:
                return SnapshotProgress(refused='the storage service does not have the base')
            if reason := self._refusal(snapshot_id, message.host):
                return SnapshotProgress(refused=reason)
            job = self._jobs[snapshot_id] = _Job(
                Record(snapshot_id, host=message.host, export=new_export(),
                       base=base.made.base_path, disk_format=base.made.image_format),
                base, message.token, message.virtual_bytes, self._clock())
            self._over[snapshot_id] = True
        self._submit(job, _Step.BEGINNING, lambda: self._begin(job, message))
        return SnapshotProgress()

    def _refusal(self, snapshot_id: str, host: str) -> str:
        if self._stopping.is_set():
            return 'the storage service ends'
        if len(self._jobs) >= _MOST:
            return f'{_MOST} snapshots are under way'
        under_way = sum(job.record.host == host and not job.is_over for job in self._jobs.values())
        if under_way >= self._conf.snapshots_per_host:
            return f'the host sends {under_way} others ([bootcache]snapshots_per_host)'
        if snapshot_id in self._over or self._records.get(snapshot_id):
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
               work: Callable[[_Job], tuple[_Step, SnapshotProgress]]) -> SnapshotProgress:
        with self._lock:
            job = self._jobs.get(snapshot_id)
            if job is None:
                return SnapshotProgress(refused='the storage service does not know it any more')
            told = self._heard(job, token)
            if told.refused or job.step is not from_step:
                return told
            if self._stopping.is_set():
                return SnapshotProgress(refused='the storage service ends')
            job.step, job.told = to_step, SnapshotProgress()
        self._submit(job, to_step, lambda: work(job))
        return SnapshotProgress()

    def abandon(self, snapshot_id: str, token: str) -> bool:
        """A host does not go on with a snapshot; returns whether nothing is left of it."""
        with self._lock:
            job = self._jobs.get(snapshot_id)
            if job is not None:
                if not hmac.compare_digest(job.token, token):
                    return True
                was, job.step, job.heard_at = job.step, _Step.FAILED, self._clock()
                job.told = SnapshotProgress(refused='it was given up')
        if job is not None and was is not _Step.FAILED and not self._stopping.is_set():
            self._workers.submit(self._withdraw, job)
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

    def _submit(self, job: _Job, step: _Step,
                work: Callable[[], tuple[_Step, SnapshotProgress]]) -> None:
        """Have a step be done, which returns the next one and what the host is told then."""
        def guarded() -> None:
            try:
                done = work()
            except Exception as error:
                expected = isinstance(error, (exception.BootcacheError, OSError))
                # Nothing has failed where stores and exporters are not configured for it.
                LOG.log(logging.INFO if isinstance(error, SnapshotUnfit) else logging.WARNING,
                        'snapshot %s of host %s goes stock Nova\'s way: %s',
                        job.record.snapshot_id, job.record.host, error,
                        exc_info=None if expected else error)
                self._fail(job, str(error) if expected else away.told(error))
                return
            with self._lock:
                goes_on = job.step is step
                if goes_on:
                    job.step, job.told = done
            if not goes_on:
                self._withdraw(job)

        (self._uploads if step is _Step.UPLOADING else self._workers).submit(guarded)

    def _begin(self, job: _Job, message: BeginSnapshot) -> tuple[_Step, SnapshotProgress]:
        host = message.host
        certificate = self._exporters.know(host, message.certificate)
        if certificate == COMMON and self._conf.snapshot_exporters == glance_conf.OWN:
            raise SnapshotUnfit(
                'the host has no exporter of its own ([bootcache]export_ports, and'
                ' snapshot_exporters = own)')
        store = self._sending.choose(job.base)
        if reason := self._claims.refusal(message.image_id, message.snapshot_id, host):
            raise exception.RequestRefused(reason)
        self._put(job, dataclasses.replace(job.record, store=store))
        job.record, told = self._sending.begin(job.record, job.base, job.virtual_bytes, certificate)
        LOG.info('snapshot %s of host %s is being sent', message.snapshot_id, host)
        return _Step.READY, told

    def _finish(self, job: _Job) -> tuple[_Step, SnapshotProgress]:
        url = self._sending.finish(
            job.record, job.virtual_bytes, lambda: self._check(job, _Step.FINISHING),
            functools.partial(self._put, job))
        LOG.info('snapshot %s of host %s is %s', job.record.snapshot_id, job.record.host,
                 url or 'to be uploaded')
        if not url:
            return _Step.HELD, SnapshotProgress(upload=True)
        self._put(job, dataclasses.replace(job.record, stage=Stage.FINISHED))
        return _Step.FINISHED, SnapshotProgress(url=url)

    def _upload(self, job: _Job) -> tuple[_Step, SnapshotProgress]:
        self._check(job, _Step.UPLOADING)
        self._put(job, dataclasses.replace(job.record, stage=Stage.WITHDRAWN, export=''))
        upload(self._glance, job.record.snapshot_id, job.record.work,
               lambda: self._check(job, _Step.UPLOADING))
        LOG.info('snapshot %s of host %s is uploaded', job.record.snapshot_id, job.record.host)
        return _Step.FINISHED, SnapshotProgress(uploaded=True)

    def _check(self, job: _Job, step: _Step) -> None:
        if job.step is not step or self._stopping.is_set():
            raise exception.Cancelled(f'it was given up ({step.value})')

    def _put(self, job: _Job, record: Record) -> None:
        record = dataclasses.replace(record, since=time.time())
        self._records.put(record)
        job.record = record

    def _fail(self, job: _Job, reason: str) -> None:
        with self._lock:
            job.step, job.told = _Step.FAILED, SnapshotProgress(refused=reason or 'it failed')
        self._withdraw(job)

    def _withdraw(self, job: _Job) -> None:
        """Have a snapshot be removed, now if that can be."""
        if not job.record.store:
            return
        is_told = job.record.stage in (Stage.FINISHED, Stage.WITHDRAWN)
        record = job.record = dataclasses.replace(
            job.record, stage=Stage.WITHDRAWN if is_told else Stage.DOOMED, since=time.time())
        try:
            # Stock Nova's way has no place in Glance's store before it is gone, and the record of
            # before has what is left removed as well.
            with contextlib.suppress(exception.DatabaseAway):
                self._records.put(record)
            self._remove(record)
        except Exception as error:
            LOG.warning('snapshot %s cannot be removed yet: %s', record.snapshot_id,
                        away.told(error))

    def _remove(self, record: Record, until: float = 0) -> None:
        """Remove a snapshot, unless Glance has it, is taking it, or is about to.

        :param until: as of ``SnapshotStore.settled``.
        :raises Exception: keystoneauth's, glanceclient's or the store's; it is to be tried again.
        """
        with self._lock:
            if record.snapshot_id in self._removing:
                # What was made meanwhile has another record, by which it is found again.
                return
            self._removing.add(record.snapshot_id)
        try:
            standing = self._standing(record)
            if standing is ImageStanding.HAS:
                # By stock Nova's way, maybe: then a host may write here still.
                self._sending.end(record.export)
                is_gone = self._sending.stores[record.store].settled(record, until)
            else:
                is_gone = standing is ImageStanding.ABSENT and self._sending.give_up(record)
            if is_gone:
                with self._lock:
                    self._over[record.snapshot_id] = True
                self._records.drop(record)
        finally:
            with self._lock:
                self._removing.discard(record.snapshot_id)

    def _standing(self, record: Record) -> ImageStanding:
        """Return whether a snapshot is Glance's, or to be removed, or none of both for now."""
        if record.stage is Stage.DOOMED:
            return ImageStanding.ABSENT
        standing = self._claims.standing(record)
        if record.stage is Stage.FINISHED and standing is not ImageStanding.HAS:
            if standing is ImageStanding.ABSENT or (
                    standing is ImageStanding.WAITS
                    and time.time() - record.since > _REGISTERED_SECONDS):
                # One more answer decides.
                self._records.put(dataclasses.replace(record, stage=Stage.WITHDRAWN))
            return ImageStanding.TAKING
        return ImageStanding.ABSENT if standing is ImageStanding.WAITS else standing

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
        until, failed = time.monotonic() + _SHARE_SECONDS, None
        looks: list[Callable[[], object]] = [
            functools.partial(self._look_at, record, until) for record in self._records.all()]
        for store in self._sending.stores.values():
            # First what is here: what it tidies may ask Glance.
            looks += [functools.partial(self._tell_unnamed, store), store.tidy]
        for look in looks:
            try:
                look()
            except Exception as error:
                failed = error
        self._sending.rest(lambda: not self._jobs)
        if failed is not None:
            raise failed

    def _look_at(self, record: Record, until: float) -> None:
        with self._lock:
            job = self._jobs.get(record.snapshot_id)
        # Without a job it is of an earlier process; or of an older state of the database.
        if (job is None and self._images.files.may_remove()) or (job is not None and job.is_over):
            self._remove(record, until)

    def _tell_unnamed(self, store: SnapshotStore) -> None:
        if store.name not in self._told:
            # Before the records: what is begun meanwhile has one.
            left = set(store.left())
            tell_unnamed(f'snapshots under way in store {store.name}',
                         left - {record.snapshot_id for record in self._records.all()},
                         'if no other storage service makes them, remove what has these names')
            self._told.add(store.name)

    def _check_room(self) -> None:
        """Give up what hosts write where there is no room for others: Glance writes there, too."""
        with self._lock:
            written = [job for job in self._jobs.values() if job.step is _Step.READY]
        for job in written:
            try:
                self._sending.stores[job.record.store].check_room(job.record)
            except (exception.BootcacheError, OSError) as error:
                LOG.warning('snapshot %s of host %s goes stock Nova\'s way: %s',
                            job.record.snapshot_id, job.record.host, error)
                self._fail(job, str(error))

    def _forget(self) -> None:
        before = self._clock() - _IDLE
        with self._lock:
            silent = [job for job in self._jobs.values() if job.heard_at < before]
            for job in silent:
                if job.is_over:
                    del self._jobs[job.record.snapshot_id]
        for job in silent:
            if not job.is_over:
                LOG.warning('snapshot %s: host %s has not been heard of for %d s; it is given up',
                            job.record.snapshot_id, job.record.host, _IDLE)
                self.abandon(job.record.snapshot_id, job.token)
