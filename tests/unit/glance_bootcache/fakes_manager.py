"""Small stand-ins for the services around the manager: Glance, the exporter, Nova.

They stand for services which the e2e tests run for real, and exist here only so that a test can
decide when something happens: an image is deleted while its boot runs, for instance.
"""

import contextlib
import dataclasses
import functools
import hashlib
import threading

from waiting import PATIENCE as PATIENCE
from waiting import until as until

from bootcache import exception, locks, properties
from bootcache.tier import Eviction, Medium
from bootcache.workingset import WorkingSet
from glance_bootcache.glance.images import published
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images.policy import Step
from glance_bootcache.profileboot.job import ImageJob, ProfileReport
from glance_bootcache.storage.tiers import Content
from glance_bootcache.warming.runner import Aggregate

SIZE = 1 << 20


@contextlib.contextmanager
def in_hand(house, image):
    """A step of an image that is under way while the block runs."""
    end, job = threading.Event(), ImageJob(image, Step.BUILD)
    house.running.start(job, 'one', lambda: end.wait(PATIENCE), lambda: None)
    assert house.running.of(job.image_id) is job
    try:
        yield
    finally:
        end.set()
        until(lambda: house.running.of(image) is not job, 'the end of the step')


def without_locks(*names):
    """Have a stand-in's methods complain of whoever calls them with a lock.

    They stand for calls to other processes and services, which may not answer.
    """
    def wrap(name, method):
        @functools.wraps(method)
        def called(*arguments, **named):
            if locks.held():
                locks.complain(f'{name} is called by a thread that has {locks.held()}')
            return method(*arguments, **named)

        return called

    def decorate(cls):
        for name in names:
            setattr(cls, name, wrap(f'{cls.__name__}.{name}', getattr(cls, name)))
        return cls

    return decorate


@without_locks('get', 'all', 'download', 'members', 'publish')
class FakeImages:
    """Glance with images of one megabyte, downloads included."""

    def __init__(self):
        self.images = {}
        # Of shared images.
        self.members_of = {}
        self.shown = []
        self.on_show = lambda image_id: None
        self.away = False
        self.refuses = lambda state: None

    def put(self, image_id, content=b'\0' * SIZE, status='active', visibility='shared',
            owner='one', updated_at='', **properties):
        """Register or change an image."""
        digest = hashlib.sha512(content).hexdigest()
        self.images[image_id] = content, ImageFacts(
            image_id, status, 'raw', 'bare', len(content), f'sha512:{digest}', 0, 0,
            {f'bootcache_{key}': value for key, value in properties.items()}, visibility, owner,
            updated_at=updated_at)

    def get(self, image_id):
        """As Images.get."""
        if self.away:
            raise RuntimeError('Glance is away')
        return self.images[image_id][1] if image_id in self.images else None

    def download(self, image_id):
        """As Images.download."""
        if image_id not in self.images:
            raise exception.ServiceAway('Glance does not give the image\'s data just now: HTTP 404')
        yield self.images[image_id][0]

    def all(self):
        """As Images.all."""
        if self.away:
            raise RuntimeError('Glance is away')
        return [facts for _content, facts in self.images.values()]

    def members(self, image_id):
        """As Images.members."""
        return frozenset(self.members_of.get(image_id, ()))

    def publish(self, image_id, wanted, may_write):
        """As Images.publish; ``refuses`` has the error for a state, if there is one."""
        image = self.get(image_id)
        if image is None or not may_write(image) or published(image) == wanted:
            return image
        state = wanted.get(properties.STATE)
        if error := self.refuses(state):
            raise error
        self.shown.append((image_id, state))
        content, facts = self.images[image_id]
        others = {name: value for name, value in facts.properties.items()
                  if name not in (properties.STATE, properties.REASON)}
        self.images[image_id] = content, dataclasses.replace(
            facts, properties={**others, **wanted})
        self.on_show(image_id)
        return self.images[image_id][1]


@without_locks('start', 'keep_open', 'mend', 'ensure', 'retire', 'withdrawn', 'withdraw_idle',
               'ensure_stored', 'ensure_difference', 'switch_cache')
