"""Hostile qcow2 images, each written by a few lines: what QEMU makes, with some bytes changed."""

import os
import struct

import rotten
from functional_tools import qemu_img

MIB = 1 << 20
COPIED, COMPRESSED = 1 << 63, 1 << 62
OFFSET = 0x00fffffffffffe00
CLUSTER = 65536
# Where things are in a header.
BACKING, BITS, SIZE, CRYPT, L1_ENTRIES, L1, REFTABLE, REFCLUSTERS, SNAPSHOTS, SNAPSHOT_LIST, \
    INCOMPATIBLE, AUTOCLEAR, LENGTH, EXTENSIONS = 8, 20, 24, 32, 36, 40, 48, 56, 60, 64, 72, 88, \
    100, 112
WILD = 1 << 50


def read(path, offset, kind='>Q'):
    """Return a number of the file."""
    with open(path, 'rb') as stream:
        stream.seek(offset)
        return struct.unpack(kind, stream.read(struct.calcsize(kind)))[0]


def patch(path, offset, content, kind='>Q'):
    """Write a number, or bytes, into the file."""
    with open(path, 'r+b') as stream:
        stream.seek(offset)
        stream.write(content if isinstance(content, bytes) else struct.pack(kind, content))


def disk(path, *options):
    """Make one with data in its first 4 MiB."""
    rotten.make(path, 4 * MIB, *options)


def word(offset, value, *options):
    """Return what makes one with another word in its header."""
    def make(path):
        disk(path, *options)
        patch(path, offset, value)
    return make


def half(offset, value):
    """Return what makes one with other 32 bits in its header."""
    def make(path):
        disk(path)
        patch(path, offset, value, '>I')
    return make


def entry(of, value, *options, number=0):
    """Return what makes one with another entry in a table.

    :param of: finds the table.
    :param value: the entry, or what makes it of path and the entry that there is.
    """
    def make(path):
        disk(path, *options)
        place = of(path) + 8 * number
        patch(path, place, value(path, read(path, place)) if callable(value) else value)
    return make


def header(path):
    """Return where the header is; the following functions, where a table is."""
    return 0


def l1(path):
    """The L1 table."""
    return read(path, L1)


def reftable(path):
    """The refcount table."""
    return read(path, REFTABLE)


def refblock(path):
    """The first block of refcounts."""
    return read(path, reftable(path))


def l2(path):
    """The first L2 table."""
    return read(path, l1(path)) & OFFSET


def at(table, bits=0):
    """Return what makes an entry that leads to a table."""
    return lambda path, _entry: table(path) | bits


