"""A qcow2's header and its extensions: docs/interop/qcow2.txt of QEMU."""

import array
import dataclasses
import os
import struct
import sys
from collections.abc import Iterator

from bootcache.exception import ImageRefused

# The largest cluster that a qcow2 can have.
PIECE_BYTES = 2 << 20


class Reader:
    """Reads an open file at places that the file itself names.

    :param descriptor: of the file; it is not closed.
    :param length: of the file, in bytes.
    """

    def __init__(self, descriptor: int, length: int):
        self._descriptor = descriptor
        self.length = length

    def read(self, offset: int, count: int, what: str) -> bytes:
        """Return bytes of the file.

        :param count: at most ``PIECE_BYTES``.
        :param what: lies there, for the error.
        :raises ImageRefused: if the file does not have all of them.
        :raises OSError: if it cannot be read.
        """
        if count > PIECE_BYTES:
            raise ValueError(f'{count} bytes are more than a piece')
        if offset + count > self.length:
            raise ImageRefused(f'{what}, at {offset}, is not within the file')
        pieces = []
        while count:
            # A part of them only comes where a signal does, or the end.
            if not (piece := os.pread(self._descriptor, count, offset)):
                raise ImageRefused(f'{what}, at {offset}, is not within the file')
            pieces.append(piece)
            offset, count = offset + len(piece), count - len(piece)
        return b''.join(pieces)

    def words(self, offset: int, count: int, what: str) -> Iterator["array.array[int]"]:
        """Yield a table's entries of 64 bits, a piece at a time; raises as ``read``."""
        while count:
            some = min(count, PIECE_BYTES // 8)
            entries = array.array('Q', self.read(offset, 8 * some, what))
            if sys.byteorder == 'little':
                entries.byteswap()
            yield entries
            offset, count = offset + 8 * some, count - some


# All of version 2's; what version 3 has after it.
_FIRST = struct.Struct('>4sIQIIQIIQQIIQ')
_SECOND = struct.Struct('>QQQII')
_EXTENSION = struct.Struct('>II')
_CLUSTER_BITS = range(9, 22)
_HIGHEST_REFCOUNT_ORDER = 6
# Incompatible features. Those that are not named here are the inspector's to refuse.
_CORRUPT, _EXTENDED_L2 = 1 << 1, 1 << 4
# An autoclear feature.
_RAW_DATA_FILE = 1 << 1
_END, _BACKING_FORMAT = 0, 0xe2792aca
# Extensions of images that are not served. Whoever opens a file loads its bitmaps into memory.
_REFUSED = {
    0x44415441: 'it names an external data file', 0x0537be77: 'it is encrypted',
    0x23852875: 'it has persistent bitmaps. "qemu-img convert -O qcow2" makes one without them'}
# QEMU keeps each one in memory, also those that it does not know; it writes four at most.
_MOST_EXTENSIONS = 64
_LONGEST_FORMAT = 15


@dataclasses.dataclass(frozen=True)
class Header:
    """What a header says of where the tables are; offsets and lengths are in bytes.

    :ivar version: 2 or 3.
    :ivar cluster_bits: logarithm of a cluster's bytes.
    :ivar virtual_bytes: size of the disk.
    :ivar l1_entries: of the L1 table; refcount_clusters of the refcount table.
    :ivar snapshots: how many there are.
    :ivar extended_l2: entries of L2 tables have a second word, of subclusters.
    """

    version: int
    cluster_bits: int
    virtual_bytes: int
    l1_entries: int
    l1_offset: int
    refcount_offset: int
    refcount_clusters: int
    snapshots: int
    snapshots_offset: int
    extended_l2: bool = False

    @property
    def cluster_bytes(self) -> int:
        """Bytes of a cluster, and of an L2 table."""
        return 1 << self.cluster_bits

    @property
    def kept_bytes(self) -> int:
        """Bytes of tables that whoever opens the file keeps in memory."""
        return 8 * self.l1_entries + (self.refcount_clusters << self.cluster_bits)


def read(reader: Reader) -> Header:
    """Read a header.

    :raises ImageRefused: if QEMU would not open it, or it says what makes no sense, or is of a file
        that its writer takes for damaged.
    :raises OSError: if it cannot be read.
    """
    (_magic, version, backing, _backing_length, bits, virtual_bytes, encryption, l1_entries,
     l1_offset, refcount_offset, refcount_clusters, snapshots, snapshots_offset) = _FIRST.unpack(
         reader.read(0, _FIRST.size, 'the header'))
    if version not in (2, 3):
        raise ImageRefused(f'version {version} of the header is not known')
    if bits not in _CLUSTER_BITS:
        raise ImageRefused(f'clusters of 2^{bits} bytes are not known')
    if backing:
        raise ImageRefused('there is a backing file')
    if encryption:
        raise ImageRefused('it is encrypted')
    header = Header(version, bits, virtual_bytes, l1_entries, l1_offset, refcount_offset,
                    refcount_clusters, snapshots, snapshots_offset)
    length = _FIRST.size
    if version == 3:
        incompatible, _compatible, autoclear, order, length = _SECOND.unpack(
            reader.read(_FIRST.size, _SECOND.size, 'the header'))
        if incompatible & _CORRUPT:
            raise ImageRefused('QEMU has marked it as corrupt')
        if autoclear & _RAW_DATA_FILE:
            raise ImageRefused('it says that it has an external data file')
        if order > _HIGHEST_REFCOUNT_ORDER:
            raise ImageRefused(f'refcounts of 2^{order} bits are not known')
        if length < _FIRST.size + _SECOND.size or length % 8 or length > header.cluster_bytes:
            raise ImageRefused(f'a header of {length} bytes is not known')
        header = dataclasses.replace(header, extended_l2=bool(incompatible & _EXTENDED_L2))
    # An L2 table's last entry, and so the last byte of the disk, has to be within the L1 table.
    per_table = header.cluster_bytes // (16 if header.extended_l2 else 8) * header.cluster_bytes
    if l1_entries * per_table < virtual_bytes:
        raise ImageRefused(f'the L1 table has {l1_entries} entries, too few for the disk')
    _check_extensions(reader, length, header.cluster_bytes)
    return header


def _check_extensions(reader: Reader, start: int, end: int) -> None:
    names_format = False
    for kind, data in _extensions(reader, start, end):
        if kind in _REFUSED:
            raise ImageRefused(_REFUSED[kind])
        if kind == _BACKING_FORMAT:
            if names_format:
                raise ImageRefused('an extension of the header is there twice')
            if len(data) > _LONGEST_FORMAT:
                raise ImageRefused('its header names a format with too many bytes')
            names_format = True


def _extensions(reader: Reader, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield kind and data of each; a file may end where its extensions do."""
    area = reader.read(start, max(0, min(end, reader.length) - start), 'the header')
    place, count = 0, 0
    while place + _EXTENSION.size <= len(area):
        kind, length = _EXTENSION.unpack_from(area, place)
        if kind == _END:
            return
        place, count = place + _EXTENSION.size, count + 1
        if count > _MOST_EXTENSIONS:
            raise ImageRefused(f'its header has more than {_MOST_EXTENSIONS} extensions')
        if length > len(area) - place:
            raise ImageRefused('an extension of the header goes beyond its cluster')
        yield kind, area[place:place + length]
        place += -(-length // 8) * 8
