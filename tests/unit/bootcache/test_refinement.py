"""Whether another boot makes a working set better, against a model that counts clusters."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from bootcache import cachelayout, refinement, workingset
from bootcache.refinement import Boot, Lesson, refine
from bootcache.workingset import Extent

BASE = 1 << 20
CLUSTER = 512
# More than a cache image of all of the base takes.
PLENTY = 8 * BASE
GRANULARITIES = st.sampled_from([512, 1024, 4096])
QUOTAS = st.integers(0, 2 * BASE)


@st.composite
def boots(draw, least=0):
    """What a boot read, as it comes: of any size, at any place, in any order."""
    extents = []
    for _ in range(draw(st.integers(least, 8))):
        offset = draw(st.integers(0, BASE - 1))
        length = draw(st.integers(1, min(200_000, BASE - offset)))
        extents.append(Extent(offset, length, draw(st.sampled_from([None, 0.5, 1.0]))))
    return extents


@st.composite
def improvements(draw):
    """A working set, its granularity, a boot that read something else, and a quota with room."""
    granularity = draw(GRANULARITIES)
    half = BASE // 2
    have = [extent for extent in workingset.align(draw(boots()), granularity, BASE)
            if extent.end <= half]
    seen = [*draw(boots()), Extent(draw(st.integers(half, half + half // 2)), half // 4)]
    room = draw(st.just(PLENTY) | st.integers(0, BASE // 2))
    return have, draw(st.permutations(seen)), size_of(have) + room, granularity


def clusters(extents, size=CLUSTER):
    """The clusters that extents touch, in the order in which they come."""
    return list(dict.fromkeys(cluster for extent in extents for cluster in
                              range(extent.offset // size, (extent.end - 1) // size + 1)))


def cached(extents, quota):
    """The clusters that a cache image of a working set has at a quota."""
    aligned = workingset.align(extents, CLUSTER, BASE)
    return clusters(cachelayout.fit(aligned, quota, CLUSTER, BASE))


def refined(have, seen, quota, granularity=CLUSTER):
    return refine(have, seen, quota=quota, cluster_bytes=CLUSTER, granularity=granularity,
                  virtual_bytes=BASE)


def size_of(extents):
    """The bytes that a cache image of some extents may take."""
    aligned = workingset.align(extents, CLUSTER, BASE)
    return workingset.total_bytes(aligned) + cachelayout.metadata_bytes(aligned, CLUSTER, BASE)


@given(improvements())
def test_a_new_version_has_the_old_one_first_and_in_its_order(case):
    have, seen, quota, granularity = case
    union = refined(have, seen, quota, granularity)
    assume(union is not None)
    assert clusters(union, granularity)[:len(clusters(have, granularity))] \
        == clusters(have, granularity)
    assert set(clusters(union, granularity)) \
        == set(clusters(have, granularity)) | set(clusters(seen, granularity))


@given(improvements())
def test_a_new_version_misses_nothing_that_the_old_one_had(case):
    have, seen, quota, granularity = case
    union = refined(have, seen, quota, granularity)
    assume(union is not None)
    assert set(cached(have, quota)) <= set(cached(union, quota))


@given(boots(), boots(), QUOTAS)
@example([Extent(0, 100 * CLUSTER)], [Extent(1 << 19, CLUSTER)], 2 * BASE)
@example([Extent(0, 101 * CLUSTER)], [Extent(1 << 19, CLUSTER)], 2 * BASE)
def test_a_new_version_has_to_spare_the_boot_a_hundredth(have, seen, quota):
    have = workingset.align(have, CLUSTER, BASE)
    wanted = set(clusters(seen))
    before = set(cached(have, quota))
    after = set(cached(workingset.align([*have, *seen], CLUSTER, BASE), quota))
    spared = len(wanted - before) - len(wanted - after)
    worth_it = spared > 0 and 100 * spared >= len(before)
    assert (refined(have, seen, quota) is not None) == worth_it


@given(boots(least=1), boots())
def test_at_its_quota_there_is_no_new_version(have, seen):
    assert refined(have, seen, size_of(have)) is None


@given(improvements())
def test_what_fits_of_a_new_version_is_never_over_the_quota(case):
    have, seen, quota, granularity = case
    union = refined(have, seen, quota, granularity)
    assume(union is not None)
    kept = cachelayout.fit(workingset.align(union, CLUSTER, BASE), quota, CLUSTER, BASE)
    assert kept and size_of(kept) <= quota


@given(boots(least=1), QUOTAS, st.data())
def test_a_boot_that_reads_what_is_known_brings_nothing(have, quota, data):
    have = workingset.align(have, CLUSTER, BASE)
    seen = data.draw(st.permutations(have))
    assert refined(have, seen[:data.draw(st.integers(0, len(seen)))], quota) is None


@given(boots(least=1))
def test_the_first_boot_is_worth_it_where_there_was_nothing(seen):
    assert clusters(refined([], seen, PLENTY)) == clusters(seen)


def test_only_the_first_boots_times_are_kept():
    union = refined([Extent(0, CLUSTER, 1.5)], [Extent(CLUSTER, CLUSTER, 0.5),
                                                Extent(0, CLUSTER, 9.0)], BASE)
    assert union == [Extent(0, CLUSTER, 1.5), Extent(CLUSTER, CLUSTER, None)]


@pytest.mark.parametrize('offset', [0, BASE - CLUSTER - 1])
def test_a_report_of_another_granularity_is_taken(offset):
    union = refined([Extent(4096, 4096)], [Extent(offset, 1)], BASE, granularity=4096)
    assert union == [Extent(4096, 4096), Extent(offset // 4096 * 4096, 4096)]


# What boots confirm.

def boot(extents, server='one', host='a', began=0.0, ended=10.0, ended_by='marker'):
    return Boot(server, host, began, ended, ended_by, tuple(extents))


def learn(have, new, *earlier, recorded_to='', only_host=False, quota=PLENTY):
    return refinement.learn(have, recorded_to, new, earlier, only_host=only_host, quota=quota,
                            cluster_bytes=CLUSTER, granularity=CLUSTER, virtual_bytes=BASE)


def lone(extents):
    """Clusters with one between each two."""
    return [Extent(2 * number * CLUSTER, CLUSTER) for number in extents]


@pytest.mark.parametrize('one, other, only_host, expected', [
    (boot([]), boot([], 'two', 'b'), False, True),
    (boot([]), boot([], 'one', 'b'), False, False),
    (boot([]), boot([], 'two', 'a', 10.0, 20.0), False, False),
    (boot([]), boot([], 'two', 'a', 10.0, 20.0), True, True),
    (boot([], began=20.0, ended=30.0), boot([], 'two', 'a', 10.0, 20.0), True, True),
    (boot([]), boot([], 'two', 'a', 9.0, 20.0), True, False),
    (boot([]), boot([], 'one', 'a', 10.0, 20.0), True, False)])
def test_boots_that_are_independent(one, other, only_host, expected):
    assert refinement.confirms(one, other, only_host) is expected
    assert refinement.confirms(other, one, only_host) is expected


@given(boots(), boots(), st.lists(boots(), max_size=3))
def test_a_set_grows_by_what_two_boots_read_and_by_nothing_else(have, seen, others):
    have = workingset.align(have, CLUSTER, BASE)
    earlier = [boot(refinement.beyond(have, extents, CLUSTER, BASE), f'server-{number}',
                    f'host-{number}') for number, extents in enumerate(others)]
    lesson = learn(have, boot(seen), *earlier)
    both = set(clusters(seen)) & {cluster for extents in others for cluster in clusters(extents)}
    if lesson.extents is not None:
        assert set(clusters(lesson.extents)) == set(clusters(have)) | both
    elif lesson.unconfirmed is not None:
        assert set(clusters(lesson.unconfirmed.extents)) \
            == set(clusters(seen)) - set(clusters(have))
        assert refined(have, [Extent(cluster * CLUSTER, CLUSTER) for cluster in both],
                       PLENTY) is None, 'or it is not worth a version'


@given(boots(), boots())
def test_nothing_of_one_boot_alone_counts(have, seen):
    have = workingset.align(have, CLUSTER, BASE)
    lesson = learn(have, boot(seen), boot(seen, 'one', 'b'), boot(seen, 'two', 'a'))
    assert lesson.extents is None


@pytest.mark.parametrize('ended_by', ['marker', 'silence', 'timeout', 'quota', 'shutdown'])
def test_boots_to_their_ends_count(ended_by):
    have, seen = lone(range(10)), lone(range(20, 30))
    lesson = learn(have, boot(seen, ended_by=ended_by), boot(seen, 'two', 'b'))
    assert (lesson.extents is not None) == (ended_by in ('marker', 'silence'))
    assert lesson.extents is not None or lesson == Lesson()


@pytest.mark.parametrize('ended_by', ['marker', 'silence', 'timeout', 'quota', 'shutdown'])
def test_a_part_of_a_boot_is_completed_by_the_next_one(ended_by):
    have, seen = lone(range(10)), lone(range(10, 400))
    lesson = learn(have, boot(seen, ended_by=ended_by), recorded_to='shutdown')
    if ended_by == 'shutdown':
        assert lesson == Lesson()
    else:
        assert lesson.extents == [*have, *seen]


def large(start, megabytes):
    return [Extent(start << 20, megabytes << 20)]


@pytest.mark.parametrize('recorded_to, read, is_part', [
    ('silence', 65536, True), ('silence', 1 << 20, False), ('marker', 65536, False),
    ('timeout', 65536, False), ('quota', 30 << 20, True), ('quota', 200 << 20, False)])
def test_a_guest_that_stood_still_has_read_a_part(recorded_to, read, is_part):
    """Silence ended its boot after 64 KiB, on a machine that had too much to do; a growing store
    had no more room after 30 MiB, as the host's disk was full."""
    have, seen = [Extent(0, read)], large(300, 30)
    lesson = refinement.learn(
        have, recorded_to, boot(seen), [], only_host=False, quota=400 << 20, cluster_bytes=65536,
        granularity=4096, virtual_bytes=4 << 30)
    assert lesson.extents == ([*have, *seen] if is_part else None)
    assert (lesson.unconfirmed is None) == is_part


