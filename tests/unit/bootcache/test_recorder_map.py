"""A growing store's map turned into a working set; the real store is in tests/functional."""

from hypothesis import given
from hypothesis import strategies as st

from bootcache import workingset
from bootcache.recorder import Sample, extents_from_map
from bootcache.workingset import Extent

CLUSTER = 4096
HEADER = 5 * CLUSTER


def data(start, length, offset):
    return {'start': start, 'length': length, 'offset': offset, 'depth': 0, 'present': True,
            'zero': False, 'data': True}


def zero(start, length, present=True):
    return {'start': start, 'length': length, 'depth': 0, 'present': present, 'zero': True,
            'data': False}


def test_order_is_the_order_in_the_file_and_zeros_come_last():
    entries = [zero(0, CLUSTER), data(CLUSTER, CLUSTER, HEADER + CLUSTER),
               data(5 * CLUSTER, CLUSTER, HEADER), zero(6 * CLUSTER, 10 * CLUSTER, present=False)]
    samples = [Sample(0.0, HEADER), Sample(2.0, HEADER + CLUSTER),
               Sample(3.5, HEADER + 2 * CLUSTER)]
    assert extents_from_map(entries, samples) == [
        Extent(5 * CLUSTER, CLUSTER, 0.0), Extent(CLUSTER, CLUSTER, 1.5), Extent(0, CLUSTER)]


def test_an_entry_is_split_where_the_file_grew():
    samples = [Sample(0.0, HEADER), Sample(1.0, HEADER + CLUSTER),
               Sample(2.0, HEADER + 3 * CLUSTER)]
    assert extents_from_map([data(0, 4 * CLUSTER, HEADER)], samples) == [
        Extent(0, CLUSTER, 0.0), Extent(CLUSTER, 2 * CLUSTER, 1.0),
        # Beyond the last look: nobody knows when.
        Extent(3 * CLUSTER, CLUSTER, None)]


def test_data_before_the_first_growth_counts_as_second_zero():
    assert extents_from_map([data(0, CLUSTER, 0)], [Sample(0.4, HEADER), Sample(9.0, HEADER * 2)]
                            ) == [Extent(0, CLUSTER, 0.0)]


def test_without_samples_there_are_no_times():
    assert extents_from_map([data(0, CLUSTER, HEADER)], []) == [Extent(0, CLUSTER, None)]


def test_an_empty_store_has_no_extents():
    assert extents_from_map([zero(0, 1 << 20, present=False)], [Sample(0.0, HEADER)]) == []


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)), st.lists(st.integers(0, 3)))
def test_any_map_gives_each_cluster_once_with_ascending_times(order, zeros, steps):
    placed = [cluster for cluster in order if cluster not in zeros]
    entries = [data(cluster * CLUSTER, CLUSTER, HEADER + place * CLUSTER)
               for place, cluster in enumerate(placed)]
    entries += [zero(cluster * CLUSTER, CLUSTER) for cluster in zeros]
    entries.sort(key=lambda entry: entry['start'])
    size, samples = HEADER, [Sample(0.0, HEADER)]
    for second, step in enumerate(steps, 1):
        size += step * CLUSTER
        samples.append(Sample(float(second), size))
    extents = extents_from_map(entries, samples)
    assert [extent.offset // CLUSTER for extent in extents] == placed + sorted(zeros)
    times = [extent.seconds for extent in extents if extent.seconds is not None]
    assert times == sorted(times)
    # Exactly what lies within the sizes that were seen has a time.
    assert len(times) == min(len(placed), sum(steps))
    assert workingset.total_bytes(extents) == 12 * CLUSTER
