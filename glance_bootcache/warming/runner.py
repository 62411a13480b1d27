"""Warming hosts before a server asks for an image, through Nova's precache API.

glance_bootcache/warming/warmjobs.py has the rules; here is the thread that follows them.
"""

import contextlib
import http
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from keystoneauth1 import exceptions as ks_exceptions
from novaclient import client as nova_client
from novaclient import exceptions as nova_exceptions
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache.exception import DatabaseAway, RequestRefused
from bootcache.manifest import ImageState, Manifest, Standing
from bootcache.rpc.messages import ReportWarm
from bootcache.util.backoff import Backoff
from glance_bootcache import away
from glance_bootcache import conf as glance_conf
from glance_bootcache.conf import AUTH_GROUP
from glance_bootcache.glance import images
from glance_bootcache.hosts.holdings import Hosts
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.warming import warmjobs
from glance_bootcache.warming.warmjobs import WarmJob, WarmPhase
from glance_bootcache.warming.warmrequests import Key, WarmRequests

LOG = logging.getLogger(__name__)

# The first one that has the API.
_API_VERSION = '2.81'


class Aggregate(NamedTuple):
    """A host aggregate: Nova's id, and the names of its compute hosts."""

    number: int
    hosts: tuple[str, ...]


def find(aggregates: Mapping[str, Aggregate], name: str) -> Aggregate:
    """Return the aggregate of a name.

    :raises RequestRefused: if there is none; it tells which there are.
    """
    if name not in aggregates:
        there = ', '.join(sorted(aggregates)) or 'none'
        raise RequestRefused(
            f'there is no aggregate {name}; "openstack aggregate list" shows: {there[:500]}')
    return aggregates[name]


class NovaPrecache:
    """Asks Nova, with the storage service's credentials.

    :param conf: configuration of the storage service.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        self._client = nova_client.Client(_API_VERSION, session=images.session(conf),
                                          region_name=conf[AUTH_GROUP].region_name)

    def aggregates(self) -> dict[str, Aggregate]:
        """Return all aggregates, by name.

        :raises RequestRefused: if Nova refuses to tell.
        :raises Exception: keystoneauth's or novaclient's, if Nova does not answer.
        """
        with _refusals('list aggregates'):
            return {aggregate.name: Aggregate(aggregate.id, tuple(aggregate.hosts))
                    for aggregate in self._client.aggregates.list()}

    def ask(self, aggregate: Aggregate, image_id: str) -> None:
        """Have Nova ask all hosts of an aggregate that are up; it does not wait for them.

        :raises RequestRefused: if Nova refuses.
        :raises Exception: keystoneauth's or novaclient's, if Nova does not answer.
        """
        with _refusals('precache an image'):
            self._client.aggregates.cache_images(aggregate.number, [image_id])


@contextlib.contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Tell what Nova or Keystone refuses from that they do not answer."""
    try:
        yield
    except (nova_exceptions.ClientException, ks_exceptions.ClientException) as error:
        if away.passes(error):
            raise
        cure = '; the user in [service_auth] needs the role admin' \
            if away.status(error) == http.HTTPStatus.FORBIDDEN else ''
        raise RequestRefused(f'Nova refuses to {what}: {error}{cure}') from error


_TICK_SECONDS = 1.0
# What came of warming is remembered for so long, and of so many images and aggregates.
_KEEP_SECONDS = 3600
_MOST_JOBS = 1000


