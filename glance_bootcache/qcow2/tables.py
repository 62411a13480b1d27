"""All tables of a qcow2: aligned, within the file, none on another one, no data on any.

What only makes a writer fail is let pass, as nobody writes to a base: refcounts that are wrong,
clusters that nothing leads to, a file that was not closed. So is data that two entries lead to.
Whoever writes to a copy of one looks at its refcounts first: filestore/snapshots.py.
Snapshots are never loaded, so their L2 tables are not read.
"""

from bootcache.exception import ImageRefused
from glance_bootcache.qcow2 import bitmaps, l2tables, snapshots
from glance_bootcache.qcow2 import header as headers
from glance_bootcache.qcow2.header import Header, Reader
from glance_bootcache.qcow2.places import OFFSET, Places

# Whoever opens a qcow2 keeps these tables in memory as long as it is open, and a file of some
# kilobytes can ask for 40 MiB. 16 TiB with qcow2's usual clusters of 64 KiB take 0.4 MiB.
MOST_TABLE_BYTES = 4 << 20
MOST_SNAPSHOTS = 64
_CURE = '"qemu-img convert -O qcow2" makes one that is served'
_COPIED = 1 << 63
# Bits 0 to 8 of an entry of the refcount table.
_REFCOUNT_RESERVED = (1 << 9) - 1


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
    bitmaps.take(reader, header, places, MOST_TABLE_BYTES)
    of_snapshots = snapshots.take(reader, header, places)
    snapshots.check(reader, of_snapshots, places)
    for words in reader.words(header.l1_offset, header.l1_entries, 'the L1 table'):
        for entry in words:
            places.take_entry(entry, ~(OFFSET | _COPIED), 'an L2 table')
    # Only now is it known where all tables are.
    for words in reader.words(header.l1_offset, header.l1_entries, 'the L1 table'):
        for entry in words:
            if entry & OFFSET:
                _check_l2(reader, header, places, entry & OFFSET)
    return header


def _check_l2(reader: Reader, header: Header, places: Places, offset: int) -> None:
    for entries in reader.words(offset, header.cluster_bytes // 8, 'an L2 table'):
        try:
            l2tables.check(entries, header, places, reader.length)
        except ImageRefused as error:
            raise ImageRefused(f'{error} (L2 table at {offset})') from None


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
