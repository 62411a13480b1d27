"""All tables of a qcow2: aligned, within the file, none on another one, no data on any.

What only makes a writer fail is let pass, as nobody writes to a base: refcounts that are wrong,
clusters that nothing leads to, a file that was not closed. So is data that two entries lead to.
Whoever writes to a copy of one looks at its refcounts first: filestore/snapshots.py.
Snapshots are never loaded, so their L2 tables are not read.
"""

import array
import functools
import operator
import struct
from collections.abc import Sequence

from bootcache.exception import ImageRefused
from glance_bootcache.qcow2 import header as headers
from glance_bootcache.qcow2.header import Header, Reader
from glance_bootcache.qcow2.places import OFFSET, Places

# Whoever opens a qcow2 keeps these tables in memory as long as it is open, and a file of some
# kilobytes can ask for 40 MiB. 16 TiB with qcow2's usual clusters of 64 KiB take 0.4 MiB.
MOST_TABLE_BYTES = 4 << 20
MOST_SNAPSHOTS = 64
_CURE = '"qemu-img convert -O qcow2" makes one that is served'
_COPIED, _COMPRESSED, _ZERO = 1 << 63, 1 << 62, 1
_SECTOR_BITS = 9
_LOW = (1 << 32) - 1
# Bits 0 to 8 of an entry of the refcount table.
_REFCOUNT_RESERVED = (1 << 9) - 1
_SNAPSHOT = struct.Struct('>QIHHIIQII')
# qemu-img's own limits of a snapshot's id and name, and what QEMU takes of what may come yet.
_LONGEST_ID, _LONGEST_NAME, _MOST_EXTRA = 128, 256, 1024
_MOST_L1_BYTES = 32 << 20


def check(reader: Reader, max_virtual_bytes: int) -> Header:
    """Look at a qcow2's header and all of its tables.

    Memory: some 100 MiB at most. Time: in proportion to the L2 tables that the file has.

    :param max_virtual_bytes: that the disk may have.
    :returns: the header.
    :raises ImageRefused: with a line that says why it is not to be opened.
    :raises OSError: if it cannot be read.
    """
    header = headers.read(reader)
    if header.virtual_bytes > max_virtual_bytes:
        raise ImageRefused(f'it is a disk of {header.virtual_bytes} bytes;'
                           f' [bootcache]max_virtual_size is {max_virtual_bytes}')
    if header.kept_bytes > MOST_TABLE_BYTES or header.snapshots > MOST_SNAPSHOTS:
        raise ImageRefused(
            f'it has tables of {header.kept_bytes} bytes and {header.snapshots} snapshots, which'
            f' whoever opens it keeps in memory; {MOST_TABLE_BYTES} bytes and {MOST_SNAPSHOTS}'
            f' snapshots are served. {_CURE}')
    places = Places(header.cluster_bits, reader.length)
    places.take(0, min(header.cluster_bytes, reader.length), 'the header')
    places.take(header.l1_offset, 8 * header.l1_entries, 'the L1 table')
    _take_refcounts(reader, header, places)
    of_snapshots = _take_snapshots(reader, header, places)
    _check_snapshots(reader, of_snapshots, places)
    for words in reader.words(header.l1_offset, header.l1_entries, 'the L1 table'):
        for entry in words:
            places.take_entry(entry, ~(OFFSET | _COPIED), 'an L2 table')
    # Only now is it known where all tables are.
    for words in reader.words(header.l1_offset, header.l1_entries, 'the L1 table'):
        for entry in words:
            if entry & OFFSET:
                _check_l2(reader, header, places, entry & OFFSET)
    return header


def _take_refcounts(reader: Reader, header: Header, places: Places) -> None:
    length = header.refcount_clusters << header.cluster_bits
    if not length:
        raise ImageRefused('there is no refcount table')
    places.take(header.refcount_offset, length, 'the refcount table')
    for words in reader.words(header.refcount_offset, length // 8, 'the refcount table'):
        for entry in words:
            # An offset of 64 bits here, so what is above OFFSET is beyond any file.
            if entry & ~OFFSET & ~_REFCOUNT_RESERVED:
                raise ImageRefused(f'refcounts, at {entry}, are not within the file')
            places.take_entry(entry, _REFCOUNT_RESERVED, 'a block of refcounts')


def _take_snapshots(reader: Reader, header: Header, places: Places) -> list[tuple[int, int]]:
    """Check the list of a file's snapshots, and note where it and their L1 tables are.

    :returns: offset and entries of each snapshot's L1 table.
    :raises ImageRefused: if it makes no sense.
    """
    begin = place = header.snapshots_offset
    found, length = [], 0
    for _number in range(header.snapshots):
        offset, entries, name_id, name, *_times, extra = _SNAPSHOT.unpack(
            reader.read(place, _SNAPSHOT.size, 'the list of snapshots'))
        if name_id > _LONGEST_ID or name > _LONGEST_NAME or extra > _MOST_EXTRA:
            raise ImageRefused('the name of a snapshot, or what is told of it, is too long')
        length += 8 * entries
        if length > _MOST_L1_BYTES:
            raise ImageRefused(f'the L1 tables of its snapshots have more than {_MOST_L1_BYTES}'
                               ' bytes')
        places.take(offset, 8 * entries, 'the L1 table of a snapshot')
        found.append((offset, entries))
        end = place + _SNAPSHOT.size + extra + name_id + name
        place = -(-end // 8) * 8
    if header.snapshots:
        places.take(begin, end - begin, 'the list of snapshots')
    return found


def _check_snapshots(reader: Reader, tables: list[tuple[int, int]], places: Places) -> None:
    """Check where the snapshots' L2 tables are: they may be those of the disk as well.

    :param tables: as ``_take_snapshots`` returned them.
    :param places: without the disk's L2 tables.
    :raises ImageRefused: if one lies on what is no L2 table, or is not within the file.
    """
    for offset, entries in tables:
        for words in reader.words(offset, entries, 'the L1 table of a snapshot'):
            for entry in words:
                if entry & ~(OFFSET | _COPIED):
                    raise ImageRefused('an entry for a snapshot\'s L2 table has bits that are'
                                       ' reserved')
            places.check_offsets(words, 'an L2 table of a snapshot')


def _check_l2(reader: Reader, header: Header, places: Places, offset: int) -> None:
    for entries in reader.words(offset, header.cluster_bytes // 8, 'an L2 table'):
        try:
            _check_entries(entries, header, places, reader.length)
        except ImageRefused as error:
            raise ImageRefused(f'{error} (L2 table at {offset})') from None


def _check_entries(entries: "array.array[int]", header: Header, places: Places,
                   file_bytes: int) -> None:
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
