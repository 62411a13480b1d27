"""A queue of keys that are worked on by one thread at a time each, as controllers have it.

A key that is added while it is worked on is worked on once more. Whoever adds a key says nothing of
why: the work reads what is wanted and what there is.
"""

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable

from oslo_log import log as logging

from bootcache.util.backoff import Backoff
from bootcache.util.threads import daemon_thread

LOG = logging.getLogger(__name__)

# Whose pauses are remembered.
_MOST_PAUSES = 20_000
# What the order has of keys that were worked on earlier, beyond two for each key that waits.
_MOST_PASSED = 1000
_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 60.0


class WorkQueue:
    """Works on keys in threads of its own.

    :param work: is called with a key; after an error the key is worked on again, with growing
        pauses.
    :param workers: threads.
    :param name: of the threads.
    :param failed: is called with a key and the error of its work.
    :param clock: returns monotonic seconds.
    """

    def __init__(self, work: Callable[[str], None], workers: int, name: str,
                 failed: Callable[[str, Exception], None],
                 clock: Callable[[], float] = time.monotonic):
        self._work = work
        self._workers = workers
        self._name = name
        self._failed = failed
        self._clock = clock
        self._pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, clock, most=_MOST_PAUSES)
        # Guards what follows; held for steps in memory only.
        self._changed = threading.Condition()
        # When each key is due; and the same in order, with what has changed since.
        self._due: dict[str, float] = {}
        self._ordered: list[tuple[float, int, str]] = []
        self._numbers = itertools.count()
        self._running: set[str] = set()
        self._stopping = False

    def start(self) -> None:
        """Start the threads."""
        for number in range(self._workers):
            daemon_thread(self._run, f'{self._name}-{number}')

    def stop(self, wait: bool = True) -> None:
        """Work on no other key.

        :param wait: for those that are worked on.
        """
        with self._changed:
            self._stopping = True
            self._due.clear()
            self._changed.notify_all()
            if wait:
                self._changed.wait_for(lambda: not self._running)

    def add(self, key: str, after: float = 0.0) -> None:
        """Have a key worked on. Whoever adds keys has a bound for their number.

        :param after: seconds; a key that is due earlier stays so.
        """
        due = self._clock() + after
        with self._changed:
            if not self._stopping and due < self._due.get(key, math.inf):
                self._due[key] = due
                heapq.heappush(self._ordered, (due, next(self._numbers), key))
                if len(self._ordered) > 2 * len(self._due) + _MOST_PASSED:
                    # Most of them were due earlier, and are done.
                    self._ordered = [(due, next(self._numbers), key)
                                     for key, due in self._due.items()]
                    heapq.heapify(self._ordered)
                # One alone may be who waits for another key, and not a worker.
                self._changed.notify_all()

    def is_idle(self) -> bool:
        """Return whether no key is due, and none is worked on."""
        with self._changed:
            return not self.ages() and not self._running

    def ages(self) -> list[float]:
        """Return for how many seconds each key that is due has waited."""
        now = self._clock()
        with self._changed:
            return [now - due for due in self._due.values() if due <= now]

    def wait(self, key: str, seconds: float) -> bool:
        """Wait until a key has been worked on that was added.

        :param seconds: at most.
        :returns: False if that time has passed, its work fails, or the queue stops.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping or (
                key not in self._due and key not in self._running), seconds) \
                and not self._stopping

    def wake(self) -> None:
        """Read the clock again: its seconds have not passed by themselves."""
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        while (key := self._take()) is not None:
            try:
                self._work(key)
                self._pauses.forget(key)
            except Exception as error:
                self.add(key, self._pauses.postpone(key))
                self._tell(key, error)
            finally:
                with self._changed:
                    self._running.discard(key)
                    if key in self._due:
                        # It was passed over meanwhile.
                        heapq.heappush(self._ordered,
                                       (self._due[key], next(self._numbers), key))
                    self._changed.notify_all()

    def _tell(self, key: str, error: Exception) -> None:
        try:
            self._failed(key, error)
        except Exception:
            LOG.exception('%s: %s: the error %r cannot be told of', self._name, key, error)

    def _take(self) -> str | None:
        """Wait for a key that is due; None when the queue stops."""
        with self._changed:
            while not self._stopping:
                due = self._first()
                if due is not None and due <= self._clock():
                    _due, _number, key = heapq.heappop(self._ordered)
                    del self._due[key]
                    self._running.add(key)
                    return key
                self._changed.wait(None if due is None else due - self._clock())
        return None

    def _first(self) -> float | None:
        """Return when the next key is due that nobody works on; under the lock."""
        while self._ordered:
            due, _number, key = self._ordered[0]
            if self._due.get(key) == due and key not in self._running:
                return due
            heapq.heappop(self._ordered)
        return None
