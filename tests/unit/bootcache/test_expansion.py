"""Expanding a compressed cache image: in which order, by which commands, and what is the same."""

import random
import struct

import pytest

from bootcache import exception, expansion
from bootcache.clusterplaces import ClusterPlaces
from bootcache.expansion import Layout
from bootcache.workingset import Extent

KIB = 1 << 10
FAR = expansion._OUT_OF_ORDER_BYTES // (64 * KIB)


def extents(*pieces):
    """Extents of clusters of 64 KiB: first and how many."""
    return tuple(Extent(first * 64 * KIB, count * 64 * KIB) for first, count in pieces)


def ordered(clusters, areas):
    """Put areas into the order of a file that has these clusters, one after the other."""
    places = {number * 64 * KIB: 1000 + rank * 300 for rank, number in enumerate(clusters)}
    return expansion.in_order(extents(*areas), places, 64 * KIB)


def test_the_order_is_that_of_the_file():
    assert ordered([9, 10, 2, 3, 4, 7], [(2, 3), (7, 1), (9, 2)]) \
        == extents((9, 2), (2, 3), (7, 1))


def test_clusters_that_were_stored_as_they_became_ready_are_put_right():
    assert ordered([11, 9, 10, 12, 3, 2, 4], [(2, 3), (9, 4)]) == extents((9, 4), (2, 3))


def test_what_was_read_much_later_stays_later():
    later = [100 + 2 * number for number in range(FAR + 1)]
    found = ordered([5, *later, 6], [(5, 2), *((number, 1) for number in later)])
    assert found[0] == extents((5, 1))[0] and found[-1] == extents((6, 1))[0]
    del later[FAR - 1:]
    found = ordered([5, *later, 6], [(5, 2), *((number, 1) for number in later)])
    assert found[0] == extents((5, 2))[0]


def test_the_last_cluster_may_be_short_and_one_without_a_place_is_last():
    found = expansion.in_order(
        [Extent(0, 64 * KIB), Extent(128 * KIB, 64 * KIB + 512)],
        {128 * KIB: 10, 192 * KIB: 20}, 64 * KIB)
    assert found == (Extent(128 * KIB, 64 * KIB + 512), Extent(0, 64 * KIB))


@pytest.mark.parametrize('seed', range(20))
def test_whatever_the_order_each_byte_is_there_once(seed):
    source = random.Random(seed)
    clusters = source.sample(range(300), 200)
    shuffled = clusters[:]
    source.shuffle(shuffled)
    found = ordered(shuffled[:190], [(number, 1) for number in clusters])
    assert sorted(number for extent in found
                  for number in range(extent.offset, extent.end, 64 * KIB)) \
        == sorted(number * 64 * KIB for number in clusters)


def test_qemu_is_told_to_read_what_there_is_and_to_mark_zeros():
    layout = Layout(extents((64, 48), (2, 1)), extents((3, 4)), 49, 1 << 30, 64 * KIB)
    assert expansion.commands(layout).split('\n') == [
        'read -q 4194304 2097152', 'read -q 6291456 1048576', 'read -q 131072 65536',
        'write -q -z 196608 262144', 'flush', 'quit', '']
    assert expansion.commands(Layout((), (), 0, 1 << 30, 64 * KIB)) == 'flush\nquit\n'


def test_files_with_the_same_clusters_have_the_same_however_they_are_told():
    def entry(start, length, is_present=True, **more):
        return {'start': start, 'length': length, 'present': is_present, **more}

    one = [entry(0, 10, False), entry(10, 5, compressed=True), entry(15, 5), entry(20, 1, False)]
    other = [entry(0, 10, False), entry(10, 10, offset=7), entry(20, 1, False)]
    assert expansion.present(one) == expansion.present(other) == ((10, 20),)
    assert expansion.present([*one[:3], entry(20, 1)]) != expansion.present(one)


def test_how_large_it_becomes_at_most():
    layout = Layout(extents((0, 16)), (), 16, 1 << 30, 64 * KIB)
    assert 1 << 20 < layout.expanded_bytes <= (1 << 20) + 14 * 64 * KIB
    assert Layout((), (), 0, 1 << 30, 64 * KIB).expanded_bytes == 64 * KIB


# Where clusters lie.

def qcow2(entries, *, l2=True, version=3, features=8, bits=16, tables=1, at=64 * KIB):
    """Return the bytes of a qcow2 with an L2 table of these entries."""
    header = struct.pack('>4sI12xIQ4xIQ24xQ', b'QFI\xfb', version, bits, 1 << 29, tables, at,
                         features)
    table = struct.pack('>8192Q', *entries, *[0] * (8192 - len(entries))) if l2 else b''
    return header.ljust(64 * KIB, b'\0') \
        + struct.pack('>Q', 2 * 64 * KIB | 1 << 63).ljust(64 * KIB, b'\0') + table


def places(tmp_path, content):
    path = tmp_path / 'image'
    path.write_bytes(content)
    return ClusterPlaces(str(path))


def test_places_of_clusters_of_each_kind(tmp_path):
    sectors = 5 << 54
    found = places(tmp_path, qcow2([
        0, 1 << 62 | sectors | 200_001, 1, 300 * 64 * KIB | 1 << 63, 400 * 64 * KIB | 1]))
    assert found.places == {64 * KIB: 200_001, 3 * 64 * KIB: 300 * 64 * KIB}
    assert (found.compressed, found.cluster_bytes, found.virtual_bytes) == (1, 64 * KIB, 1 << 29)


@pytest.mark.parametrize('content', [
    b'', b'QFI\xfb', bytes(200 * KIB), qcow2([], version=2), qcow2([], features=1 << 4),
    qcow2([], bits=40), qcow2([], tables=1 << 30), qcow2([], l2=False), qcow2([], at=1 << 40)])
def test_what_is_no_cache_image_is_refused(tmp_path, content):
    with pytest.raises(exception.BootcacheError, match='image'):
        places(tmp_path, content)
