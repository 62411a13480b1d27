"""The controller of images: looks at an image, decides, starts the next step, and looks again.

A message writes into the image's record what it says, and has the image looked at. What is done
follows from the record and from what Glance says, never from the message: a lost one, a late one, a
crash and a full disk are the same case, the next look.
"""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import cachetools
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, naming, properties, steps
from bootcache.manifest import Availability, Goal, Manifest, Standing, Wished, WorkingSetInfo
from bootcache.reasons import Cause, Reason
from bootcache.util.backoff import Backoff, CircuitBreaker, pause_seconds
from bootcache.util.logthrottle import LogThrottle
from bootcache.util.workqueue import WorkQueue
from glance_bootcache import away
from glance_bootcache.glance.images import Images, changed_at
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images import policy
from glance_bootcache.images.deletions import Deletions
from glance_bootcache.images.imagework import ImageWork, settings_of
from glance_bootcache.images.policy import Decision, Facts, Step
from glance_bootcache.images.publishing import StatePublisher
from glance_bootcache.images.retiring import Retiring
from glance_bootcache.images.running import BASES, Running
from glance_bootcache.images.saving import save
from glance_bootcache.images.turns import Changes
from glance_bootcache.profileboot.job import ImageJob
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

_WORKERS = 4
_LONGEST_PAUSE = 3600
# Between tries to give up what servers may need, or to find what Glance does not have.
_LONGEST_LOOK = 300
# Where the newer content of an image was got in vain, which may be gigabytes.
_LONGEST_DOWNLOAD = 24 * 3600
# Images of which nothing is known but that hosts ask for them: anybody can make up ids.
_MOST_ASKED_FOR = 100
_MOST_ANNOUNCED = 10_000
_MOST_UNKNOWN = 10_000
_UNKNOWN_SECONDS = 60
# For which an event waits for the look at an image of which nothing is known.
_LOOK_SECONDS = 30
# Errors in a row after which Glance is not asked for a while.
_GLANCE_ERRORS, _GLANCE_SECONDS = 3, 10.0


