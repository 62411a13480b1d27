"""Servers' boots, as compute hosts ask and report: see bootcache.rpc.messages.

An image may be everybody's, and what a server reads is its owner's to choose. So one owner has at
most half of what there is room for: nobody ends an image's refinement for others, or has what
others' boots read forgotten.
"""

import collections
import contextlib
import dataclasses
import enum
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import cachetools
from oslo_config import cfg
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, properties, recording, refinement, workingset
from bootcache.manifest import Availability, ImageState, Manifest, Standing, WorkingSetInfo
from bootcache.reasons import Reason
from bootcache.refinement import Boot
from bootcache.rpc.messages import (
    BootAction,
    PlanBoot,
    PlanCause,
    ReportBoot,
    ReportProgress,
    ServeStored,
    StoredExport,
)
from bootcache.workingset import WorkingSet
from glance_bootcache import snapshotrules
from glance_bootcache.availability import served
from glance_bootcache.images import policy
from glance_bootcache.images.controller import Controller
from glance_bootcache.images.running import Running
from glance_bootcache.profileboot.job import ProfileReport
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import Content, StorageTiers

LOG = logging.getLogger(__name__)

# Whoever can write to the message bus can ask for any server on any host.
_MOST_BOOTS = 10_000
_MOST_OF_ONE = 100


@dataclasses.dataclass(frozen=True)
class ExpectedBoot:
    """A boot whose report is expected.

    :ivar server_id: the server, as its host named it.
    :ivar began: monotonic seconds.
    :ivar until: monotonic seconds.
    :ivar owner: the server's project; empty if it is not known.
    """

    server_id: str
    began: float
    until: float
    owner: str = ''


