"""Tables of a qcow2 that nobody should open; tests/functional/test_qcow2_tables.py has the good."""

import os
import struct

import hypothesis
import pytest
from hypothesis import strategies

from bootcache.exception import ImageRefused
from glance_bootcache.qcow2 import tables
from glance_bootcache.qcow2.header import PIECE_BYTES, Reader

CLUSTER = 512
HEADER, REFTABLE, REFBLOCK, L1, L2, DATA, COMPRESSED, SNAPSHOTS, SNAPSHOT_L1, END = (
    number * CLUSTER for number in range(10))
COPIED = 1 << 63
# Of a compressed cluster with clusters of 512 bytes: where the count of sectors begins.
SECTORS = 61
MOST = 1 << 20


def words(*values):
    return struct.pack(f'>{len(values)}Q', *values)


def place(document, offset, content):
    document[offset:offset + len(content)] = content


def snapshot(l1=SNAPSHOT_L1, entries=1, name_id=b'1', name=b'one', extra=16):
    found = struct.pack('>QIHHIIQII', l1, entries, len(name_id), len(name), 0, 0, 0, 0, extra) \
        + bytes(extra) + name_id + name
    return found + bytes(-len(found) % 8)


@pytest.fixture
def good():
    """A qcow2 with one of each: data, zeros, a compressed cluster, a snapshot, an extension."""
    document = bytearray(END)
    place(document, HEADER, struct.pack(
        '>4sIQIIQIIQQIIQQQQII', b'QFI\xfb', 3, 0, 0, 9, 16384, 0, 1, L1, REFTABLE, 1, 1, SNAPSHOTS,
        0, 0, 1, 4, 104))
    place(document, 104, struct.pack('>II', 0x12345678, 24))
    place(document, REFTABLE, words(REFBLOCK))
    place(document, L1, words(COPIED | L2))
    place(document, L2, words(COPIED | DATA, 1, 0, 1 << 62 | COMPRESSED + 7))
    place(document, SNAPSHOTS, snapshot())
    # One may share the disk's L2 table.
    place(document, SNAPSHOT_L1, words(L2))
    return document


@pytest.fixture
def check(tmp_path):
    """Return what looks at a document."""
    path = tmp_path / 'image'

    def look(document, most=MOST):
        path.write_bytes(document)
        with open(path, 'rb') as stream:
            return tables.check(Reader(stream.fileno(), os.path.getsize(path)), most)

    return look


def test_the_good_one(good, check):
    header = check(good)
    assert (header.version, header.cluster_bytes, header.virtual_bytes) == (3, 512, 16384)