def ending(path, _entry):
    """Return the first cluster after the file's end."""
    return -(-os.path.getsize(path) // CLUSTER) * CLUSTER


def backed(backing, backing_format='raw'):
    """Return what makes one with a backing file."""
    return lambda path: qemu_img('create', '-q', '-f', 'qcow2', '-u', '-b', backing, '-F',
                                 backing_format, path, 4 * MIB)


def extension(kind, data, autoclear=0):
    """Return what makes one with an extension in its header, before any other."""
    def make(path):
        disk(path)
        content = struct.pack('>II', kind, len(data)) + data + bytes(-len(data) % 8)
        patch(path, EXTENSIONS, content + bytes(8))
        patch(path, AUTOCLEAR, autoclear)
    return make


def data_file(path):
    qemu_img('create', '-q', '-f', 'qcow2', '-o', f'data_file={path}.data,data_file_raw=on', path,
             4 * MIB)
    os.unlink(f'{path}.data')


def data_file_of_others(path):
    """It names a file that the storage node has; QEMU asks for it by an extension."""
    disk(path)
    patch(path, INCOMPATIBLE, 1 << 2)
    name = b'/etc/passwd'
    patch(path, EXTENSIONS, struct.pack('>II', 0x44415441, len(name)) + name + bytes(13))


def two_tables_in_one(path):
    """All of a large disk is one L2 table's."""
    disk(path)
    qemu_img('resize', '-q', '-f', 'qcow2', path, '64G')
    table = l1(path)
    for number in range(128):
        patch(path, table + 8 * number, read(path, table))


def bomb(path):
    rotten.make_bomb(path, 64 << 30)


def rotten_data(path):
    disk(path, '-c')
    rotten.spoil_data(path, 2 * MIB)


def snapshots(count, offset=None, **changes):
    """Return what makes one with a list of snapshots at its end, unless that is elsewhere."""
    def make(path):
        disk(path)
        place = ending(path, None)
        fields = {'l1': 0, 'entries': 0, 'id': 1, 'name': 1, 'extra': 16, **changes}
        one = struct.pack('>QIHHIIQII', fields['l1'], fields['entries'], fields['id'],
                          fields['name'], 0, 0, 0, 0, fields['extra']) + bytes(24)
        patch(path, place, one * min(count, 100) + bytes(2 * CLUSTER))
        patch(path, SNAPSHOTS, count, '>I')
        patch(path, SNAPSHOT_LIST, place if offset is None else offset)
    return make


def bitmap(path):
    disk(path)
    qemu_img('bitmap', '--add', path, 'b')


def cut(length):
    """Return what makes one whose end is missing."""
    def make(path):
        disk(path)
        os.truncate(path, length if length > 0 else os.path.getsize(path) // 2)
    return make


def many_extensions(path):
    disk(path)
    patch(path, EXTENSIONS, struct.pack('>II', 0x12345678, 0) * 2000)


def with_iso(path):
    disk(path)
    patch(path, 32768, b'\x01CD001\x01')


def with_partitions(path):
    disk(path)
    patch(path, 510, b'\x55\xaa')


def old(path):
    """Version 1, which QEMU calls qcow."""
    qemu_img('create', '-q', '-f', 'qcow', path, 4 * MIB)


NOT_SAFE = 'not safe to open'
MAKERS = {
    'a backing file': (backed('/etc/passwd'), 'backing_file'),
    'a backing file by json': (backed('json:{"driver":"file","filename":"/etc/passwd"}'),
                               'backing_file'),
    'a backing file by nbd': (backed('nbd://127.0.0.1:1/x'), 'backing_file'),
    'a relative backing file': (backed('../../secret', 'qcow2'), 'backing_file'),
    'a data file': (data_file, 'data_file'),
    'another one\'s data file': (data_file_of_others, 'data_file'),
    'a data file without its bit': (extension(0x44415441, b'/etc/passwd'), 'data file'),
    'a raw data file': (word(AUTOCLEAR, 2), 'data file'),
    'a feature of tomorrow': (word(INCOMPATIBLE, 1 << 5), 'unknown_features'),
    'the last feature': (word(INCOMPATIBLE, 1 << 63), 'unknown_features'),
    'subclusters': (lambda path: disk(path, '-o', 'extended_l2=on'), 'unknown_features'),
    'marked as corrupt': (word(INCOMPATIBLE, 2), 'corrupt'),
    'aes': (half(CRYPT, 1), 'encrypted'), 'luks': (half(CRYPT, 2), 'encrypted'),
    'a header of encryption': (extension(0x0537be77, bytes(16)), 'encrypted'),
    'version 1': (old, NOT_SAFE), 'version 9': (half(4, 9), 'version'),
    'clusters of 1 byte': (half(BITS, 0), 'clusters'), 'clusters of 256': (half(BITS, 8), 'clust'),
    'clusters of 4 MiB': (half(BITS, 22), 'clusters'), 'huge clusters': (half(BITS, 63), 'clust'),
    '16 EiB': (word(SIZE, (1 << 64) - 512), 'L1 table|max_virtual'),
    '8 EiB': (word(SIZE, 1 << 63), 'L1 table|max_virtual'),
    '16 EiB with tables': (lambda path: (word(SIZE, (1 << 64) - 512)(path), patch(
        path, L1_ENTRIES, 0xffffffff, '>I')), 'max_virtual|L1 table'),
    'more than its L1 table': (word(SIZE, 1 << 40), 'L1 table'),
    'a huge L1 table': (half(L1_ENTRIES, 0xffffffff), 'tables of'),
    'an L1 table beyond the end': (half(L1_ENTRIES, 1 << 18), 'table'),
    'no L1 table': (half(L1_ENTRIES, 0), 'L1 table'),
    'a wild L1 table': (word(L1, WILD), 'L1 table'),
    'L1 at the end of it all': (word(L1, (1 << 64) - CLUSTER), 'L1 table'),
    'an L1 table within a cluster': (word(L1, 3 * CLUSTER + 512), 'L1 table'),
    'an L1 table in the header': (word(L1, 0), 'L1 table'),
    'an L1 table on refcounts': (word(L1, CLUSTER), 'refcount table|L1 table'),
    'a wild L2 table': (entry(l1, COPIED | WILD), 'L2 table'),
    'an L2 table within a cluster': (entry(l1, lambda path, old: old | 512), 'L2 table'),
    'an L2 table of reserved bits': (entry(l1, lambda path, old: old | 1), 'L2 table'),
    'an L2 table beyond the end': (entry(l1, ending), 'L2 table'),
    'an L2 table on L1': (entry(l1, at(l1)), 'L2 table'),
    'an L2 table on refcounts': (entry(l1, at(refblock)), 'L2 table'),
    'one L2 table for all': (two_tables_in_one, 'L2 table'),
    'wild data': (entry(l2, COPIED | WILD), 'data'),
    'data within a cluster': (entry(l2, lambda path, old: old | 512), 'data'),
    'data of reserved bits': (entry(l2, lambda path, old: old | 2), 'reserved'),
    'data beyond the end': (entry(l2, ending), 'data'),
    'data on L1': (entry(l2, at(l1, COPIED)), 'data'),
    'data on L2': (entry(l2, at(l2, COPIED), number=8000), 'data'),
    'data on the refcount table': (entry(l2, at(reftable)), 'data'),
    'data on refcounts': (entry(l2, at(refblock)), 'data'),
    'zeros in version 2': (entry(l2, 1, '-o', 'compat=0.10'), 'reserved'),
    'wild compressed data': (entry(l2, COMPRESSED | WILD), 'compressed'),
    'compressed data beyond the end': (entry(l2, lambda path, old: old | 0xff << 54, '-c',
                                             number=63), 'compressed'),
    'compressed data on L2': (entry(l2, at(l2, COMPRESSED), '-c'), 'compressed'),
    'compressed data in the header': (entry(l2, COMPRESSED | 1 << 60 | 8, '-c'), 'compressed'),
    'compressed data to be written': (entry(l2, lambda path, old: old | COPIED, '-c'),
                                      'compressed'),
    'rotten compressed data': (rotten_data, 'cannot be read'),
    'a bomb': (bomb, 'of CPU time'),
    'a wild refcount table': (word(REFTABLE, WILD), 'refcount table'),
    'a refcount table within a cluster': (word(REFTABLE, CLUSTER + 512), 'refcount table'),
    'a refcount table in the header': (word(REFTABLE, 0), 'refcount table'),
    'a huge refcount table': (half(REFCLUSTERS, 0x7fffffff), 'tables of'),
    'no refcount table': (half(REFCLUSTERS, 0), 'refcount table'),
    'wild refcounts': (entry(reftable, WILD), 'refcounts'),
    'wilder refcounts': (entry(reftable, (1 << 64) - CLUSTER), 'refcounts'),
    'refcounts within a cluster': (entry(reftable, CLUSTER + 512), 'refcounts'),
    'refcounts in L1': (entry(reftable, at(l1)), 'refcounts'),
    'refcounts twice': (entry(reftable, at(refblock), number=1), 'refcounts'),
    'refcounts of 128 bits': (half(96, 7), 'refcounts'),
    'a short header': (half(LENGTH, 72), 'header'),
    'a long header': (half(LENGTH, 1 << 31), 'header'),
    'an extension without an end': (lambda path: (disk(path), patch(
        path, EXTENSIONS, struct.pack('>II', 1, 0xfffffff0))), 'extension'),
    'many extensions': (many_extensions, 'extensions'),
    'many snapshots': (snapshots(65), 'snapshots'),
    'snapshots without number': (snapshots(0xffffffff), 'snapshots'),
    'wild snapshots': (snapshots(1, WILD), 'snapshots'),
    'snapshots in the header': (snapshots(1, 0), 'snapshot'),
    'a snapshot of a long name': (snapshots(1, name=65535), 'snapshot'),
    'a snapshot that tells much': (snapshots(1, extra=0xffffffff), 'snapshot'),
    'a snapshot\'s wild L1 table': (snapshots(1, l1=WILD, entries=1), 'snapshot'),
    'a snapshot\'s huge L1 table': (snapshots(1, l1=CLUSTER, entries=0xffffffff), 'snapshot'),
    'a snapshot\'s L1 table in the header': (snapshots(1, l1=0, entries=1), 'snapshot'),
    'a bitmap': (bitmap, 'persistent bitmaps'),
    'cut in the header': (cut(60), ''), 'cut after the header': (cut(512), ''),
    'cut in the tables': (cut(3 * CLUSTER), ''), 'cut in the data': (cut(0), ''),
    'an ISO as well': (with_iso, 'Multiple|multiple'),
    'partitions as well': (with_partitions, 'Multiple|multiple'),
}
