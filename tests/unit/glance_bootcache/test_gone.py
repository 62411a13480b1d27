"""What the storage service knows of images goes with them: it runs on while they come and go.

The tiers are real, without a memory tier; the neighbours are stand-ins, see test_manager.py.
"""

import json
import os

import pytest

from bootcache.manifest import CacheInfo
from bootcache.rpc.messages import PlanBoot
from glance_bootcache.storage import tiers as storage_contents
from glance_bootcache.storage.tiers import Content, KnownContents, StorageTiers

IMAGES = [f'{number}a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(3)]


@pytest.fixture
def tiers(house, storage_conf):
    house.tiers = StorageTiers(storage_conf, house.store, house.exporter)
    house.restart()
    yield house.tiers
    house.tiers._stopping = True
    house.tiers._worker.shutdown(wait=False)


def test_uses_and_contents_of_deleted_images_are_forgotten_while_the_service_runs(house, tiers):
    for image in IMAGES:
        house.images.put(image)
        house.manager.consider(image)
        house.settle()
        house.hosts.plan_boot(PlanBoot(image, 'host', 'server'))
    house.upkeep.once()
    kept = house.store.load(IMAGES[0]).made.cache_image
    assert set(tiers._usage._last) == set(IMAGES) and len(tiers._contents._right) == 3
    for image in IMAGES[1:]:
        del house.images.images[image]
        house.manager.forget(image)
    house.settle()
    house.upkeep.once()
    assert set(tiers._usage._last) == {IMAGES[0]}
    assert set(tiers._contents._right) == {kept}
    assert tiers.check(house.store.load(IMAGES[0])) is Content.RIGHT, 'it is known as before'
    tiers._usage.save(at_once=True)
    with open(house.store.state_path('usage.json')) as stream:
        assert set(json.load(stream)['last_used']) == {IMAGES[0]}


def test_a_file_that_is_about_to_be_read_is_not_read_twice(tmp_path):
    path, known = str(tmp_path / 'cache-1.qcow2'), KnownContents()
    open(path, 'w').close()
    info = CacheInfo('cache-1.qcow2', 0, 0, 0, 'e3b0', 0, 4096, 0, '', 0.1, 1)
    fault, file = storage_contents.look(info, path)
    assert not fault and known.is_to_be_read(info, path, file)
    known.forget_gone()
    assert not known.is_to_be_read(info, path, file)
    os.unlink(path)
    known.forget_gone()
    assert known._right == {}
