"""The steps that are under way: one an image, waiting for its turn or running."""

import threading
from collections.abc import Callable

from bootcache.manifest import ImageState, Manifest
from glance_bootcache.images.policy import Step
from glance_bootcache.images.turns import Turns
from glance_bootcache.profileboot.job import ImageJob

# Of one source at a time: three would read more than a slow disk gives, one would wait for each.
BASES = 2
# What asks Glance, Nova or the exporter, and reads no data.
_LOOKS = 4

_WAITS_FOR = {Step.GET_BASE: 'have its base got', Step.RECORD: 'be recorded',
              Step.BUILD: 'have its cache image built'}


class Running:
    """Has each step done when its turn comes.

    :param places: how many images are recorded at a time, and how many are built.
    """

    def __init__(self, places: int):
        self._lock = threading.Lock()  # guards what follows; held for steps in memory
        self._jobs: dict[str, ImageJob] = {}
        self._is_stopping = False
        # Building takes seconds, or minutes for a large image, and waits for no recording.
        self._recordings, self._builds = Turns(places), Turns(places)
        self._looks = Turns(_LOOKS)
        # Bases of each source: one that hangs, or a large base, holds up none of another's.
        self._bases: dict[str, Turns] = {}

    def start(self, job: ImageJob, owner: str, work: Callable[[], None],
              then: Callable[[], object], source: str | None = None) -> None:
        """Have a step done, unless another one of the image is under way.

        :param owner: the image's project.
        :param then: called when it is under way no more; not where it is given up as it waits.
        :param source: where the base comes from; None for a step that reads no data of it.
        """
        def run() -> None:
            try:
                work()
            finally:
                with self._lock:
                    if self._jobs.get(job.image_id) is job:
                        del self._jobs[job.image_id]
                then()

        with self._lock:
            if not self._is_stopping and job.image_id not in self._jobs:
                self._turns_of(job, source).submit(job.image_id, owner, run)
                self._jobs[job.image_id] = job

    def _turns_of(self, job: ImageJob, source: str | None) -> Turns:
        if job.step == Step.RECORD:
            return self._recordings
        if job.step == Step.BUILD:
            return self._builds
        return self._looks if source is None else self._bases.setdefault(source, Turns(BASES))

    def _every(self) -> list[Turns]:
        """Return all turns; under the lock."""
        return [self._looks, self._recordings, self._builds, *self._bases.values()]

    def cancel(self, image_id: str) -> bool:
        """Give up an image's step.

        :returns: whether none is under way any more: a step that runs ends in a while.
        """
        with self._lock:
            job = self._jobs.get(image_id)
            if job is None:
                return True
            job.cancel()
            # Under the lock: it is this job's work that is taken out, and not the next one's.
            if waited := any(turns.take_out(image_id) for turns in self._every()):
                del self._jobs[image_id]
            return waited

    def stop(self, wait: bool = True) -> None:
        """Give up all steps, and begin no other one.

        :param wait: until they have ended.
        """
        with self._lock:
            self._is_stopping = True
            every = self._every()
        for image_id in self.images():
            self.cancel(image_id)
        for turns in every:
            turns.shutdown(wait=wait)

    def of(self, image_id: str) -> ImageJob | None:
        """Return an image's step that is under way, if one is."""
        with self._lock:
            return self._jobs.get(image_id)

    def is_waiting(self, image_id: str) -> bool:
        """Tell whether an image's step waits for its turn."""
        with self._lock:
            return any(turns.is_waiting(image_id) for turns in self._every())

    def images(self) -> set[str]:
        """Return the images of which a step is under way."""
        with self._lock:
            return set(self._jobs)

    def tokens(self) -> set[str]:
        """Return what proves servers to be profile boots that are under way."""
        with self._lock:
            return {job.token for job in self._jobs.values()}

    def state(self, record: Manifest) -> ImageState:
        """Return an image's state: what is done for it now, or else what its record says."""
        job = self.of(record.image_id)
        if job is None or job.phase is None or job.cancelled.is_set():
            return record.state
        return job.phase

    def waiting_since(self) -> dict[str, list[float]]:
        """Return since when images wait for each step, in monotonic seconds."""
        with self._lock:
            bases = list(self._bases.values())
        return {'get_base': [since for turns in bases for since in turns.waiting_since()],
                'record': self._recordings.waiting_since(),
                'build': self._builds.waiting_since()}

    def waits_for(self, image_id: str) -> str:
        """Return what an image waits for its turn for, in words; empty if it does not wait."""
        job = self.of(image_id)
        if job is None or job.step not in _WAITS_FOR or not self.is_waiting(image_id):
            return ''
        return (f'it waits for its turn to {_WAITS_FOR[Step(job.step)]}: projects take turns, and'
                ' [bootcache]concurrent_builds says how many images are in hand')
