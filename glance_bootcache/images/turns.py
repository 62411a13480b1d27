"""Turns in which images' steps are done: no owner's images hold up another one's.

A recording takes minutes, and a quarter of an hour if the guest wants it so; so does the reading of
a base that is made for it. And an owner may register a hundred images at once.
"""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Mapping

import cachetools
import futurist

# Owners without an image in hand whose last turn is remembered.
_MOST_OWNERS = 10_000


@dataclasses.dataclass(frozen=True)
class WaitingImage:
    """An image that waits for its turn.

    :ivar owner: the project that it belongs to.
    :ivar came: how many came before it.
    :ivar since: when it came, in monotonic seconds.
    :ivar work: what is to be done for it.
    """

    image_id: str
    owner: str
    came: int
    since: float = 0.0
    work: Callable[[], None] = lambda: None


def most_in_hand(places: int) -> int:
    """Return how many images are in hand at most: where all places are taken, an owner who has none
    in hand gets one beyond them."""
    return places + places // 2


def next_turn(waiting: Collection[WaitingImage], running: Mapping[str, int],
              last: Mapping[str, int], places: int) -> WaitingImage | None:
    """Return the image whose turn it is, None if all have to wait. Pure.

    The owner with the fewest images in hand comes first, then the one whose last turn is the
    longest ago; among one owner's images the one that came first.

    :param running: how many images of each owner are in hand.
    :param last: the number of each owner's last turn.
    :param places: how many images may be in hand.
    """
    total = sum(running.values())
    if total >= most_in_hand(places):
        return None
    allowed = [image for image in waiting if total < places or not running.get(image.owner, 0)]
    return min(allowed, default=None, key=lambda image: (
        running.get(image.owner, 0), last.get(image.owner, -1), image.came))


class Turns:
    """Does work for images in threads of its own, in turns.

    :param places: how many images at a time.
    """

    def __init__(self, places: int):
        self._places = places
        self._executor = futurist.ThreadPoolExecutor(max_workers=most_in_hand(places))
        self._lock = threading.Lock()  # guards what follows; held for milliseconds
        self._waiting: dict[str, WaitingImage] = {}
        self._running: collections.Counter[str] = collections.Counter()
        self._last: dict[str, int] = {}
        self._came = self._turn = 0

    def submit(self, image_id: str, owner: str, work: Callable[[], None]) -> None:
        """Do something for an image when its turn comes; it has one work at a time."""
        with self._lock:
            self._waiting[image_id] = WaitingImage(image_id, owner, self._came, time.monotonic(),
                                                   work)
            self._came += 1
            self._begin()

    def is_waiting(self, image_id: str) -> bool:
        """Tell whether an image's turn has not come yet."""
        with self._lock:
            return image_id in self._waiting

    def waiting_since(self) -> list[float]:
        """Return since when images wait for their turn, in monotonic seconds."""
        with self._lock:
            return [image.since for image in self._waiting.values()]

    def take_out(self, image_id: str) -> WaitingImage | None:
        """Return an image that does not have to wait any more; None if it does not wait."""
        with self._lock:
            return self._waiting.pop(image_id, None)

    def shutdown(self, wait: bool = True) -> None:
        """Begin nothing more.

        :param wait: for what is in hand.
        """
        with self._lock:
            self._waiting.clear()
        self._executor.shutdown(wait=wait)

    def _begin(self) -> None:
        """Begin what can be begun; under the lock."""
        while (image := next_turn(self._waiting.values(), self._running, self._last,
                                  self._places)) is not None:
            del self._waiting[image.image_id]
            self._running[image.owner] += 1
            self._last.pop(image.owner, None)
            self._last[image.owner] = self._turn
            self._turn += 1
            if len(self._last) > _MOST_OWNERS:
                del self._last[next(iter(self._last))]
            self._executor.submit(self._do, image.owner, image.work)

    def _do(self, owner: str, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._lock:
                self._running[owner] -= 1
                self._running += collections.Counter()
                self._begin()


HOUR = 3600.0


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

    def seconds_left(self, owner: str) -> float:
        """Return for how many seconds an owner's next change has to wait; 0 if it does not."""
        with self._lock:
            begun = self._begun.get(owner)
            return max(0.0, begun[0] + HOUR - self._clock()) \
                if begun and len(begun) == self._most else 0.0

    def begin(self, owner: str) -> None:
        """Count a change."""
        with self._lock:
            # Where any number may be, none is remembered.
            self._begun[owner] = collections.deque(
                (*self._begun.get(owner, ()), self._clock()), self._most)
