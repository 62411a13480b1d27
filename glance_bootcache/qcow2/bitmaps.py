"""Persistent bitmaps: whoever opens the file loads them into memory."""

import struct

from bootcache.exception import ImageRefused
from glance_bootcache.qcow2.header import BitmapDirectory, Header, Reader
from glance_bootcache.qcow2.places import OFFSET, Places

_ENTRY = struct.Struct('>QIIBBHI')
_IN_USE, _KNOWN_FLAGS = 1 << 0, 0b111
_DIRTY_TRACKING = 1
_GRANULARITY_BITS = range(9, 32)
_LONGEST_NAME = 1023
_MOST = 64
_MOST_DIRECTORY_BYTES = 128 << 10
# In an entry of a bitmap's table: all bits of the cluster are 1. Only where there is none.
_ONES = 1


def take(reader: Reader, header: Header, places: Places, most_bytes: int) -> None:
    """Check the bitmaps of a file, and note where they are.

    :param most_bytes: that they may have in memory, with their tables.
    :raises ImageRefused: if they take more, were in use when the file was written, or make no
        sense.
    """
    if header.bitmaps is None:
        return
    directory = _directory(reader, header.bitmaps, places)
    place, kept = 0, 0
    for _number in range(header.bitmaps.count):
        if place + _ENTRY.size > len(directory):
            raise ImageRefused('the directory of bitmaps is too short')
        offset, entries, flags, kind, bits, name, extra = _ENTRY.unpack_from(directory, place)
        if kind != _DIRTY_TRACKING or bits not in _GRANULARITY_BITS or flags & ~_KNOWN_FLAGS \
                or extra or not 0 < name <= _LONGEST_NAME:
            raise ImageRefused('a bitmap is of a kind that is not known')
        if flags & _IN_USE:
            raise ImageRefused('a bitmap was in use when the file was written, so it is not right')
        # A bit for each piece of that many bytes.
        length = -(-header.virtual_bytes // (8 << bits))
        kept += length + 8 * entries
        if kept > most_bytes:
            raise ImageRefused(f'its bitmaps take more than {most_bytes} bytes of memory')
        if entries << header.cluster_bits < length:
            raise ImageRefused('the table of a bitmap is too short')
        places.take(offset, 8 * entries, 'the table of a bitmap')
        for words in reader.words(offset, entries, 'the table of a bitmap'):
            for entry in words:
                places.take_entry(entry, ~(OFFSET if entry & OFFSET else _ONES), 'a bitmap')
        place += -(-(_ENTRY.size + name) // 8) * 8
    if place != len(directory):
        raise ImageRefused('the directory of bitmaps has a length that does not fit')


def _directory(reader: Reader, told: BitmapDirectory, places: Places) -> bytes:
    if told.count > _MOST or told.length > _MOST_DIRECTORY_BYTES:
        raise ImageRefused(f'it has {told.count} bitmaps, told of in {told.length} bytes; {_MOST}'
                           f' and {_MOST_DIRECTORY_BYTES} are served')
    places.take(told.offset, told.length, 'the directory of bitmaps')
    return reader.read(told.offset, told.length, 'the directory of bitmaps')
