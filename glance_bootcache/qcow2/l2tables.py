"""Entries of L2 tables: what they may say of data, compressed or not, with subclusters or not."""

import array
import functools
import operator
from collections.abc import Sequence

from bootcache.exception import ImageRefused
from glance_bootcache.qcow2.header import Header
from glance_bootcache.qcow2.places import OFFSET, Places

_COPIED, _COMPRESSED, _ZERO = 1 << 63, 1 << 62, 1
_SECTOR_BITS = 9
_LOW = (1 << 32) - 1


def check(entries: "array.array[int]", header: Header, places: Places, file_bytes: int) -> None:
    """Check one L2 table.

    :param entries: all of the table.
    :param places: of the file's tables.
    :raises ImageRefused: if QEMU would take an entry for damaged, or it leads beyond the file or
        onto a table. That two lead to the same data is nobody's harm.
    """
    if not any(entries):
        return
    clusters: Sequence[int] = entries
    if header.extended_l2:
        clusters = entries[::2]
        _check_subclusters(clusters, entries[1::2])
    compressed = [entry for entry in clusters if entry & _COMPRESSED]
    plain = [entry for entry in clusters if entry and not entry & _COMPRESSED]
    # Version 2 has no clusters of zeros; with subclusters, the second word tells of them.
    zero = _ZERO if header.version > 2 and not header.extended_l2 else 0
    if functools.reduce(operator.or_, plain, 0) & ~(_COPIED | OFFSET | zero):
        raise ImageRefused('an entry of an L2 table has bits that are reserved')
    places.check_offsets(plain, 'a cluster of data')
    if compressed:
        places.check_clusters(_compressed(compressed, header.cluster_bits, file_bytes),
                              'a compressed cluster')


def _compressed(entries: Sequence[int], bits: int, file_bytes: int) -> set[int]:
    """Return the clusters that compressed data lies in."""
    if functools.reduce(operator.or_, entries) & _COPIED:
        raise ImageRefused('a compressed cluster is marked as one that may be written to')
    # The rest of the entry counts the sectors after the first.
    shift = 62 - (bits - 8)
    # The last sector may be cut: a file ends where its data does.
    end = -(-file_bytes >> _SECTOR_BITS)
    found: set[int] = set()
    for entry in entries:
        offset = entry & ((1 << shift) - 1)
        last = (offset >> _SECTOR_BITS) + ((entry & ~_COMPRESSED) >> shift)
        if last >= end:
            raise ImageRefused('a compressed cluster is not within the file')
        found.update(range(offset >> bits, (last << _SECTOR_BITS >> bits) + 1))
    return found


def _check_subclusters(clusters: Sequence[int], bitmaps: Sequence[int]) -> None:
    for entry, bitmap in zip(clusters, bitmaps, strict=True):
        data, zeros = bitmap & _LOW, bitmap >> 32
        if entry & _COMPRESSED:
            if bitmap:
                raise ImageRefused('a compressed cluster has subclusters')
        elif data & zeros or (data and not entry & OFFSET):
            raise ImageRefused('an entry of an L2 table has subclusters that cannot be')
