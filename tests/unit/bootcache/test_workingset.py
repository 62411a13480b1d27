"""Working sets: their order, their arithmetic, and reports that are wrong or hostile."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootcache import exception, workingset
from bootcache.workingset import Extent, WorkingSet

MAX_BASE = 1 << 16
GRANULARITIES = st.sampled_from([1, 3, 512, 4096])


@st.composite
def bases_with_extents(draw):
    """A base's size, and extents within it, which may overlap."""
    virtual_bytes = draw(st.integers(1, MAX_BASE))
    extents = []
    for _ in range(draw(st.integers(0, 12))):
        offset = draw(st.integers(0, virtual_bytes - 1))
        length = draw(st.integers(1, min(9000, virtual_bytes - offset)))
        extents.append(Extent(offset, length, draw(st.sampled_from([None, 0.5, 1.0]))))
    return virtual_bytes, extents


def byte_set(extents):
    """The naive model: every byte by itself."""
    return {byte for extent in extents for byte in range(extent.offset, extent.end)}


@given(bases_with_extents(), GRANULARITIES)
def test_align_covers_rounds_and_does_not_overlap(case, granularity):
    virtual_bytes, extents = case
    aligned = workingset.align(extents, granularity, virtual_bytes)
    wanted = {byte // granularity for byte in byte_set(extents)}
    covered = byte_set(aligned)
    assert covered == {byte for cluster in wanted for byte in range(
        cluster * granularity, min((cluster + 1) * granularity, virtual_bytes))}
    assert workingset.total_bytes(aligned) == len(covered)
    for extent in aligned:
        assert extent.offset % granularity == 0
        assert extent.length % granularity == 0 or extent.end == virtual_bytes


@given(bases_with_extents(), GRANULARITIES)
def test_align_keeps_first_read_order_and_times(case, granularity):
    virtual_bytes, extents = case
    first_read = {}
    for extent in extents:
        for cluster in range(extent.offset // granularity, (extent.end - 1) // granularity + 1):
            first_read.setdefault(cluster, extent.seconds)
    aligned = workingset.align(extents, granularity, virtual_bytes)
    clusters = [(cluster, extent.seconds) for extent in aligned
                for cluster in range(extent.offset // granularity,
                                     (extent.end - 1) // granularity + 1)]
    assert clusters == list(first_read.items())


@given(bases_with_extents(), GRANULARITIES)
def test_align_twice_changes_nothing_more(case, granularity):
    virtual_bytes, extents = case
    once = workingset.align(extents, granularity, virtual_bytes)
    assert workingset.align(once, granularity, virtual_bytes) == once


def test_align_merges_neighbours_of_one_time_only():
    merged = workingset.align([Extent(0, 10, 1.0), Extent(4096, 1, 1.0), Extent(8192, 1, 2.0)],
                              4096, 1 << 20)
    assert merged == [Extent(0, 8192, 1.0), Extent(8192, 4096, 2.0)]


def test_align_does_not_merge_backwards():
    assert workingset.align([Extent(4096, 4096), Extent(0, 4096)], 4096, 1 << 20) == [
        Extent(4096, 4096), Extent(0, 4096)]


@given(bases_with_extents(), st.integers(-5, 40000))
def test_clip_keeps_the_first_bytes(case, budget):
    _virtual_bytes, extents = case
    kept = workingset.clip(extents, budget)
    in_order = [byte for extent in extents for byte in range(extent.offset, extent.end)]
    assert [byte for extent in kept for byte in range(extent.offset, extent.end)] \
        == in_order[:max(0, budget)]
    assert all(extent.length > 0 for extent in kept)
    assert [extent.seconds for extent in kept] == [e.seconds for e in extents[:len(kept)]]


@given(bases_with_extents(), bases_with_extents(), GRANULARITIES)
def test_union_has_both_and_the_first_comes_first(one, two, granularity):
    virtual_bytes = max(one[0], two[0])
    both = workingset.align([*one[1], *two[1]], granularity, virtual_bytes)
    alone = workingset.align(one[1], granularity, virtual_bytes)
    covered = byte_set(both)
    assert byte_set(one[1]) | byte_set(two[1]) <= covered
    assert workingset.total_bytes(both) == len(covered)
    first = workingset.clip(both, workingset.total_bytes(alone))
    assert byte_set(first) == byte_set(alone)


@given(bases_with_extents(), bases_with_extents())
def test_uncovered_agrees_with_counting_bytes(one, two):
    wanted = workingset.align(one[1], 1, one[0])
    assert workingset.uncovered(wanted, two[1]) == len(byte_set(wanted) - byte_set(two[1]))


def test_uncovered_of_nothing():
    assert workingset.uncovered([], [Extent(0, 5)]) == 0
    assert workingset.uncovered([Extent(0, 5)], []) == 5


@pytest.mark.parametrize('raw', [
    None, 5, 'text', {}, {'0': 1},
    [5], ['ab'], [None], [[]], [[0]], [[0, 1, 2, 3]],
    [[-1, 512]], [[0, 0]], [[0, -512]], [[0, 8193]], [[8192, 1]], [[1 << 70, 1]],
    [['0', 512]], [[0, '512']], [[0.0, 512]], [[0, 512.0]], [[True, 512]], [[0, True]],
    [[None, 512]], [[0, 512, 'now']], [[0, 512, -1]], [[0, 512, float('nan')]],
    [[0, 512, float('inf')]], [[0, 512, True]], [[0, 512, [1]]],
], ids=repr)
def test_a_bad_report_is_refused(raw):
    with pytest.raises(exception.InvalidWorkingSet):
        WorkingSet.from_wire('image', 'sha512:00', 8192, 4096, raw)


@pytest.mark.parametrize('granularity', [0, 1, 256, 511, 513, 3000, 1 << 22, -4096, 4096.0, '4096',
                                         None, True])
def test_a_bad_granularity_is_refused(granularity):
    with pytest.raises(exception.InvalidWorkingSet, match='granularity'):
        WorkingSet.from_wire('image', 'sha512:00', 8192, granularity, [[0, 512]])


def test_too_many_extents_are_refused(monkeypatch):
    monkeypatch.setattr(workingset, 'MAX_EXTENTS', 3)
    assert WorkingSet.from_wire('image', '', 8192, 512, [[0, 1], [1, 1], [2, 1]]).bytes == 512
    with pytest.raises(exception.InvalidWorkingSet, match='at most 3'):
        WorkingSet.from_wire('image', '', 8192, 512, [[0, 1]] * 4)


@pytest.mark.parametrize('extents', [
    [[0, 512], [0, 512]], [[0, 4096], [512, 1]], [[4096, 10], [0, 4097]], [[0, 1], [5, 9], [0, 9]]])
def test_extents_that_overlap_are_refused(extents):
    with pytest.raises(exception.InvalidWorkingSet, match='overlaps'):
        WorkingSet.from_wire('image', '', 8192, 512, extents, are_apart=True)


def test_what_is_wrong_is_quoted_and_not_repeated_whole():
    for lie in ('x' * (1 << 20), [0, 'y\n' * 99999], {'z' * 9999: 1}):
        with pytest.raises(exception.InvalidWorkingSet) as refused:
            WorkingSet.from_wire('image', '', 8192, 512, [lie])
        assert len(str(refused.value)) < 300 and str(refused.value).isprintable()


def test_a_report_is_aligned_and_keeps_its_order():
    reported = WorkingSet.from_wire('image', 'sha512:00', 10000, 4096,
                                    [(9000, 10, 0), [1, 1, 0.25], [9999, 1]])
    assert reported.extents == (Extent(8192, 1808, 0), Extent(0, 4096, 0.25))
    assert reported.bytes == 5904


@given(bases_with_extents())
def test_json_round_trip(case):
    virtual_bytes, extents = case
    before = WorkingSet('image', 'sha512:00', virtual_bytes, 512,
                        tuple(workingset.align(extents, 512, virtual_bytes)))
    assert WorkingSet.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_the_wire_says_times_only_where_they_are_known():
    known = WorkingSet('image', '', 8192, 4096, (Extent(4096, 4096), Extent(0, 4096, 1.5)))
    assert workingset.to_wire(known.extents) == [[4096, 4096], [0, 4096, 1.5]]


@pytest.mark.parametrize('change', [
    {'version': 2}, {'version': None}, {'virtual_bytes': 'many'}, {'virtual_bytes': None},
    {'granularity': 5}, {'extents': [[0, 1 << 40]]}, {'extents': None}], ids=repr)
def test_a_damaged_document_is_refused(change):
    document = WorkingSet('image', 'sha512:00', 8192, 4096, (Extent(0, 4096),)).to_json()
    with pytest.raises(exception.InvalidWorkingSet):
        WorkingSet.from_json({**document, **change})


@pytest.mark.parametrize('missing', ['version', 'image_id', 'image_hash', 'virtual_bytes',
                                     'granularity', 'extents'])
def test_a_document_lacks_nothing(missing):
    document = WorkingSet('image', 'sha512:00', 8192, 4096, (Extent(0, 4096),)).to_json()
    del document[missing]
    with pytest.raises(exception.InvalidWorkingSet):
        WorkingSet.from_json(document)


@pytest.mark.parametrize('content', [b'', b'{', b'[]', b'null', b'\xff\xfe', b'{"version": 1}'])
def test_a_damaged_file_is_refused(tmp_path, content):
    path = tmp_path / 'set.json'
    path.write_bytes(content)
    with pytest.raises(exception.InvalidWorkingSet):
        WorkingSet.load(str(path))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(exception.InvalidWorkingSet, match='cannot read'):
        WorkingSet.load(str(tmp_path / 'none'))