class Warming:
    """Has Nova warm hosts, and keeps the record of what came of it; a restart forgets the record.

    :param conf: configuration of the storage service.
    :param hosts: what compute hosts hold.
    :param nova: its precache API.
    :param requests: operators'; those of an earlier process are begun anew.
    :param clock: monotonic seconds, the same as of the hosts.
    :raises ConfigurationError: if the configuration was not checked.
    """

    def __init__(self, conf: cfg.ConfigOpts, store: ImageStore, hosts: Hosts, nova: NovaPrecache,
                 requests: WarmRequests, clock: Callable[[], float] = time.monotonic):
        self._conf = conf[bootcache_conf.GROUP]
        self._policy = glance_conf.aggregates(conf)
        self._store = store
        self._hosts = hosts
        self._nova = nova
        self._clock = clock
        self._lock = threading.Lock()  # guards the jobs; Nova is asked, and files read, without it
        self._requests = requests
        self._jobs: dict[Key, WarmJob] = {}
        self._follow_requests(clock())
        # Images of which manifests say that the policy is to be followed for them.
        self._policy_images: set[str] = set()
        self._policy_looks = Backoff(self._conf.poll_interval, clock=clock)
        self._wake = threading.Event()
        self._stopping = False

    # The thread.

    def start(self) -> None:
        """Begin to warm, also what an earlier process was about to."""
        threading.Thread(target=self._run, name='bootcache-warming', daemon=True).start()

    def stop(self) -> None:
        """Ask Nova for nothing more; hosts that fetch go on."""
        self._stopping = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.step()
            except Exception:
                LOG.exception('unexpected error while hosts were to be warmed')
            self._wake.wait(_TICK_SECONDS)
            self._wake.clear()

    def step(self) -> None:
        """Do what is due: end attempts, begin others."""
        now = self._clock()
        if self._policy_looks.acquire():
            with contextlib.suppress(DatabaseAway):
                self._requests.refresh()
            self._follow_requests(now)
            self._follow_policy(now)
        with self._lock:
            begun = [job for job in self._jobs.values() if job.is_to_be_looked_at(now)]
        seen = self._hosts.seen() if begun else {}
        for job in begun:
            self._look(job, seen)
        with self._lock:
            starting = warmjobs.may_start(self._jobs.values(), now, self._conf.warm_concurrency)
            over = [key for key, job in self._jobs.items() if job.phase is WarmPhase.DONE]
        self._requests.end(over)
        for job in starting:
            # Not where another one has just been told that nobody is answered.
            if job.due <= now:
                self._ask(job)

    def _follow_requests(self, now: float) -> None:
        """Begin with requests of images that this node works on, and end none that another does."""
        with self._lock:
            self._jobs = {key: job for key, job in self._jobs.items() if self._is_here(key)}
            for key in self._requests.all():
                if key not in self._jobs and self._is_here(key):
                    self._jobs[key] = WarmJob(*key, now)

    def _is_here(self, key: Key) -> bool:
        return self._store.known(key[0]) is not None or self._store.home(key[0]) is None

    def _manifest(self, job: WarmJob) -> Manifest | None:
        """Return the manifest of a job's image; the job ends if no host can be warmed for that."""
        if not self._is_here((job.image_id, job.aggregate)):
            # Its request is another storage node's to follow.
            with self._lock:
                self._jobs.pop((job.image_id, job.aggregate), None)
            return None
        manifest = self._store.load(job.image_id)
        reason = warmjobs.why_not_warm(job.image_id, manifest)
        if not reason:
            return manifest
        with self._lock:
            job.end(self._clock(), reason)
            if self._is_for_policy(job):
                # It is not done: the manifest goes on saying that it is due, and once there is a
                # cache image again it begins anew.
                self._jobs.pop((job.image_id, job.aggregate), None)
        LOG.warning('image %s: warming aggregate %s has ended: %s', job.image_id, job.aggregate,
                    reason)
        return None

    def _look(self, job: WarmJob, seen: Mapping[str, float]) -> None:
        manifest = self._manifest(job)
        if manifest is None:
            return
        holding = self._hosts.held_since(job.image_id, job.asked_at)
        with self._lock:
            before, now = job.phase, self._clock()
            job.look(holding, manifest.wished.generation, now)
            cold = job.close(now, self._conf.warm_timeout, self._conf.warm_attempts, seen)
        if job.phase is not before:
            self._log_attempt(job, cold, now)

    def _log_attempt(self, job: WarmJob, cold: list[str], now: float) -> None:
        again = '' if job.phase is WarmPhase.DONE else f'; asked again in {job.due - now:.0f} s'
        for name in cold:
            known = job.hosts[name]
            LOG.warning('image %s: host %s of aggregate %s is not warm (%s, attempt %d of %d):'
                        ' %s%s', job.image_id, name, job.aggregate, known.outcome, known.attempts,
                        self._conf.warm_attempts, known.reason, '' if known.is_final else again)
        if job.phase is WarmPhase.DONE:
            LOG.info('image %s: %d of %d hosts of aggregate %s are warm', job.image_id,
                     len(job.hosts) - len(cold), len(job.hosts), job.aggregate)

    def _ask(self, job: WarmJob) -> None:
        """Have Nova ask the hosts of a job's aggregate. Whatever comes of it, the job tells."""
        if self._manifest(job) is None:
            return
        try:
            aggregate = find(self._nova.aggregates(), job.aggregate)
            with self._lock:
                # Before Nova is asked: a host may be faster than Nova's answer.
                job.ask(aggregate.hosts, self._clock())
            if aggregate.hosts:
                LOG.info('image %s: Nova is asked to warm %d hosts of aggregate %s', job.image_id,
                         len(aggregate.hosts), job.aggregate)
                self._nova.ask(aggregate, job.image_id)
        except RequestRefused as error:
            with self._lock:
                job.refused(str(error), self._clock(), self._conf.warm_attempts)
            LOG.warning('image %s: aggregate %s cannot be warmed: %s', job.image_id, job.aggregate,
                        error)
        except Exception as error:
            self._not_answered(job, error)

    def _not_answered(self, job: WarmJob, error: Exception) -> None:
        """Have a job wait longer each time; what is the same each time is said once."""
        reason = away.told(error)
        with self._lock:
            now, before = self._clock(), {away.lasting(known.reason)
                                          for known in self._jobs.values()}
            job.not_answered(reason, now)
            if away.is_refused(error):
                # So it would be for all others.
                for other in self._jobs.values():
                    if other.phase is WarmPhase.WAITING:
                        other.due = max(other.due, job.due)
        LOG.log(logging.DEBUG if away.lasting(job.reason) in before else logging.WARNING,
                'image %s: aggregate %s cannot be warmed yet: %s; Nova is asked again in %.0f s',
                job.image_id, job.aggregate, reason, job.due - now)

    # The policy at registration.

    def _is_for_policy(self, job: WarmJob) -> bool:
        """Return whether a job is remembered until its image's manifest says that it is done."""
        return job.image_id in self._policy_images and job.aggregate in self._policy

    def _follow_policy(self, now: float) -> None:
        """Begin with images that became ready for the first time, and note which are done."""
        undone = {manifest.image_id: manifest.state for manifest in self._store.manifests()
                  if manifest.wished.warm_due and manifest.standing is not Standing.SKIPPED}
        done = []
        with self._lock:
            # What was done before is of another content, or from before the image was opted out.
            new = set(undone) - self._policy_images
            self._jobs = {key: job for key, job in self._jobs.items()
                          if job.image_id not in new or job.phase is not WarmPhase.DONE}
            self._policy_images = set(undone)
            for image_id, state in undone.items():
                if state is ImageState.READY:
                    jobs = [self._job(image_id, name, now, anew=False) for name in self._policy]
                    if all(job is not None and job.phase is WarmPhase.DONE for job in jobs):
                        done.append(image_id)
        for image_id in done:
            self._store.change(image_id, _is_warm)
        self._policy_images = self._policy_images.difference(done)

    def _job(self, image_id: str, aggregate: str, now: float, anew: bool) -> WarmJob | None:
        """Return the job of an image and an aggregate; None for too many. Call it with the lock.

        :param anew: whether one that is done does not count.
        """
        job = self._jobs.get((image_id, aggregate))
        if job is None or (anew and job.phase is WarmPhase.DONE):
            self._forget(now, 1)
            if len(self._jobs) >= _MOST_JOBS:
                return None
            job = self._jobs[image_id, aggregate] = WarmJob(image_id, aggregate, now)
        return job

    def _forget(self, now: float, room: int = 0) -> None:
        """Forget what has ended long ago, and more for the room that is needed; lock held."""
        ended = sorted((job for job in self._jobs.values()
                        if job.phase is WarmPhase.DONE and not self._is_for_policy(job)),
                       key=lambda job: job.ended_at)
        over = len(self._jobs) + room - _MOST_JOBS
        for number, job in enumerate(ended):
            if number < over or now - job.ended_at > _KEEP_SECONDS:
                del self._jobs[job.image_id, job.aggregate]

    # What comes in by RPC.

    def warm(self, image_id: str, aggregates: Iterable[str]) -> list[dict[str, Any]]:
        """Begin to warm the hosts of aggregates for an image, in the background.

        What is under way for one of them goes on, and is not begun again.

        :param aggregates: names.
        :returns: see GetWarming.
        :raises RequestRefused: if the image has no cache image, an aggregate is not known, or too
            much is to be warmed already; then nothing is begun.
        :raises DatabaseAway: if the request cannot be written; likewise.
        """
        names = list(dict.fromkeys(str(name) for name in aggregates))
        why_not = warmjobs.why_not_warm(image_id, self._store.load(image_id))
        if why_not:
            raise RequestRefused(why_not)
        try:
            known = self._nova.aggregates()
            for name in names:
                find(known, name)
        except RequestRefused:
            raise
        except Exception as error:
            # It is asked again, in the background.
            LOG.warning('Nova cannot be asked for its aggregates yet: %s', away.told(error))
        now = self._clock()
        with self._lock:
            self._forget(now, len(names))
            if len(self._jobs) + len(names) > _MOST_JOBS:
                raise RequestRefused(f'{len(self._jobs)} aggregates are being warmed, and'
                                     f' {_MOST_JOBS} at most can be; wait, or name fewer')
        self._requests.add(image_id, names)
        with self._lock:
            for name in names:
                self._job(image_id, name, now, anew=True)
        self._wake.set()
        return self.progress(image_id)

    def report(self, message: ReportWarm) -> bool:
        """Take a host's report of what came of Nova's request.

        :returns: False if it was not asked by this service.
        """
        with self._lock:
            jobs = [job for job in self._jobs.values()
                    if job.image_id == message.image_id and job.phase is not WarmPhase.DONE]
            known = [job for job in jobs
                     if job.report(message.host, message.outcome, message.reason, self._clock())]
        if known:
            self._wake.set()
        LOG.debug('image %s: host %s was warmed: %s %s', message.image_id, message.host,
                  message.outcome, message.reason)
        return bool(known)

    def progress(self, image_id: str) -> list[dict[str, Any]]:
        """Return how far the warming of an image is: see GetWarming."""
        with self._lock:
            self._forget(self._clock())
            return [job.describe() for job in self._jobs.values() if job.image_id == image_id]


def _is_warm(manifest: Manifest) -> Manifest:
    return manifest.wishing(warm_due=False)