class ExpectedReports:
    """What is expected of each host, by image; forgotten with a restart.

    :param clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()  # guards what is below
        # By image and host; those of which a boot was expected last are at the end.
        self._boots: dict[tuple[str, str], list[ExpectedBoot]] = {}
        self._count = 0
        self._hosts_of: dict[str, set[str]] = {}

    def expect(self, image_id: str, host: str, server_id: str, seconds: float,
               owner: str = '') -> None:
        """Expect a report for some seconds; where too many are expected, the oldest are not."""
        now, key = self._clock(), (image_id, host)
        with self._lock:
            self._set(key, [*self._pop(key, now), ExpectedBoot(
                server_id, now, now + seconds, owner)][-_MOST_OF_ONE:])
            # Of many no report ever comes: servers go the stock way, or hosts are lost.
            while (oldest := next(iter(self._boots), None)) and (
                    self._count > _MOST_BOOTS
                    or all(boot.until <= now for boot in self._boots[oldest])):
                self._pop(oldest, now)

    def _pop(self, key: tuple[str, str], now: float) -> list[ExpectedBoot]:
        """Remove the boots of an image on a host; return those that are expected still."""
        boots = self._boots.pop(key, [])
        self._count -= len(boots)
        if boots:
            hosts = self._hosts_of[key[0]]
            hosts.remove(key[1])
            if not hosts:
                del self._hosts_of[key[0]]
        return [boot for boot in boots if boot.until > now]

    def _set(self, key: tuple[str, str], boots: list[ExpectedBoot]) -> None:
        """Expect boots of an image on a host of which none is."""
        if boots:
            self._boots[key] = boots
            self._count += len(boots)
            self._hosts_of.setdefault(key[0], set()).add(key[1])

    def take(self, image_id: str, host: str, server_id: str = '') -> ExpectedBoot | None:
        """Return the boot that a host was asked to report; each counts once.

        :param server_id: the server that booted; empty if the host does not say: then it is
            taken for the one that was asked for first.
        """
        now, key = self._clock(), (image_id, host)
        with self._lock:
            later = self._pop(key, now)
            found = next((boot for boot in later
                          if server_id in ('', boot.server_id)), None)
            if found is not None:
                later.remove(found)
            self._set(key, later)
        return found

    def put_back(self, image_id: str, host: str, boot: ExpectedBoot) -> None:
        """Expect a report again that could not be written: its host sends it again."""
        now, key = self._clock(), (image_id, host)
        with self._lock:
            self._set(key, [boot, *self._pop(key, now)][:_MOST_OF_ONE])

    def may_be_forgotten(self, seconds: float) -> bool:
        """Tell whether what comes now may have been asked for before a restart.

        :param seconds: for which a report is expected.
        """
        return self._clock() < self._began + seconds

    def hosts(self, image_id: str) -> set[str]:
        """Return the hosts of which a report about an image is expected."""
        now = self._clock()
        with self._lock:
            return {host for host in self._hosts_of.get(image_id, ())
                    if any(boot.until > now for boot in self._boots[image_id, host])}


# Boots that are remembered of an image until another one confirms what they read, and their
# extents. An extent takes 150 bytes, a boot some kilobytes.
MOST_UNCONFIRMED = 8
MOST_EXTENTS = 50_000


def most_of(owner: str, places: int) -> int:
    """Return how many of some places an owner may have; one that is not known may be anybody."""
    return -(-places // 2) if owner else places


def may_count(counts: Mapping[str, int], owner: str, enough: int) -> bool:
    """Tell whether another boot of an owner is looked at.

    :param counts: of those that were in vain, by owner; empty for one that hosts do not tell.
    :param enough: how many of these there may be.
    """
    return sum(min(count, most_of(who, enough)) for who, count in counts.items()) < enough \
        and counts.get(owner, 0) < most_of(owner, enough)


def extents(boots: Iterable[Boot]) -> int:
    """Return how many extents boots have, and 1: so that the number of images is bounded, too."""
    return 1 + sum(len(boot.extents) for boot in boots)


def remembered(boots: Sequence[Boot]) -> tuple[Boot, ...]:
    """Return the boots of an image that are remembered: the last ones, within the bounds.

    :param boots: in the order in which they were reported.
    """
    kept: list[Boot] = []
    of_owner: collections.Counter[str] = collections.Counter()
    for boot in reversed(boots):
        if len(kept) < MOST_UNCONFIRMED \
                and of_owner[boot.owner] < most_of(boot.owner, MOST_UNCONFIRMED):
            of_owner[boot.owner] += 1
            # Of one that read more, what it read first: another boot may confirm that.
            kept.insert(0, dataclasses.replace(boot, extents=boot.extents[:MOST_EXTENTS - 1]))
    while extents(kept) > MOST_EXTENTS:
        sizes: collections.Counter[str] = collections.Counter()
        for boot in kept:
            sizes[boot.owner] += len(boot.extents)
        # The oldest one of whoever has most.
        kept.remove(next(boot for boot in kept if boot.owner == sizes.most_common(1)[0][0]))
    return tuple(kept)


# Of an image whose profile boot has failed so, another boot without a marker tells nothing.
_NOT_BOOTED = (Reason.SWITCHED_OFF, Reason.STUCK)
# What hosts round the records of servers' boots to.
_GRANULARITIES = (4096, 65536)
# So many boots in a row that bring nothing new, and no more reports are asked for until a restart;
# and so many hosts are asked at a time.
_ENOUGH_BOOTS = 3
# The same of boots that read something new which no other boot reads, as those of an image that
# reads at random do, and of boots that were not whole.
_ENOUGH_IN_VAIN = 40
# Extents that are remembered of all images' boots until others confirm them; each takes 150 bytes.
_MOST_EXTENTS_OF_ALL = 500_000
# Images whose boots are counted.
_MOST_COUNTED = 10_000
# A report comes at the boot's time limit at the latest; the bus may be away for a while.
_LATE_SECONDS = 600


# An image's id, and its working set's file, which is another one with each recording and each
# refinement; empty if it has none.
_Known = tuple[str, str]


class ReportedBoots:
    """Answers compute hosts, and makes working sets out of their reports.

    :param conf: configuration of the storage service.
    """

    def __init__(self, conf: cfg.ConfigOpts, store: ImageStore, exporter: Exporters,
                 controller: Controller, running: Running, tiers: StorageTiers):
        self._tiers = tiers
        self._conf = conf[bootcache_conf.GROUP]
        self._store = store
        self._exporter = exporter
        self._controller = controller
        self._running = running
        # Boots in a row that brought nothing new, by image and working set: how many of whom.
        # Guarded by the lock, which is held for dictionary steps only.
        self._nothing_new: cachetools.LRUCache[_Known, collections.Counter[str]] = \
            cachetools.LRUCache(_MOST_COUNTED)
        # Boots in a row that nobody has confirmed; as above.
        self._in_vain: cachetools.LRUCache[_Known, collections.Counter[str]] = \
            cachetools.LRUCache(_MOST_COUNTED)
        # Boots that read what no other one has read; as above.
        self._unconfirmed: cachetools.LRUCache[_Known, tuple[Boot, ...]] = \
            cachetools.LRUCache(_MOST_EXTENTS_OF_ALL, getsizeof=extents)
        self._lock = threading.Lock()
        self._expected = ExpectedReports(lambda: time.monotonic())

    def plan_boot(self, message: PlanBoot) -> dict[str, Any]:
        """Answer a compute host that starts a server of a project."""
        image_id, server_id = message.image_id, message.server_id
        waits = bool(server_id) and self._controller.is_waited_for(image_id)
        manifest = self._store.load(image_id)
        if message.profile_token is not None:
            return self._plan_profile(manifest, message, message.profile_token)
        has_base = manifest is not None and bool(manifest.made.base_path) and not (
            # It can be got again.
            manifest.standing in (Standing.WANTED, Standing.DONE) and not manifest.is_missing
            and self._store.has_lost_base(manifest))
        if manifest is not None and not has_base and (
                manifest.is_missing or (policy.is_put_off(manifest)
                                        and self._running.of(image_id) is None)):
            # To wait would be in vain; it is tried again by itself.
            return _stock(manifest)
        if manifest is None or (not has_base and (
                manifest.standing in (Standing.WANTED, Standing.DONE)
                or snapshotrules.is_left(manifest))):
            self._controller.prepare(image_id)
            if manifest is None and self._controller.is_unknown(image_id):
                return {'action': BootAction.STOCK, 'cause': Reason.MISSING,
                        'reason': 'Glance does not have the image'}
            return {'action': BootAction.WAIT, 'reason': 'the image\'s base is being prepared',
                    'cause': PlanCause.BASE, 'ready_in': self._controller.ready_in(image_id)}
        if not has_base:
            return _stock(manifest)
        content, gives_out = self._tiers.check(manifest), policy.gives_out(manifest)
        if content is Content.WRONG or not gives_out:
            # Whoever fetched a wrong one would find that out, and boot cold as well.
            manifest = manifest.making(cache_image=None, difference=None)
        cache = manifest.made.cache_image
        whose = self._exporter.know(message.host, message.certificate)
        self._tiers.serve(manifest, (whose,))
        described = {**self._exporter.describe(manifest, whose),
                     'image_hash': manifest.made.base_hash,
                     'pinned': manifest.wished.pinned, 'generation': manifest.wished.generation,
                     'signature': manifest.made.signature}
        if not gives_out:
            # Servers that run from it may have lost their cache image.
            return {**_stock(manifest), **described}
        if server_id:
            self._tiers.note_use(image_id, time.time())
        if waits:
            # Its base can be read now, for servers that do not wait.
            return {**described, 'action': BootAction.WAIT, 'ready_in': None,
                    'cause': PlanCause.CACHE_IMAGE,
                    'reason': 'the cache image of the snapshot is being built'}
        if cache is None:
            if manifest.made.working_set is not None and server_id:
                # It was evicted, or is damaged; this boot does without. While the database is away
                # the next one does, too.
                with contextlib.suppress(exception.DatabaseAway):
                    self._controller.rebuild(image_id)
            described = {'action': BootAction.COLD, **described}
        else:
            described = {'action': BootAction.CACHE, **described,
                         'medium': self._tiers.medium(image_id).value,
                         'verified': content is Content.RIGHT,
                         'has_memory': self._tiers.has_memory,
                         **self._difference(manifest, whose)}
        LOG.debug('server %s on %s: %s boot from %s', server_id, message.host,
                  described['action'], image_id)
        if server_id and self._wants_report(manifest, message.host, message.owner):
            described['watch'] = self._watch(manifest.wished.quota, manifest.wished.boot_marker)
            self._expected.expect(image_id, message.host, server_id, self._patience, message.owner)
        return described

    def _difference(self, manifest: Manifest, whose: str) -> dict[str, Any]:
        """Return what a host is told of what a cache image has that its parent's has not."""
        found = manifest.made.difference
        if found is None or manifest.made.cache_image is None:
            return {}
        path = self._store.difference_path(manifest.image_id, manifest.made.cache_image.file)
        try:
            export = self._exporter.ensure_difference(manifest, found, path, whose)
        except exception.StorageDaemonError as error:
            LOG.warning('image %s: its host gets all of its cache image: %s', manifest.image_id,
                        error)
            return {}
        return {'difference': {'export': export, **dataclasses.asdict(found)}}

    def _plan_profile(self, manifest: Manifest | None, message: PlanBoot, token: str
                      ) -> dict[str, Any]:
        job = self._running.of(message.image_id)
        if manifest is None or job is None or not job.owns(token) \
                or job.phase is not ImageState.RECORDING:
            return {'action': BootAction.STOCK, 'cause': PlanCause.NO_PROFILE_BOOT,
                    'reason': 'the server claims to be a profile boot, but none is in hand'}
        whose = self._exporter.know(message.host, message.certificate)
        self._exporter.ensure(manifest, None, (whose,))
        job.host = message.host
        return {'action': BootAction.RECORD, **self._exporter.describe(manifest, whose),
                'image_hash': manifest.made.base_hash, 'signature': manifest.made.signature,
                'watch': self._watch(job.quota, job.boot_marker)}

    def _watch(self, quota: int, marker: str) -> dict[str, Any]:
        return {'quota': quota, 'marker': marker, 'linger': self._conf.profile_linger,
                'silence': self._conf.profile_silence, 'timeout': self._conf.profile_timeout}

    @property
    def _patience(self) -> float:
        """Seconds for which a report is expected."""
        return float(self._conf.profile_timeout + _LATE_SECONDS)

    def _wants_report(self, manifest: Manifest, host: str, owner: str) -> bool:
        if not self._can_learn(manifest, owner):
            return False
        if manifest.made.working_set is None:
            return True
        asked = self._expected.hosts(manifest.image_id)
        # A boot that is watched waits until its host has the cache image: not all of a storm. And
        # where so many boots had nothing in common, another one hardly has.
        most = _ENOUGH_BOOTS if len(self._earlier(manifest)) < MOST_UNCONFIRMED else 1
        return host in asked or len(asked) < most

    def _earlier(self, manifest: Manifest) -> tuple[Boot, ...]:
        """Return the boots that are remembered of an image's working set as it is."""
        with self._lock:
            return self._unconfirmed.get(_known(manifest), ())

    def _can_learn(self, manifest: Manifest, owner: str) -> bool:
        """Tell whether the record of an owner's boot may make the image's better."""
        known = manifest.made.working_set
        if known is None:
            return True
        key = _known(manifest)
        with self._lock:
            return known.version <= self._conf.refine_boots \
                and may_count(self._nothing_new.get(key, {}), owner, _ENOUGH_BOOTS) \
                and may_count(self._in_vain.get(key, {}), owner, _ENOUGH_IN_VAIN)

    def report_progress(self, message: ReportProgress) -> bool:
        """Note how far a profile boot is.

        :returns: False if the message belongs to none that is in hand.
        """
        job = self._running.of(message.image_id)
        if job is None or not job.owns(message.profile_token):
            return False
        job.heard(message.recorded_bytes)
        return True

    def report_profile(self, message: ReportBoot) -> bool:
        """Take a compute host's report of a profile boot.

        :returns: False if it belongs to none that is in hand.
        :raises InvalidWorkingSet: if it does not fit the image.
        """
        job = self._running.of(message.image_id)
        manifest = self._store.load(message.image_id)
        if job is None or manifest is None or message.profile_token is None \
                or not job.owns(message.profile_token):
            return False
        if message.granularity != recording.GRANULARITY:
            raise exception.InvalidWorkingSet(
                f'granularity {message.granularity!r} is not {recording.GRANULARITY}')
        job.take_report(ProfileReport(self._read(manifest, message), message.ended_by,
                                      message.boot_seconds, message.line))
        return True

    def report_boot(self, message: ReportBoot, only_host: bool = True) -> str:
        """Take a compute host's report of a server's boot: the first one, or another one.

        Only what was asked for is looked at: a new working set costs every host a fetch. A restart
        forgets what was; of an image without a working set every host is asked, so that for a while
        a report of such an image counts like one that was asked for.

        :param only_host: whether the cloud has one compute host, as far as is known.
        :returns: why nobody has asked for it; empty if it was asked for, whatever came of it.
        :raises InvalidWorkingSet: if it does not fit the image.
        :raises DatabaseAway: if what is made of it cannot be written; the host sends it again.
        """
        image_id, host = message.image_id, message.host
        manifest = self._store.load(image_id)
        if manifest is None or not manifest.made.base_path \
                or manifest.made.base_hash != message.image_hash or manifest.has_older_base \
                or manifest.state is ImageState.SKIPPED:
            return f'{image_id} has no base of that content'
        expected = self._expected.take(image_id, host, message.server_id)
        if expected is None and not (manifest.made.working_set is None
                                     and self._expected.may_be_forgotten(self._patience)):
            return f'{image_id}: no report of that server\'s boot was asked for'
        if message.granularity not in _GRANULARITIES:
            raise exception.InvalidWorkingSet(
                f'granularity {message.granularity!r} is not one of {_GRANULARITIES}')
        seen = self._read(manifest, message)
        why_not = ''
        if not self._controller.takes_report(manifest):
            why_not = 'a recording or building is in hand'
        elif manifest.made.working_set is None and manifest.standing is Standing.FAILED \
                and manifest.cause.reason in _NOT_BOOTED \
                and message.ended_by in ('shutdown', 'silence'):
            why_not = ('its boot marker was not seen, and the profile boot has failed for a guest'
                       ' that did not come up')
        elif not self._can_learn(manifest, expected.owner if expected else ''):
            why_not = 'enough was learned meanwhile'
        if why_not:
            LOG.info('image %s: a boot on %s is not looked at: %s', image_id, host, why_not)
            return ''
        # Without a lock: a large report takes seconds to compare.
        try:
            improved = self._improve(manifest, seen, expected, message, only_host)
            if improved is not None:
                self._keep(manifest, improved, message)
        except exception.DatabaseAway:
            if expected is not None:
                self._expected.put_back(image_id, host, expected)
            raise
        return ''

    def _keep(self, manifest: Manifest, improved: WorkingSet, message: ReportBoot) -> None:
        """Write a working set, and have a cache image built of it."""
        image_id = manifest.image_id
        version = manifest.made.working_set.version + 1 if manifest.made.working_set else 1
        sha256 = self._store.save_working_set(image_id, improved)
        info = WorkingSetInfo(sha256, improved.bytes, len(improved.extents),
                              improved.granularity, 'server', message.ended_by,
                              round(message.boot_seconds, 1), manifest.wished.boot_marker, version)
        if not self._controller.set_working_set(manifest, info):
            self._store.drop_working_set(image_id, sha256)
            return
        LOG.info('image %s: working set version %d of %d bytes, with a boot on %s (%s)', image_id,
                 version, improved.bytes, message.host, info.ended_by)

    def _improve(self, manifest: Manifest, seen: WorkingSet, expected: ExpectedBoot | None,
                 message: ReportBoot, only_host: bool) -> WorkingSet | None:
        """Return a better working set; None if the boot brings none, which is noted."""
        image_id, known = manifest.image_id, manifest.made.working_set
        have = self._store.load_working_set(manifest)
        if have is None or known is None:
            return seen if seen.extents else None
        if have.image_hash != manifest.made.base_hash:
            return None
        assert expected is not None
        boot = Boot(expected.server_id, message.host, expected.began, time.monotonic(),
                    message.ended_by, seen.extents, expected.owner)
        key = _known(manifest)
        lesson = refinement.learn(
            have.extents, known.ended_by, boot, self._earlier(manifest), only_host=only_host,
            quota=manifest.wished.quota, cluster_bytes=self._conf.cluster_size,
            granularity=have.granularity, virtual_bytes=manifest.made.virtual_bytes)
        if lesson.extents is not None:
            return dataclasses.replace(have, extents=tuple(lesson.extents))
        if lesson.unconfirmed is None and boot.ended_by in refinement.WHOLE:
            self._note(self._nothing_new, key, boot.owner)
            return None
        self._note(self._in_vain, key, boot.owner)
        if lesson.unconfirmed is None:
            # It says nothing of what a whole boot would have read.
            return None
        with self._lock:
            self._unconfirmed[key] = remembered(
                (*self._unconfirmed.get(key, ()), lesson.unconfirmed))
        LOG.info('image %s: server %s on %s read %d bytes beyond the working set while it booted;'
                 ' they count when the boot of another server%s reads them, too', image_id,
                 expected.server_id, message.host, workingset.total_bytes(
                     lesson.unconfirmed.extents),
                 '' if only_host else ' on another host')
        return None

    def _note(self, counts: cachetools.LRUCache[_Known, collections.Counter[str]], key: _Known,
              owner: str) -> None:
        with self._lock:
            counts.setdefault(key, collections.Counter())[owner] += 1

    def _read(self, manifest: Manifest, message: ReportBoot) -> WorkingSet:
        # No cache image holds more; and a host that lies shall not have us count for ever.
        return WorkingSet.from_wire(
            manifest.image_id, manifest.made.base_hash, manifest.made.virtual_bytes,
            message.granularity, message.extents, limit=properties.parse_size(
                self._conf.max_quota), are_apart=True)

    def promote(self, image_id: str) -> None:
        """Have an image's cache image copied to the storage memory tier, in the background."""
        manifest = self._store.load(image_id)
        if manifest is not None:
            self._tiers.promote(manifest)

    def serve_stored(self, message: ServeStored) -> StoredExport | None:
        """Serve an image's stored bytes to a host that settles its servers.

        :returns: None if it is not served to settle: they settle onto a full base that is there,
            unless the image says that they are not to.
        """
        manifest = self._store.load(message.image_id)
        if manifest is None:
            return None
        if not manifest.made.base_path or not served(manifest.wished.availability).base_to_settle:
            return None if manifest.wished.settle else StoredExport(settle=False)
        whose = self._exporter.know(message.host, message.certificate)
        export = self._exporter.ensure_stored(manifest, whose)
        described = self._exporter.describe(manifest, whose)
        return StoredExport(
            manifest.wished.settle and not policy.is_unverified(manifest),
            tuple(described['server']), described['tls'], export, described['base_export'],
            manifest.made.stored_bytes, manifest.made.base_hash, manifest.made.image_format,
            manifest.made.signature)


def _known(manifest: Manifest) -> _Known:
    known = manifest.made.working_set
    return manifest.image_id, known.sha256 if known else ''


def _stock(manifest: Manifest) -> dict[str, Any]:
    reason = f'the image is {manifest.state.value}'
    why = manifest.reason
    cause: enum.StrEnum = manifest.cause.reason
    if not manifest.cause:
        cause = manifest.state if manifest.wished.availability is Availability.ACTIVE \
            else manifest.wished.availability
    return {'action': BootAction.STOCK, 'reason': reason + (f': {why}' if why else ''),
            'cause': cause}
