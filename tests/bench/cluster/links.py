"""A link that all transfers share fairly."""

import heapq
import itertools
from typing import Any

import simpy


class FairLink:
    """Transfers share a capacity equally, each of them bounded by its own end.

    As all transfers have the same rate at any time, what each has got since it began is the growth
    of one number: so a transfer costs the logarithm of their count, not the count.

    :param capacity: bytes a second of all transfers together.
    :param each: bytes a second of one.
    """

    def __init__(self, env: simpy.Environment, capacity: float, each: float):
        self._env = env
        self._capacity = capacity
        self._each = each
        # Bytes that a transfer has got which is under way since the beginning of time.
        self._got = 0.0
        self._since = 0.0
        self._flows: list[tuple[float, int, Any]] = []
        self._number = itertools.count()
        self._plan = 0
        self.bytes = 0.0

    def _advance(self) -> float:
        rate = min(self._each, self._capacity / max(1, len(self._flows)))
        self._got += rate * (self._env.now - self._since)
        self._since = self._env.now
        return rate

    def transfer(self, size: float) -> Any:
        """Begin a transfer of bytes; the event of its end."""
        self._advance()
        self.bytes += size
        done = self._env.event()
        heapq.heappush(self._flows, (self._got + size, next(self._number), done))
        self._wait()
        return done

    def _wait(self) -> None:
        self._plan += 1
        if not self._flows:
            return
        rate = min(self._each, self._capacity / len(self._flows))
        left = max(0.0, self._flows[0][0] - self._got)
        plan = self._plan
        self._env.timeout(left / rate).callbacks.append(lambda _event: self._wake(plan))

    def _wake(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._advance()
        # The first one is done, whatever rounding says.
        limit = max(self._got, self._flows[0][0]) + 1e-6
        while self._flows and self._flows[0][0] <= limit:
            heapq.heappop(self._flows)[2].succeed()
        self._wait()
