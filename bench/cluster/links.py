"""A link that all transfers share fairly."""

import heapq
import itertools
import math
from typing import Any

import simpy


class _Class:
    """Transfers with the same bound: all of them have the same rate at any time.

    So what each has got since it began is the growth of one number, and a transfer costs the
    logarithm of their count, not the count.

    :ivar got: bytes that a transfer has got which is under way since the beginning of time.
    :ivar flows: what ``got`` is at each transfer's end, a number, and the event of it.
    """

    def __init__(self) -> None:
        self.got = 0.0
        self.flows: list[tuple[float, int, Any]] = []


class FairLink:
    """Transfers share a capacity equally; what one of them may not use is for the others.

    :param capacity: bytes a second of all transfers together.
    :param each: bytes a second of one.
    """

    def __init__(self, env: simpy.Environment, capacity: float, each: float):
        self._env = env
        self._capacity = capacity
        self._each = each
        self._classes: dict[float, _Class] = {}
        self._bounds: list[float] = []
        self._since = 0.0
        self._number = itertools.count()
        self._plan = 0
        self.bytes = 0.0

    def _rates(self) -> list[tuple[_Class, float]]:
        """Return the rate of one transfer of each class that has any: the most even ones."""
        found = []
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
            self._since = self._env.now

    def transfer(self, size: float, bound: float = math.inf) -> Any:
        """Begin a transfer of bytes; the event of its end.

        :param bound: bytes a second of this one, if it paces itself.
        """
        self._advance()
        self.bytes += size
        bound = min(bound, self._each)
        if bound not in self._classes:
            self._classes[bound] = _Class()
            self._bounds = sorted(self._classes)
        one = self._classes[bound]
        done = self._env.event()
        heapq.heappush(one.flows, (one.got + size, next(self._number), done))
        self._wait()
        return done

    def _wait(self) -> None:
        self._plan += 1
        rates = self._rates()
        if not rates:
            return
        left = min((one.flows[0][0] - one.got) / rate for one, rate in rates)
        plan = self._plan
        self._env.timeout(max(0.0, left)).callbacks.append(lambda _event: self._wake(plan))

    def _wake(self, plan: int) -> None:
        if plan != self._plan:
            return
        # Rounding leaves less than a microsecond's worth.
        self._advance()
        for one, rate in self._rates():
            limit = one.got + rate * 1e-6
            while one.flows and one.flows[0][0] <= limit:
                heapq.heappop(one.flows)[2].succeed()
        self._wait()
