"""What the steps of an image write into its record."""

from collections.abc import Callable

from bootcache import exception
from bootcache.manifest import Manifest
from glance_bootcache.images import policy
from glance_bootcache.profileboot.job import ImageJob
from glance_bootcache.storage.store import ImageStore


def save(store: ImageStore, job: ImageJob, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Write what a step has made, unless the image has become another one meanwhile.

    :param change: returns the record as it is to be; may be called several times.
    :returns: the record as it is then.
    :raises Cancelled: if the step is not to be done any more.
    :raises DatabaseAway: if it cannot be written.
    """
    def guarded(record: Manifest) -> Manifest:
        job.check_cancelled()
        if job.begun is not None and not policy.is_same_work(record, job.begun):
            raise exception.Cancelled(f'image {job.image_id} is another one now')
        return change(record)

    saved = store.change(job.image_id, guarded)
    if saved is None:
        raise exception.Cancelled(f'image {job.image_id} is not known any more')
    job.begun = saved
    return saved
