"""What the storage service knows of images goes with them: it runs on while they come and go.

The tiers are real, without a memory tier; the neighbours are stand-ins, see test_controller.py.
"""

import threading

import pytest
from fakes_database import locked

from bootcache import cacheimage
from bootcache.rpc.messages import PlanBoot
from glance_bootcache.db.writer import Writer
from glance_bootcache.hosts.orders import Orders
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.tiers import Content, StorageTiers

IMAGES = [f'{number}a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(3)]


@pytest.fixture
def tiers(house, storage_conf, database):
    house.tiers = StorageTiers(storage_conf, house.store, house.exporter, LastUses(database))
    house.restart()
    yield house.tiers
    house.tiers._stopping = True
    house.tiers._worker.shutdown(wait=False)


def test_uses_and_contents_of_deleted_images_are_forgotten_while_the_service_runs(house, tiers,
                                                                                 database):
    for image in IMAGES:
        house.images.put(image)
        house.changed(image)
        house.settle()
        house.hosts.plan_boot(PlanBoot(image, 'host', 'server'))
    house.once()
    kept = house.store.cache_path(house.store.load(IMAGES[0]))
    assert set(tiers._last_uses._last) == set(IMAGES) and len(tiers._right) == 3
    for image in IMAGES[1:]:
        del house.images.images[image]
        house.deleted(image)
    house.settle()
    house.once()
    assert set(tiers._last_uses._last) == {IMAGES[0]}
    assert set(tiers._right) == {kept}
    assert tiers.check(house.store.load(IMAGES[0])) is Content.RIGHT, 'it is known as before'
    Writer(database, [tiers._last_uses.changes]).write(at_once=True)
    assert set(LastUses(database)._last) == {IMAGES[0]}


def test_a_file_that_is_about_to_be_read_is_not_read_twice(house, tiers, monkeypatch):
    house.images.put(IMAGES[0])
    house.changed(IMAGES[0])
    house.settle()
    tiers._right.clear()
    gate, read, verify = threading.Event(), [], cacheimage.verify
    monkeypatch.setattr(cacheimage, 'verify', lambda *arguments: (
        read.append(arguments[0]), verify(*arguments))[1])
    tiers._worker.submit(gate.wait)
    for _ask in range(2):
        assert tiers.check(house.store.load(IMAGES[0])) is Content.UNREAD
        tiers.forget_gone(house.store.manifests())
    gate.set()
    tiers._worker.submit(lambda: None).result()
    assert tiers.check(house.store.load(IMAGES[0])) is Content.RIGHT and len(read) == 1


def test_an_image_is_not_forgotten_before_hosts_can_be_told(house, database):
    """That they are to let go of it is a row: without it, hosts that are down would keep it."""
    house.images.put(IMAGES[0])
    house.changed(IMAGES[0])
    house.settle()
    del house.images.images[IMAGES[0]]
    house.boots.servers = {IMAGES[0]}
    house.deleted(IMAGES[0])
    house.settle()
    house.boots.servers = set()
    with locked(database):
        house.later(600)
        house.settle()
        assert house.store.load(IMAGES[0]) is not None
        assert 'locked' in house.operators.get_image(IMAGES[0])['kept_for'][0]
    house.later(3600)
    assert house.store.load(IMAGES[0]) is None and Orders(database).is_for_all(IMAGES[0])
