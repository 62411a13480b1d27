"""Snapshots have their working set from the image that their server was made of."""

from oslo_log import log as logging

from bootcache.manifest import Manifest
from glance_bootcache import snapshotrules
from glance_bootcache.decisions import ImageFacts
from glance_bootcache.images.states import States
from glance_bootcache.profileboot.job import BuildJob
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)


class Inheriting:
    """Gives working sets to snapshots that have none."""

    def __init__(self, store: ImageStore, states: States):
        self._store = store
        self._states = states

    def parent(self, image: ImageFacts) -> Manifest | None:
        """Return the image from which a snapshot has its working set; None if there is none."""
        parent_id = snapshotrules.parent_id(image.properties)
        parent = None if parent_id is None or parent_id == image.image_id \
            else self._store.load(parent_id)
        return parent if snapshotrules.may_be_parent(parent, image.owner) else None

    def inherit(self, image: ImageFacts, job: BuildJob) -> bool:
        """Make the working set of a snapshot's parent its own, if it has a base and none yet.

        :returns: whether there is one to build from now, and no cache image.
        :raises Cancelled: if the job is.
        :raises OSError: if it cannot be written.
        """
        manifest, parent = self._store.load(image.image_id), self.parent(image)
        if manifest is None or not manifest.made.base_path \
                or manifest.made.cache_image is not None:
            return False
        if manifest.made.working_set is not None:
            return manifest.made.working_set.recorded_by == snapshotrules.PARENT
        parents = None if parent is None else self._store.load_working_set(parent)
        if parent is None or parents is None or parent.made.working_set is None \
                or parents.image_hash != parent.made.base_hash:
            return False
        working_set = snapshotrules.inherited(parents, manifest)
        if not working_set.extents:
            return False
        name = self._store.save_working_set(image.image_id, working_set)
        self._states.note(job, manifest.making(working_set=snapshotrules.described(
            parent.made.working_set, name, working_set)).made)
        job.wait_for_build(snapshotrules.BUILD_SECONDS)
        LOG.info('image %s: a snapshot of a server of image %s, whose working set of %d bytes it'
                 ' has', image.image_id, parent.image_id, working_set.bytes)
        return True
