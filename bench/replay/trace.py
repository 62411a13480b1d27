"""One boot as the guest's block layer issued it: requests, their order, and the guest's own time.

A trace file is gzipped JSON lines. The first line is the header: ``format`` (bootcache-trace),
``version`` and the entries of :class:`Header`. Each further line is one request, in the order of
issue: ``[op, offset, length, after, think, service]``.

* ``op``: r (read), w (write), z (write zeroes), t (trim) or f (flush).
* ``offset``, ``length``: bytes; 0 for a flush.
* ``after``: index of the request that completed last before this one was issued, -1 for the start
  of the machine. Several requests may be in flight: this is what the guest had last heard of.
* ``think``: seconds from that completion (or from the start) to the issue.
* ``service``: seconds that the request took in the recording.

There is no data in it: neither what the guest read nor what it wrote.
"""

import dataclasses
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bootcache import workingset
from bootcache.workingset import Extent

FORMAT = 'bootcache-trace'
VERSION = 1
READ, WRITE, ZERO, TRIM, FLUSH = 'r', 'w', 'z', 't', 'f'
OPS = READ, WRITE, ZERO, TRIM, FLUSH


class TraceError(Exception):
    """A trace cannot be read, or is of another version."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One request of a boot; the module's docstring has the units."""

    op: str
    offset: int
    length: int
    after: int
    think: float
    service: float

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.length


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A request with its times, as a log has it.

    :ivar issued: seconds, of any clock.
    :ivar completed: seconds of the same clock.
    """

    op: str
    offset: int
    length: int
    issued: float
    completed: float


@dataclasses.dataclass(frozen=True)
class Header:
    """What a trace is of.

    :ivar image: name of the image, for people.
    :ivar image_hash: sha256 of the image file, hexadecimal.
    :ivar virtual_bytes: size of the disk.
    :ivar boot_requests: how many requests were issued before the boot's end; what follows is what
        was read until the guest had been quiet for a while.
    :ivar boot_seconds: from the start of the machine to the boot's end.
    :ivar tail: seconds from the last completion before the boot's end to that end.
    :ivar machine: accelerator, memory in MiB, number of CPUs, QEMU's version.
    """

    image: str
    image_hash: str
    virtual_bytes: int
    boot_requests: int
    boot_seconds: float
    tail: float
    machine: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Trace:
    """A recorded boot.

    :ivar requests: in the order of issue.
    """

    header: Header
    requests: tuple[Request, ...]

    @property
    def boot(self) -> tuple[Request, ...]:
        """The requests that were issued before the boot's end."""
        return self.requests[:self.header.boot_requests]

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix('.partial')
        head = {'format': FORMAT, 'version': VERSION, **dataclasses.asdict(self.header)}
        with gzip.open(partial, 'wt', encoding='ascii') as stream:
            stream.write(json.dumps(head) + '\n')
            for one in self.requests:
                stream.write(json.dumps([one.op, one.offset, one.length, one.after, one.think,
                                         one.service]) + '\n')
        partial.rename(path)

    @classmethod
    def load(cls, path: Path) -> 'Trace':
        """Read a file back.

        :raises TraceError: if it is damaged or of another version.
        """
        try:
            with gzip.open(path, 'rt', encoding='ascii') as stream:
                head = json.loads(stream.readline())
                if (head.pop('format'), head.pop('version')) != (FORMAT, VERSION):
                    raise TraceError(f'{path} is no trace of version {VERSION}; record it again')
                trace = cls(Header(**head), tuple(Request(*json.loads(line)) for line in stream))
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TraceError(f'{path} cannot be read: {error!r}; record it again') from error
        trace.check()
        return trace

    def check(self) -> None:
        """Check that the requests make sense.

        :raises TraceError: naming the first that does not.
        """
        for index, one in enumerate(self.requests):
            if one.op not in OPS or not -1 <= one.after < index or one.think < 0 \
                    or one.length < 0 or not 0 <= one.offset <= self.header.virtual_bytes \
                    or one.end > self.header.virtual_bytes:
                raise TraceError(f'request {index} makes no sense: {one}; record it again')
        if not 0 <= self.header.boot_requests <= len(self.requests):
            raise TraceError('the boot has more requests than the trace; record it again')


