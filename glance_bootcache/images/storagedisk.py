"""Room on the storage disk tier: the cache images that leave it (SC13 section 3.4)."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

from oslo_log import log as logging

from bootcache import exception
from bootcache.manifest import Manifest
from glance_bootcache.images.running import Running
from glance_bootcache.profileboot.job import ImageJob
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.storage.tiers import StorageTiers

LOG = logging.getLogger(__name__)

_CURE = 'raise [bootcache]storage_disk_quota or unpin images'


class DiskRoom:
    """Evicts cache images from storage disk: nobody else does.

    :param tiers: plan what leaves, by the cloud's last uses.
    """

    def __init__(self, store: ImageStore, jobs: Running, exporter: Exporters, tiers: StorageTiers):
        self._store = store
        self._jobs = jobs
        self._exporter = exporter
        self._tiers = tiers
        # What cache images that are being built may come to have, in the order in which they were
        # begun; each counts those before it. Guarded by the condition's lock, held for its steps.
        self._promised: dict[object, int] = {}
        self._given_back = threading.Condition()

    def keep_quota(self, manifests: Sequence[Manifest]) -> None:
        """Evict what is over the storage disk tier's quota, as after it was lowered; and damage.

        :param manifests: of all images, just read.
        :raises BootcacheError: if the exporter, or the database, does not answer.
        """
        for manifest in manifests:
            if self._tiers.is_damaged(manifest):
                self.evict(manifest.image_id)
        if self._tiers.plan_disk(manifests).evict:
            self.make('', 0)

    @contextlib.contextmanager
    def kept(self, image_id: str, incoming: int, in_passing: bool = False) -> Iterator[None]:
        """Make room for a cache image, and keep it while the block builds and notes that.

        One that has no room beside those that are being built waits until one of them is. One that
        has none beside the older one of its image takes that one's: it goes before.

        :param image_id: whose cache image comes in.
        :param incoming: bytes of it, at most.
        :param in_passing: nobody waits for it: nothing is evicted, nor waited for.
        :raises BuildFailed: if there is no room.
        :raises StorageNodeFull: if there is none beside all that is there, and none is made.
        """
        mine = object()
        with self._given_back:
            self._promised[mine] = incoming
        try:
            if in_passing:
                self._check_beside(image_id, incoming + sum(self._before(mine).values()))
            else:
                self.make(image_id, incoming, mine)
            yield
        finally:
            with self._given_back:
                del self._promised[mine]
                self._given_back.notify_all()

    def _before(self, mine: object) -> dict[object, int]:
        """Return what was promised before something was."""
        with self._given_back:
            promised = list(self._promised)
            return {one: self._promised[one] for one in promised[:promised.index(mine)]} \
                if mine in self._promised else {}

    def _check_beside(self, image_id: str, incoming: int) -> None:
        room = self._tiers.plan_disk(self._store.manifests(), incoming, {image_id})
        if not room.fits or room.evict:
            raise exception.StorageNodeFull('the storage disk tier has no room for another one of'
                                            f' {incoming} bytes beside all that is there; {_CURE}')

    def make(self, image_id: str, incoming: int, mine: object = None) -> None:
        """Evict least recently used cache images until another one fits.

        :param image_id: whose cache image comes in.
        :param incoming: bytes of it, at most.
        :param mine: what it was promised by, after others.
        :raises BuildFailed: if there is no room.
        """
        busy: set[str] = set()
        while True:
            # Looked at first: what is built meanwhile is counted twice, and not left out.
            before = self._before(mine)
            manifests = self._store.manifests()
            # Its older one lies there, and is given out, until the newer one is noted.
            room = self._tiers.plan_disk(manifests, incoming + sum(before.values()),
                                         busy | {image_id})
            if not room.fits and before:
                with self._given_back:
                    while self._before(mine) == before:
                        self._given_back.wait()
                busy.clear()
                continue
            if not room.fits and incoming:
                self._give_older_up(image_id, self._tiers.plan_disk(
                    [manifest for manifest in manifests if manifest.image_id != image_id],
                    incoming, busy).fits)
                continue
            refused = [victim for victim in room.evict if not self.evict(victim)]
            if not refused:
                return
            busy.update(refused)

    def _give_older_up(self, image_id: str, is_enough: bool) -> None:
        """Remove the older cache image of one that has room only when that is gone.

        :param is_enough: whether it has then.
        :raises BuildFailed: if it has not, or the older one stays.
        """
        manifest = self._store.load(image_id)
        if manifest is None or manifest.made.cache_image is None or not is_enough:
            raise exception.BuildFailed(f'the storage disk tier has no room; {_CURE}')
        job = self._jobs.of(image_id)
        if manifest.wished.pinned or not self._remove(manifest, job):
            raise exception.BuildFailed('the storage disk tier has no room beside the older one,'
                                        f' which is pinned, or is being fetched; {_CURE}')
        if job is not None:
            job.is_without_older = True
        LOG.info('image %s: its older cache image goes before the newer one is built, as storage'
                 ' disk has no room for both', image_id)

    def evict(self, image_id: str) -> bool:
        """Drop a cache image from the storage disk tier; its next boot has it built again.

        :returns: False if something is in hand for it, or a host is fetching it.
        """
        manifest = self._store.load(image_id)
        if manifest is None or manifest.made.cache_image is None:
            return True
        if self._jobs.of(image_id) is not None or not self._remove(manifest, None):
            return False
        LOG.info('image %s: its cache image is evicted from storage disk', image_id)
        return True

    def _remove(self, manifest: Manifest, job: ImageJob | None) -> bool:
        """Serve a cache image no more, and remove it.

        :param job: what is in hand for it.
        :returns: False if a host is fetching it, or something else was taken in hand meanwhile.
        """
        image_id, cache_image = manifest.image_id, manifest.made.cache_image
        with self._exporter.withdrawn(manifest) as gone:
            if not gone or self._jobs.of(image_id) is not job:
                return False
            record = self._store.change(
                image_id, lambda record: record.making(cache_image=None, difference=None)
                if record.made.cache_image == cache_image else record)
            if record is not None and record.made.cache_image is not None:
                return False
            self._tiers.forget(image_id)
        return True
