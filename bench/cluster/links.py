"""A link that all transfers share fairly, and what comes over it as somebody reads it."""

import bisect
import heapq
import itertools
import math
from typing import Any

import simpy


class _Class:
    """Transfers with the same bound: all of them have the same rate at any time.

    So what each has got since it began is the growth of one number, and a transfer costs the
    logarithm of their count, not the count.

    So who reads along a transfer that began as ``got`` was g, itself since s and at a pace of p
    seconds a byte, is ``(now - p * got) - (s - p * g)`` seconds behind what it could have read.
    The first term is the same for all of them: its highest value since s is how long the reader
    had to wait in all.

    :ivar got: bytes that a transfer has got which is under way since the beginning of time.
    :ivar flows: what ``got`` is at each transfer's end, a number, and the event of it.
    :ivar readers: what ``got`` is at the end of what is read along, a number, since when, the
        second term, and the event of it.
    """

    def __init__(self) -> None:
        self.got = 0.0
        self.flows: list[tuple[float, int, Any]] = []
        self.readers: list[tuple[float, int, float, float, Any]] = []
        # Times, and the first term then: of those times alone after which it was never as high.
        self._highest: list[tuple[float, float]] = []

    def note(self, now: float, term: float) -> None:
        """Note the first term where the rate may change: it is highest at such a time."""
        while self._highest and self._highest[-1][1] <= term:
            self._highest.pop()
        self._highest.append((now, term))

    def forget(self) -> None:
        """Nobody reads along just now."""
        self._highest.clear()

    def highest(self, since: float) -> float:
        """Return the highest first term since a time at which it was noted."""
        return self._highest[bisect.bisect_left(self._highest, since, key=_time)][1]


def _time(noted: tuple[float, float]) -> float:
    return noted[0]


class Coming:
    """Bytes that come over a link, and can be read in their order as they come.

    :ivar done: the event of their end.
    """

    def __init__(self, link: 'FairLink', one: _Class, done: Any):
        self._link = link
        self._one = one
        self._first = one.got
        self.done = done

    def come(self) -> float:
        """Return how many of the bytes have come; infinite if all have."""
        return math.inf if self.done.triggered else self._link.got(self._one) - self._first

    def read_along(self, size: float) -> Any:
        """Begin to read the first of the bytes; the event of the last of these having come.

        Its value is how many seconds longer that takes than if all of them had been there.
        """
        if self.done.triggered:
            # By a hair before its end, as rounding has it.
            size = -math.inf
        return self._link.read_along(self._one, self._first, size)


class FairLink:
    """Transfers share a capacity equally; what one of them may not use is for the others.

    :param capacity: bytes a second of all transfers together.
    :param each: bytes a second of one.
    :param pace: seconds that who reads along takes for a byte which is there.
    :ivar bytes: of all transfers that have begun.
    """

    def __init__(self, env: simpy.Environment, capacity: float, each: float, pace: float = 0.0):
        self._env = env
        self._capacity = capacity
        self._each = each
        self._pace = pace
        self._classes: dict[float, _Class] = {}
        self._bounds: list[float] = []
        self._since = 0.0
        self._number = itertools.count()
        self._plan = 0
        self.bytes = 0.0
        self._passed = 0.0
        self._stopped = False

    @property
    def passed(self) -> float:
        """Bytes that have passed until now."""
        self._advance()
        return self._passed

    def stop(self) -> None:
        """Let nothing pass any more: what is under way never ends."""
        self._advance()
        self._stopped = True

    def got(self, one: _Class) -> float:
        """Return what a transfer of a class has got until now since the beginning of time."""
        self._advance()
        return one.got

    def _rates(self) -> list[tuple[_Class, float]]:
        """Return the rate of one transfer of each class that has any: the most even ones."""
        found: list[tuple[_Class, float]] = []
        if self._stopped:
            return found
        left, count = self._capacity, sum(len(one.flows) for one in self._classes.values())
        for bound in self._bounds:
            one = self._classes[bound]
            if one.flows:
                rate = min(bound, left / count)
                left -= rate * len(one.flows)
                count -= len(one.flows)
                found.append((one, rate))
        return found

    def _advance(self) -> None:
        passed = self._env.now - self._since
        if passed:
            for one, rate in self._rates():
                one.got += rate * passed
                self._passed += rate * passed * len(one.flows)
                if one.readers:
                    one.note(self._env.now, self._env.now - self._pace * one.got)
            self._since = self._env.now

    def transfer(self, size: float, bound: float = math.inf) -> Any:
        """Begin a transfer of bytes; the event of its end.

        :param bound: bytes a second of this one, if it paces itself.
        """
        return self.begin(size, bound).done

    def begin(self, size: float, bound: float = math.inf) -> Coming:
        """Begin a transfer of bytes that can be read as they come.

        :param bound: bytes a second of this one, if it paces itself.
        """
        self._advance()
        self.bytes += size
        bound = min(bound, self._each)
        if bound not in self._classes:
            self._classes[bound] = _Class()
            self._bounds = sorted(self._classes)
        one = self._classes[bound]
        coming = Coming(self, one, self._env.event())
        heapq.heappush(one.flows, (one.got + size, next(self._number), coming.done))
        self._wait()
        return coming

    def read_along(self, one: _Class, first: float, size: float) -> Any:
        """Begin to read bytes of a transfer: see :meth:`Coming.read_along`.

        :param first: what the class had got when the transfer began.
        """
        self._advance()
        come, now = self._env.event(), self._env.now
        if one.got >= first + size:
            return come.succeed(0.0)
        if not one.readers:
            one.forget()
        one.note(now, now - self._pace * one.got)
        heapq.heappush(one.readers, (first + size, next(self._number), now,
                                     now - self._pace * first, come))
        self._wait()
        return come

    def _wait(self) -> None:
        self._plan += 1
        rates = self._rates()
        if not rates:
            return
        # What is read along is a part of its transfer, and comes no later.
        left = min((min(queue[0][0] for queue in (one.flows, one.readers) if queue) - one.got)
                   / rate for one, rate in rates)
        plan = self._plan
        self._env.timeout(max(0.0, left)).callbacks.append(lambda _event: self._wake(plan))

    def _wake(self, plan: int) -> None:
        if plan != self._plan:
            return
        # Rounding leaves less than a microsecond's worth.
        self._advance()
        for one, rate in self._rates():
            limit = one.got + rate * 1e-6
            while one.readers and one.readers[0][0] <= limit:
                _end, _number, since, own, come = heapq.heappop(one.readers)
                come.succeed(max(0.0, one.highest(since) - own))
            while one.flows and one.flows[0][0] <= limit:
                heapq.heappop(one.flows)[2].succeed()
        self._wait()
