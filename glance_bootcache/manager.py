"""The life of an image in the storage service: events come in, decisions are made, work is done."""

import contextlib
import dataclasses
import threading
import time
from typing import Any

import futurist
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import timeutils

from bootcache import cacheimage, exception, naming, properties, recorder, rpcapi
from bootcache import conf as bootcache_conf
from bootcache.cacheimage import Base
from bootcache.manifest import IN_HAND, CacheInfo, Manifest, State, WorkingSetInfo
from bootcache.workingset import WorkingSet
from glance_bootcache import base, decisions, inspection
from glance_bootcache.decisions import Action, ImageFacts
from glance_bootcache.exporter import Exporter
from glance_bootcache.images import Images
from glance_bootcache.profileboot.job import Job
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.store import ImageStore

LOG = logging.getLogger(__name__)

_DELETED = 'the image was deleted in Glance'
_HELD = ('deleted with "bootcache image delete"; "bootcache image build" makes it again')

class Manager:
    """Keeps one manifest an image, and works on images whose cache image is wanted.

    :param conf: configuration of the storage service.
    """

    def __init__(self, conf: cfg.ConfigOpts, store: ImageStore, images: Images, exporter: Exporter,
                 profile_boots: NovaProfileBoots):
        self._conf = conf[bootcache_conf.GROUP]
        self._store = store
        self._images = images
        self._exporter = exporter
        self._profile_boots = profile_boots
        self._workers = futurist.ThreadPoolExecutor(max_workers=self._conf.concurrent_builds)
        # Guards the dictionaries below and each read-decide-write of a manifest; held for
        # milliseconds, never over a copy, a boot or a call to another service.
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        self._retiring: set[str] = set()
        self._recovered = False
        self._stopping = threading.Event()

    # Starting and stopping.

    def start(self) -> None:
        """Start the exporter, end what an earlier process left, and go on with its work."""
        self._exporter.start()
        self._serve_all()
        threading.Thread(target=self._housekeeping, name='bootcache-housekeeping',
                         daemon=True).start()

    def stop(self) -> None:
        """Give up what is in hand: profile servers are deleted, the images stay pending."""
        self._stopping.set()
        with self._lock:
            for job in self._jobs.values():
                job.cancel()
        self._workers.shutdown(wait=True)

    def _housekeeping(self) -> None:
        steps = [self._recover, self._keep_serving, self._retry_retiring, self._go_on]
        while not self._stopping.is_set():
            for step in steps:
                try:
                    step()
                except Exception as error:
                    LOG.warning('%s: it is tried again in %d s', error, self._conf.poll_interval)
                    break
            self._stopping.wait(self._conf.poll_interval)

    def _keep_serving(self) -> None:
        if self._exporter.start():
            self._serve_all()

    def _go_on(self) -> None:
        """Take up images that wait: announced but not active yet, or left by an earlier process."""
        for manifest in self._store.manifests():
            if manifest.state in IN_HAND and manifest.image_id not in self._jobs:
                self.consider(manifest.image_id)

    def _serve_all(self) -> None:
        """Serve every base again: servers may run from any, and the exporter may be a new one."""
        for manifest in self._store.manifests():
            if not manifest.base_path or not manifest.virtual_bytes:
                continue
            cache = manifest.cache_image
            try:
                self._exporter.ensure(
                    manifest, self._store.path(manifest.image_id, cache.file) if cache else None)
            except exception.BootcacheError as error:
                LOG.warning('image %s: its base cannot be served: %s', manifest.image_id, error)
            if manifest.state is State.SKIPPED:
                self._retiring.add(manifest.image_id)

    def _recover(self) -> None:
        """End what an earlier process left, before anything is begun; once."""
        if self._recovered:
            return
        with self._lock:
            tokens = {job.token for job in self._jobs.values()}
        self._profile_boots.remove_leftovers(tokens)
        for manifest in self._store.manifests():
            with self._lock:
                current = self._store.load(manifest.image_id)
                if current is not None and manifest.image_id not in self._jobs:
                    self._store.sweep(current)
            self.consider(manifest.image_id)
        self._recovered = True

    def _retry_retiring(self) -> None:
        with self._lock:
            retiring = list(self._retiring)
        for image_id in retiring:
            self._retire(image_id)

    # Events.

    def consider(self, image_id: str, forced: bool = False) -> None:
        """Look at an image that was registered or changed, and do what follows from it.

        Safe to be called any number of times: an image is recorded once for each content.

        :param forced: record it anew whatever is there.
        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        image_id = naming.canonical_image_id(image_id)
        try:
            image = self._images.get(image_id)
        except Exception:
            with self._lock:
                if self._store.load(image_id) is None:
                    # So that it is looked at again.
                    self._store.save(self._stamped(Manifest(image_id)))
            raise
        if image is None:
            self.forget(image_id)
            return
        with self._lock:
            if self._stopping.is_set():
                return
            manifest = self._store.load(image_id)
            decision = decisions.decide(
                image, manifest, forced=forced,
                default_quota=properties.parse_size(self._conf.default_quota),
                max_quota=properties.parse_size(self._conf.max_quota),
                default_marker=self._conf.boot_marker,
                build_snapshots=self._conf.build_snapshots)
            job = self._jobs.get(image_id)
            LOG.debug('image %s: %s %s', image_id, decision.action.value, decision.reason)
            if decision.action is Action.SKIP:
                if job is not None:
                    job.cancel()
                self._skip(image, manifest, decision.reason)
            elif decision.action is Action.WAIT:
                if manifest is None:
                    self._store.save(self._stamped(Manifest(image_id)))
            elif decision.action in (Action.RECORD, Action.REBUILD) and job is None:
                assert decision.policy is not None
                job = self._jobs[image_id] = Job(image_id, forced)
                pending = dataclasses.replace(manifest or Manifest(image_id), reason='',
                                              held=False)
                if decision.action is Action.RECORD:
                    pending = dataclasses.replace(pending, state=State.PENDING)
                self._store.save(self._stamped(pending))
                self._workers.submit(self._work, image, decision, job)
        if decision.action is Action.SKIP:
            if manifest is not None:
                self._retire(image_id)
            self._images.show_state(image_id, State.SKIPPED, decision.reason)

    def forget(self, image_id: str, held: bool = False) -> bool:
        """Drop an image's cache image and working set.

        The base stays until no compute host reads from it.

        :param held: an operator asks for it: the image, which is still in Glance, is not recorded
            again by itself.
        :returns: False if nothing was known.
        """
        image_id = naming.canonical_image_id(image_id)
        reason = _HELD if held else _DELETED
        with self._lock:
            job = self._jobs.get(image_id)
            if job is not None:
                job.cancel()
            manifest = self._store.load(image_id)
            if manifest is None:
                # What a damaged manifest left.
                self._store.remove(image_id)
                return False
            if manifest.reason != reason:
                LOG.info('image %s: dropped: %s', image_id, reason)
                self._store.save(self._stamped(dataclasses.replace(
                    manifest, state=State.SKIPPED, reason=reason, held=held, working_set=None,
                    cache_image=None)))
        self._retire(image_id)
        if held:
            self._images.show_state(image_id, State.SKIPPED, reason)
        return True

    def _skip(self, image: ImageFacts, manifest: Manifest | None, reason: str) -> None:
        if manifest is not None and manifest.state is State.SKIPPED and manifest.reason == reason:
            return
        LOG.info('image %s: skipped: %s', image.image_id, reason)
        # The base stays for servers that run from it, until the last one has gone. Without the
        # hash the image is looked at again when its properties change.
        self._store.save(self._stamped(dataclasses.replace(
            manifest or Manifest(image.image_id), state=State.SKIPPED, reason=reason,
            image_hash='', working_set=None, cache_image=None)))

    def _retire(self, image_id: str) -> None:
        """Stop serving a skipped image; its base stays while Nova has servers of the image."""
        with self._lock:
            manifest = self._store.load(image_id)
            self._retiring.discard(image_id)
            if manifest is not None and manifest.state is not State.SKIPPED:
                return
        try:
            in_use = self._profile_boots.has_servers(image_id)
        except Exception as error:
            LOG.warning('image %s: Nova cannot be asked for its servers: %s', image_id, error)
            in_use = True
        try:
            gone = self._exporter.retire(image_id, with_base=not in_use)
        except exception.BootcacheError as error:
            LOG.warning('image %s: cannot be retired yet: %s', image_id, error)
            gone = False
        with self._lock:
            manifest = self._store.load(image_id)
            if manifest is None or manifest.state is not State.SKIPPED:
                return
            if not gone:
                self._retiring.add(image_id)
            elif manifest.reason == _DELETED:
                self._store.remove(image_id)
            elif manifest.base_path:
                self._store.save(self._stamped(dataclasses.replace(manifest, base_path='')))

    # The work on one image, in a worker's thread.

    def _work(self, image: ImageFacts, decision: decisions.Decision, job: Job) -> None:
        image_id = image.image_id
        try:
            job.check_cancelled()
            self._record_and_build(image, decision, job)
        except exception.Cancelled as error:
            LOG.info('image %s: given up: %s', image_id, error)
        except exception.ImageRefused as error:
            self._end(job, image, State.SKIPPED, str(error))
        except exception.BootcacheError as error:
            self._end(job, image, State.FAILED, str(error))
        except Exception as error:
            if not job.cancelled.is_set():
                LOG.exception('image %s: unexpected error', image_id)
            self._end(job, image, State.FAILED, f'unexpected error: {error}')
        finally:
            with self._lock:
                self._jobs.pop(image_id, None)
        if job.cancelled.is_set():
            # It may have been opted in again while this job was on its way out.
            with contextlib.suppress(Exception):
                self.consider(image_id)

    def _record_and_build(self, image: ImageFacts, decision: decisions.Decision, job: Job) -> None:
        assert decision.policy is not None
        manifest = self._store.load(image.image_id) or Manifest(image.image_id)
        working_set = self._store.load_working_set(manifest)
        if decision.action is Action.RECORD or working_set is None \
                or not manifest.base_path:
            manifest, working_set = self._record(image, manifest, decision.policy, job)
        self._build(manifest, working_set, decision.policy, job)

    def _record(self, image: ImageFacts, manifest: Manifest, policy: properties.Policy,
                job: Job) -> tuple[Manifest, WorkingSet]:
        manifest = self._set(job, manifest, State.RECORDING)
        path = base.obtain(image, self._store, self._images, self._conf.glance_store_dirs,
                           job.cancelled)
        inspected = inspection.inspect(path, image.disk_format)
        if manifest.image_hash != image.image_hash:
            manifest = dataclasses.replace(manifest, working_set=None, cache_image=None)
            if not self._exporter.retire(image.image_id, with_base=True):
                raise exception.BuildFailed('compute hosts still read the image\'s older content;'
                                            ' build it again when their servers are gone')
        manifest = self._set(job, dataclasses.replace(
            manifest, image_hash=image.image_hash, image_format=inspected.image_format,
            stored_bytes=image.stored_bytes, virtual_bytes=inspected.virtual_bytes, base_path=path
        ), State.RECORDING)
        self._exporter.ensure(manifest, None)
        result = self._profile_boots.run(image, inspected.virtual_bytes, policy, job)
        job.check_cancelled()
        name = self._store.save_working_set(image.image_id, result.working_set)
        info = WorkingSetInfo(name, result.working_set.bytes, len(result.working_set.extents),
                              result.working_set.granularity, self._profile_boots.recorded_by,
                              result.ended_by, round(result.boot_seconds, 1), policy.boot_marker)
        return (self._set(job, dataclasses.replace(manifest, working_set=info), State.BUILDING),
                result.working_set)

    def _build(self, manifest: Manifest, working_set: WorkingSet, policy: properties.Policy,
               job: Job) -> None:
        manifest = self._set(job, manifest, State.BUILDING)
        name = self._store.new_name('cache', '.qcow2')
        backing_uri = naming.nbd_unix_uri(
            self._conf.gateway_socket,
            naming.export_name(naming.EXPORT_BASE, manifest.image_id))
        began = time.monotonic()
        built = cacheimage.build(
            Base(manifest.base_path, manifest.image_format, manifest.virtual_bytes),
            working_set.extents, self._store.path(manifest.image_id, name), quota=policy.quota,
            cluster_bytes=self._conf.cluster_size, backing_uri=backing_uri)
        seconds = time.monotonic() - began
        info = CacheInfo(name, built.bytes, built.data_bytes, len(built.extents), built.sha256,
                         built.virtual_bytes, built.cluster_bytes, policy.quota, backing_uri,
                         round(seconds, 3), cacheimage.VERIFY_RULES)
        job.check_cancelled()
        self._exporter.ensure(dataclasses.replace(manifest, cache_image=info), built.path)
        self._set(job, dataclasses.replace(manifest, cache_image=info), State.READY)
        LOG.info('image %s: cache image of %d bytes built in %.2f s', manifest.image_id,
                 built.bytes, seconds)

    def _set(self, job: Job, manifest: Manifest, state: State, reason: str = '') -> Manifest:
        with self._lock:
            job.check_cancelled()
            manifest = self._stamped(dataclasses.replace(manifest, state=state, reason=reason))
            self._store.save(manifest)
        self._images.show_state(manifest.image_id, state, reason)
        return manifest

    def _end(self, job: Job, image: ImageFacts, state: State, reason: str) -> None:
        with contextlib.suppress(exception.Cancelled):
            job.check_cancelled()
            LOG.warning('image %s: %s: %s', job.image_id, state.value, reason)
            manifest = self._store.load(job.image_id) or Manifest(job.image_id)
            if state is State.FAILED and manifest.cache_image is not None:
                state, reason = State.READY, f'the older cache image serves, as {reason}'
            elif state is State.SKIPPED:
                manifest = dataclasses.replace(manifest, cache_image=None)
            # With the hash it is not tried again by itself for the same content.
            self._set(job, dataclasses.replace(manifest, image_hash=image.image_hash), state,
                      reason)

    @staticmethod
    def _stamped(manifest: Manifest) -> Manifest:
        return dataclasses.replace(manifest,
                                   updated_at=timeutils.utcnow(with_timezone=True).isoformat(
                                       timespec='seconds'))

    # What compute hosts ask and report; see bootcache/rpcapi.py.

    def plan_boot(self, image_id: str, host: str, server_id: str,
                  profile_token: str | None) -> dict[str, Any]:
        """Answer a compute host that starts a server."""
        with self._lock:
            manifest = self._store.load(image_id)
            job = self._jobs.get(image_id)
        if profile_token is not None:
            if manifest is None or job is None or not job.owns(profile_token) \
                    or manifest.state is not State.RECORDING:
                return _stock('the server claims to be a profile boot, but none is in hand')
            self._exporter.ensure(manifest, None)
            job.host = host
            return {'action': rpcapi.ACTION_RECORD, **self._exporter.describe(manifest)}
        if manifest is None:
            return _stock('the image is not known to the storage service')
        # While an image is recorded or built anew, and if that fails, the old one still serves.
        if manifest.cache_image is None or manifest.state is State.SKIPPED:
            return _stock(f'the image is {manifest.state.value}'
                          + (f': {manifest.reason}' if manifest.reason else ''))
        self._exporter.ensure(manifest,
                              self._store.path(image_id, manifest.cache_image.file))
        LOG.debug('server %s on %s boots from the cache image of %s', server_id, host, image_id)
        return {'action': rpcapi.ACTION_CACHE, **self._exporter.describe(manifest)}

    def recording_progress(self, image_id: str, profile_token: str, recorded_bytes: int,
                           idle_seconds: float) -> None:
        """Note a compute host's progress message; one that belongs to no job is ignored."""
        with self._lock:
            job = self._jobs.get(image_id)
        if job is not None and job.owns(profile_token):
            job.heard(int(recorded_bytes), float(idle_seconds))

    def report_working_set(self, image_id: str, profile_token: str, granularity: int,
                           extents: list[Any]) -> None:
        """Take a compute host's report.

        :raises InvalidWorkingSet: if it does not fit the image.
        """
        with self._lock:
            job = self._jobs.get(image_id)
            manifest = self._store.load(image_id)
        if job is None or manifest is None or not job.owns(profile_token):
            LOG.info('image %s: a report that belongs to no recording is ignored', image_id)
            return
        if granularity != recorder.GRANULARITY:
            raise exception.InvalidWorkingSet(
                f'granularity {granularity!r} is not {recorder.GRANULARITY}')
        # No cache image holds more; and a host that lies shall not have us count for ever.
        job.working_set = WorkingSet.from_wire(
            image_id, manifest.image_hash, manifest.virtual_bytes, granularity, extents,
            limit=properties.parse_size(self._conf.max_quota))
        job.changed.set()

    # What operators ask.

    def describe(self, manifest: Manifest) -> dict[str, Any]:
        """Return a manifest with the progress of what is in hand, as plain values."""
        answer = manifest.to_json()
        with self._lock:
            job = self._jobs.get(manifest.image_id)
        answer['progress'] = None if job is None else {
            'host': job.host, 'recorded_bytes': job.recorded_bytes}
        answer['in_hand'] = manifest.state in IN_HAND
        return answer

    def list_images(self) -> list[dict[str, Any]]:
        """Return all images."""
        return [self.describe(manifest) for manifest in self._store.manifests()]

    def get_image(self, image_id: str) -> dict[str, Any] | None:
        """Return an image, or None if it is not known."""
        manifest = self._store.load(image_id)
        return None if manifest is None else self.describe(manifest)

    def get_working_set(self, image_id: str) -> dict[str, Any] | None:
        """Return an image's working set document, or None."""
        manifest = self._store.load(image_id)
        working_set = manifest and self._store.load_working_set(manifest)
        return working_set.to_json() if working_set else None


def _stock(reason: str) -> dict[str, Any]:
    return {'action': rpcapi.ACTION_STOCK, 'reason': reason}
