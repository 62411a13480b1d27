"""What the steps of an image write into its record."""

from collections.abc import Callable
from typing import TypeVar

from oslo_log import log as logging

from bootcache import exception
from bootcache.manifest import Manifest
from glance_bootcache.images import policy
from glance_bootcache.profileboot.job import ImageJob
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)

_AGAIN_SECONDS = 5.0
Result = TypeVar('Result')


def save(store: ImageStore, job: ImageJob, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Write what a step has made, unless the image has become another one meanwhile.

    :param change: returns the record as it is to be; may be called several times.
    :returns: the record as it is then.
    :raises Cancelled: if the step is not to be done any more.
    :raises DatabaseUnusable: if somebody has to see to the database.
    """
    def guarded(record: Manifest) -> Manifest:
        job.check_cancelled()
        if job.begun is not None and not policy.is_same_work(record, job.begun):
            raise exception.Cancelled(f'image {job.image_id} is another one now')
        return change(record)

    saved = when_it_answers(job, lambda: store.change(job.image_id, guarded))
    if saved is None:
        raise exception.Cancelled(f'image {job.image_id} is not known any more')
    job.begun = saved
    return saved


def when_it_answers(job: ImageJob, write: Callable[[], Result]) -> Result:
    """Write what a step has made; while the database is away that is kept, and waits.

    :param write: may be called several times.
    :raises Cancelled: if the step is given up meanwhile.
    :raises DatabaseUnusable: if somebody has to see to the database.
    """
    is_told = False
    while True:
        try:
            return write()
        except exception.DatabaseUnusable:
            raise
        except exception.DatabaseAway as error:
            if not is_told:
                LOG.warning('image %s: what was made is written when the database answers: %s',
                            job.image_id, error)
            is_told = True
        job.pause(_AGAIN_SECONDS)