def from_events(events: Iterable[Event], started: float) -> tuple[Request, ...]:
    """Turn a log's events into requests with think times. Pure.

    :param events: in the order of issue.
    :param started: when the machine was started, on the events' clock.
    """
    known = list(events)
    # Completions in their own order, each with the index of its request.
    done = sorted((event.completed, index) for index, event in enumerate(known))
    requests: list[Request] = []
    passed = 0
    after, heard = -1, started
    for index, event in enumerate(known):
        # A completion counts if it was there before the issue, and its request is an earlier one.
        while passed < len(done) and done[passed][0] <= event.issued and done[passed][1] < index:
            heard, after = done[passed]
            passed += 1
        requests.append(Request(event.op, event.offset, event.length, after,
                                round(max(0.0, event.issued - heard), 6),
                                round(event.completed - event.issued, 6)))
    return tuple(requests)


def ideal_seconds(requests: Sequence[Request], tail: float = 0.0, scale: float = 1.0,
                  service: Sequence[float] | None = None) -> float:
    """Return how long a boot takes if each request takes what it is said to take. Pure.

    :param tail: seconds from the last completion to the boot's end.
    :param scale: factor of think times and tail.
    :param service: seconds for each request; None for those of the recording.
    """
    completed: list[float] = []
    issued = latest = 0.0
    for index, one in enumerate(requests):
        ready = completed[one.after] if one.after >= 0 else 0.0
        issued = max(issued, ready + one.think * scale)
        completed.append(issued + (one.service if service is None else service[index]))
        latest = max(latest, completed[-1])
    return latest + tail * scale


def read_extents(requests: Iterable[Request], granularity: int,
                 virtual_bytes: int) -> list[Extent]:
    """Return what an overlay of this granularity reads from below, in first-read order. Pure.

    Reads of what the guest has not written itself, and what a write that begins or ends within a
    cluster makes the overlay read of that cluster.

    :param granularity: of the overlay, in bytes.
    :param virtual_bytes: size of the disk.
    """
    own: set[int] = set()
    read: list[Extent] = []
    for one in requests:
        if not one.length:
            continue
        first, last = one.offset // granularity, (one.end - 1) // granularity
        if one.op == READ:
            read.extend(Extent(cluster * granularity, granularity)
                        for cluster in range(first, last + 1) if cluster not in own)
        elif one.op in (WRITE, ZERO):
            edges = {first} if one.offset % granularity else set()
            edges |= {last} if one.end % granularity and one.end < virtual_bytes else set()
            read.extend(Extent(cluster * granularity, granularity)
                        for cluster in sorted(edges) if cluster not in own)
            own.update(range(first, last + 1))
    return workingset.align(read, granularity, virtual_bytes)


def summary(trace: Trace) -> dict[str, Any]:
    """Return a trace's figures for a report: requests, bytes, and how much of it the guest thinks.
    """
    boot = trace.boot
    reads = [one for one in boot if one.op == READ]
    unique = read_extents(boot, 512, trace.header.virtual_bytes)
    instant = ideal_seconds(boot, trace.header.tail, service=[0.0] * len(boot))
    return {
        'image': trace.header.image, 'image_hash': trace.header.image_hash,
        'virtual_bytes': trace.header.virtual_bytes, 'requests': len(boot), 'reads': len(reads),
        'writes': sum(one.op == WRITE for one in boot),
        'read_bytes': sum(one.length for one in reads),
        'unique_bytes': workingset.total_bytes(unique),
        'boot_seconds': round(trace.header.boot_seconds, 3),
        'think_seconds': round(instant, 3), 'machine': trace.header.machine}
