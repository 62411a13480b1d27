"""Whose boots count and are remembered; test_reports.py has what comes of it."""

import pytest

from bootcache.refinement import Boot
from bootcache.workingset import Extent
from glance_bootcache.images import reportedboots


@pytest.mark.parametrize(('extents', 'kept'), [
    ([1] * 9, 8), ([reportedboots.MOST_EXTENTS - 2, 1], 2),
    ([reportedboots.MOST_EXTENTS - 2, 1, 1], 2),
    ([], 0)])
def test_what_is_remembered_is_bounded_by_its_size(extents, kept):
    """A host may report as many extents as the quota has clusters."""
    told = [Boot(f'{number}', 'host', 0.0, 1.0, 'marker', (Extent(0, 1),) * count)
            for number, count in enumerate(extents)]
    assert reportedboots.remembered(told) == (tuple(told[-kept:]) if kept else ())


def test_a_boot_of_more_is_remembered_by_what_it_read_first():
    """It would be asked for and forgotten without end."""
    first = tuple(Extent(number, 1) for number in range(reportedboots.MOST_EXTENTS + 5))
    one, two = (Boot(name, 'host', 0.0, 1.0, 'marker', first) for name in ('one', 'two'))
    (kept,) = reportedboots.remembered([one, two])
    assert kept.server_id == 'two' and kept.extents == first[:reportedboots.MOST_EXTENTS - 1]


@pytest.mark.parametrize(('told', 'kept'), [
    ([('bad', 1)] * 9, 'bad bad bad bad'),
    ([('good', 1), *[('bad', 1)] * 9, ('other', 1)], 'good bad bad bad bad other'),
    ([('', 1)] * 9, ' ' * 7),
    # By their size: whoever has most gives way first.
    ([('good', 20_000), ('bad', 20_000), ('bad', 20_000)], 'good bad'),
    ([('bad', 20_000), ('good', 20_000), ('bad', 20_000)], 'good bad')])
def test_whose_boots_are_remembered(told, kept):
    boots = [Boot(f'{number}', 'host', 0.0, 1.0, 'marker', (Extent(0, 1),) * count, owner)
             for number, (owner, count) in enumerate(told)]
    found = reportedboots.remembered(boots)
    assert [boot.owner for boot in found] == kept.split(' ')
    assert [int(boot.server_id) for boot in found] \
        == sorted(int(boot.server_id) for boot in found), 'in their order'
    assert reportedboots.extents(found) <= reportedboots.MOST_EXTENTS
