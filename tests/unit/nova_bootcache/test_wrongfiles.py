"""A cache image that comes wrong is fetched again three times, after growing pauses."""

import pytest
from fakes_clock import Clock

from nova_bootcache.asking.placement import Trust
from nova_bootcache.storagenode import Remote
from nova_bootcache.tiers.fetches import WrongFiles

IMAGE, SHA = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f', 'ab' * 32
REMOTE = Remote(IMAGE, '10.0.0.1', 10810, f'base-{IMAGE}')


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def wrong(clock):
    return WrongFiles(clock)


def test_pauses_grow_and_the_fourth_is_a_day(wrong, clock, caplog):
    pauses = []
    for _time in range(4):
        assert wrong.trust(IMAGE, SHA) is Trust.FULL
        wrong.note(REMOTE, SHA, 'another sha256')
        began = clock.now
        while (found := wrong.trust(IMAGE, SHA)) is not Trust.FULL:
            clock.now += 10
            last = found
        pauses.append((clock.now - began, last))
    assert pauses == [(60, Trust.PAUSED), (120, Trust.PAUSED), (240, Trust.PAUSED),
                      (86400, Trust.NONE)]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4 and all('came wrong from 10.0.0.1:10810' in text for text in told)
    assert 'for the 4th time' in told[3] and 'stock way' in told[3]


def test_another_one_is_trusted_and_so_is_one_that_came_right(wrong):
    for _time in range(4):
        wrong.note(REMOTE, SHA, 'another sha256')
    assert wrong.trust(IMAGE, SHA) is Trust.NONE
    assert wrong.trust(IMAGE, 'cd' * 32) is Trust.FULL
    assert wrong.trust('another image', SHA) is Trust.FULL
    wrong.forget(IMAGE, SHA)
    assert wrong.trust(IMAGE, SHA) is Trust.FULL
    wrong.note(REMOTE, SHA, 'another sha256')
    assert wrong.trust(IMAGE, SHA) is Trust.PAUSED
