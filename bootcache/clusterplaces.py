"""Where the clusters of a qcow2 lie in its file: the order in which they were written.

``qemu-img map`` has no places of compressed clusters. So the tables are read here, of files whose
sha256 is known only; nothing but an order is made of it. glance_bootcache/qcow2 checks tenants'.
"""

import array
import struct
import sys
from collections.abc import Iterator
from typing import BinaryIO

from bootcache import exception

_MAGIC, _VERSION = b'QFI\xfb', 3
# What a reader has to know: that the compression type is not zlib.
_COMPRESSION_TYPE = 1 << 3
_COMPRESSED = 1 << 62
# Of a cluster that is not compressed, and of tables.
_PLACE = (1 << 56) - 512
_ZERO = 1
_MOST_TABLE_BYTES = 64 << 20


class ClusterPlaces:
    """The clusters of a qcow2 that have data in its file.

    :ivar cluster_bytes: size of a cluster.
    :ivar virtual_bytes: size of the disk.
    :ivar places: offsets in the file, by offsets in the disk.
    :ivar compressed: how many of them are compressed.
    """

    def __init__(self, path: str):
        """Read them.

        :param path: of a file that nobody writes to, and that nobody but us has made.
        :raises BootcacheError: if it has what a cache image never has.
        :raises OSError: if it cannot be read.
        """
        self.places: dict[int, int] = {}
        self.compressed = 0
        with open(path, 'rb') as stream:
            try:
                self._read(stream)
            except struct.error as error:
                raise exception.BootcacheError(f'{path} is no whole qcow2: {error}') from error
            except ValueError as error:
                raise exception.BootcacheError(f'{path}: {error}') from error

    def _read(self, stream: BinaryIO) -> None:
        magic, version, bits, self.virtual_bytes, tables, at, features = struct.unpack(
            '>4sI12xIQ4xIQ24xQ', stream.read(80))
        if (magic, version) != (_MAGIC, _VERSION) or features & ~_COMPRESSION_TYPE \
                or not 9 <= bits <= 21:
            raise ValueError('not a qcow2 as cache images are')
        self.cluster_bytes = 1 << bits
        per_table = self.cluster_bytes // 8
        for number, entry in enumerate(_numbers(stream, at, tables)):
            if entry & _PLACE:
                self._add(number * per_table * self.cluster_bytes,
                          _numbers(stream, entry & _PLACE, per_table), bits)

    def _add(self, offset: int, entries: Iterator[int], bits: int) -> None:
        """Note what a table tells of the disk from an offset on."""
        # The place, a byte's, shares its number with the count of sectors.
        byte = (1 << (62 - (bits - 8))) - 1
        for number, entry in enumerate(entries):
            if entry & _COMPRESSED:
                self.compressed += 1
                self.places[offset + number * self.cluster_bytes] = entry & byte
            elif entry & _PLACE and not entry & _ZERO:
                self.places[offset + number * self.cluster_bytes] = entry & _PLACE


def _numbers(stream: BinaryIO, place: int, count: int) -> Iterator[int]:
    if count * 8 > _MOST_TABLE_BYTES:
        raise ValueError(f'a table of {count} entries')
    stream.seek(place)
    read = stream.read(count * 8)
    if len(read) < count * 8:
        raise ValueError('a table is not within the file')
    numbers = array.array('Q', read)
    if sys.byteorder == 'little':
        numbers.byteswap()
    return iter(numbers)
