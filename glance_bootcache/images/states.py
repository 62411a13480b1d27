"""Images' states while there is a job: what it makes is written to the image's row."""

import contextlib
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import exception, savefile
from bootcache.manifest import ImageState, Made, Manifest, Standing
from bootcache.reasons import NO_CAUSE, Cause, Reason
from glance_bootcache.images.jobs import Jobs
from glance_bootcache.profileboot.job import BuildJob
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)


class States:
    """What jobs make of images' manifests; what people wish is left as it is."""

    def __init__(self, store: ImageStore, jobs: Jobs):
        self._store = store
        self._jobs = jobs

    def enter(self, job: BuildJob, phase: ImageState) -> None:
        """Note what a job does now.

        :param phase: RECORDING or BUILDING.
        :raises Cancelled: if the job is.
        """
        with self._store.lock:
            job.check_cancelled()
            job.phase = phase

    def note(self, job: BuildJob, made: Made, phase: ImageState | None = None) -> Manifest:
        """Write what a job has made until now.

        :param phase: what it does from now on.
        :returns: the manifest as it is then.
        :raises Cancelled: if the job is.
        """
        manifest = self._write(job, lambda known: known.making_all(made))
        job.phase = phase
        return manifest

    def done(self, job: BuildJob, made: Made | None = None) -> None:
        """Write that a job has come to its end.

        :param made: None for what is noted already.
        :raises Cancelled: if the job is.
        """
        self._end(job, Standing.DONE, NO_CAUSE, made)

    def leave(self, job: BuildJob) -> None:
        """Have an image's state be its manifest's: what a job has tried does not matter.

        :raises Cancelled: if the job is.
        """
        with self._store.lock:
            job.check_cancelled()
            job.phase = None

    def guarded(self, job: BuildJob, work: Callable[[], bool]) -> None:
        """Do a part of a job: whatever happens, the image's state tells of it.

        Where even that cannot be written, the image is in hand no more, and can be taken up again.

        :param work: says whether the job is done with it.
        """
        done = True
        try:
            done = self._told(job, work)
        except Exception:
            LOG.exception('image %s: what became of it cannot be written', job.image_id)
        finally:
            if done:
                self._jobs.end(job)

    def _told(self, job: BuildJob, work: Callable[[], bool]) -> bool:
        try:
            job.check_cancelled()
            return work()
        except exception.Cancelled as error:
            LOG.info('image %s: given up: %s', job.image_id, error)
        except exception.ImageRefused as error:
            self._fail(job, Standing.SKIPPED, error.cause)
        except (exception.StorageDaemonError, exception.StorageNodeFull, exception.ServiceAway,
                exception.DatabaseAway, exception.Interrupted, OSError) as error:
            self._put_off(job, str(error))
        except Exception as error:
            if savefile.means_full(error):
                self._put_off(job, str(error))
            elif isinstance(error, exception.ImageError):
                self._give_up(job, error.cause)
            elif isinstance(error, exception.BootcacheError):
                self._give_up(job, Cause(Reason.FAILED, str(error)))
            elif not job.cancelled.is_set() and not self._jobs.is_stopping:
                LOG.exception('image %s: unexpected error', job.image_id)
                self._give_up(job, Cause(Reason.FAILED, f'unexpected error: {error}'))
        return True

    def _give_up(self, job: BuildJob, cause: Cause) -> None:
        """Have a job's failure be its end, unless it cost the image the cache image that it had.

        That one served, so another one can be built: it is tried once more by itself.
        """
        if job.is_without_older:
            self._put_off(job, str(cause))
        else:
            self._fail(job, Standing.FAILED, cause)

    def _put_off(self, job: BuildJob, error: str) -> None:
        """Have an image wait for another try: nothing is wrong with it, but with this machine, or
        with Glance or Nova."""
        if self._current(job).made.cache_image is not None:
            # That serves meanwhile.
            self._fail(job, Standing.FAILED, Cause(Reason.FAILED, error))
            return
        with contextlib.suppress(exception.Cancelled):
            job.check_cancelled()
            cause = Cause(Reason.RETRY, error)
            LOG.warning('image %s: %s', job.image_id, cause)
            self._end(job, Standing.WANTED, cause, None)

    def _fail(self, job: BuildJob, standing: Standing, cause: Cause) -> None:
        with contextlib.suppress(exception.Cancelled):
            job.check_cancelled()
            LOG.warning('image %s: %s: %s', job.image_id, standing.value, cause)

            def failed(known: Manifest) -> Manifest:
                if standing is Standing.SKIPPED:
                    known = known.making(cache_image=None, difference=None)
                elif known.made.cache_image is not None and not known.has_older_base:
                    return known.standing_at(Standing.DONE, cause)  # The older one serves.
                return known.standing_at(standing, cause)

            self._write(job, failed)
            job.phase = None

    def _end(self, job: BuildJob, standing: Standing, cause: Cause, made: Made | None) -> None:
        self._write(job, lambda known: (
            known if made is None else known.making_all(made)).standing_at(standing, cause))
        job.phase = None

    def _write(self, job: BuildJob, change: Callable[[Manifest], Manifest]) -> Manifest:
        def unless_cancelled(known: Manifest) -> Manifest:
            # Who cancels a job writes after that: that is seen here, or is written last.
            job.check_cancelled()
            return change(known)

        return self._store.change(job.image_id, unless_cancelled) \
            or self._store.add(unless_cancelled(Manifest(job.image_id)))

    def _current(self, job: BuildJob) -> Manifest:
        return self._store.load(job.image_id) or Manifest(job.image_id)