class Controller:
    """Keeps images' records equal to what Glance, operators and hosts want, and acts on them.

    :param conf: configuration of the storage service.
    :param running: the steps that are under way.
    :param clock: monotonic seconds.
    :param home_for: returns the node that is to work on a new image, by the image of whose server
        it is a snapshot; None for this one.
    """

    def __init__(self, conf: cfg.ConfigOpts, store: ImageStore, images: Images, work: ImageWork,
                 running: Running, retiring: Retiring, deletions: Deletions,
                 publisher: StatePublisher, clock: Callable[[], float] = time.monotonic,
                 home_for: Callable[[str | None], int | None] = lambda parent_id: None):
        self._conf = conf[bootcache_conf.GROUP]
        self._settings = settings_of(conf)
        self._store = store
        self._images = images
        self._work = work
        self._running = running
        self._retiring = retiring
        self._deletions = deletions
        self._publisher = publisher
        self._clock = clock
        self._home_for = home_for
        self.queue = WorkQueue(self._reconcile, _WORKERS, 'bootcache-images', self._failed, clock)
        self._changes = Changes(self._conf.changes_per_hour, clock)
        self._pauses = Backoff(self._conf.poll_interval, _LONGEST_PAUSE, clock)
        self._glance = CircuitBreaker(_GLANCE_ERRORS, _GLANCE_SECONDS, clock)
        self._throttle = LogThrottle(LOG)
        # A compute host with the driver was heard of, which can record boots.
        self._has_hosts = threading.Event()
        self._lock = threading.Lock()  # guards what follows; held for steps in memory
        # Images without a record that hosts ask for, and images that Glance has told of since they
        # were looked at.
        self._asked_for: cachetools.LRUCache[str, bool] = cachetools.LRUCache(_MOST_ASKED_FOR)
        self._announced: set[str] = set()
        # Images that Glance does not have, and of which there is no record.
        self._unknown: cachetools.TTLCache[str, bool] = cachetools.TTLCache(
            _MOST_UNKNOWN, _UNKNOWN_SECONDS)
        # As Glance has described each image last: when it was changed.
        self._seen: dict[str, str] = {}

    def start(self) -> None:
        """Begin to look at images of which something is heard.

        Before it, what was built of images that other rules than those of now accepted is taken
        back.

        :raises DatabaseAway: if that cannot be written.
        """
        for record in self._store.manifests():
            if policy.is_by_other_rules(record) and record.standing is not Standing.SKIPPED:
                LOG.warning('image %s: %s', record.image_id, Cause(Reason.INSPECTION_RULES))
                self._store.change(record.image_id,
                                   lambda known: policy.revoked(known, time.time()))
        self.queue.start()

    def look_at_all(self) -> None:
        """Look at all images, as they may have changed meanwhile, and go on with what is wanted."""
        for record in self._store.manifests():
            self.queue.add(record.image_id)

    def stop(self, wait: bool = True) -> None:
        """Give up what is under way: profile servers are deleted, and the images keep their goals.

        :param wait: until it has ended.
        """
        # A look may wait for Glance, and profile servers are to be deleted meanwhile.
        self.queue.stop(wait=False)
        self._running.stop(wait)
        self.queue.stop()

    # What Glance, operators and hosts say.

    def image_changed(self, image_id: str) -> None:
        """An image was registered or changed.

        :raises ValueError: if the id is no UUID.
        :raises DatabaseAway: if the node that works on it cannot be told.
        """
        image_id = naming.canonical_image_id(image_id)
        if self._is_elsewhere(image_id):
            self._store.touch(image_id)
            return
        with self._lock:
            is_kept = image_id in self._announced or len(self._announced) < _MOST_ANNOUNCED
            if is_kept:
                self._announced.add(image_id)
        if not is_kept and self._store.known(image_id) is None:
            LOG.error('image %s: its change is lost, as those of too many images wait; "bootcache'
                      ' image build %s" takes it up', image_id, image_id)
            return
        self.queue.add(image_id)

    def _is_elsewhere(self, image_id: str) -> bool:
        """Tell whether another node works on an image."""
        return self._store.known(image_id) is None and self._store.home(image_id) is not None

    def has_looked(self, image_id: str) -> bool:
        """Wait for the look at an image that was announced, if nothing is known of it.

        :returns: False if it was not looked at for a while: what announced it has to come again.
        """
        return self._store.anywhere(image_id) is not None \
            or self.queue.wait(naming.canonical_image_id(image_id), _LOOK_SECONDS) \
            or self._store.anywhere(image_id) is not None

    def image_deleted(self, image_id: str) -> None:
        """Glance has notified the deletion of an image: it is given out no more.

        :raises DatabaseAway: if that cannot be written.
        """
        image_id = naming.canonical_image_id(image_id)

        def withdrawn(record: Manifest) -> Manifest:
            return record if record.wished.availability is Availability.DELETED \
                else record.wishing(availability=Availability.DELETION_NOTIFIED)

        # Another node may have heard of the image just now: an event comes once.
        self._store.find(image_id)
        record = self._store.change(image_id, withdrawn, anywhere=True)
        self._running.cancel(image_id)
        if record is not None and not self._is_elsewhere(image_id):
            self._retiring.withdraw(image_id)
        self.queue.add(image_id)

    def let_go(self, image_id: str) -> Manifest | None:
        """Have all hosts let go of an image's cache image as soon as no server of theirs needs it:
        an operator wants it, or one project less may see the image.

        :returns: the record, None if the image is not known.
        :raises DatabaseAway: if that cannot be written.
        """
        return self._store.change(
            naming.canonical_image_id(image_id), lambda record: record.wishing(
                generation=policy.next_generation(record.wished.generation, time.time())),
            anywhere=True)

    def build(self, image_id: str) -> None:
        """Record an image anew, whatever there is, as an operator wants it.

        :raises DatabaseAway: if that cannot be written.
        :raises Exception: keystoneauth's or glanceclient's, if the image is not known, and Glance
            cannot be asked.
        """
        image_id = naming.canonical_image_id(image_id)
        if self._store.change(image_id, policy.requested) is None \
                and self._images.get(image_id) is not None and self._store.add(
                    Manifest(image_id, wished=Wished(requested=True))) is None:
            # An event of the image was faster.
            self._store.change(image_id, policy.requested)
        self._pauses.forget(image_id)
        self.queue.add(image_id)

    def evict(self, image_id: str) -> bool:
        """Drop an image's cache image and working set, as an operator wants it.

        If it is still in Glance it is not recorded again by itself. The base stays until no compute
        host reads from it.

        :returns: False if nothing was known.
        :raises DatabaseAway: if that cannot be written.
        """
        image_id = naming.canonical_image_id(image_id)
        record = self._store.change(
            image_id, lambda record: policy.deleted(record, held=not record.is_missing))
        if record is None:
            return False
        LOG.info('image %s: dropped: %s', image_id, record.cause)
        self._running.cancel(image_id)
        self._pauses.forget(image_id)
        self._retiring.withdraw(image_id)
        self.queue.add(image_id)
        return True

    def prepare(self, image_id: str) -> None:
        """Get the base of an image from which a server boots, unless that is under way.

        :raises DatabaseAway: if that cannot be written.
        """
        if self._running.of(image_id) is not None:
            return
        if self._store.change(image_id, lambda record: policy.asked_for(
                record, self._store.has_lost_base(record))) is None:
            with self._lock:
                self._asked_for[image_id] = True
        self.queue.add(image_id)

    def rebuild(self, image_id: str) -> None:
        """Build an image's cache image from the working set that there is."""
        self._store.change(image_id, lambda record: record if record.goal or (
            record.made.working_set is None) else _aiming_at_build(record))
        self.queue.add(image_id)

    def recompress(self, image_id: str) -> None:
        """Build an image's cache image anew, if it has room beside all others; a failure changes
        nothing."""
        record = self._store.load(image_id)
        if record is not None and not record.goal:
            self._start(Step.BUILD, record, None)

    def host_reported(self) -> None:
        """A compute host with the driver was heard of: images that waited for one are recorded."""
        if self._has_hosts.is_set():
            return
        self._has_hosts.set()
        for record in self._store.manifests():
            if record.cause.reason in (Reason.NO_HOST, Reason.NO_HOST_REQUESTED):
                self.queue.add(record.image_id)

    def takes_report(self, record: Manifest) -> bool:
        """Tell whether the report of a server's boot can be an image's working set now.

        While the image waits for its turn to be recorded it can: it need not be recorded then.
        """
        if record.wished.requested:
            return False
        if record.goal is Goal.RECORD:
            return record.made.working_set is None and (
                self._running.of(record.image_id) is None
                or self._running.is_waiting(record.image_id))
        return self._running.of(record.image_id) is None

    def set_working_set(self, compared: Manifest, info: WorkingSetInfo) -> bool:
        """Make a working set that was reported an image's own, and have a cache image built of it.

        :param compared: what the report was compared with.
        :returns: False if the image has changed since.
        :raises DatabaseAway: if that cannot be written.
        """
        taken = False

        def change(record: Manifest) -> Manifest:
            nonlocal taken
            taken = (record.image_hash, record.made.base_hash, record.made.working_set,
                     record.standing) == (compared.image_hash, compared.made.base_hash,
                                          compared.made.working_set, compared.standing) \
                and self.takes_report(record)
            return _aiming_at_build(record.making(working_set=info)) if taken else record

        self._store.change(compared.image_id, change)
        self.queue.add(compared.image_id)
        return taken

    # What there is to know.

    def is_unknown(self, image_id: str) -> bool:
        """Return whether Glance said a moment ago that it does not have an image."""
        with self._lock:
            return image_id in self._unknown

    def has_changed(self, image: ImageFacts) -> bool:
        """Return whether an image is another than when it was looked at last."""
        with self._lock:
            return self._seen.get(image.image_id, image.updated_at) != image.updated_at

    def ready_in(self, image_id: str) -> float | None:
        """Return the seconds until an image's base is here, at least; None if nobody knows."""
        return self._work.transfers.seconds_left(image_id, BASES)

    def is_waited_for(self, image_id: str) -> bool:
        """Tell whether servers of a snapshot are to wait for its first cache image.

        If not, a row that is read afterwards has what was made.
        """
        job, record = self._running.of(image_id), self._store.load(image_id)
        return record is not None and self._work.inheriting.is_waited_for(image_id) and (
            (record.made.cache_image is None and record.goal is Goal.BUILD)
            or (job is not None and job.is_child))

    # A look.

    def _failed(self, image_id: str, error: Exception) -> None:
        if isinstance(error, (exception.BootcacheError, OSError)) or away.passes(error):
            told = away.told(error)
            # Of one image for all: while Glance is away all that are looked at fail.
            if self._throttle.is_new(type(error).__name__, told.replace(image_id, '')):
                LOG.warning('image %s: cannot be looked at, and is looked at again: %s', image_id,
                            told)
        else:
            LOG.error('image %s: cannot be looked at, and is looked at again', image_id,
                      exc_info=error)

    def _ask_glance(self, image_id: str) -> ImageFacts | None:
        if not self._glance.may_ask():
            raise exception.ServiceAway('Glance has not answered just now')
        with self._glance.hearing(away.passes):
            return self._images.get(image_id)

    def _reconcile(self, image_id: str) -> None:
        with self._lock:
            boots = self._asked_for.pop(image_id, False)
            announced = image_id in self._announced
            self._announced.discard(image_id)
        try:
            self._look(image_id, boots, announced)
        except BaseException:
            with self._lock:
                self._asked_for.update({image_id: True} if boots else {})
                self._announced.update({image_id} if announced else ())
            raise

    def _look(self, image_id: str, boots: bool, announced: bool) -> None:
        record = self._store.load(image_id)
        if record is None and (not (boots or announced) or self._is_elsewhere(image_id)):
            # What was begun for one that another node works on by now.
            self._running.cancel(image_id)
            return
        if record is not None and not announced and policy.waits_for_its_owner(record) \
                and (left := self._changes.seconds_left(record.wished.owner)):
            # There may be thousands: Glance is not asked in vain.
            self.queue.add(image_id, left)
            return
        try:
            image = self._ask_glance(image_id)
        except Exception:
            if record is not None:
                self._act(Decision(record, policy.retirement(record)), None)
            raise
        with self._lock:
            self._unknown.pop(image_id, None)
            if image is None and record is None:
                self._unknown[image_id] = True
        if image is None:
            if record is not None:
                self._missing(record)
            return
        self._deletions.forget(image_id)
        steps.reached('register: heard')
        decision = self._decide(record, image, boots)
        if decision.record is None:
            return
        with self._lock:
            self._seen[image_id] = image.updated_at
        self._act(decision, image)
        if decision.waits:
            # Its owner may leave any number so: the longer it has not changed, the later.
            quiet = 0.0 if image.status == 'active' else time.time() - changed_at(image)
            self.queue.add(image_id, max(self._conf.poll_interval, min(quiet, _LONGEST_PAUSE)))
        again = self._publisher.publish(image, decision.record,
                                        self._running.state(decision.record))
        if again is not None:
            self.queue.add(image_id, again)

    def _missing(self, record: Manifest) -> None:
        """Give an image out no more that Glance does not have, and remove it when that is
        believed."""
        image_id = record.image_id
        if record.wished.availability is not Availability.DELETED:
            if not record.is_missing:
                LOG.info('image %s: it is given out no more: %s', image_id, Cause(Reason.MISSING))
            changed = self._store.change(
                image_id, lambda known: known if known.is_missing
                or known.wished.availability is Availability.DELETED
                else known.wishing(availability=Availability.MISSING))
            if changed is None:
                return
            self._running.cancel(image_id)
            self._retiring.withdraw(image_id)
            if not self._deletions.is_believed(changed):
                # Soon first: it may have been one answer only.
                self._postpone(image_id, _LONGEST_LOOK)
                pause = self._pauses.due_at(image_id) - self._clock()
                self.queue.add(image_id, min(
                    pause, self._deletions.seconds_left(image_id) or pause))
                return
            self._deletions.forget(image_id)
            self._pauses.forget(image_id)
            deleted = self._store.change(image_id, lambda known: policy.deleted(known)
                                         if known.is_missing else known)
            if deleted is None:
                return
            record = deleted
            LOG.info('image %s: dropped: %s', image_id, record.cause)
        with self._lock:
            self._unknown[image_id] = True
            self._seen.pop(image_id, None)
        self._act(Decision(record, policy.retirement(record)), None)

    def _decide(self, record: Manifest | None, image: ImageFacts, boots: bool) -> Decision:
        image_id = image.image_id
        facts = Facts(image, self._work.is_at_hand(image), self._has_hosts.is_set(), boots,
                      not self._changes.seconds_left(image.owner), time.time())
        decision = policy.decide(record, facts, self._settings)
        if decision.record is None:
            return decision
        if record is None:
            after = self._store.add(decision.record, self._home_for(
                properties.snapshot_parent(image.properties)))
            if after is None and not self._is_elsewhere(image_id):
                # An operator was faster, or an answer was lost.
                return self._decide(self._store.load(image_id), image, boots)
            if after is None or self._is_elsewhere(image_id):
                if after is not None:
                    self._count(decision, image)
                return Decision(None)
        else:
            def change(known: Manifest) -> Manifest:
                nonlocal decision
                # If it was deleted meanwhile, Glance's answer is of before: it is asked again.
                decision = policy.decide(known, facts, self._settings) \
                    if known.wished.availability is record.wished.availability else Decision(known)
                return decision.record or known

            after = self._store.change(image_id, change)
            if after is None:
                return Decision(None)
        decision = dataclasses.replace(decision, record=after)
        steps.reached('register: taken up')
        self._count(decision, image)
        LOG.debug('image %s: %s', image_id, decision.step or 'nothing')
        self._log(record, after)
        if after.cause.reason in (Reason.NO_HOST, Reason.NO_HOST_REQUESTED) \
                and self._has_hosts.is_set():
            self.queue.add(image_id)  # One was heard of meanwhile.
        if record is None or _work_of(after) != _work_of(record):
            self._pauses.forget(image_id)
        return decision

    def _count(self, decision: Decision, image: ImageFacts) -> None:
        if decision.is_change and decision.step is not None:
            self._changes.begin(image.owner)

    @staticmethod
    def _log(before: Manifest | None, after: Manifest) -> None:
        if before is not None and before.is_missing:
            LOG.info('image %s: Glance has it again', after.image_id)
        if before is not None and after.wished.generation != before.wished.generation:
            LOG.info('image %s: %s, and was %s, or is signed otherwise: hosts let go of its cache'
                     ' image', after.image_id, after.wished.visibility, before.wished.visibility)
        if after.standing in (Standing.SKIPPED, Standing.FAILED) and (
                before is None or (before.standing, before.cause) != (after.standing, after.cause)):
            LOG.info('image %s: %s: %s', after.image_id, after.standing.value, after.cause)

    def _act(self, decision: Decision, image: ImageFacts | None) -> None:
        """Start the step that was decided; give up another one that is under way."""
        record = decision.record
        assert record is not None
        image_id, job = record.image_id, self._running.of(record.image_id)
        if job is not None:
            fits = decision.step is Step.RETIRE if job.step == Step.RETIRE else (
                job.begun is not None and policy.is_same_work(record, job.begun))
            if fits or not self._running.cancel(image_id):
                return  # The end of a step has its image looked at.
        if decision.step is None:
            return
        left = self._pauses.due_at(image_id) - self._clock()
        if left > 0:
            self.queue.add(image_id, left)
        else:
            self._start(decision.step, record, image)

    # Steps.

    def _start(self, step: Step, record: Manifest, image: ImageFacts | None) -> None:
        job = ImageJob(record.image_id, step, record)
        source = self._work.source(image) \
            if step is Step.GET_BASE and image is not None and not self._work.is_at_hand(image) \
            else None
        self._running.start(job, record.wished.owner, functools.partial(self._run, job, image),
                            functools.partial(self.queue.add, record.image_id), source)

    def _run(self, job: ImageJob, image: ImageFacts | None) -> None:
        image_id, begun = job.image_id, job.begun
        try:
            job.check_cancelled()
            if job.step != Step.RETIRE and begun is not None \
                    and not policy.is_same_work(self._store.load(image_id), begun):
                raise exception.Cancelled('it is another one than when it was decided about')
            self._work.do(job, image)
            if job.step != Step.RETIRE or self._store.load(image_id) != begun:
                self._pauses.forget(image_id)
            else:
                # It is not done yet, as servers need the base.
                self._postpone(image_id, _LONGEST_LOOK)
        except exception.Cancelled as error:
            LOG.info('image %s: given up: %s', image_id, error)
        except Exception as error:
            self._fail(job, error)
        finally:
            job.phase = None

    def _fail(self, job: ImageJob, error: Exception) -> None:
        """Write what became of a step that has failed, if that still matters."""
        image_id, before = job.image_id, job.begun
        if not isinstance(error, (exception.BootcacheError, OSError)) \
                and not job.cancelled.is_set():
            LOG.error('image %s: unexpected error', image_id, exc_info=error)
        try:
            record = save(self._store, job, lambda record: policy.failed(
                record, error, job.is_without_older))
        except exception.Cancelled as reason:
            LOG.info('image %s: given up: %s', image_id, reason)
            if job.step == Step.RETIRE:
                self._postpone(image_id, _LONGEST_LOOK)
            return
        except Exception as refusal:
            LOG.error('image %s: what became of it cannot be written: %s', image_id, refusal,
                      exc_info=not isinstance(refusal, exception.BootcacheError))
            self._postpone(image_id, _LONGEST_PAUSE)
            return
        self._throttle.warning(image_id, 'image %s: %s: %s', image_id, record.standing.value,
                               record.cause)
        if before is not None and before.cause.reason is not record.cause.reason:
            self._pauses.forget(image_id)
        if record.goal:
            downloads = record.standing is Standing.FAILED \
                and record.cause.reason is not Reason.OLDER_CONTENT_IN_USE
            self._postpone(image_id, _LONGEST_DOWNLOAD if downloads else _LONGEST_PAUSE)

    def _postpone(self, image_id: str, longest: float) -> None:
        self._pauses.postpone(image_id, pause_seconds(
            self._pauses.failures(image_id) + 1, self._conf.poll_interval, longest))


def _aiming_at_build(record: Manifest) -> Manifest:
    return dataclasses.replace(record, goal=Goal.BUILD)


def _work_of(record: Manifest) -> tuple[Any, ...]:
    return (record.image_hash, record.goal, record.wished.requested, record.standing,
            record.is_missing)
