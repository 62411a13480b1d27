"""What is in hand: one job an image, whose parts have their turns in threads."""

import os
import threading
from collections.abc import Callable

import futurist

from bootcache.locks import OrderedLock
from bootcache.manifest import ImageState, Manifest
from glance_bootcache.images.turns import Turns, most_of_one
from glance_bootcache.profileboot.job import BuildJob


def bases_at_once(cpus: int | None) -> int:
    """Return how many bases are got at a time. Pure.

    Three, so that one owner may have two in hand, see turns.py. But a base takes a CPU while its
    hash is computed and its data is read, and one owner's are not to take what another's needs.

    :param cpus: how many there are; None if that is not known.
    """
    return min(3, max(2, cpus or 2))


_CONCURRENT_BASES = bases_at_once(os.cpu_count())
_CONCURRENT_LOOKS = 4

# As if all bases were of one owner, of whom one place is not.
BASES_AT_ONCE = most_of_one(_CONCURRENT_BASES)


class Jobs:
    """The jobs that are in hand.

    :param places: how many images are recorded at a time, and how many are built.
    :param lock: the store's: what is in hand has to agree with the manifests.
    """

    def __init__(self, places: int, lock: OrderedLock):
        self._lock = lock
        self._jobs: dict[str, BuildJob] = {}
        # Bases are got beside profile boots: a server that boots meanwhile needs its base now. All
        # of a base is read, which takes minutes if its owner wants it so.
        self._bases = Turns(_CONCURRENT_BASES)
        # What asks Glance, or finds that its base is here, waits for no base of others.
        self._lookers = futurist.ThreadPoolExecutor(max_workers=_CONCURRENT_LOOKS)
        # Building takes seconds, or minutes for a large image, and waits for no recording.
        self._builds = Turns(places)
        self._recordings = Turns(places)
        self._stopping = threading.Event()

    def stop(self, wait: bool = True) -> None:
        """Give up what is in hand, and begin nothing more.

        :param wait: until it has ended.
        """
        self._stopping.set()
        with self._lock:
            for job in self._jobs.values():
                job.cancel()
        for executor in (self._lookers, self._bases, self._recordings, self._builds):
            executor.shutdown(wait=wait)

    @property
    def is_stopping(self) -> bool:
        """Whether nothing is begun any more."""
        return self._stopping.is_set()

    def begin(self, image_id: str, forced: bool = False) -> BuildJob | None:
        """Take an image in hand.

        :param forced: an operator asks for it.
        :returns: None if it is already, or nothing is begun any more.
        """
        with self._lock:
            if image_id in self._jobs or self._stopping.is_set():
                return None
            job = self._jobs[image_id] = BuildJob(image_id, forced)
            return job

    def end(self, job: BuildJob) -> None:
        """Have an image in hand no more."""
        with self._lock:
            self._jobs.pop(job.image_id, None)

    def of(self, image_id: str) -> BuildJob | None:
        """Return what is in hand for an image, if anything is."""
        with self._lock:
            return self._jobs.get(image_id)

    def images(self) -> set[str]:
        """Return the images that are in hand."""
        with self._lock:
            return set(self._jobs)

    def state(self, manifest: Manifest) -> ImageState:
        """Return an image's state: what its job does now, or else what its manifest says."""
        job = self.of(manifest.image_id)
        if job is None or job.phase is None or job.cancelled.is_set():
            return manifest.state
        return job.phase

    def tokens(self) -> set[str]:
        """Return what proves servers to be profile boots that are in hand."""
        with self._lock:
            return {job.token for job in self._jobs.values()}

    def cancel(self, image_id: str) -> None:
        """Give up what is in hand for an image, also if it waits for its turn."""
        with self._lock:
            job = self._jobs.get(image_id)
            if job is None:
                return
            job.cancel()
            for turns in (self._bases, self._recordings, self._builds):
                work = turns.take_out(image_id)
                if work is not None:
                    self._lookers.submit(work)

    # What jobs do, each in its thread.

    def look(self, work: Callable[[], None]) -> None:
        """Do what takes no longer than a question to another service."""
        self._lookers.submit(work)

    def get_base(self, job: BuildJob, owner: str, work: Callable[[], None]) -> None:
        """Get a base in its turn.

        :param owner: the project that the image belongs to.
        """
        self._bases.submit(job.image_id, owner, work)

    def record(self, job: BuildJob, owner: str, work: Callable[[], None]) -> None:
        """Record an image's boot in its turn."""
        self._recordings.submit(job.image_id, owner, work)

    def build(self, job: BuildJob, owner: str, work: Callable[[], None]) -> None:
        """Build a cache image in its turn."""
        self._builds.submit(job.image_id, owner, work)

    def waits_to_record(self, image_id: str) -> bool:
        """Tell whether an image's turn to be recorded has not come yet."""
        return self._recordings.is_waiting(image_id)

    def turn(self, image_id: str) -> str:
        """Return what an image waits for its turn for, in words; empty if it does not wait."""
        for turns, what in ((self._bases, 'have its base got'), (self._recordings, 'be recorded'),
                            (self._builds, 'have its cache image built')):
            if turns.is_waiting(image_id):
                return (f'it waits for its turn to {what}: projects take turns, and'
                        ' [bootcache]concurrent_builds says how many images are in hand')
        return ''

    def take_recording(self, image_id: str) -> Callable[[], None] | None:
        """Return the recording of an image that does not have to wait any more; None if none does.
        """
        return self._recordings.take_out(image_id)