def test_a_refinement_adds_a_bounded_part():
    """31 MB became 171 by one who read all of the disk."""
    def grown(megabytes):
        have, seen = large(0, megabytes), large(1000, 1000)
        lesson = refinement.learn(
            have, '', boot(seen), [boot(seen, 'two', 'b')], only_host=False, quota=1 << 40,
            cluster_bytes=65536, granularity=4096, virtual_bytes=4 << 30)
        assert lesson.extents[0] == have[0]
        return workingset.total_bytes(lesson.extents) - (megabytes << 20)

    assert grown(400) == 100 << 20
    assert grown(30) == 7.5 * (1 << 20)
    assert grown(2) == 4 << 20, 'of an image that reads little it is at least this'


def test_what_is_remembered_of_a_boot_is_bounded():
    seen = large(1000, 3000)
    for megabytes, kept in ((2, 16), (400, 400)):
        fresh = refinement.beyond(large(0, megabytes), seen, 65536, 4 << 30)
        assert workingset.total_bytes(fresh) == kept << 20


def test_what_is_confirmed_comes_in_the_order_of_the_boot_that_confirms():
    have = lone(range(3))
    first, second = lone((20, 10, 30, 40)), lone((30, 50, 10))
    lesson = learn(have, boot(second), boot(first, 'two', 'b'))
    assert lesson.extents == [*have, *lone((30, 10))]
