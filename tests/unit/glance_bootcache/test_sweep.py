"""What no event told of is found by a slow sweep of Glance's images: lost notifications."""

import logging
import os

import pytest
from fakes_hosts import holding

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
GONE = '9a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
HOUR = 3600


@pytest.fixture
def swept(house):
    """A service that has swept once, with an image that is ready."""
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    house.once()

    def sweep():
        house.seconds.sleep(HOUR)
        house.once()
        house.settle()

    house.sweep = sweep
    return house


def told(caplog):
    return [line for line in caplog.messages if 'sent no notification' in line]


def test_nothing_is_lost(swept, caplog):
    swept.images.put(OTHER)
    swept.changed(OTHER)
    swept.settle()
    for _hour in range(3):
        swept.sweep()
    assert told(caplog) == []


def test_a_change_that_no_event_told_of(swept, caplog):
    swept.images.put(IMAGE, mode='off', updated_at='2020-01-01T00:00:00Z')
    swept.once()
    assert swept.state(IMAGE) == 'ready'
    with caplog.at_level(logging.WARNING):
        swept.sweep()
        swept.sweep()
    assert swept.state(IMAGE) == 'skipped'
    (line,) = told(caplog)
    assert IMAGE in line and 'topic bootcache_images' in line and 'glance-api.conf' in line


def test_an_image_that_became_active_and_no_event_told_of(swept, caplog):
    """As where Glance's notifications do not come at all."""
    swept.images.put(OTHER, status='queued')
    swept.sweep()
    assert swept.state(OTHER) is None
    swept.images.put(OTHER)
    swept.sweep()
    assert swept.state(OTHER) == 'ready' and len(told(caplog)) == 1


def test_images_from_before_are_not_taken_up(house, caplog):
    """A cloud may have thousands when bootcache comes to it."""
    house.images.put(OTHER)
    for _hour in range(3):
        house.once()
        house.seconds.sleep(HOUR)
    assert house.state(OTHER) is None and told(caplog) == []


def test_images_of_a_lost_database_come_back(house, caplog):
    """Their files are here, and no row names these. They came back as servers booted only."""
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    there = house.store.path(IMAGE, 'base-1.img')
    with open(there, 'w'):
        pass
    house.store.remove(IMAGE)
    for image in OTHER, GONE:
        os.makedirs(house.store.directory(image))
    house.images.put(OTHER)
    assert house.state(IMAGE) is None
    house.restart()
    house.once()
    house.settle()
    assert house.state(IMAGE) == house.state(OTHER) == 'ready' and house.state(GONE) is None
    assert os.path.exists(there) and told(caplog) == []


def test_they_come_back_at_their_owners_rate(house):
    house.conf.set_override('changes_per_hour', 1, 'bootcache')
    house.restart()
    images = [f'{number:08x}{IMAGE[8:]}' for number in range(8)]
    for image in images:
        os.makedirs(house.store.directory(image))
        house.images.put(image)
    house.once()
    house.settle()
    states = [house.state(image) for image in images]
    # As many as are decided about at a time may see that there is room for one more.
    assert 1 <= states.count('ready') <= 4 and states.count('pending') >= 4


def test_what_changes_just_now_may_be_told_of_yet(swept, caplog):
    swept.images.put(IMAGE, mode='off', updated_at='2999-01-01T00:00:00Z')
    swept.sweep()
    assert swept.state(IMAGE) == 'ready' and told(caplog) == []


def test_glance_is_not_swept_in_each_round(swept):
    listed = []
    every = swept.images.all
    swept.images.all = lambda: listed.append(1) or every()
    for _round in range(10):
        swept.once()
    assert listed == []
    swept.sweep()
    assert listed == [1]


def test_a_member_that_was_removed_and_no_event_told_of(swept):
    """Glance's list does not show members: they are to be asked for, of shared images only."""
    swept.images.members_of = {IMAGE: {'one', 'two'}}
    swept.sweep()
    assert swept.table.report('one', holding(IMAGE)).drop == ()
    swept.images.members_of = {IMAGE: {'one'}}
    swept.sweep()
    assert swept.table.report('one', holding(IMAGE)).drop == (IMAGE,)
