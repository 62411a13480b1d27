"""Cache images that are stored in another way than is wanted: built anew, when there is time."""

import pytest
from fakes_clock import Clock
from fakes_manager import in_hand

from bootcache import exception, tier
from bootcache.cachelayout import Compression
from bootcache.tier import Item, TierLimits

IMAGES = tuple(f'{number:08d}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(2))


def info(house, image):
    return house.store.load(image).made.cache_image


@pytest.fixture
def changed(house):
    """Two images that are ready, not compressed, and an operator who wants zstd now."""
    house.conf.set_override('compression', 'none', 'bootcache')
    for image in IMAGES:
        house.images.put(image)
        house.changed(image)
        house.settle()
    assert [info(house, image).compression for image in IMAGES] == [Compression.NONE] * 2
    house.conf.set_override('compression', 'zstd', 'bootcache')
    house.upkeep.recovered = True
    return house


def test_one_after_the_other_is_built_anew(changed):
    sets = [changed.store.load(image).made.working_set for image in IMAGES]
    for done in (1, 2, 2):
        builds = len(changed.qemu.builds)
        changed.upkeep.recompress(changed.store.manifests())
        changed.settle()
        stored = [info(changed, image).compression for image in IMAGES]
        assert stored.count(Compression.ZSTD) == done
        assert len(changed.qemu.builds) - builds <= 1
    assert len(changed.qemu.builds) == 4 and changed.qemu.compression is Compression.ZSTD
    # Nothing was recorded for that.
    assert [changed.store.load(image).made.working_set for image in IMAGES] == sets
    assert [changed.state(image) for image in IMAGES] == ['ready'] * 2


def test_what_was_built_since_the_manifests_were_read_is_not_built_again(changed):
    read = changed.store.manifests()
    for _round in range(4):
        changed.seconds.now += 24 * 3600
        changed.upkeep.recompress(read)
        changed.settle()
    assert len(changed.qemu.builds) == 4


def test_back_again(changed):
    for _image in IMAGES:
        changed.upkeep.recompress(changed.store.manifests())
        changed.settle()
    changed.conf.set_override('compression', 'none', 'bootcache')
    changed.restart()
    changed.upkeep.recovered = True
    for _image in IMAGES:
        changed.upkeep.recompress(changed.store.manifests())
        changed.settle()
    assert [info(changed, image).compression for image in IMAGES] == [Compression.NONE] * 2


def test_not_while_something_else_is_in_hand(changed):
    builds = len(changed.qemu.builds)
    with in_hand(changed, IMAGES[0]):
        changed.upkeep.recompress(changed.store.manifests())
    changed.settle()
    assert len(changed.qemu.builds) == builds


@pytest.fixture
def full(changed):
    """``changed``, with a storage disk tier for so many cache images as one is at most."""
    def set_quota(count):
        def plan_disk(manifests, incoming=0, busy=()):
            if incoming:
                size.append(incoming)
            items = [Item(manifest.image_id, size[0], IMAGES.index(manifest.image_id), False,
                          manifest.image_id in busy)
                     for manifest in manifests if manifest.made.cache_image is not None]
            limits = TierLimits.from_percent(count * size[0], 100, 60)
            return tier.make_room(items, limits, incoming)

        size = []
        changed.tiers.plan_disk = plan_disk

    return set_quota


def rounds(house, count):
    for _round in range(count):
        house.upkeep.recompress(house.store.manifests())
        house.settle()


def manifests(house):
    return [house.store.load(image) for image in IMAGES]


@pytest.mark.parametrize('quota', [1, 2])
def test_no_cache_image_goes_for_it(changed, full, quota):
    """Neither another image's nor its own: it waits until there is room beside all of them."""
    full(quota)
    before = manifests(changed)
    rounds(changed, 4)
    assert manifests(changed) == before and len(changed.qemu.builds) == 2
    # As many are built as there are left.
    full(len(IMAGES) + 1)
    changed.upkeep._recompressed.keep_only(())
    rounds(changed, 2)
    assert [info(changed, image).compression for image in IMAGES] == [Compression.ZSTD] * 2


def test_nothing_waits_for_it_and_it_waits_for_nothing(changed, full):
    """What is promised to another one that is being built is not free."""
    full(len(IMAGES) + 1)
    with changed.disk_room.kept('00000009-1f2b-4c3d-8e9f-0a1b2c3d4e5f', 1 << 20):
        before = manifests(changed)
        rounds(changed, 2)
        assert manifests(changed) == before and len(changed.qemu.builds) == 2


@pytest.mark.parametrize('error', [exception.BuildFailed('no'), OSError(28, 'No space left'),
                                   RuntimeError('what nobody thought of')], ids=repr)
def test_what_cannot_be_built_stays_as_it_is_and_is_not_tried_all_the_time(changed, error):
    def building():
        tries.append(clock.now - began)
        raise error

    tries, clock = [], Clock()
    changed.upkeep._recompressed._clock, began = clock, clock.now
    changed.qemu.building = building
    before = manifests(changed)
    while clock.now < began + 20_000:
        rounds(changed, 1)
        clock.sleep(30)
    # State, reason and cache image: what is to be done about it otherwise is done.
    assert manifests(changed) == before
    assert [changed.state(image) for image in IMAGES] == ['ready'] * 2
    pauses = [after - before for before, after in zip(tries[::2], tries[2::2], strict=False)]
    assert pauses == sorted(pauses) and pauses[-1] >= 3600 and len(tries) < 30


def test_images_that_are_deleted_meanwhile_are_gone(changed, caplog):
    def building():
        for image in IMAGES:
            # As a job that was given up looks at its image again.
            changed.images.images.pop(image, None)
            changed.deleted(image)

    changed.qemu.building = building
    rounds(changed, 1)
    assert manifests(changed) == [None, None] and changed.exporter.serving == {}
    assert 'is built anew later' not in caplog.text