PATCHES = {
    'version 1': (4, '>I', 1), 'a backing file': (8, '>Q', 300), 'no clusters': (20, '>I', 8),
    'large clusters': (20, '>I', 22), 'a huge disk': (24, '>Q', 1 << 63),
    'a disk beyond the L1 table': (24, '>Q', 32769), 'encrypted': (32, '>I', 2),
    'no L1 table': (36, '>I', 0), 'a large L1 table': (36, '>I', 1 << 20),
    'an L1 table beyond the file': (36, '>I', 64 * 10), 'an L1 table over others': (36, '>I', 65),
    'the L1 table is not aligned': (40, '>Q', L1 + 8), 'L1 in the header': (40, '>Q', 0),
    'L1 on the refcount table': (40, '>Q', REFTABLE), 'wild L1': (40, '>Q', 1 << 62),
    'refcounts in the header': (48, '>Q', 0), 'refcounts not aligned': (48, '>Q', REFTABLE + 1),
    'wild refcounts': (48, '>Q', 0xffffffffffff0000 - 512), 'no refcounts': (56, '>I', 0),
    'many refcounts': (56, '>I', 1 << 31), 'refcounts over others': (56, '>I', 2),
    'many snapshots': (60, '>I', 65), 'snapshots over others': (60, '>I', 20),
    'wild snapshots': (64, '>Q', 1 << 60), 'snapshots not aligned': (64, '>Q', SNAPSHOTS + 8),
    'snapshots in the header': (64, '>Q', 0), 'corrupt': (72, '>Q', 2),
    'raw data file': (88, '>Q', 2), 'bitmaps': (104, '>I', 0x23852875),
    'refcounts of 128 bits': (96, '>I', 7), 'a short header': (100, '>I', 96),
    'a long header': (100, '>I', 520), 'an odd header': (100, '>I', 106),
    'an extension beyond the cluster': (108, '>I', 512), 'a data file': (104, '>I', 0x44415441),
    'an encryption header': (104, '>I', 0x0537be77), 'a long format': (104, '>I', 0xe2792aca),
    'a wild refcount block': (REFTABLE, '>Q', 1 << 60), 'on L1': (REFTABLE, '>Q', L1),
    'a refcount block not aligned': (REFTABLE, '>Q', REFBLOCK + 8),
    'a refcount block beyond': (REFTABLE, '>Q', END),
    'the same refcount block': (REFTABLE + 8, '>Q', REFBLOCK),
    'reserved bits of L1': (L1, '>Q', 1), 'reserved in L1': (L1, '>Q', L2 | 1 << 60),
    'a wild L2': (L1, '>Q', COPIED | 1 << 50), 'L2 beyond': (L1, '>Q', COPIED | END),
    'L2 on L1': (L1, '>Q', L1), 'L2 on refcounts': (L1, '>Q', REFBLOCK),
    'L2 on snapshots': (L1, '>Q', SNAPSHOT_L1),
    'data on L2': (L2, '>Q', L2), 'data on L1': (L2, '>Q', COPIED | L1),
    'data on refcounts': (L2, '>Q', REFBLOCK),
    'wild data': (L2, '>Q', 1 << 55), 'data beyond': (L2, '>Q', END),
    'reserved of data': (L2, '>Q', DATA | 2), 'reserved above': (L2, '>Q', DATA | 1 << 58),
    'wild compressed': (L2, '>Q', 1 << 62 | 1 << 60), 'many sectors': (L2, '>Q', 1 << 62 | 1 << 61
                                                                      | END - 1),
    'compressed on L2': (L2, '>Q', 1 << 62 | L2 + 100),
    'compressed that ends on a table': (L2, '>Q', 1 << 62 | 1 << 61 | COMPRESSED + 100),
    'compressed to be written': (L2, '>Q', COPIED | 1 << 62 | COMPRESSED),
    'a snapshot\'s L2 on L1': (SNAPSHOT_L1, '>Q', L1),
    'a snapshot\'s wild L2': (SNAPSHOT_L1, '>Q', 1 << 50),
    'reserved of a snapshot': (SNAPSHOT_L1, '>Q', 1 << 60),
}