class FakeExporter:
    """An exporter that remembers what it serves; readers keep a base from being retired."""

    def __init__(self):
        self.serving = {}
        self.stored = set()
        self.bytes_served = {}
        self.readers = set()
        self.fetching = set()
        self.idle = []
        self.fails = None
        self.on_withdrawal = lambda manifest: None

    def start(self, serve=None):
        """As Exporters.start: nothing was lost."""
        return False

    def serve_as_before(self, exports=None, certificate=''):
        """As Exporters.serve_as_before: nothing else was served."""

    def save_served(self):
        """As Exporters.save_served: nobody reads it."""

    def served_images(self):
        """As Exporters.served_images."""
        return set(self.serving)

    def know(self, host, certificate):
        """As Exporters.know: there is one for all hosts."""
        return ''

    def of_hosts(self, hosts):
        """As Exporters.of_hosts, likewise."""
        return {''}

    def end_unused(self, idle):
        """As Exporters.end_unused, likewise."""

    def keep_open(self, manifests):
        """As Exporters.keep_open: no base is in Ceph."""

    def mend(self):
        """As Exporters.mend."""
        return False

    def ensure(self, manifest, cache_path, certificates=('',)):
        """As Exporter.ensure."""
        if self.fails:
            raise self.fails
        cache, image_id = manifest.made.cache_image, manifest.image_id
        served = self.serving.get(image_id, (None, None))[1]
        if cache_path is None or (served and self.bytes_served[image_id] == cache.sha256):
            # What is served already stays where it is.
            cache_path = served
        else:
            self.bytes_served[image_id] = cache.sha256
        self.serving[image_id] = manifest.made.base_path, cache_path

    def switch_cache(self, manifest, path):
        """As Exporter.switch_cache."""
        self.serving[manifest.image_id] = manifest.made.base_path, path

    def retire(self, image_id, with_base):
        """As Exporter.retire: the cache image goes at once."""
        if image_id in self.serving:
            self.serving[image_id] = self.serving[image_id][0], None
        if image_id in self.readers or not with_base:
            return False
        self.serving.pop(image_id, None)
        return True

    @contextlib.contextmanager
    def withdrawn(self, manifest):
        """As Exporter.withdrawn."""
        self.on_withdrawal(manifest)
        gone = manifest.image_id not in self.fetching
        if gone and manifest.image_id in self.serving:
            self.serving[manifest.image_id] = self.serving[manifest.image_id][0], None
        yield gone

    def withdraw_idle(self, needed_by, idle):
        """As Exporters.withdraw_idle, of images that nobody has asked for."""
        for image_id in [image_id for image_id, needed in needed_by.items() if not needed]:
            self.idle.append(image_id)
            if image_id not in self.readers:
                self.serving.pop(image_id, None)

    def untold(self):
        """As Exporters.untold: it has told."""
        return set()

    def ensure_stored(self, manifest, certificate=''):
        """As Exporter.ensure_stored."""
        self.stored.add(f'stored-{manifest.image_id}')
        return f'stored-{manifest.image_id}'

    def cut_off(self, export):
        """As Exporters.cut_off, of a stored file."""
        self.stored.discard(export)

    def ensure_difference(self, manifest, difference, path, certificate=''):
        """As Exporters.ensure_difference."""
        assert path
        return f'difference-{manifest.image_id}'

    def describe(self, manifest, certificate=''):
        """As Exporters.describe."""
        cache = manifest.made.cache_image
        return {'server': ['storage', 1], 'tls': True, 'virtual_bytes': manifest.made.virtual_bytes,
                'base_export': f'base-{manifest.image_id}',
                **({'cache_image': vars(cache), 'cache_export': 'cache-x'} if cache else {})}


