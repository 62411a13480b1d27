"""The room of a host's tiers while cache images come."""

import os

import pytest
from fakes_letting_go import IMAGE, MIB, OTHER, fill, opened, place
from fakes_letting_go import host as host  # the fixture

from bootcache import exception
from bootcache.tier import Medium

QUOTA = 4 * MIB


def test_an_older_file_counts_until_a_newer_one_has_its_place(host):
    """As long as that comes both are there."""
    place(host)
    room, path = host.room, host.cache.path(IMAGE)
    with opened(path):
        assert room.room_for(IMAGE, QUOTA) is None
        assert room.room_for(IMAGE, QUOTA - MIB) is Medium.DISK
        with pytest.raises(exception.BootcacheError, match='no room'), \
                room.for_fetch(IMAGE, Medium.DISK, QUOTA):
            pass
        assert os.path.exists(path)
    with room.for_fetch(IMAGE, Medium.DISK, QUOTA):
        assert not os.path.exists(path), 'nobody needs it'
        assert host.metrics.registry.get_sample_value(
            'bootcache_evictions_total', {'tier': 'compute_disk'}) == 1
        assert room.used(Medium.DISK) == QUOTA


def test_what_comes_twice_counts_twice(host):
    """A cache image on its way, and the same one fetched for another server, are two files."""
    room, half = host.room, QUOTA // 2
    with room.for_arrival(IMAGE, Medium.DISK, half):
        assert room.arriving() == [IMAGE]
        assert room.has_room(Medium.DISK, IMAGE, QUOTA), 'it is the one that comes'
        assert not room.has_room(Medium.DISK, OTHER, half + 1)
        with pytest.raises(exception.BootcacheError, match='no room'), \
                room.for_fetch(IMAGE, Medium.DISK, half + 1):
            pass
        with room.for_fetch(IMAGE, Medium.DISK, half):
            assert room.arriving() == [IMAGE]
            assert not room.has_room(Medium.DISK, OTHER, 1)
        assert room.arriving() == [IMAGE]
    assert room.arriving() == []
    fill(host, QUOTA)