@pytest.mark.parametrize('patch', PATCHES.values(), ids=PATCHES)
def test_what_is_refused(good, check, patch):
    offset, kind, value = patch
    place(good, offset, struct.pack(kind, value))
    with pytest.raises(ImageRefused) as caught:
        check(good)
    assert str(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize('change', [
    {'l1': 1 << 60}, {'l1': SNAPSHOT_L1 + 8}, {'l1': L1}, {'entries': 65}, {'entries': 1 << 31},
    {'name_id': b'x' * 129}, {'name': b'x' * 257}, {'extra': 2048}, {'extra': 1032}],
    ids=str)
def test_snapshots_that_are_refused(good, check, change):
    # Where there is room for them.
    place(good, 64, words(END))
    with pytest.raises(ImageRefused):
        check(good + snapshot(**change))


def test_a_version_without_clusters_of_zeros(good, check):
    place(good, 4, struct.pack('>I', 2))
    place(good, 72, bytes(80))
    with pytest.raises(ImageRefused, match='reserved'):
        check(good)
    place(good, L2 + 8, words(0))
    assert check(good).version == 2


@pytest.mark.parametrize('kind, refused', [(0xe2792aca, True), (0x12345678, False)])
def test_an_extension_that_is_there_twice(good, check, kind, refused):
    place(good, 104, struct.pack('>II', kind, 0) + bytes(24))
    check(good)
    place(good, 104, struct.pack('>II', kind, 0) * 2)
    if refused:
        with pytest.raises(ImageRefused, match='twice'):
            check(good)
    else:
        check(good)


def test_many_extensions(good, check):
    place(good, 104, struct.pack('>II', 0x12345678, 0) * 50 + bytes(8))
    check(good)
    large = bytearray(1 << 17)
    place(large, 0, good[:104])
    place(large, 20, struct.pack('>I', 16))
    place(large, 104, struct.pack('>II', 0x12345678, 0) * 65)
    with pytest.raises(ImageRefused, match='extensions'):
        check(large)


@pytest.mark.parametrize('entry, bits, refused', [
    (DATA, 1, False), (DATA, 1 << 32, False), (0, 1 << 40, False), (DATA, 1 << 32 | 1, True),
    (0, 1, True), (DATA | 1, 1, True), (1 << 62 | COMPRESSED, 0, False),
    (1 << 62 | COMPRESSED, 1, True)])
def test_subclusters(good, check, entry, bits, refused):
    place(good, 72, words(1 << 4))
    place(good, L2, words(entry, bits, *([0] * 30)))
    if refused:
        with pytest.raises(ImageRefused):
            check(good)
    else:
        assert check(good).extended_l2


@pytest.mark.parametrize('length', [0, 71, 103, 200, L1, L1 + 7, L2 + 8, SNAPSHOTS, END - 512])
def test_files_that_are_cut(good, check, length):
    with pytest.raises(ImageRefused):
        check(good[:length])


def test_data_at_the_end_may_be_cut(good, check):
    """QEMU reads zeros there, and writes such a file where compressed data ends at an odd byte."""
    place(good, L2, words(COPIED | END))
    assert check(good + b'x').virtual_bytes == 16384


def test_what_leads_nowhere_or_twice_to_data_is_let_pass(good, check):
    place(good, L2, words(DATA, DATA, 1 << 62 | COMPRESSED, 1 << 62 | COMPRESSED, COPIED))
    place(good, REFBLOCK, bytes(CLUSTER))
    assert check(good + bytes(5 * CLUSTER))


def test_pieces_are_bounded(tmp_path):
    path = tmp_path / 'large'
    with open(path, 'wb') as stream:
        stream.truncate(3 * PIECE_BYTES)
    with open(path, 'rb') as stream:
        reader = Reader(stream.fileno(), 3 * PIECE_BYTES)
        assert [len(piece) for piece in reader.words(0, 3 * PIECE_BYTES // 8, 'it')] \
            == [PIECE_BYTES // 8] * 3
        with pytest.raises(ValueError, match='piece'):
            reader.read(0, PIECE_BYTES + 1, 'it')


CHANGES = strategies.lists(
    strategies.tuples(strategies.integers(0, END - 8),
                      strategies.one_of(
                          strategies.integers(0, (1 << 64) - 1),
                          strategies.sampled_from(range(0, END, CLUSTER)),
                          strategies.integers(0, 63).map(lambda bit: 1 << bit))),
    min_size=1, max_size=4)


@hypothesis.settings(max_examples=150, deadline=None, suppress_health_check=[
    hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(changes=CHANGES, length=strategies.integers(0, END + 600))
def test_whatever_it_says_it_is_refused_or_let_pass(good, check, changes, length):
    document = bytearray(good)
    for offset, value in changes:
        place(document, offset // 4 * 4, words(value))
    try:
        check((document + bytes(600))[:length])
    except ImageRefused as error:
        assert str(error)
