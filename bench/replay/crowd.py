"""Plays many boots at the same time, by one thread: the servers of one host.

A thread each would wait for each other's Python; here one waits for all disks and think times.
"""

import contextlib
import dataclasses
import heapq
import os
import select
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable

import nbd

from bench.replay import player, trace
from bench.replay.trace import Trace

_PATIENCE = 600.0


@dataclasses.dataclass
class _Guest:
    index: int
    player: player._Player
    tail: float
    began: float = 0.0
    following: int = 0


@dataclasses.dataclass(frozen=True)
class Ended:
    """One boot that is over.

    :ivar began: when its first request was due, monotonic seconds.
    :ivar end: when it had booted.
    :ivar waited: seconds that its reads took, added up.
    :ivar written: the same of all other requests.
    :ivar digest: of all that was read; 0 if it was not asked for.
    """

    began: float
    end: float
    waited: float
    written: float
    digest: int


class Crowd:
    """Boots that are played by the thread that calls :meth:`run`; others add them meanwhile.

    :param scale: factor of the think times.
    :param overhead: of the player, in seconds a request.
    """

    def __init__(self, scale: float, verify: bool, overhead: float):
        self._scale, self._verify, self._overhead = scale, verify, overhead
        self._inbox: deque[_Guest | BaseException] = deque()
        self._wake, self._woken = os.pipe()
        self._lock = threading.Lock()
        self._guests: dict[int, _Guest] = {}
        self._timers: list[tuple[float, int]] = []
        self._writing: set[int] = set()
        self._ended: dict[int, Ended] = {}

    def add(self, index: int, socket_path: str, export: str, trace: Trace) -> None:
        """Have a boot begin, now."""
        handle = player.connect(socket_path, export)
        self._put(_Guest(index, player._Player(handle, trace.boot, self._scale, self._verify,
                                               self._overhead), trace.header.tail * self._scale))

    def fail(self, error: BaseException) -> None:
        """Have :meth:`run` raise this."""
        self._put(error)

    def _put(self, one: _Guest | BaseException) -> None:
        with self._lock:
            self._inbox.append(one)
            # Nobody listens any more after a failure.
            with contextlib.suppress(OSError):
                os.write(self._woken, b'.')

    def _take(self) -> list[int]:
        with self._lock:
            os.read(self._wake, 4096)
            found = list(self._inbox)
            self._inbox.clear()
        for one in found:
            if isinstance(one, BaseException):
                raise one
            one.began = time.monotonic()
            self._guests[one.player.handle.aio_get_fd()] = one
        return [one.player.handle.aio_get_fd() for one in found if isinstance(one, _Guest)]

    def run(self, count: int, ended: Callable[[int], None] = lambda index: None) -> list[Ended]:
        """Play until this many boots are over.

        :param ended: called with a boot's index when it is over.
        :raises PlayError: if a disk fails or does not answer.
        """
        try:
            while len(self._ended) < count:
                for descriptor in self._wait():
                    guest = self._guests[descriptor]
                    if self._advance(descriptor, guest):
                        self._finish(descriptor, guest)
                        ended(guest.index)
            return [self._ended[index] for index in sorted(self._ended)]
        finally:
            with self._lock:
                os.close(self._wake)
                os.close(self._woken)
                # What is written by now must not go to whoever gets the number next.
                self._woken = -1

    def _wait(self) -> set[int]:
        """Wait until something happens, and have libnbd work; whom it concerns."""
        now = time.monotonic()
        pause = max(0.0, self._timers[0][0] - now) if self._timers else _PATIENCE
        reads, writes, _ = select.select([self._wake, *self._guests], list(self._writing), [],
                                         pause)
        touched: set[int] = set()
        for descriptor in reads:
            if descriptor == self._wake:
                touched.update(self._take())
                continue
            self._guests[descriptor].player.handle.aio_notify_read()
            touched.add(descriptor)
        for descriptor in writes:
            handle = self._guests[descriptor].player.handle
            if handle.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
                handle.aio_notify_write()
            touched.add(descriptor)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _due, descriptor = heapq.heappop(self._timers)
            if descriptor in self._guests:
                touched.add(descriptor)
        if not touched and not self._timers:
            raise player.PlayError(f'no disk answered within {_PATIENCE:.0f} s')
        return touched

    def _advance(self, descriptor: int, guest: _Guest) -> bool:
        """Issue what is due; whether the boot is over."""
        one = guest.player
        while guest.following < len(one.requests):
            due = one.due(guest.following, guest.began)
            if due is None:
                break
            if due > time.monotonic():
                heapq.heappush(self._timers, (due, descriptor))
                break
            one.issue(guest.following)
            guest.following += 1
        if one.handle.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
            self._writing.add(descriptor)
        else:
            self._writing.discard(descriptor)
        if guest.following < len(one.requests) or one.flying:
            return False
        end = self._end(guest)
        if end > time.monotonic():
            heapq.heappush(self._timers, (end, descriptor))
            return False
        return True

    @staticmethod
    def _end(guest: _Guest) -> float:
        return guest.tail + max((done for done in guest.player.completed if done is not None),
                                default=guest.began)

    def _finish(self, descriptor: int, guest: _Guest) -> None:
        one = guest.player
        digest = 0
        for part in one.sums if self._verify else ():
            digest = zlib.crc32(part.to_bytes(4, 'little'), digest)
        took = [(done or begun) - begun for begun, done in
                zip(one.issued, one.completed, strict=True)]
        waited = sum(seconds for seconds, request in zip(took, one.requests, strict=True)
                     if request.op == trace.READ)
        self._ended[guest.index] = Ended(guest.began, self._end(guest), waited,
                                         sum(took) - waited, digest)
        del self._guests[descriptor]
        self._writing.discard(descriptor)
        one.handle.shutdown()
