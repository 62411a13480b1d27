"""The life of an image in the storage service: events come in, decisions are made, work is done."""

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable

import cachetools
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import naming, properties, steps
from bootcache.manifest import Availability, Manifest, Standing, Wished, WorkingSetInfo
from bootcache.reasons import Cause, Reason
from glance_bootcache import decisions
from glance_bootcache.decisions import ImageAction, ImageDecision, ImageFacts
from glance_bootcache.glance.images import Images
from glance_bootcache.hosts.holdings import Hosts
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images.imagework import ImageWork
from glance_bootcache.images.jobs import BASES_AT_ONCE, Changes, Jobs
from glance_bootcache.images.missingimages import MissingImages
from glance_bootcache.images.retiring import Retiring
from glance_bootcache.images.retriedlooks import RetriedLooks
from glance_bootcache.images.states import States
from glance_bootcache.images.statuspublisher import GlanceStatusPublisher
from glance_bootcache.images.storagedisk import DiskRoom
from glance_bootcache.profileboot.job import BuildJob
from glance_bootcache.profileboot.throughnova import NovaProfileBoots
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)


class Manager:
    """Keeps one manifest an image, and works on images whose cache image is wanted.

    :param conf: configuration of the storage service.
    :param needs: which bases compute hosts need.
    :param hosts: what compute hosts hold.
    """

    def __init__(self, conf: cfg.ConfigOpts, store: ImageStore, images: Images, exporter: Exporters,
                 tiers: StorageTiers, profile_boots: NovaProfileBoots, needs: ReportedNeeds,
                 hosts: Hosts):
        self._conf = conf[bootcache_conf.GROUP]
        self._store = store
        self._images = images
        self._tiers = tiers
        self.jobs = Jobs(self._conf.concurrent_builds, store.lock)
        self.publisher = GlanceStatusPublisher(conf, store, images, self.jobs)
        self.retiring = Retiring(store, exporter, tiers, profile_boots, needs, hosts)
        self.disk_room = DiskRoom(store, self.jobs, exporter, tiers)
        self._states = States(store, self.jobs)
        self.missing = MissingImages(self._conf.deletion_delay, store, images, self.jobs,
                                     self.retiring)
        self._image_work = ImageWork(conf, store, images, exporter, tiers, profile_boots,
                                     self._states, self.disk_room, self.retiring)
        # Guards what is below as well: it has to agree with the manifests.
        self._lock = store.lock
        self.retried = RetriedLooks()
        # When the last answer about each image that counted was asked for, and when it came: in
        # numbers that grow. One that another has overtaken does not count.
        self._answers: cachetools.LRUCache[str, tuple[int, int]] = cachetools.LRUCache(10_000)
        self._numbers = itertools.count(1)
        self._preparing: set[str] = set()
        self._changes = Changes(self._conf.changes_per_hour)
        # A compute host with the driver was heard of, which can record boots.
        self._has_hosts = threading.Event()

    def stop(self) -> None:
        """Give up what is in hand: profile servers are deleted, the images stay pending."""
        self.jobs.stop()
        self._tiers.stop()

    # Events.

    def consider(self, image_id: str, forced: bool = False, booting: bool = False,
                 again: bool = False) -> None:
        """Look at an image that was registered or changed, and do what follows from it.

        What cannot be written is tried again by itself, unless an operator waits for it.

        :param forced: record it anew whatever is there.
        :param booting: a server boots from it just now.
        :param again: what kept its content from being taken has gone.
        :raises DatabaseAway: if it is forced, and the image's row cannot be written.
        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        image_id = naming.canonical_image_id(image_id)
        with contextlib.nullcontext() if forced else self.retried.noted(image_id):
            self._look(image_id, forced, booting, again)

    def _look(self, image_id: str, forced: bool, booting: bool, again: bool) -> None:
        heard = asked = next(self._numbers)
        while True:
            try:
                image = self._images.get(image_id)
            except Exception as error:
                if not booting or self._store.load(image_id) is not None:
                    self.retried.add(image_id, error)
                raise
            with self._lock:
                if self.jobs.is_stopping:
                    return
                others, came = self._answers.get(image_id, (0, 0))
                if came < asked:
                    self._answers[image_id] = asked, next(self._numbers)
                    if image is not None:
                        known = self._store.load(image_id)
                        decision = self._begin(image, known, forced, booting, again)
                    break
            if others > heard and not (forced or booting or again):
                return  # That was asked for after this was heard of: nothing else would follow.
            asked = next(self._numbers)
        if image is None:
            if self.missing.withdraw(image_id, Availability.MISSING):
                self._drop(image_id)
        else:
            self.missing.note_there(image_id)
            self.publisher.note_seen(image)
            if decision.action is ImageAction.SKIP and known is not None:
                self.retiring.retire(image_id)

    def _begin(self, image: ImageFacts, known: Manifest | None, forced: bool,
               booting: bool, again: bool) -> ImageDecision:
        """Decide, and begin what follows; under the lock."""
        steps.reached('register: heard')
        manifest = known and self._note_wishes(image, known)
        decision = decisions.decide(
            image, manifest, forced=forced, booting=booting, again=again,
            profile_boots=self._conf.profile_boots, has_hosts=self._has_hosts.is_set(),
            default_quota=properties.parse_size(self._conf.default_quota),
            max_quota=properties.parse_size(self._conf.max_quota),
            default_marker=self._conf.boot_marker, build_snapshots=self._conf.build_snapshots,
            verifies=self._conf.verify_signatures)
        image_id = image.image_id
        LOG.debug('image %s: %s %s', image_id, decision.action.value, decision.cause)
        fresh = manifest or Manifest(image_id, wished=Wished(
            visibility=image.visibility, name=image.name, owner=image.owner,
            availability=decisions.availability(image)))
        if decision.action is ImageAction.SKIP:
            self.jobs.cancel(image_id)
            self._skip(fresh, decision.cause, not decisions.is_signed(image) and (
                decision.policy.settle if decision.policy else fresh.wished.settle))
        elif decision.action is ImageAction.WAIT:
            if manifest is None or manifest.standing is Standing.FAILED:
                self._write(fresh, lambda known: known.standing_at(Standing.WANTED))
        elif decision.action is ImageAction.FAIL:
            if (fresh.standing, fresh.cause) != (Standing.FAILED, decision.cause):
                LOG.info('image %s: failed: %s', image_id, decision.cause)
                self._write(fresh, lambda known: known.standing_at(
                    Standing.FAILED, decision.cause))
        elif decision.action is ImageAction.NOTHING:
            if manifest is not None and decision.policy is not None:
                self._write(manifest, functools.partial(_with_policy, decision.policy))
        elif self.jobs.of(image_id) is None:
            policy = decision.policy
            assert policy is not None
            if not (forced or booting or again or decision.action is ImageAction.AWAIT) \
                    and decisions.is_owners_change(image, known) \
                    and not self._changes.begin(image.owner):
                decision = ImageDecision(ImageAction.AWAIT, Cause(Reason.TOO_MANY_CHANGES), policy)
            now, cause = time.time(), decision.cause
            is_new = decision.action is not ImageAction.REBUILD

            def pending(known: Manifest) -> Manifest:
                found = known.standing_at(known.standing, cause).wishing(held=False)
                return _with_policy(
                    policy, decisions.taken_up(found, image, now) if is_new else found)

            self._write(fresh, pending)
            steps.reached('register: taken up')
            if decision.action is not ImageAction.AWAIT:
                job = self.jobs.begin(image_id, forced or decisions.is_forced(known))
                assert job is not None
                work = functools.partial(self._work, image, decision, job)
                if decision.action is ImageAction.REBUILD or self._image_work.is_at_hand(image):
                    self.jobs.look(work)
                else:
                    self.jobs.bases.submit(image_id, image.owner, work)
        return decision

    def _write(self, fresh: Manifest, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Change what is known of an image, or add it.

        :param fresh: what it is added as.
        """
        return self._store.change(fresh.image_id, change) or self._store.add(change(fresh))

    def _note_wishes(self, image: ImageFacts, known: Manifest) -> Manifest:
        now = time.time()
        manifest = self._write(known, lambda found: decisions.signed_anew(
            decisions.seen(found, image.visibility, now), image,
            self._conf.verify_signatures, now).wishing(
            name=image.name, owner=image.owner, availability=decisions.availability(image)))
        if known.is_missing:
            LOG.info('image %s: Glance has it again', image.image_id)
        if manifest.wished.generation != known.wished.generation:
            LOG.info('image %s: %s, and was %s, or is signed otherwise: hosts let go of its cache'
                     ' image', image.image_id, image.visibility, known.wished.visibility)
        return manifest

    def fewer_see(self, image_id: str) -> None:
        """Have all hosts let go of an image's cache image, as one project less may see it."""
        image_id = naming.canonical_image_id(image_id)
        with self.retried.noted(image_id, Availability.MEMBER_REMOVED):
            self.let_go(image_id)

    def look_again(self, image_id: str) -> None:
        """Follow the change of an image that could not be followed when it came.

        :raises Exception: what keeps it from being followed.
        """
        with self.retried.follow(image_id) as heard:
            if Availability.MEMBER_REMOVED in heard:
                self.let_go(image_id)
            if Availability.DELETION_NOTIFIED in heard:
                self.missing.withdraw(image_id, Availability.DELETION_NOTIFIED)
            self._look(image_id, forced=False, booting=False, again=False)

    def let_go(self, image_id: str) -> Manifest | None:
        """Have all hosts let go of an image's cache image as soon as no server of theirs needs it.

        :returns: the manifest, None if the image is not known.
        """
        now = time.time()
        return self._store.change(
            naming.canonical_image_id(image_id), lambda manifest: manifest.wishing(
                generation=decisions.next_generation(manifest.wished.generation, now)))

    def rebuild(self, image_id: str, in_passing: bool = False) -> None:
        """Build an image's cache image from the working set that there is, if it is not in hand.

        :param in_passing: where it has room beside all others; a failure changes nothing.
        """
        with self._lock:
            manifest = self._store.load(image_id)
            job = None if manifest is None else self.jobs.begin(image_id)
            if manifest is not None and job is not None:
                self.jobs.builds.submit(image_id, manifest.wished.owner, functools.partial(
                    self._guarded, job, lambda: self._image_work.build_again(job, in_passing)))

    def set_working_set(self, manifest: Manifest, info: WorkingSetInfo) -> bool:
        """Make a working set that was reported an image's own.

        :param manifest: what the report was compared with.
        :returns: False if the image has changed since.
        """
        with self._lock:
            current = self._store.load(manifest.image_id)
            if current is None or not self.takes_report(current) \
                    or current.made.base_hash != manifest.made.base_hash \
                    or (current.image_hash, current.made.working_set, current.standing) \
                    != (manifest.image_hash, manifest.made.working_set, manifest.standing):
                return False
            job = self.jobs.of(manifest.image_id)
            work = None if job is None else self.jobs.recordings.take_out(manifest.image_id)
            if job is not None and work is None:
                # Its turn has just come.
                return False
            owner = current.wished.owner
            try:
                self._store.change(manifest.image_id, lambda known: known.making(working_set=info))
            except BaseException:
                if job is not None and work is not None:
                    self.jobs.recordings.submit(job.image_id, owner, work)
                raise
            if job is not None and work is not None:
                job.is_learned = True
                self.jobs.builds.submit(job.image_id, owner, work)
        return True

    def takes_report(self, manifest: Manifest) -> bool:
        """Tell whether the report of a server's boot can be an image's working set now.

        While the image waits for its turn to be recorded it can: it need not be recorded then.
        """
        with self._lock:
            job = self.jobs.of(manifest.image_id)
            return job is None or (manifest.made.working_set is None and not job.forced
                                   and not job.cancelled.is_set()
                                   and self.jobs.recordings.is_waiting(manifest.image_id))

    def awaits(self, manifest: Manifest) -> bool:
        """Tell whether an image waits for a compute host that can record it, and there is none, or
        for its owner's next change to be followed."""
        if manifest.cause.reason is Reason.TOO_MANY_CHANGES:
            return self._changes.are_too_many(manifest.wished.owner)
        return manifest.cause.reason in (Reason.NO_HOST, Reason.NO_HOST_REQUESTED) \
            and not self._has_hosts.is_set()

    def host_reported(self) -> None:
        """A compute host with the driver was heard of: ``Upkeep.go_on`` begins what waited."""
        self._has_hosts.set()

    def prepare(self, image_id: str) -> None:
        """Get the base of an image from which a server boots, in the background."""
        with self._lock:
            if image_id in self._preparing or self.jobs.of(image_id) is not None \
                    or self.jobs.is_stopping:
                return
            self._preparing.add(image_id)
        self.jobs.look(functools.partial(self._prepare_soon, image_id))

    def ready_in(self, image_id: str) -> float | None:
        """Return the seconds until an image's base is here, at least; None if nobody knows."""
        return self._image_work.transfers.seconds_left(image_id, BASES_AT_ONCE)

    def _prepare_soon(self, image_id: str) -> None:
        try:
            self.consider(image_id, booting=True)
        except Exception as error:
            LOG.warning('image %s: Glance cannot be asked: %s', image_id, error)
        finally:
            with self._lock:
                self._preparing.discard(image_id)

    def forget(self, image_id: str, held: bool = False) -> bool:
        """Drop an image's cache image and working set, as Glance notified its deletion.

        It is given out no more, and dropped when that is believed. The base stays until no compute
        host reads from it.

        :param held: an operator asks for it: the image, if it is still in Glance, is not recorded
            again by itself.
        :returns: False if nothing was known.
        :raises DatabaseAway: if an operator asks for it, and the image's row cannot be written.
        :raises Exception: keystoneauth's or glanceclient's, if Glance cannot be asked.
        """
        image_id = naming.canonical_image_id(image_id)
        with self._lock:
            manifest = self._store.load(image_id)
            self._answers[image_id] = 0, next(self._numbers)
        if held:
            self._drop(image_id, held=manifest is not None and not manifest.is_missing)
            return manifest is not None
        with self.retried.noted(image_id, Availability.DELETION_NOTIFIED):
            if self.missing.withdraw(image_id, Availability.DELETION_NOTIFIED):
                self._drop(image_id)
            elif manifest is not None:
                self._look(image_id, forced=False, booting=False, again=False)
        return manifest is not None

    def _drop(self, image_id: str, held: bool = False) -> None:
        cause = Cause(Reason.EVICTED_BY_OPERATOR if held else Reason.DELETED)
        with self._lock:
            self.jobs.cancel(image_id)
            manifest = self._store.load(image_id)
            if manifest is None:
                return
            if manifest.cause != cause:
                LOG.info('image %s: dropped: %s', image_id, cause)
                self._store.change(image_id, lambda known: decisions.skipped(known, cause).wishing(
                    held=held, availability=known.wished.availability if held
                    else Availability.DELETED))
        self.retiring.retire(image_id)

    def _skip(self, manifest: Manifest, cause: Cause, settle: bool) -> None:
        if manifest.standing is Standing.SKIPPED and manifest.cause == cause \
                and manifest.wished.settle == settle:
            return
        LOG.info('image %s: skipped: %s', manifest.image_id, cause)
        self._write(manifest,
                    lambda known: decisions.skipped(known, cause).wishing(settle=settle))

    # The work on one image: its base, its recording and its building, each in turns of their own.

    def _work(self, image: ImageFacts, decision: ImageDecision, job: BuildJob) -> None:
        policy = decision.policy
        assert policy is not None

        def first() -> bool:
            if decision.action is not ImageAction.REBUILD:
                self._image_work.get_base(image, job)
            if decision.action is ImageAction.SERVE and not self._image_work.inherit(image, job):
                self._states.done(job)
                return True
            turns = self.jobs.recordings if decision.action is ImageAction.RECORD \
                else self.jobs.builds
            turns.submit(job.image_id, image.owner, lambda: self._guarded(job, second))
            return False

        def second() -> bool:
            self._image_work.record_and_build(
                image, policy, job, decision.action is ImageAction.RECORD and not job.is_learned)
            return True

        self._guarded(job, first)

    def _guarded(self, job: BuildJob, work: Callable[[], bool]) -> None:
        """Do a part of a job; see ``States.guarded``."""
        self._states.guarded(job, work)
        manifest = self._store.load(job.image_id)
        if manifest is not None and manifest.standing is Standing.SKIPPED:
            self.retiring.later(job.image_id)
        if job.cancelled.is_set() and self.jobs.of(job.image_id) is not job:
            # It may have been opted in again while this job was on its way out.
            with contextlib.suppress(Exception):
                self.consider(job.image_id)


def _with_policy(policy: properties.Policy, known: Manifest) -> Manifest:
    return known.wishing(quota=policy.quota, settle=policy.settle, boot_marker=policy.boot_marker)
