"""What goes into a cache image, decided without any file; building is in tests/functional."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bootcache import cacheimage, cachelayout, exception, savefile, workingset
from bootcache.cacheimage import Base
from bootcache.workingset import Extent

CLUSTERS = st.sampled_from([512, 4096, 65536])


@st.composite
def aligned_sets(draw):
    """A cluster size, a base's size, and extents aligned to the clusters."""
    cluster = draw(CLUSTERS)
    # Long enough for several tables' reach at small clusters.
    virtual_bytes = draw(st.integers(1, 40 * cluster * (cluster // 8) // 8))
    raw = []
    for _ in range(draw(st.integers(0, 8))):
        offset = draw(st.integers(0, virtual_bytes - 1))
        raw.append(Extent(offset, draw(st.integers(1, min(20 * cluster, virtual_bytes - offset)))))
    return cluster, virtual_bytes, workingset.align(raw, cluster, virtual_bytes)


def _clusters(extents, cluster):
    return sum(-(-extent.length // cluster) for extent in extents)


@given(aligned_sets(), st.integers(0, 1 << 23))
@example((512, 513, [Extent(512, 1), Extent(0, 512)]), 6656)
def test_fit_keeps_the_longest_start_that_is_within_the_quota(case, quota):
    cluster, virtual_bytes, extents = case
    kept = cachelayout.fit(extents, quota, cluster, virtual_bytes)
    assert kept[:-1] == extents[:len(kept)][:-1]
    assert not kept or kept[-1].offset == extents[len(kept) - 1].offset
    count = _clusters(kept, cluster)
    assert not kept or count * cluster \
        + cachelayout.metadata_bytes(kept, cluster, virtual_bytes) <= quota
    if count < _clusters(extents, cluster):
        # One more cluster would not have fitted: maximal.
        more = cachelayout.fit(extents, 1 << 62, cluster, virtual_bytes)
        longer, left = [], count + 1
        for extent in more:
            here = min(left, -(-extent.length // cluster))
            if here:
                longer.append(Extent(extent.offset, min(here * cluster, extent.length)))
            left -= here
        assert (count + 1) * cluster \
            + cachelayout.metadata_bytes(longer, cluster, virtual_bytes) > quota
    assert all(extent.offset % cluster == 0 for extent in kept)
    assert all(extent.length % cluster == 0 or extent.end == virtual_bytes for extent in kept)


@given(aligned_sets())
def test_fit_keeps_all_where_there_is_room(case):
    cluster, virtual_bytes, extents = case
    room = workingset.total_bytes(extents) + cluster \
        + cachelayout.metadata_bytes(extents, cluster, virtual_bytes)
    assert cachelayout.fit(extents, room, cluster, virtual_bytes) == extents


def test_fit_wastes_little():
    extents = [Extent(0, 64 << 20)]
    kept = cachelayout.fit(extents, 32 << 20, 65536, 1 << 30)
    assert workingset.total_bytes(kept) > (32 << 20) - 20 * 65536


def test_metadata_of_a_known_layout():
    # 4 KiB clusters, so a table reaches 2 MiB: two tables, L1, refcounts, header.
    assert cachelayout.metadata_bytes([Extent(0, 4096), Extent(3 << 20, 4096)], 4096, 4 << 20) \
        == (2 + 1 + 2 + 8) * 4096


@given(aligned_sets(), st.integers(0, 11))
def test_metadata_grows_with_the_extents(case, count):
    cluster, virtual_bytes, extents = case
    assert cachelayout.metadata_bytes(extents[:count], cluster, virtual_bytes) \
        <= cachelayout.metadata_bytes(extents, cluster, virtual_bytes)


@given(aligned_sets(), st.data())
def test_zero_areas_are_whole_clusters_that_read_as_zeros_below_tables_in_use(case, data):
    cluster, virtual_bytes, extents = case
    points = sorted(data.draw(st.sets(st.integers(0, virtual_bytes), max_size=10)))
    status = [Extent(start, end - start) for start, end in zip(points[::2], points[1::2],
                                                               strict=False)]
    reach = cluster * (cluster // 8)
    touched = {cluster_start // reach for extent in extents
               for cluster_start in range(extent.offset, extent.end, cluster)}
    areas = cachelayout.zero_areas(status, extents, cluster, virtual_bytes)
    for area in areas:
        assert area.length > 0
        assert area.offset % cluster == 0
        assert area.end % cluster == 0 or area.end == virtual_bytes
        assert any(zero.offset <= area.offset and area.end <= zero.end for zero in status)
        assert area.offset // reach == (area.end - 1) // reach
        assert area.offset // reach in touched
    assert workingset.uncovered(areas, []) == workingset.total_bytes(areas)
    # And none of them is left out.
    marked = {start // cluster for area in areas for start in range(area.offset, area.end, cluster)}
    for zero in status:
        first = -(-zero.offset // cluster)
        last = -(-zero.end // cluster) if zero.end == virtual_bytes else zero.end // cluster
        for table in touched:
            low, high = max(first, table * cluster // 8), min(last, (table + 1) * cluster // 8)
            assert low >= high or {low, high - 1} <= marked


def test_a_short_last_cluster_counts_as_whole():
    assert cachelayout.zero_areas([Extent(4096, 1000)], [Extent(0, 4096)], 4096, 5096) == [
        Extent(4096, 1000)]
    assert cachelayout.zero_areas([Extent(4096, 1000)], [Extent(0, 4096)], 4096, 5097) == []


def test_base_nodes_never_follow_a_backing_file():
    nodes = Base('/images/x', 'qcow2', 1 << 20).nodes('b-1')
    assert [node['node-name'] for node in nodes] == ['b-1f', 'b-1']
    assert all(node['read-only'] is True for node in nodes)
    assert nodes[1]['driver'] == 'qcow2' and nodes[1]['backing'] is None
    assert 'backing' not in Base('/images/x', 'raw', 1 << 20).nodes('b-1')[1]


def test_node_names_leave_room_for_the_file_nodes_letter():
    assert Base('/x', 'raw', 1).nodes('n' * 30)[0]['node-name'] == 'n' * 30 + 'f'
    with pytest.raises(ValueError):
        Base('/x', 'raw', 1).nodes('n' * 31)


def test_verify_takes_exactly_the_announced_file(tmp_path):
    path = tmp_path / 'cache'
    path.write_bytes(b'x' * 1024)
    digest = savefile.file_digest(str(path))
    cacheimage.verify(str(path), digest, 1024)
    for content, why in ((b'x' * 1023 + b'y', 'sha256'), (b'x' * 1023, '1023 bytes'),
                         (b'x' * 1025, '1025 bytes')):
        path.write_bytes(content)
        with pytest.raises(exception.InvalidManifest, match=why):
            cacheimage.verify(str(path), digest, 1024)
    path.unlink()
    with pytest.raises(exception.InvalidManifest):
        cacheimage.verify(str(path), digest, 1024)
