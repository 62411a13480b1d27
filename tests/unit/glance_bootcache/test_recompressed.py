"""Cache images that are stored in another way than is wanted: built anew, when there is time."""

import pytest

from bootcache import exception
from bootcache.cachelayout import Compression

IMAGES = tuple(f'{number:08d}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(2))


def info(house, image):
    return house.store.load(image).made.cache_image


@pytest.fixture
def changed(house):
    """Two images that are ready, and an operator who wants zstd now."""
    for image in IMAGES:
        house.images.put(image)
        house.manager.consider(image)
        house.settle()
    assert [info(house, image).compression for image in IMAGES] == [Compression.NONE] * 2
    house.conf.set_override('compression', 'zstd', 'bootcache')
    house.upkeep.recovered = True
    return house


def test_one_after_the_other_is_built_anew(changed):
    sets = [changed.store.load(image).made.working_set for image in IMAGES]
    for done in (1, 2, 2):
        builds = len(changed.qemu.builds)
        changed.upkeep.recompress()
        changed.settle()
        stored = [info(changed, image).compression for image in IMAGES]
        assert stored.count(Compression.ZSTD) == done
        assert len(changed.qemu.builds) - builds <= 1
    assert len(changed.qemu.builds) == 4 and changed.qemu.compression is Compression.ZSTD
    # Nothing was recorded for that.
    assert [changed.store.load(image).made.working_set for image in IMAGES] == sets
    assert [changed.state(image) for image in IMAGES] == ['ready'] * 2


def test_back_again(changed):
    for _image in IMAGES:
        changed.upkeep.recompress()
        changed.settle()
    changed.conf.set_override('compression', 'none', 'bootcache')
    changed.restart()
    changed.upkeep.recovered = True
    for _image in IMAGES:
        changed.upkeep.recompress()
        changed.settle()
    assert [info(changed, image).compression for image in IMAGES] == [Compression.NONE] * 2


def test_not_while_something_else_is_in_hand(changed):
    job = changed.manager.jobs.begin(IMAGES[0])
    builds = len(changed.qemu.builds)
    changed.upkeep.recompress()
    changed.manager.jobs.end(job)
    assert len(changed.qemu.builds) == builds


def test_what_cannot_be_built_stays_as_it_is_and_is_not_tried_all_the_time(changed):
    def building():
        raise exception.BuildFailed('no')

    changed.qemu.building = building
    before = [info(changed, image) for image in IMAGES]
    for _round in range(4):
        changed.upkeep.recompress()
        changed.settle()
    assert [info(changed, image) for image in IMAGES] == before
    assert [changed.state(image) for image in IMAGES] == ['ready'] * 2
    assert all(changed.upkeep._recompressed.times(image) == 1 for image in IMAGES)
