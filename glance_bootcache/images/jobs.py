"""What is in hand: one job an image, whose parts have their turns in threads.

A recording takes minutes, and a quarter of an hour if the guest wants it so; so does the reading of
a base that is made for it. And an owner may register a hundred images at once.
"""

import collections
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping

import cachetools
import futurist

from bootcache.locks import OrderedLock
from bootcache.manifest import ImageState, Manifest
from glance_bootcache.profileboot.job import BuildJob

# Owners without an image in hand whose last turn is remembered.
_MOST_OWNERS = 10_000


@dataclasses.dataclass(frozen=True)
class WaitingImage:
    """An image that waits for its turn.

    :ivar owner: the project that it belongs to.
    :ivar came: how many came before it.
    :ivar since: when it came, in monotonic seconds.
    """

    image_id: str
    owner: str
    came: int
    since: float = 0.0


def most_of_one(places: int) -> int:
    """Return how many images of one owner are in hand at a time: one place is for the others."""
    return max(1, places - 1)


def next_turn(waiting: Collection[WaitingImage], running: Mapping[str, int],
              last: Mapping[str, int],
              places: int) -> WaitingImage | None:
    """Return the image whose turn it is, None if all have to wait. Pure.

    The owner with the fewest images in hand comes first, then the one whose last turn is the
    longest ago; among one owner's images the one that came first.

    :param running: how many images of each owner are in hand.
    :param last: the number of each owner's last turn.
    :param places: how many images may be in hand.
    """
    if sum(running.values()) >= places:
        return None
    allowed = [image for image in waiting if running.get(image.owner, 0) < most_of_one(places)]
    return min(allowed, default=None, key=lambda image: (
        running.get(image.owner, 0), last.get(image.owner, -1), image.came))


