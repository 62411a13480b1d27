"""Plays a trace against an NBD export, with the guest's think times: a guest without its CPU.

One connection, requests in the trace's order, as many in flight as the guest had. A request is
issued when the one that the guest had last heard of is complete and its think time is over, and
never before its predecessor. What is written is noise of the same length, as a trace has no data.
"""

import dataclasses
import random
import select
import time
import zlib
from collections.abc import Sequence

import nbd

from bench.replay import trace
from bench.replay.trace import Request

_PATIENCE = 300.0


class PlayError(Exception):
    """The disk failed, or did not answer."""


@dataclasses.dataclass(frozen=True)
class Played:
    """One replayed boot.

    :ivar seconds: from the beginning to the boot's end.
    :ivar cpu_seconds: of the player itself.
    :ivar issued: for each request, seconds from the beginning.
    :ivar completed: the same.
    :ivar digest: of all that was read, in the trace's order; 0 if it was not asked for.
    """

    seconds: float
    cpu_seconds: float
    issued: list[float]
    completed: list[float]
    digest: int

    def service_seconds(self) -> float:
        """The sum of the requests' times."""
        return sum(done - begun for begun, done in zip(self.issued, self.completed, strict=True))


class _Player:
    def __init__(self, handle: nbd.NBD, requests: Sequence[Request], scale: float, verify: bool,
                 overhead: float):
        self.overhead = overhead
        self.handle = handle
        self.requests = requests
        self.scale = scale
        self.verify = verify
        self.issued = [0.0] * len(requests)
        self.completed: list[float | None] = [None] * len(requests)
        self.sums = [0] * len(requests)
        self.flying = 0
        self.noise = memoryview(random.Random(0).randbytes(
            max((one.length for one in requests if one.op == trace.WRITE), default=0)))

    def issue(self, index: int) -> None:
        """Send a request."""
        one = self.requests[index]
        buffer = bytearray(one.length) if one.op == trace.READ else None

        def done(error: int) -> int:
            if error:
                raise PlayError(f'request {index} ({one}) failed: error {error}')
            self.completed[index] = time.monotonic()
            self.flying -= 1
            if self.verify and buffer is not None:
                self.sums[index] = zlib.crc32(buffer)
            return 1

        self.flying += 1
        self.issued[index] = time.monotonic()
        if buffer is not None:
            self.handle.aio_pread(nbd.Buffer.from_buffer(buffer), one.offset, done)
        elif one.op == trace.WRITE:
            self.handle.aio_pwrite(nbd.Buffer.from_buffer(self.noise[:one.length]), one.offset,
                                   done)
        elif one.op == trace.ZERO:
            self.handle.aio_zero(one.length, one.offset, done)
        elif one.op == trace.TRIM:
            self.handle.aio_trim(one.length, one.offset, done)
        else:
            self.handle.aio_flush(done)

    def due(self, index: int, began: float) -> float | None:
        """Return when a request is to be issued, or None if that is not known yet."""
        one = self.requests[index]
        heard = began if one.after < 0 else self.completed[one.after]
        if heard is None:
            return None
        return heard + max(0.0, one.think * self.scale - self.overhead)

    def wait(self, seconds: float) -> None:
        """Let libnbd work until something happens, at most for a time."""
        direction = self.handle.aio_get_direction()
        fd = self.handle.aio_get_fd()
        reads, writes, _ = select.select(
            [fd] if direction & nbd.AIO_DIRECTION_READ else [],
            [fd] if direction & nbd.AIO_DIRECTION_WRITE else [], [], seconds)
        if reads:
            self.handle.aio_notify_read()
        elif writes:
            self.handle.aio_notify_write()
        elif seconds >= _PATIENCE:
            raise PlayError(f'the disk did not answer within {seconds:.0f} s')

    def run(self, began: float) -> None:
        """Play all of it."""
        following = 0
        while following < len(self.requests) or self.flying:
            pause = _PATIENCE
            while following < len(self.requests):
                due = self.due(following, began)
                if due is None:
                    break
                pause = due - time.monotonic()
                if pause > 0:
                    break
                pause = _PATIENCE
                self.issue(following)
                following += 1
            self.wait(pause)


def connect(socket_path: str, export: str) -> nbd.NBD:
    """Connect to an export on a unix socket."""
    handle = nbd.NBD()
    handle.set_export_name(export)
    handle.connect_unix(socket_path)
    return handle


def play(socket_path: str, export: str, requests: Sequence[Request], tail: float = 0.0, *,
         scale: float = 1.0, verify: bool = False, overhead: float = 0.0) -> Played:
    """Play a boot.

    :param tail: seconds from the last completion to the boot's end.
    :param scale: factor of the think times and of the tail.
    :param verify: whether to compute a digest of what is read.
    :param overhead: seconds that a request takes by way of this player and not in a guest; taken
        off the think times. See ``check.calibrate``.
    :raises PlayError: if a request fails or is not answered.
    """
    handle = connect(socket_path, export)
    player = _Player(handle, requests, scale, verify, overhead)
    cpu = time.thread_time()
    began = time.monotonic()
    player.run(began)
    cpu = time.thread_time() - cpu
    completed = [done for done in player.completed if done is not None]
    latest = max(completed, default=began)
    end = latest + tail * scale
    time.sleep(max(0.0, end - time.monotonic()))
    handle.shutdown()
    digest = 0
    for one in player.sums if verify else ():
        digest = zlib.crc32(one.to_bytes(4, 'little'), digest)
    return Played(end - began, cpu, [moment - began for moment in player.issued],
                  [moment - began for moment in completed], digest)
