"""The working set of a boot: what it reads from the base, in the order of the first reads.

SC13 section 2 measures it, section 3.2 caches its first blocks up to the quota; YOLO section 3
lays it out in first-read order. Everything here is pure.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bootcache import exception
from bootcache.quoting import quoted

VERSION = 1
# A boot of gigabytes in 4 KiB pieces; more is a lie or a mistake.
MAX_EXTENTS = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """A run of bytes in the base.

    :ivar offset: bytes from the start of the base.
    :ivar length: bytes, more than 0.
    :ivar seconds: when it was first read, in seconds from the first read of the boot, or None
        where the recorder does not know.
    """

    offset: int
    length: int
    seconds: float | None = None

    @property
    def end(self) -> int:
        """The first byte after the extent."""
        return self.offset + self.length


def total_bytes(extents: Iterable[Extent]) -> int:
    """Return the sum of the extents' lengths in bytes."""
    return sum(extent.length for extent in extents)


def pieces(extents: Iterable[Extent], most: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length of each piece of extents.

    :param most: bytes of a piece.
    """
    for extent in extents:
        for offset in range(extent.offset, extent.end, most):
            yield offset, min(most, extent.end - offset)


def to_wire(extents: Iterable[Extent]) -> list[list[Any]]:
    """Return extents as lists for JSON and RPC: ``[offset, length]`` or with the seconds."""
    return [[e.offset, e.length] if e.seconds is None else [e.offset, e.length, e.seconds]
            for e in extents]


def _merge(pieces: Iterable[Extent]) -> list[Extent]:
    merged: list[Extent] = []
    for piece in pieces:
        if merged and merged[-1].end == piece.offset and merged[-1].seconds == piece.seconds:
            merged[-1] = dataclasses.replace(merged[-1], length=merged[-1].length + piece.length)
        else:
            merged.append(piece)
    return merged


def align(extents: Iterable[Extent], granularity: int, virtual_bytes: int) -> list[Extent]:
    """Round extents outwards to a granularity; each cluster comes once, where it was first read.

    The last cluster ends with the base. Neighbours that follow each other become one extent.

    :param granularity: bytes, more than 0.
    :param virtual_bytes: size of the base.
    """
    seen: set[int] = set()
    pieces: list[Extent] = []
    for extent in extents:
        first = extent.offset // granularity
        last = (extent.end - 1) // granularity
        for cluster in range(first, last + 1):
            if cluster in seen:
                continue
            seen.add(cluster)
            start = cluster * granularity
            pieces.append(Extent(start, min(granularity, virtual_bytes - start), extent.seconds))
    return _merge(pieces)


def clip(extents: Iterable[Extent], budget: int) -> list[Extent]:
    """Return the first extents whose lengths fit a budget in bytes; the last one may be shortened.

    SC13 section 3.2: "the first n blocks of data are stored in the cache until the quota is
    reached". Give aligned extents and a budget that is a multiple of their granularity.
    """
    kept: list[Extent] = []
    for extent in extents:
        if budget <= 0:
            break
        length = min(extent.length, budget)
        kept.append(dataclasses.replace(extent, length=length))
        budget -= length
    return kept


def joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans, from begin to end each, ascending; those that touch or overlap become one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def uncovered(wanted: Iterable[Extent], have: Iterable[Extent]) -> int:
    """Return how many bytes of ``wanted`` (which does not overlap itself) are not in ``have``."""
    spans = joined((extent.offset, extent.end) for extent in have)
    missing = 0
    position = 0
    for extent in sorted(wanted, key=lambda item: item.offset):
        missing += extent.length
        while position < len(spans) and spans[position][1] <= extent.offset:
            position += 1
        index = position
        while index < len(spans) and spans[index][0] < extent.end:
            missing -= min(extent.end, spans[index][1]) - max(extent.offset, spans[index][0])
            index += 1
    return missing


def is_granularity(value: Any) -> bool:
    """Tell whether a recorder may round to that: a power of two from 512 bytes to 2 MiB. Pure."""
    return type(value) is int and 512 <= value <= 1 << 21 and not value & (value - 1)


def _checked_extents(raw: Any, virtual_bytes: int) -> tuple[Extent, ...]:
    if not isinstance(raw, list | tuple) or len(raw) > MAX_EXTENTS:
        raise exception.InvalidWorkingSet(
            f'extents must be a list of at most {MAX_EXTENTS} entries')
    extents = []
    for entry in raw:
        if not isinstance(entry, list | tuple) or len(entry) not in (2, 3):
            raise exception.InvalidWorkingSet(
                f'extent {quoted(entry)} is not [offset, length, seconds]')
        offset, length = entry[0], entry[1]
        seconds = entry[2] if len(entry) == 3 else None
        if type(offset) is not int or type(length) is not int \
                or offset < 0 or length <= 0 or offset + length > virtual_bytes:
            raise exception.InvalidWorkingSet(
                f'extent {quoted(entry)} does not lie within the base of {virtual_bytes} bytes')
        if seconds is not None and (type(seconds) not in (int, float) or not 0 <= seconds < 1e9):
            raise exception.InvalidWorkingSet(f'extent {quoted(entry)}: seconds must be 0 or more')
        extents.append(Extent(offset, length, seconds))
    return tuple(extents)


def _check_apart(extents: Iterable[Extent]) -> None:
    end = 0
    for extent in sorted(extents, key=lambda extent: extent.offset):
        if extent.offset < end:
            raise exception.InvalidWorkingSet(
                f'extent [{extent.offset}, {extent.length}] overlaps another one')
        end = extent.end


@dataclasses.dataclass(frozen=True)
class WorkingSet:
    """A recorded working set, tied to one content of one image.

    :ivar image_id: the Glance image's id, or a file's name for the stand-alone command.
    :ivar image_hash: ``algorithm:hexadecimal`` of the image's stored bytes.
    :ivar virtual_bytes: size of the base.
    :ivar granularity: bytes to which the recorder rounded.
    :ivar extents: in first-read order; they do not overlap.
    """

    image_id: str
    image_hash: str
    virtual_bytes: int
    granularity: int
    extents: tuple[Extent, ...]

    @property
    def bytes(self) -> int:
        """The sum of the extents' lengths."""
        return total_bytes(self.extents)

    @classmethod
    def from_wire(cls, image_id: str, image_hash: str, virtual_bytes: int, granularity: int,
                  raw: Any, limit: int | None = None, are_apart: bool = False) -> 'WorkingSet':
        """Make a working set from a report, which may be wrong or hostile.

        :param raw: a list of ``[offset, length]`` or ``[offset, length, seconds]``.
        :param limit: bytes of extents to keep, the first ones; None for all.
        :param are_apart: whether who recorded them notes no byte twice; otherwise it counts once.
        :raises InvalidWorkingSet: if an extent lies outside the base, two overlap that must not,
            or the values are no numbers.
        """
        if not is_granularity(granularity):
            raise exception.InvalidWorkingSet(
                f'granularity {quoted(granularity)} is not a power of two from 512 to 2 MiB')
        extents: Sequence[Extent] = _checked_extents(raw, virtual_bytes)
        if are_apart:
            _check_apart(extents)
        if limit is not None:
            extents = clip(extents, limit)
        return cls(image_id, image_hash, virtual_bytes, granularity,
                   tuple(align(extents, granularity, virtual_bytes)))

    def to_json(self) -> dict[str, Any]:
        """Return the document that doc/source/formats.rst describes."""
        return {'version': VERSION, 'image_id': self.image_id, 'image_hash': self.image_hash,
                'virtual_bytes': self.virtual_bytes, 'granularity': self.granularity,
                'extents': to_wire(self.extents)}

    @classmethod
    def from_json(cls, document: Any) -> 'WorkingSet':
        """Read the document back.

        :raises InvalidWorkingSet: if it is damaged or of another version.
        """
        if not isinstance(document, dict) or document.get('version') != VERSION:
            raise exception.InvalidWorkingSet(
                f'not a working set of version {VERSION}; build the image again')
        try:
            return cls.from_wire(str(document['image_id']), str(document['image_hash']),
                                 int(document['virtual_bytes']), document['granularity'],
                                 document['extents'])
        except (KeyError, TypeError, ValueError) as error:
            raise exception.InvalidWorkingSet(f'damaged working set: {error!r}') from error

    @classmethod
    def load(cls, path: str) -> 'WorkingSet':
        """Read a working set file.

        :raises InvalidWorkingSet: if it is damaged or cannot be read.
        """
        try:
            with open(path) as stream:
                return cls.from_json(json.load(stream))
        except (OSError, ValueError) as error:
            raise exception.InvalidWorkingSet(f'cannot read {path}: {error}') from error
