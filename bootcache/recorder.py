"""From a growing store's map to what was read, in first-read order. Pure."""

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Any

from bootcache.workingset import Extent


@dataclasses.dataclass(frozen=True)
class Sample:
    """How large the growing store was at a time.

    :ivar seconds: monotonic.
    :ivar file_bytes: size of the store's file.
    """

    seconds: float
    file_bytes: int


def extents_from_map(entries: Sequence[dict[str, Any]], samples: Sequence[Sample]) -> list[Extent]:
    """Turn a growing store's map into extents in first-read order.

    Data clusters are sorted by their place in the file. Clusters that read as zeros have no place;
    they come last, without a time (most are never asked for: see bootcache/cacheimage.py).

    :param entries: of :func:`bootcache.qemuimg.allocation_map`.
    :param samples: sizes over time, ascending; the first growth counts as second 0.
    """
    placed = sorted((entry for entry in entries if entry['data'] and 'offset' in entry),
                    key=lambda entry: entry['offset'])
    zeros = [entry for entry in entries if entry.get('present') and entry['zero']]
    start = samples[0].file_bytes if samples else 0
    grown = next((sample.seconds for sample in samples if sample.file_bytes > start), 0.0)
    sizes = [sample.file_bytes for sample in samples]
    extents: list[Extent] = []
    for entry in placed:
        # One entry may have grown over several samples: split it where the file grew.
        position, file_offset, left = entry['start'], entry['offset'], entry['length']
        while left:
            index, length, seconds = bisect.bisect_right(sizes, file_offset), left, None
            if index < len(sizes):
                length = min(left, sizes[index] - file_offset)
                seconds = round(max(0.0, samples[index].seconds - grown), 3)
            extents.append(Extent(position, length, seconds))
            position, file_offset, left = position + length, file_offset + length, left - length
    extents.extend(Extent(entry['start'], entry['length']) for entry in zeros)
    return extents


def between(entries: list[dict[str, Any]], begin: int, end: int,
            with_zeros: bool) -> list[dict[str, Any]]:
    """Return the part of a store's map that lies between two places in its file.

    :param entries: of :func:`bootcache.qemuimg.allocation_map`.
    :param begin: bytes.
    :param end: bytes.
    :param with_zeros: whether to return what has no place.
    """
    found = []
    for entry in entries:
        if 'offset' not in entry:
            if with_zeros:
                found.append(entry)
            continue
        before = max(0, begin - entry['offset'])
        length = min(entry['length'], end - entry['offset']) - before
        if length > 0:
            found.append({**entry, 'start': entry['start'] + before, 'length': length,
                          'offset': entry['offset'] + before})
    return found