class FakeTiers:
    """Tiers that remember what they were told, and serve from the disk."""

    def __init__(self, exporter, store):
        self.exporter = exporter
        self.store = store
        self.noted = []
        self.promoted = []
        self.demoted = []
        self.forgotten = []
        self.evict = []
        self.fits = True

    def note_use(self, image_id, when):
        """As StorageTiers.note_use: an unknown image is ignored."""
        if self.store.load(image_id) is not None:
            self.noted.append((image_id, when))

    has_memory = False

    def serve(self, manifest, certificates=('',)):
        """As StorageTiers.serve: there is no memory."""
        self.exporter.ensure(manifest, self.store.cache_path(manifest))

    def check(self, manifest):
        """As StorageTiers.check: nothing is damaged."""
        return Content.WRONG if manifest.made.cache_image is None else Content.RIGHT

    def is_damaged(self, manifest):
        """As StorageTiers.is_damaged."""
        return False

    def note_built(self, path):
        """As StorageTiers.note_built."""

    def medium(self, image_id):
        """As StorageTiers.medium."""
        return Medium.DISK

    def start(self, manifests):
        """As StorageTiers.start."""

    def stop(self):
        """As StorageTiers.stop."""

    def forget_gone(self, manifests):
        """As StorageTiers.forget_gone."""

    def forget(self, image_id):
        """As StorageTiers.forget."""
        self.forgotten.append(image_id)

    def plan_disk(self, manifests, incoming=0, busy=()):
        """As StorageTiers.plan_disk: what the test wants, and what is not busy."""
        held = {manifest.image_id for manifest in manifests if manifest.made.cache_image}
        return Eviction(self.fits, tuple(image for image in self.evict
                                         if image in held and image not in busy))

    def promote(self, manifest):
        """As StorageTiers.promote."""
        self.promoted.append(manifest.image_id)


    def demote(self, image_id):
        """As StorageTiers.demote."""
        self.demoted.append(image_id)


class FakeSnapshots:
    """Snapshots that hosts send: there is nowhere to make one."""

    def begin(self, *_arguments):
        """As SnapshotJobs.begin."""
        return {'refused': 'no store is configured for snapshots'}

    def finish(self, *_arguments):
        """As SnapshotJobs.finish."""
        return {'refused': 'it is not known'}

    def upload(self, *_arguments):
        """As SnapshotJobs.upload."""
        return {'refused': 'it is not known'}

    def abandon(self, *_arguments):
        """As SnapshotJobs.abandon."""
        return True


@without_locks('aggregates', 'ask')
class FakePrecache:
    """Nova's aggregates, and what it was asked to warm."""

    def __init__(self):
        self.hosts = {'racks': ('one', 'two')}
        self.asked = []
        self.fails = None
        self.ask_fails = None
        self.on_ask = lambda image_id: None

    def aggregates(self):
        """As NovaPrecache.aggregates."""
        if self.fails:
            raise self.fails
        return {name: Aggregate(number, hosts)
                for number, (name, hosts) in enumerate(self.hosts.items())}

    def ask(self, aggregate, image_id):
        """As NovaPrecache.ask."""
        if self.ask_fails:
            raise self.ask_fails
        self.asked.append((aggregate.hosts, image_id))
        self.on_ask(image_id)


@without_locks('has_servers', 'remove_retired', 'tell_unnamed', 'run')
class FakeBoots:
    """Profile boots that read two clusters as soon as the test opens the gate."""

    recorded_by = 'nova'

    def __init__(self):
        self.jobs = []
        self.gate = threading.Event()
        self.gate.set()
        self.fails = None
        self.looked = []
        self.servers, self.services = set(), set()
        # When the oldest one of an image was created.
        self.created = {}
        self.away = False
        self.running = 0
        self.most_at_once = 0

    def has_servers(self, image_id, created_before=None):
        """As NovaProfileBoots.has_servers."""
        if self.away:
            raise RuntimeError('Nova is away')
        return image_id in self.servers and (
            created_before is None or self.created.get(image_id, 0.0) < created_before)

    def compute_hosts(self):
        """As NovaProfileBoots.compute_hosts."""
        if self.away:
            raise RuntimeError('Nova is away')
        return self.services

    def remove_retired(self):
        """As NovaProfileBoots.remove_retired."""
        self.looked.append('retired')
        if self.away:
            raise RuntimeError('Nova is away')

    def tell_unnamed(self):
        """As NovaProfileBoots.tell_unnamed."""
        self.looked.append('unnamed')
        if self.away:
            raise RuntimeError('Nova is away')

    def run(self, image, virtual_bytes, policy, job):
        """As NovaProfileBoots.run: ends with the gate, with a cancelled job, or with an error."""
        self.jobs.append(job)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            while not self.gate.wait(0.002):
                job.check_cancelled()
            if self.fails:
                raise self.fails
            job.check_cancelled()
            return ProfileReport(job.report.working_set if job.report else WorkingSet.from_wire(
                image.image_id, image.image_hash, virtual_bytes, 4096,
                [[65536, 4096, 0.0], [0, 4096, 0.5]]), 'marker', 1.5)
        finally:
            self.running -= 1


def failed(text):
    """An error of a profile boot."""
    return exception.ProfileBootFailed(text)
