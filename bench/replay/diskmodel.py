"""A hard disk on paper: how long a request takes, by where the head is and what the drive buffers.

Needs nothing but Python, as nbdkit's own interpreter runs it (slowdisk.py).
"""

import dataclasses

INTERFACE_RATE = 400_000_000


@dataclasses.dataclass
class _Segment:
    """A part of the drive's buffer: what one reader has read, and what was read ahead of it.

    :ivar start: the first byte.
    :ivar end: the byte after what was there at ``since``.
    :ivar limit: where reading ahead ends.
    """

    start: int
    end: int
    limit: int


class Disk:
    """A drive with one head, a buffer that reads ahead, and a small write cache. Times in seconds.

    A request that goes on where the head is costs its transfer; a short gap costs passing over it;
    any other place costs an access, that is seek and half a turn. What the head passes over until
    the next request comes is buffered.

    :param access: seconds of an access.
    :param rate: of the medium, bytes a second.
    :param segments: how many readers the buffer tells apart.
    :param ahead: how far is read ahead, in bytes.
    :param pending: seconds of writing that the write cache holds.
    :param together: how much of one writer's it writes at a time, in bytes.
    """

    def __init__(self, access: float, rate: float, segments: int = 16, ahead: int = 512 << 10,
                 pending: float = 0.1, together: int = 1 << 20):
        self.access = access
        self.rate = rate
        self.ahead = ahead
        self.pending = pending
        self.together = together
        self.count = segments
        self.segments: list[_Segment] = []
        self.reading: _Segment | None = None
        self.position = 0
        self.free_at = 0.0
        self.written: list[int] = []

    def _go(self, now: float) -> float:
        """Move the head to where it is when it is free; that moment."""
        begin = max(now, self.free_at)
        if self.reading is not None:
            passed = int((begin - self.free_at) * self.rate)
            self.reading.end = min(self.reading.end + passed, self.reading.limit)
            self.position = self.reading.end
        self.free_at = begin
        return begin

    def _reach(self, offset: int) -> float:
        """Return how long the head takes to a place, without moving it."""
        gap = offset - self.position
        return min(self.access, gap / self.rate) if gap >= 0 else self.access

    def buffered(self, now: float, offset: int, length: int) -> bool:
        """Tell whether a read needs no head: all of it is in the buffer."""
        if now > self.free_at:
            self._go(now)
        return any(one.start <= offset and offset + length <= one.end for one in self.segments)

    def read(self, now: float, offset: int, length: int) -> float:
        """Return when a read is done."""
        end = offset + length
        if self.buffered(now, offset, length):
            return now + length / INTERFACE_RATE
        begin = self._go(now)
        last = self.reading
        if last is not None and last.start <= offset and \
                (offset <= self.position or self._reach(offset) < self.access):
            done = begin + (end - self.position) / self.rate
            last.end = end
        else:
            done = begin + self._reach(offset) + length / self.rate
            self.reading = last = _Segment(offset, end, end)
            self.segments = [*self.segments, last][-self.count:]
        last.limit = end + self.ahead
        self.position, self.free_at = end, done
        return done

    def write(self, now: float, offset: int, length: int) -> float:
        """Return when a write is done, that is in the drive's cache."""
        begin = self._go(now)
        self.reading = None
        reach = self._reach(offset)
        if offset in self.written:
            # The write cache puts together what several writers write each on and on.
            self.written.remove(offset)
            reach = min(reach, self.access * length / self.together)
        self.written = [*self.written, offset + length][-self.count:]
        self.free_at = begin + reach + length / self.rate
        self.position = offset + length
        return max(now + length / INTERFACE_RATE, self.free_at - self.pending)

    def flush(self, now: float) -> float:
        """Return when all that was written is on the medium."""
        return max(now, self.free_at) if self.reading is None else now


def following(offsets: list[int], position: int) -> int:
    """Return which of the waiting requests the head serves next: upwards, then from below again."""
    return min(range(len(offsets)),
               key=lambda index: (offsets[index] < position, offsets[index]))
