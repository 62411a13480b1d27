"""The life of an image in the storage service: events come in, decisions are made, work is done."""

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable

import futurist
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, naming, properties
from bootcache.manifest import ImageState, Manifest, WorkingSetInfo
from glance_bootcache import decisions
from glance_bootcache.decisions import ImageAction, ImageFacts
from glance_bootcache.glance.images import Images
from glance_bootcache.glance.inquiries import Inquiries
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images.deleted import DeletedImages
from glance_bootcache.images.imagework import ImageWork
from glance_bootcache.images.retiring import Retiring
from glance_bootcache.images.shown import Shown
from glance_bootcache.images.turns import Turns, most_of_one
from glance_bootcache.profileboot.job import BuildJob
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.storage.exporter import Exporter
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

# So that one owner may have two in hand: see turns.py.
_CONCURRENT_BASES = 3
_CONCURRENT_LOOKS = 4


class Manager:
    """Keeps one manifest an image, and works on images whose cache image is wanted.

    :param conf: configuration of the storage service.
    :param needs: which bases compute hosts need.
    """

    def __init__(self, conf: cfg.ConfigOpts, store: ImageStore, images: Images, exporter: Exporter,
                 tiers: StorageTiers, profile_boots: NovaProfileBoots, needs: ReportedNeeds):
        self._conf = conf[bootcache_conf.GROUP]
        self._store = store
        self._images = images
        self._exporter = exporter
        self._tiers = tiers
        self._profile_boots = profile_boots
        self.retiring = Retiring(store, exporter, tiers, profile_boots, needs)
        self._image_work = ImageWork(conf, store, images, exporter, tiers, profile_boots,
                                     self._set, self._evict, self.retiring.is_needed)
        # Bases are got beside profile boots: a server that boots meanwhile needs its base now. All
        # of a base is read, which takes minutes if its owner wants it so.
        self._bases = Turns(_CONCURRENT_BASES)
        # What asks Glance, or finds that its base is here, waits for no base of others.
        self._lookers = futurist.ThreadPoolExecutor(max_workers=_CONCURRENT_LOOKS)
        # Building takes seconds, or minutes for a large image, and waits for no recording.
        self._builds = Turns(self._conf.concurrent_builds)
        self._turns = Turns(self._conf.concurrent_builds)
        self.gone = DeletedImages(images)
        self.shown = Shown(store, images)
        # Guards the dictionaries below as well: what is in hand has to agree with the manifests.
        self._lock = store.lock
        self._jobs: dict[str, BuildJob] = {}
        # Images that changed while Glance could not be asked how.
        self._unseen: set[str] = set()
        self._looks = Inquiries()
        self._preparing: set[str] = set()
        # A compute host with the driver was heard of, which can record boots.
        self._has_hosts = threading.Event()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Give up what is in hand: profile servers are deleted, the images stay pending."""
        self._stopping.set()
        with self._lock:
            for job in self._jobs.values():
                job.cancel()
        for executor in (self._lookers, self._bases, self._turns, self._builds):
            executor.shutdown(wait=True)
        self._tiers.stop()

    def keep_quota(self) -> None:
        """Evict what is over the storage disk tier's quota, as after it was lowered."""
        self._image_work.keep_quota()

    # Events.

    def consider(self, image_id: str, forced: bool = False, booting: bool = False,
                 again: bool = False) -> None:
        """Look at an image that was registered or changed, and do what follows from it.

        Safe to be called any number of times: an image is recorded once for each content.

        :param forced: record it anew whatever is there.
        :param booting: a server boots from it just now.
        :param again: what kept its content from being taken has gone.
        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        image_id = naming.canonical_image_id(image_id)
        look = self._looks.begin(image_id)
        try:
            image = self._images.get(image_id)
        except Exception:
            self._looks.give_up(image_id, look)
            with self._lock:
                if self._store.load(image_id) is not None:
                    self._unseen.add(image_id)
                elif not booting:
                    # So that it is looked at again.
                    self._store.put(Manifest(image_id))
            raise
        with self._lock:
            if self._stopping.is_set():
                return
            fresh = self._looks.end(image_id, look)
            if fresh:
                self._unseen.discard(image_id)
                if image is not None:
                    known = self._store.load(image_id)
                    decision = self._begin(image, known, forced, booting, again)
        if not fresh:
            self.consider(image_id, forced, booting, again)
        elif image is None:
            self.forget(image_id)
        else:
            if decision.action is ImageAction.SKIP and known is not None:
                self.retiring.retire(image_id)
            if self.job(image_id) is None:
                self.shown.compare(image)

    def _begin(self, image: ImageFacts, known: Manifest | None, forced: bool,
               booting: bool, again: bool) -> decisions.ImageDecision:
        """Decide, and begin what follows; under the lock."""
        manifest = known and self._note_visibility(image, known)
        decision = decisions.decide(
            image, manifest, forced=forced, booting=booting, again=again,
            profile_boots=self._conf.profile_boots, has_hosts=self._has_hosts.is_set(),
            default_quota=properties.parse_size(self._conf.default_quota),
            max_quota=properties.parse_size(self._conf.max_quota),
            default_marker=self._conf.boot_marker, build_snapshots=self._conf.build_snapshots)
        image_id, job = image.image_id, self._jobs.get(image.image_id)
        LOG.debug('image %s: %s %s', image_id, decision.action.value, decision.reason)
        fresh = manifest or Manifest(image_id, visibility=image.visibility, name=image.name,
                                     owner=image.owner)
        if decision.action is ImageAction.SKIP:
            if job is not None:
                self._cancel(job)
            self._skip(fresh, decision.reason, settle=not decisions.is_signed(image))
        elif decision.action is ImageAction.WAIT:
            if manifest is None or manifest.state is ImageState.FAILED:
                self._store.put(dataclasses.replace(fresh, state=ImageState.PENDING, reason=''))
        elif decision.action is ImageAction.FAIL:
            if (fresh.state, fresh.reason) != (ImageState.FAILED, decision.reason):
                LOG.info('image %s: failed: %s', image_id, decision.reason)
                self._store.put(dataclasses.replace(fresh, state=ImageState.FAILED,
                                                    reason=decision.reason))
        elif decision.action is ImageAction.NOTHING:
            if manifest is not None and decision.policy is not None:
                self._note_policy(manifest, decision.policy)
        elif job is None:
            assert decision.policy is not None
            # For AWAIT the reason why nothing is begun.
            pending = dataclasses.replace(fresh, reason=decision.reason, held=False)
            if decision.action is not ImageAction.REBUILD:
                pending = dataclasses.replace(
                    pending, state=ImageState.PENDING,
                    warm_due=fresh.warm_due or decisions.has_new_content(image, fresh))
            self._note_policy(pending, decision.policy, always=pending != known)
            if decision.action is not ImageAction.AWAIT:
                job = BuildJob(image_id, forced or decisions.is_forced(known))
                self._jobs[image_id] = job
                if decision.action is ImageAction.REBUILD or self._image_work.has_base(image):
                    self._lookers.submit(self._work, image, decision, job)
                else:
                    self._bases.submit(image_id, image.owner, functools.partial(
                        self._work, image, decision, job))
        return decision

    def _note_visibility(self, image: ImageFacts, known: Manifest) -> Manifest:
        manifest = dataclasses.replace(decisions.seen(known, image.visibility, time.time()),
                                       name=image.name, owner=image.owner)
        if manifest.generation != known.generation:
            LOG.info('image %s: %s, and was %s: hosts let go of its cache image', image.image_id,
                     image.visibility, known.visibility)
        return manifest if manifest == known else self._store.put(manifest)

    def let_go(self, image_id: str) -> Manifest | None:
        """Have all hosts let go of an image's cache image as soon as no server of theirs needs it.

        :returns: the manifest, None if the image is not known.
        """
        return self._store.change(
            naming.canonical_image_id(image_id), lambda manifest: dataclasses.replace(
                manifest, generation=decisions.next_generation(manifest.generation, time.time())))

    def _note_policy(self, manifest: Manifest, policy: properties.Policy,
                     always: bool = False) -> None:
        noted = dataclasses.replace(manifest, quota=policy.quota, settle=policy.settle,
                                    boot_marker=policy.boot_marker)
        if always or noted != manifest:
            self._store.put(noted)

    def rebuild(self, image_id: str) -> bool:
        """Build an image's cache image from the working set that there is.

        :returns: False if something is in hand for it already, or it is not known.
        """
        with self._lock:
            manifest = self._store.load(image_id)
            if manifest is None or image_id in self._jobs or self._stopping.is_set():
                return False
            job = self._jobs[image_id] = BuildJob(image_id)
            self._builds.submit(image_id, manifest.owner, functools.partial(
                self._guarded, job, lambda: self._image_work.build_again(job)))
        return True

    def set_working_set(self, manifest: Manifest, info: WorkingSetInfo) -> bool:
        """Make a working set that was reported an image's own.

        :param manifest: what the report was compared with.
        :returns: False if the image has changed since.
        """
        with self._lock:
            current = self._store.load(manifest.image_id)
            if current is None or not self.takes_report(current) \
                    or (current.image_hash, current.working_set, current.state) \
                    != (manifest.image_hash, manifest.working_set, manifest.state):
                return False
            job = self._jobs.get(manifest.image_id)
            work = None if job is None else self._turns.take_out(manifest.image_id)
            if job is not None and work is None:
                # Its turn has just come.
                return False
            self._store.put(dataclasses.replace(current, working_set=info))
            if job is not None and work is not None:
                job.is_learned = True
                self._builds.submit(manifest.image_id, current.owner, work)
        return True

    def takes_report(self, manifest: Manifest) -> bool:
        """Tell whether the report of a server's boot can be an image's working set now.

        While the image waits for its turn to be recorded it can: it need not be recorded then.
        """
        with self._lock:
            job = self._jobs.get(manifest.image_id)
            return job is None or (manifest.working_set is None and not job.forced
                                   and not job.cancelled.is_set()
                                   and self._turns.is_waiting(manifest.image_id))

    def _cancel(self, job: BuildJob) -> None:
        """Give up what is in hand for an image, also if it waits for its turn; under the lock."""
        job.cancel()
        for turns in (self._bases, self._turns, self._builds):
            work = turns.take_out(job.image_id)
            if work is not None:
                self._lookers.submit(work)

    def job(self, image_id: str) -> BuildJob | None:
        """Return what is in hand for an image, if anything is."""
        with self._lock:
            return self._jobs.get(image_id)

    def tokens(self) -> set[str]:
        """Return what proves servers to be profile boots that are in hand."""
        with self._lock:
            return {job.token for job in self._jobs.values()}

    def unseen(self) -> list[str]:
        """Return the images that changed while Glance could not be asked how."""
        with self._lock:
            return list(self._unseen)

    def awaits_host(self, manifest: Manifest) -> bool:
        """Tell whether an image waits for a compute host that can record it, and there is none."""
        return manifest.reason in (decisions.AWAITED, decisions.AWAITED_ANEW) \
            and not self._has_hosts.is_set()

    def host_reported(self) -> None:
        """A compute host with the driver was heard of: ``Upkeep.go_on`` begins what waited."""
        self._has_hosts.set()

    def prepare(self, image_id: str) -> None:
        """Get the base of an image from which a server boots, in the background."""
        with self._lock:
            if image_id in self._preparing or image_id in self._jobs or self._stopping.is_set():
                return
            self._preparing.add(image_id)
        self._lookers.submit(self._prepare_soon, image_id)

    def ready_in(self, image_id: str) -> float | None:
        """Return the seconds until an image's base is here, at least; None if nobody knows."""
        # As if all were of one owner, of whom one place is not.
        return self._image_work.transfers.seconds_left(image_id, most_of_one(_CONCURRENT_BASES))

    def _prepare_soon(self, image_id: str) -> None:
        try:
            self.consider(image_id, booting=True)
        except Exception as error:
            LOG.warning('image %s: Glance cannot be asked: %s', image_id, error)
        finally:
            with self._lock:
                self._preparing.discard(image_id)

    def forget(self, image_id: str, held: bool = False) -> bool:
        """Drop an image's cache image and working set.

        The base stays until no compute host reads from it.

        :param held: an operator asks for it: the image, which is still in Glance, is not recorded
            again by itself.
        :returns: False if nothing was known.
        """
        image_id = naming.canonical_image_id(image_id)
        self._looks.overtake(image_id)
        reason = decisions.HELD if held else decisions.DELETED
        if not held:
            self.gone.note(image_id)
        with self._lock:
            job = self._jobs.get(image_id)
            if job is not None:
                self._cancel(job)
            manifest = self._store.load(image_id)
            if manifest is None:
                # What a damaged manifest left.
                self._store.remove(image_id)
                return False
            if manifest.reason != reason:
                LOG.info('image %s: dropped: %s', image_id, reason)
                self._store.put(dataclasses.replace(
                    manifest, state=ImageState.SKIPPED, reason=reason, held=held, working_set=None,
                    cache_image=None))
        self.retiring.retire(image_id)
        if held:
            self.shown.show(image_id)
        return True

    def _skip(self, manifest: Manifest, reason: str, settle: bool) -> None:
        settle = manifest.settle and settle
        if manifest.state is ImageState.SKIPPED and manifest.reason == reason \
                and manifest.settle == settle:
            return
        LOG.info('image %s: skipped: %s', manifest.image_id, reason)
        # The base stays for servers that run from it, until the last one has gone. Without the
        # hash the image is looked at again when its properties change.
        self._store.put(dataclasses.replace(
            manifest, state=ImageState.SKIPPED, reason=reason, image_hash='', working_set=None,
            cache_image=None, settle=settle))

    # The work on one image: its base, its recording and its building, each in turns of their own.

    def _work(self, image: ImageFacts, decision: decisions.ImageDecision, job: BuildJob) -> None:
        policy = decision.policy
        assert policy is not None

        def first() -> bool:
            if decision.action is not ImageAction.REBUILD:
                self._image_work.get_base(image, job)
            if decision.action is ImageAction.SERVE:
                manifest = self._store.load(job.image_id)
                assert manifest is not None
                self._set(job, manifest,
                          ImageState.READY if manifest.cache_image else ImageState.SERVED)
                return True
            if decision.action is ImageAction.RECORD:
                self._turns.submit(job.image_id, image.owner,
                                   lambda: self._guarded(job, second, image))
            else:
                self._builds.submit(job.image_id, image.owner,
                                    lambda: self._guarded(job, second, image))
            return False

        def second() -> bool:
            self._image_work.record_and_build(
                image, policy, job, decision.action is ImageAction.RECORD and not job.is_learned)
            return True

        self._guarded(job, first, image)

    def _guarded(self, job: BuildJob, work: Callable[[], bool],
                 image: ImageFacts | None = None) -> None:
        """Do a part of a job: whatever happens, the image's state tells of it.

        :param work: says whether the job is done with it.
        :param image: whose content a failure is of; None for the one that is served.
        """
        done = True
        try:
            job.check_cancelled()
            done = work()
        except exception.Cancelled as error:
            LOG.info('image %s: given up: %s', job.image_id, error)
        except exception.ImageRefused as error:
            self._end(job, image, ImageState.SKIPPED, str(error))
        except exception.BootcacheError as error:
            self._end(job, image, ImageState.FAILED, str(error))
        except Exception as error:
            if not job.cancelled.is_set() and not self._stopping.is_set():
                LOG.exception('image %s: unexpected error', job.image_id)
                self._end(job, image, ImageState.FAILED, f'unexpected error: {error}')
        if not done:
            return
        with self._lock:
            self._jobs.pop(job.image_id, None)
        if job.cancelled.is_set():
            # It may have been opted in again while this job was on its way out.
            with contextlib.suppress(Exception):
                self.consider(job.image_id)

    def _set(self, job: BuildJob, manifest: Manifest, state: ImageState,
             reason: str = '') -> Manifest:
        with self._lock:
            job.check_cancelled()
            # What people changed meanwhile stays.
            current = self._store.load(manifest.image_id) or manifest
            manifest = self._store.put(dataclasses.replace(
                manifest, state=state, reason=reason, pinned=current.pinned, quota=current.quota,
                boot_marker=current.boot_marker, settle=current.settle,
                generation=current.generation, visibility=current.visibility,
                warm_due=current.warm_due, name=current.name, owner=current.owner))
        self.shown.show(manifest.image_id)
        return manifest

    def _evict(self, image_id: str) -> bool:
        """Drop a cache image from the storage disk tier; its next boot has it built again.

        :returns: False if something is in hand for it, or a host is fetching it.
        """
        with self._lock:
            manifest = self._store.load(image_id)
            if manifest is None or manifest.cache_image is None:
                return True
            if image_id in self._jobs or not self._exporter.withdraw_cache(manifest):
                return False
            state = ImageState.SERVED if manifest.state is ImageState.READY else manifest.state
            self._store.put(dataclasses.replace(manifest, cache_image=None, state=state))
        self._tiers.forget(image_id)
        if state is ImageState.SERVED:
            self.shown.show(image_id)
        LOG.info('image %s: its cache image is evicted from storage disk', image_id)
        return True

    def _end(self, job: BuildJob, image: ImageFacts | None, state: ImageState, reason: str) -> None:
        with contextlib.suppress(exception.Cancelled):
            job.check_cancelled()
            LOG.warning('image %s: %s: %s', job.image_id, state.value, reason)
            manifest = self._store.load(job.image_id) or Manifest(job.image_id)
            if state is ImageState.FAILED and manifest.cache_image is not None:
                state, reason = ImageState.READY, f'the older cache image serves, as {reason}'
            elif state is ImageState.SKIPPED:
                manifest = dataclasses.replace(manifest, cache_image=None)
            if image is not None:
                # With the hash it is not tried again by itself for the same content.
                manifest = dataclasses.replace(manifest, image_hash=image.image_hash)
            self._set(job, manifest, state, reason)