class Turns:
    """Does work for images in threads of its own, in turns.

    :param places: how many images at a time.
    """

    def __init__(self, places: int):
        self._places = places
        self._executor = futurist.ThreadPoolExecutor(max_workers=places)
        self._lock = threading.Lock()  # guards what follows; held for milliseconds
        self._waiting: dict[str, tuple[WaitingImage, Callable[[], None]]] = {}
        self._running: collections.Counter[str] = collections.Counter()
        self._last: dict[str, int] = {}
        self._came = self._turn = 0

    def submit(self, image_id: str, owner: str, work: Callable[[], None]) -> None:
        """Do something for an image when its turn comes; it has one work at a time."""
        with self._lock:
            self._waiting[image_id] = WaitingImage(image_id, owner, self._came,
                                                   time.monotonic()), work
            self._came += 1
            self._begin()

    def is_waiting(self, image_id: str) -> bool:
        """Tell whether an image's turn has not come yet."""
        with self._lock:
            return image_id in self._waiting

    def waiting_since(self) -> list[float]:
        """Return since when images wait for their turn, in monotonic seconds."""
        with self._lock:
            return [image.since for image, _work in self._waiting.values()]

    def take_out(self, image_id: str) -> Callable[[], None] | None:
        """Return the work of an image that does not have to wait any more; None if none waits."""
        with self._lock:
            _image, work = self._waiting.pop(image_id, (None, None))
            return work

    def shutdown(self, wait: bool = True) -> None:
        """Begin nothing more.

        :param wait: for what is in hand.
        """
        with self._lock:
            self._waiting.clear()
        self._executor.shutdown(wait=wait)

    def _begin(self) -> None:
        """Begin what can be begun; under the lock."""
        while (image := next_turn([image for image, _work in self._waiting.values()],
                                  self._running, self._last, self._places)) is not None:
            _image, work = self._waiting.pop(image.image_id)
            self._running[image.owner] += 1
            self._last.pop(image.owner, None)
            self._last[image.owner] = self._turn
            self._turn += 1
            if len(self._last) > _MOST_OWNERS:
                del self._last[next(iter(self._last))]
            self._executor.submit(self._do, image.owner, work)

    def _do(self, owner: str, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._lock:
                self._running[owner] -= 1
                self._running += collections.Counter()
                self._begin()


HOUR = 3600.0
# Owners that are remembered; whoever is forgotten begins anew.


class Changes:
    """Counts what is begun, by owner.

    :param most: within an hour; 0 for any number.
    :param clock: monotonic seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic):
        self._most, self._clock = most, clock
        self._lock = threading.Lock()  # guards what follows; nothing is called under it
        self._begun: cachetools.LRUCache[str, collections.deque[float]] = \
            cachetools.LRUCache(_MOST_OWNERS)

    def are_too_many(self, owner: str) -> bool:
        """Tell whether an owner's next change has to wait."""
        with self._lock:
            return bool(self._most) and len(self._within_the_hour(owner)) >= self._most

    def begin(self, owner: str) -> bool:
        """Count a change, if it is not one too many; tell whether it is followed now."""
        with self._lock:
            if not self._most:
                return True
            begun = self._within_the_hour(owner)
            if len(begun) >= self._most:
                return False
            begun.append(self._clock())
            self._begun[owner] = begun
            return True

    def _within_the_hour(self, owner: str) -> collections.deque[float]:
        begun = self._begun.get(owner) or collections.deque()
        while begun and begun[0] <= self._clock() - HOUR:
            begun.popleft()
        return begun


def bases_at_once(cpus: int | None) -> int:
    """Return how many bases are got at a time. Pure.

    Three, so that one owner may have two in hand, see Turns. But a base takes a CPU while its
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

    :ivar bases: the turns in which bases are got, ``recordings`` those in which images' boots are
        recorded, and ``builds`` those in which cache images are built.

    :param places: how many images are recorded at a time, and how many are built.
    :param lock: the store's: what is in hand has to agree with the manifests.
    """

    def __init__(self, places: int, lock: OrderedLock):
        self._lock = lock
        self._jobs: dict[str, BuildJob] = {}
        # Bases are got beside profile boots: a server that boots meanwhile needs its base now. All
        # of a base is read, which takes minutes if its owner wants it so.
        self.bases = Turns(_CONCURRENT_BASES)
        # What asks Glance, or finds that its base is here, waits for no base of others.
        self._lookers = futurist.ThreadPoolExecutor(max_workers=_CONCURRENT_LOOKS)
        # Building takes seconds, or minutes for a large image, and waits for no recording.
        self.builds = Turns(places)
        self.recordings = Turns(places)
        self._stopping = threading.Event()

    def stop(self, wait: bool = True) -> None:
        """Give up what is in hand, and begin nothing more.

        :param wait: until it has ended.
        """
        self._stopping.set()
        with self._lock:
            for job in self._jobs.values():
                job.cancel()
        for executor in (self._lookers, self.bases, self.recordings, self.builds):
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
            for turns in (self.bases, self.recordings, self.builds):
                work = turns.take_out(image_id)
                if work is not None:
                    self._lookers.submit(work)

    def look(self, work: Callable[[], None]) -> None:
        """Do what takes no longer than a question to another service."""
        self._lookers.submit(work)

    def waiting_since(self) -> dict[str, list[float]]:
        """Return since when images wait for each step, in monotonic seconds."""
        return {'get_base': self.bases.waiting_since(), 'record': self.recordings.waiting_since(),
                'build': self.builds.waiting_since()}

    def turn(self, image_id: str) -> str:
        """Return what an image waits for its turn for, in words; empty if it does not wait."""
        for turns, what in ((self.bases, 'have its base got'), (self.recordings, 'be recorded'),
                            (self.builds, 'have its cache image built')):
            if turns.is_waiting(image_id):
                return (f'it waits for its turn to {what}: projects take turns, and'
                        ' [bootcache]concurrent_builds says how many images are in hand')
        return ''
