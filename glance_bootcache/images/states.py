"""Images' states while there is a job: written into the manifest, and shown."""

import contextlib
import dataclasses
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import exception
from bootcache.manifest import ImageState, Manifest
from glance_bootcache.decisions import ImageFacts
from glance_bootcache.images.jobs import Jobs
from glance_bootcache.images.shown import Shown
from glance_bootcache.profileboot.job import BuildJob
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)


class States:
    """What jobs make of images' manifests."""

    def __init__(self, store: ImageStore, jobs: Jobs, shown: Shown):
        self._store = store
        self._jobs = jobs
        self._shown = shown

    def enter(self, job: BuildJob, manifest: Manifest, state: ImageState,
              reason: str = '') -> Manifest:
        """Write what a job has made, with the image's state, and show that.

        :param manifest: what people wish in it is not looked at.
        :returns: the manifest as it is then.
        :raises Cancelled: if the job is.
        """
        with self._store.lock:
            job.check_cancelled()
            # What people changed meanwhile stays.
            current = self._store.load(manifest.image_id) or manifest
            manifest = self._store.put(dataclasses.replace(
                manifest, state=state, reason=reason, pinned=current.pinned, quota=current.quota,
                boot_marker=current.boot_marker, settle=current.settle,
                generation=current.generation, visibility=current.visibility,
                warm_due=current.warm_due, name=current.name, owner=current.owner))
        self._shown.show(manifest.image_id)
        return manifest

    def guarded(self, job: BuildJob, work: Callable[[], bool],
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
            self._fail(job, image, ImageState.SKIPPED, str(error))
        except exception.BootcacheError as error:
            self._fail(job, image, ImageState.FAILED, str(error))
        except Exception as error:
            if not job.cancelled.is_set() and not self._jobs.is_stopping:
                LOG.exception('image %s: unexpected error', job.image_id)
                self._fail(job, image, ImageState.FAILED, f'unexpected error: {error}')
        if done:
            self._jobs.end(job)

    def _fail(self, job: BuildJob, image: ImageFacts | None, state: ImageState,
              reason: str) -> None:
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
            self.enter(job, manifest, state, reason)
