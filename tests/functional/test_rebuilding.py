"""A cache image is built again and has the same bytes: it is read from the file that is new.

Building, exporter and tiers are real. An export's name has the sha256 of the file's bytes, so that
of the new file is the same: the exporter went on with the file that it had open.
"""

import hashlib
import os

import pytest
from tiers_house import MIB, flip
from tiers_house import house as house  # the fixture
from tiers_house import memory as memory  # likewise

from bootcache import exception, steps
from bootcache.manifest import Made, Manifest, Standing, WorkingSetInfo
from bootcache.tier import Medium
from bootcache.workingset import Extent, WorkingSet
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images import policy
from glance_bootcache.images.imagework import ImageWork
from glance_bootcache.images.policy import Step
from glance_bootcache.images.running import Running
from glance_bootcache.images.storagedisk import DiskRoom
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.profileboot.job import ImageJob
from glance_bootcache.storage.tiers import Content
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SIZE = 4 * MIB


class Rebuilding:
    """Builds the cache image of one image, as often as it is told to."""

    def __init__(self, house, base):
        self._house = house
        # Glance and Nova, who are not asked, are not there.
        self._work = ImageWork(
            house.conf, house.store, None, house.exporter, house.tiers, None,
            DiskRoom(house.store, Running(1), house.exporter, house.tiers), None,
            ServiceMetrics())
        os.makedirs(house.store.directory(IMAGE))
        name = house.store.save_working_set(IMAGE, WorkingSet(
            IMAGE, 'sha512:ab', SIZE, 65536, (Extent(MIB, MIB), Extent(0, MIB))))
        storedimages.put(house.store, Manifest(IMAGE, Standing.DONE, made=Made(
            base_path=base, base_hash='sha512:ab', image_format='raw', virtual_bytes=SIZE,
            base_export=f'base-{IMAGE}',
            working_set=WorkingSetInfo(name, 2 * MIB, 2, 65536, 'nova', 'marker', 1.0, 'login:'))
        ).wishing(quota=64 * MIB))

    def build(self):
        """Build it; return the manifest."""
        image = ImageFacts(IMAGE, 'active', 'raw', 'bare', SIZE, 'sha512:ab', 0, 0, {})
        try:
            self._work.do(ImageJob(IMAGE, Step.BUILD), image)
        except exception.BuildFailed as error:
            failed = error
            self._house.store.change(IMAGE, lambda known: policy.failed(known, failed))
        return self._house.store.load(IMAGE)


@pytest.fixture
def rebuilding(house, directory, make_base):
    return Rebuilding(house, make_base(f'{directory}/base', SIZE, [(0, SIZE, 'data')]))


@pytest.mark.parametrize('medium', list(Medium))
def test_a_damaged_one_is_read_no_more_when_it_was_built_again(house, rebuilding, medium):
    before = rebuilding.build()
    if medium is Medium.MEMORY:
        assert house.promote(before) is Medium.MEMORY
    damaged = house.served_from(before)
    flip(damaged)
    after = rebuilding.build()
    info = after.made.cache_image
    assert info.sha256 == before.made.cache_image.sha256, 'the same bytes'
    assert info.file != before.made.cache_image.file and not os.path.exists(damaged)
    assert house.served_from(after) == house.disk_path(after)
    read = house.read(house.exporter.cache_export(after))
    assert hashlib.sha256(read).hexdigest() == info.sha256
    assert house.tiers.check(after) is Content.RIGHT, 'servers read from it on its way'
    # What was given up has no reader who would keep its space.
    assert os.listdir(house.memory) == []
    assert damaged not in house.exporter.common._daemon.node_files().values()


@pytest.fixture
def quota(request, storage_conf):
    """The storage disk tier's quota, in MiB; asked for before the house is made."""
    for option in ('max_quota', 'storage_disk_quota'):
        storage_conf.set_override(option, f'{request.param}MiB', 'bootcache')
    return request.param


@pytest.fixture
def most(house, monkeypatch):
    """The most bytes that the storage disk tier has had at a step of what is done."""
    found = [0]

    def look(_step):
        directory = house.store.directory(IMAGE)
        found[0] = max(found[0], sum(os.stat(f'{directory}/{name}').st_blocks * 512
                                     for name in os.listdir(directory)
                                     if name.startswith('cache-')))

    monkeypatch.setattr(steps, '_hook', look)
    return found


@pytest.mark.parametrize('quota', [3, 5], indirect=True)
def test_the_quota_holds_while_one_is_built_again(quota, house, rebuilding, most):
    """Two of 2 MiB lay there at the same time, whatever the quota was."""
    before = rebuilding.build()
    after = rebuilding.build()
    assert after.made.cache_image.file != before.made.cache_image.file
    assert house.served_from(after) == house.disk_path(after)
    assert (most[0] > 4 * MIB) is (quota == 5) and most[0] <= quota * MIB


@pytest.mark.parametrize('quota', [3], indirect=True)
def test_one_that_is_fetched_serves_on_where_a_newer_one_has_no_room(quota, house, rebuilding):
    before = rebuilding.build()
    fetches = house.connect(house.exporter.cache_export(before))
    after = rebuilding.build()
    assert after.made.cache_image == before.made.cache_image
    assert 'older cache image serves' in after.reason and 'beside the older' in after.reason
    assert fetches.pread(MIB, 0) and house.served_from(after) == house.disk_path(after)
    fetches.shutdown()
