"""Internal snapshots: never loaded, but whoever opens the file reads the list of them."""

import struct

from bootcache.exception import ImageRefused
from glance_bootcache.qcow2.header import Header, Reader
from glance_bootcache.qcow2.places import OFFSET, Places

_ENTRY = struct.Struct('>QIHHIIQII')
# qemu-img's own limits of an id and a name, and what QEMU takes of what may come yet.
_LONGEST_ID, _LONGEST_NAME, _MOST_EXTRA = 128, 256, 1024
_MOST_L1_BYTES = 32 << 20
_COPIED = 1 << 63


def take(reader: Reader, header: Header, places: Places) -> list[tuple[int, int]]:
    """Check the list of a file's snapshots, and note where it and their L1 tables are.

    :returns: offset and entries of each snapshot's L1 table.
    :raises ImageRefused: if it makes no sense.
    """
    begin = place = header.snapshots_offset
    found, length = [], 0
    for _number in range(header.snapshots):
        offset, entries, name_id, name, *_times, extra = _ENTRY.unpack(
            reader.read(place, _ENTRY.size, 'the list of snapshots'))
        if name_id > _LONGEST_ID or name > _LONGEST_NAME or extra > _MOST_EXTRA:
            raise ImageRefused('the name of a snapshot, or what is told of it, is too long')
        length += 8 * entries
        if length > _MOST_L1_BYTES:
            raise ImageRefused(f'the L1 tables of its snapshots have more than {_MOST_L1_BYTES}'
                               ' bytes')
        places.take(offset, 8 * entries, 'the L1 table of a snapshot')
        found.append((offset, entries))
        end = place + _ENTRY.size + extra + name_id + name
        place = -(-end // 8) * 8
    if header.snapshots:
        places.take(begin, end - begin, 'the list of snapshots')
    return found


def check(reader: Reader, tables: list[tuple[int, int]], places: Places) -> None:
    """Check where the snapshots' L2 tables are: they may be those of the disk as well.

    :param tables: as ``take`` returned them.
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
