"""Snapshots have their working set from the image that their server was made of, their parent.

Beside their cache image there is its difference from their parent's: bootcache/difference.py.
"""

import dataclasses
import time

import cachetools
from oslo_log import log as logging

from bootcache import difference, exception, properties
from bootcache.cacheimage import Base
from bootcache.manifest import CacheDifference, CacheInfo, Goal, Manifest
from glance_bootcache import snapshotrules
from glance_bootcache.glance.images import Images
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images.saving import save
from glance_bootcache.profileboot.job import ImageJob
from glance_bootcache.storage import nodefiles
from glance_bootcache.storage.nodefiles import FileKind
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

_MOST_WAITED = 1000


class Inheriting:
    """Gives working sets to snapshots that have none, and makes differences.

    :param images: Glance.
    """

    def __init__(self, store: ImageStore, images: Images):
        self._store = store
        self._images = images
        # Until when servers of a snapshot wait for its first cache image, in monotonic seconds.
        self._waited_until: cachetools.LRUCache[str, float] = cachetools.LRUCache(_MOST_WAITED)

    def is_waited_for(self, image_id: str) -> bool:
        """Tell whether servers of a snapshot are to wait, while its first cache image is made."""
        return time.monotonic() < self._waited_until.get(image_id, 0.0)

    def parent(self, image: ImageFacts) -> Manifest | None:
        """Return the image from which a snapshot has its working set; None if there is none."""
        parent_id = properties.snapshot_parent(image.properties)
        parent = None if parent_id is None or parent_id == image.image_id \
            else self._store.anywhere(parent_id)
        return parent if snapshotrules.may_be_parent(parent, image.owner) else None

    def inherit(self, image: ImageFacts, job: ImageJob) -> bool:
        """Make the working set of a snapshot's parent its own, if it has a base and none yet.

        :returns: whether there is one to build from now, and no cache image.
        :raises Cancelled: if the job is.
        :raises DatabaseAway: if it cannot be written.
        """
        self._waited_until[image.image_id] = time.monotonic() + snapshotrules.BUILD_SECONDS
        manifest, parent = self._store.load(image.image_id), self.parent(image)
        if manifest is None or not manifest.made.base_path \
                or manifest.made.cache_image is not None:
            return False
        if manifest.made.working_set is not None:
            if manifest.made.working_set.recorded_by != snapshotrules.PARENT:
                return False
            save(self._store, job, lambda record: dataclasses.replace(record, goal=Goal.BUILD))
            return True
        parents = None if parent is None else self._store.load_working_set(parent)
        if parent is None or parents is None or parent.made.working_set is None \
                or parents.image_hash != parent.made.base_hash:
            return False
        working_set = snapshotrules.inherited(parents, manifest)
        if not working_set.extents:
            return False
        sha256 = self._store.save_working_set(image.image_id, working_set)
        info = snapshotrules.described(parent.made.working_set, sha256, working_set)
        save(self._store, job, lambda record: dataclasses.replace(
            record, goal=Goal.BUILD).making(working_set=info))
        LOG.info('image %s: a snapshot of a server of image %s, whose working set of %d bytes it'
                 ' has', image.image_id, parent.image_id, working_set.bytes)
        return True

    def add_difference(self, child: Manifest, built: CacheInfo, base: Base, job: ImageJob) -> None:
        """Make the difference of a snapshot's first cache image, which is served by now.

        Servers wait for it as long as they would have for the cache image. The parameters are those
        of ``make_difference``.

        :raises Cancelled: if the job is.
        """
        made = self.make_difference(child, built, base, job)
        if made is None:
            return

        def add(known: Manifest) -> Manifest:
            job.check_cancelled()
            return known.making(difference=made) if known.made.cache_image == built else known

        changed = None
        try:
            changed = self._store.change(child.image_id, add)
        except exception.DatabaseAway as error:
            LOG.warning('image %s: hosts get all of its cache image: %s', child.image_id, error)
        finally:
            if changed is None or changed.made.difference != made:
                self._store.files.abandon(child.image_id, nodefiles.difference_name(built.file))

    def make_difference(self, child: Manifest, built: CacheInfo, base: Base, job: ImageJob
                        ) -> CacheDifference | None:
        """Make the difference of a cache image that was just built from that of its parent.

        Without one hosts get all of the cache image.

        :param child: of the image as it was before, which need not be a snapshot.
        :param built: its new cache image.
        :param base: its base.
        :param job: builds it.
        :raises Cancelled: if the job is.
        """
        name, made = nodefiles.difference_name(built.file), None
        try:
            made = self._make_difference(child, built, base, job)
        except exception.Cancelled:
            raise
        except Exception as error:
            LOG.warning('image %s: hosts get all of its cache image, and not what differs from its'
                        ' parent\'s: %s', child.image_id, error)
        finally:
            if made is None:
                self._store.files.abandon(child.image_id, name)
        return made

    def _make_difference(self, child: Manifest, built: CacheInfo, base: Base, job: ImageJob
                         ) -> CacheDifference | None:
        parent = self._known_parent(child, job)
        path = None if parent is None else self._store.cache_path(parent)
        if parent is None or path is None or parent.made.cache_image is None \
                or parent.made.cache_image.cluster_bytes != built.cluster_bytes:
            return None
        self._store.files.begin(child.image_id, FileKind.DIFFERENCE,
                                nodefiles.difference_name(built.file))
        made = difference.make(
            base, self._store.path(child.image_id, built.file), path,
            self._store.difference_path(child.image_id, built.file),
            parent_id=parent.image_id, parent_hash=parent.made.base_hash,
            compression=built.compression, check=job.check_cancelled)
        if made is None:
            LOG.info('image %s: its cache image is large, or has little in common with that of'
                     ' image %s', child.image_id, parent.image_id)
            return None
        LOG.info('image %s: %d bytes of its cache image of %d differ from that of image %s; the'
                 ' file has %d', child.image_id, made.data_bytes, built.data_bytes,
                 parent.image_id, made.bytes)
        return made

    def _known_parent(self, child: Manifest, job: ImageJob) -> Manifest | None:
        """Return a snapshot's parent; Glance is asked only where nothing here tells.

        All other images are built without it.
        """
        before = child.made.difference
        parent_id = job.parent or ('' if before is None else before.parent)
        if not parent_id:
            ours = child.made.working_set
            if ours is None or ours.recorded_by != snapshotrules.PARENT:
                return None
            image = self._images.get(child.image_id)
            return None if image is None else self.parent(image)
        parent = self._store.load(parent_id)
        return parent if snapshotrules.may_be_parent(parent, child.wished.owner) else None
