"""Image files that pass inspection, and that cannot be read in one place."""

import os
import random
import struct

from functional_tools import qemu_img

MIB = 1 << 20
_OFFSET = 0x00fffffffffffe00
_COMPRESSED = 1 << 62


def make(path, virtual_bytes, *options):
    """Make a qcow2 whose every cluster has content that compresses, but not to nothing."""
    raw, source = f'{path}.raw', random.Random(1)
    with open(raw, 'wb') as stream:
        for _piece in range(-(-virtual_bytes // 4096)):
            stream.write(source.randbytes(1024) * 4)
        stream.truncate(virtual_bytes)
    qemu_img('convert', '-f', 'raw', '-O', 'qcow2', *options, raw, path)
    os.unlink(raw)


def _entry(stream, offset):
    """Return the place of the L2 entry of a cluster, the entry, and the bits of the cluster size.

    All of it lies within the first L2 table's reach.
    """
    stream.seek(0)
    header = stream.read(104)
    bits, = struct.unpack('>I', header[20:24])
    stream.seek(struct.unpack('>Q', header[40:48])[0])
    table = struct.unpack('>Q', stream.read(8))[0] & _OFFSET
    place = table + 8 * (offset >> bits)
    stream.seek(place)
    return place, struct.unpack('>Q', stream.read(8))[0], bits


def spoil_data(path, offset):
    """Rot the data of a compressed cluster."""
    with open(path, 'r+b') as stream:
        _place, entry, bits = _entry(stream, offset)
        assert entry & _COMPRESSED
        stream.seek(entry & ((1 << (62 - (bits - 8))) - 1))
        stream.write(b'\xff' * 256)


def spoil_table(path, offset):
    """Have the table name a place for a cluster where none can be."""
    with open(path, 'r+b') as stream:
        place, entry, _bits = _entry(stream, offset)
        stream.seek(place)
        stream.write(struct.pack('>Q', entry | 0x200))


def make_bomb(path, virtual_bytes):
    """Make a small file all of whose L2 tables lead to one compressed cluster."""
    make(path, 4 * MIB, '-c', '-o', 'cluster_size=256k')
    qemu_img('resize', '-q', '-f', 'qcow2', path, virtual_bytes)
    with open(path, 'r+b') as stream:
        _place, entry, bits = _entry(stream, 0)
        stream.seek(36)
        l1_entries, l1 = struct.unpack('>IQ', stream.read(12))
        tables = -(-os.path.getsize(path) >> bits) << bits
        stream.seek(tables)
        # Each has a place of its own: tables that share one are refused at once.
        stream.write(struct.pack('>Q', entry) * (l1_entries << (bits - 3)))
        stream.seek(l1)
        stream.write(struct.pack(f'>{l1_entries}Q', *(
            1 << 63 | tables + (number << bits) for number in range(l1_entries))))
