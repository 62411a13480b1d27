"""Differences of cache images: layouts, areas, digests. tests/functional has QEMU."""

import dataclasses
import json
import zlib

import hypothesis
import pytest
from hypothesis import strategies as st

from bootcache import difference, exception, workingset
from bootcache.expansion import Layout
from bootcache.manifest import CacheDifference
from bootcache.rpc import fields
from bootcache.workingset import Extent

CLUSTER = 4096
DIFFERENCE = CacheDifference('7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f', 'sha512:ab', 4096, 'cd', 2048,
                             512, 'ef')


def layout(data, zeros=(), size=1 << 20):
    return Layout(tuple(data), tuple(zeros), 0, size, CLUSTER)


@st.composite
def layouts(draw):
    """What a cache image may have: clusters in any order, and zeros beside them."""
    clusters = draw(st.permutations(range(16)))
    cut = draw(st.integers(1, 16))
    zeros = sorted(draw(st.sets(st.sampled_from(clusters[cut:])))) if cut < 16 else []
    return layout([Extent(number * CLUSTER, CLUSTER) for number in clusters[:cut]],
                  [Extent(number * CLUSTER, CLUSTER) for number in zeros])


def content(seed):
    return lambda offset, length: bytes((at * seed) % 251 for at in range(offset, offset + length))


@hypothesis.given(layouts())
def test_a_layout_comes_back_as_it_was_also_before_padding(wanted):
    for padding in (0, 1, 511):
        found = difference.unpacked(difference.packed(wanted) + bytes(padding))
        assert difference.ranges(found) == difference.ranges(wanted)
        assert list(workingset.pieces(found.data, CLUSTER)) \
            == list(workingset.pieces(wanted.data, CLUSTER)), 'the order as well'


@hypothesis.given(layouts(), st.sampled_from([512, 4096, 8192]))
def test_a_digest_is_that_of_what_is_read(wanted, most):
    same = dataclasses.replace(wanted, data=tuple(sorted(
        wanted.data, key=lambda extent: extent.offset)))
    one = difference.digest(wanted, content(1), CLUSTER)
    assert difference.digest(same, content(1), most) == one, 'whatever the order and the pieces'
    assert difference.digest(wanted, content(3), CLUSTER) != one
    assert difference.digest(dataclasses.replace(wanted, virtual_bytes=2 << 20), content(1),
                             CLUSTER) != one


def test_what_is_zeros_is_not_the_same_as_what_is_not_there():
    data, zeros = [Extent(0, CLUSTER)], [Extent(CLUSTER, CLUSTER)]
    found = {difference.digest(layout(data, more), content(1), CLUSTER)
             for more in ([], zeros, [Extent(2 * CLUSTER, CLUSTER)])}
    assert len(found) == 3


@pytest.mark.parametrize('wrong', [
    b'', b'no zlib', zlib.compress(b'[]'), zlib.compress(b'{"version": 2}'),
    difference.packed(layout([Extent(0, CLUSTER)]))[:-1],
    zlib.compress(json.dumps({'version': 1, 'virtual_bytes': 4096, 'cluster_bytes': 4096,
                              'data': [[0, 8192]], 'zeros': []}).encode()),
    zlib.compress(json.dumps({'version': 1, 'virtual_bytes': 4096, 'cluster_bytes': 3,
                              'data': [], 'zeros': []}).encode())])
def test_a_damaged_layout_is_refused(wrong):
    with pytest.raises(exception.BootcacheError, match='the layout cannot be read'):
        difference.unpacked(wrong)


def test_one_that_never_ends_is_not_read(monkeypatch):
    monkeypatch.setattr(difference, '_MOST_LAYOUT_BYTES', 1000)
    with pytest.raises(exception.BootcacheError, match='too long'):
        difference.unpacked(zlib.compress(bytes(100_000)))


@pytest.mark.parametrize('offset, end, found', [
    (0, 10, True), (0, 11, False), (5, 6, True), (10, 11, False), (9, 21, False), (20, 30, True),
    (19, 21, False), (30, 31, False)])
def test_what_lies_within_areas(offset, end, found):
    assert difference.covers(((0, 10), (20, 30)), offset, end) is found
    assert not difference.covers((), offset, end)


def test_what_is_told_comes_back():
    told = json.loads(json.dumps(vars(DIFFERENCE)))
    assert fields.read(CacheDifference, told) == DIFFERENCE
    # A later version may tell more.
    assert fields.read(CacheDifference, {**told, 'more': 1, 'export': 'x'}) == DIFFERENCE


@pytest.mark.parametrize('wrong', [
    None, [], {}, {**vars(DIFFERENCE), 'bytes': '4096'}, {**vars(DIFFERENCE), 'bytes': -1},
    {**vars(DIFFERENCE), 'layout_at': True}, {**vars(DIFFERENCE), 'parent': 1}])
def test_what_is_none_is_refused(wrong):
    with pytest.raises((KeyError, TypeError, ValueError)):
        fields.read(CacheDifference, wrong)
