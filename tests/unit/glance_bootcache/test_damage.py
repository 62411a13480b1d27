"""A cache image that is damaged on storage disk is built again from its working set.

The tiers are real, without a memory tier; the neighbours are stand-ins, see test_controller.py.
tests/functional/test_storage_tiers.py has damage that is found on the way to memory.
"""

import os
import threading

import pytest

from bootcache import cacheimage, exception
from bootcache.rpc.messages import PlanBoot
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.tiers import Content, StorageTiers

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.fixture
def ready(house, storage_conf, database):
    """An image that is ready; nothing has looked at its cache image's file yet."""
    house.tiers = StorageTiers(storage_conf, house.store, house.exporter, LastUses(database))
    house.restart()
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'ready'
    yield house
    house.tiers._stopping = True
    house.tiers._worker.shutdown(wait=False)


def plan(house, server='server'):
    """What a host is told; the work in the background is done afterwards."""
    answer = house.hosts.plan_boot(PlanBoot(IMAGE, 'host', server))
    house.tiers._worker.submit(lambda: None).result()
    house.settle()
    return answer


def path(house):
    return house.store.cache_path(house.store.load(IMAGE))


def damage(house, kind):
    if kind == 'missing':
        os.unlink(path(house))
    elif kind == 'flipped':
        with open(path(house), 'r+b') as stream:
            stream.write(b'C')
    else:
        os.truncate(path(house), {'shorter': 5, 'longer': 50, 'empty': 0}[kind])


def is_whole(house):
    info = house.store.load(IMAGE).made.cache_image
    try:
        cacheimage.verify(path(house), info.sha256, info.bytes)
    except exception.InvalidManifest:
        return False
    return True


def test_a_whole_file_is_read_once(ready, monkeypatch, storage_conf, database):
    # What was built by the same process is known.
    ready.tiers = StorageTiers(
        storage_conf, ready.store, ready.exporter, LastUses(database))
    ready.restart()
    looks, verify = [], cacheimage.verify
    monkeypatch.setattr(cacheimage, 'verify', lambda *a: looks.append(1) or verify(*a))
    for _ in range(5):
        assert plan(ready)['action'] == 'cache'
    assert looks == [1] and len(ready.qemu.builds) == 1


@pytest.mark.parametrize('kind', ['missing', 'shorter', 'longer', 'empty'])
def test_a_boot_has_a_file_of_another_size_built_again(ready, kind, caplog):
    damage(ready, kind)
    answer = plan(ready)
    # That server does not wait, and is not sent after what it would refuse.
    assert answer['action'] == 'cold' and 'cache_image' not in answer
    assert f'image {IMAGE}: its cache image on storage disk is damaged' in caplog.text
    assert ready.state(IMAGE) == 'ready' and is_whole(ready) and len(ready.qemu.builds) == 2
    assert len(ready.boots.jobs) == 1, 'no second profile boot'
    assert plan(ready)['action'] == 'cache'


def test_what_is_built_again_of_the_same_bytes_is_served_from_its_new_file(ready):
    """It has the same export, which went on with the damaged one."""
    damage(ready, 'flipped')
    plan(ready)
    damaged = path(ready)
    assert ready.exporter.serving[IMAGE][1] == damaged
    plan(ready)
    assert path(ready) != damaged and not os.path.exists(damaged)
    assert ready.exporter.serving[IMAGE][1] == path(ready)
    assert plan(ready)['verified'] is True


def test_other_content_is_found_by_the_first_boot_and_built_again_by_the_next(ready, caplog):
    damage(ready, 'flipped')
    assert plan(ready)['action'] == 'cache', 'it is read in the background'
    assert f'image {IMAGE}: its cache image on storage disk is damaged' in caplog.text
    assert plan(ready)['action'] == 'cold'
    assert is_whole(ready) and len(ready.qemu.builds) == 2
    assert plan(ready)['action'] == 'cache'
    assert caplog.text.count('is damaged') == 1


def test_meanwhile_it_is_evicted_also_if_it_is_pinned(ready, caplog):
    ready.operators.pin(IMAGE, True)
    damage(ready, 'flipped')
    plan(ready)
    with caplog.at_level('INFO'):
        ready.disk_room.keep_quota(ready.store.manifests())
    manifest = ready.store.load(IMAGE)
    assert (manifest.state, manifest.made.cache_image) == ('served', None)
    assert manifest.made.working_set is not None and manifest.wished.pinned
    assert 'is evicted from storage disk' in caplog.text
    plan(ready)
    assert ready.state(IMAGE) == 'ready' and is_whole(ready)
    ready.disk_room.keep_quota(ready.store.manifests())
    assert ready.store.load(IMAGE).made.cache_image is not None


def test_what_is_being_fetched_is_evicted_later(ready):
    damage(ready, 'flipped')
    plan(ready)
    ready.exporter.fetching.add(IMAGE)
    ready.disk_room.keep_quota(ready.store.manifests())
    assert ready.store.load(IMAGE).made.cache_image is not None
    ready.exporter.fetching.clear()
    ready.disk_room.keep_quota(ready.store.manifests())
    assert ready.store.load(IMAGE).made.cache_image is None


def test_a_damaged_one_that_cannot_be_built_again_serves_nobody(ready):
    def refuse():
        raise exception.BuildFailed('no room')

    damage(ready, 'missing')
    ready.qemu.building = refuse
    for _ in range(3):
        assert plan(ready)['action'] == 'cold'
    ready.disk_room.keep_quota(ready.store.manifests())
    assert ready.state(IMAGE) == 'served'
    ready.qemu.building = lambda: None
    plan(ready)
    assert ready.state(IMAGE) == 'ready' and is_whole(ready)


def test_asking_for_no_server_builds_nothing(ready):
    """As hosts do for their upkeep: eviction sees to it."""
    damage(ready, 'missing')
    answer = plan(ready, server='')
    assert 'cache_image' not in answer and len(ready.qemu.builds) == 1


def test_a_file_that_was_replaced_meanwhile_is_not_damaged(ready, caplog):
    older = ready.store.load(IMAGE)
    ready.controller.rebuild(IMAGE)
    ready.settle()
    assert older.made.cache_image.file != ready.store.load(IMAGE).made.cache_image.file
    assert ready.tiers.check(older) is Content.WRONG
    assert not ready.tiers.is_damaged(older) and 'damaged' not in caplog.text
    assert plan(ready)['action'] == 'cache'


def test_a_new_service_reads_it_anew(ready, storage_conf, database):
    plan(ready)
    before = os.stat(path(ready))
    damage(ready, 'flipped')
    # As a medium does it, which tells nobody.
    os.utime(path(ready), ns=(before.st_atime_ns, before.st_mtime_ns))
    for _ in range(2):
        assert plan(ready)['action'] == 'cache', 'nobody reads it each time'
    again = StorageTiers(
        storage_conf, ready.store, ready.exporter, LastUses(database))
    again.check(ready.store.load(IMAGE))
    again._worker.shutdown(wait=True)
    assert again.is_damaged(ready.store.load(IMAGE))


def test_an_image_without_a_cache_image(ready):
    manifest = ready.store.load(IMAGE).making(cache_image=None)
    assert ready.tiers.check(manifest) is Content.WRONG and not ready.tiers.is_damaged(manifest)


def test_a_boot_looks_at_the_file_once(ready, monkeypatch):
    plan(ready)
    file, looks, stat = path(ready), [], os.stat

    def counted(name, *arguments, **named):
        if name == file:
            looks.append(name)
        return stat(name, *arguments, **named)

    monkeypatch.setattr(os, 'stat', counted)
    assert ready.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['verified'] is True
    assert len(looks) == 1


def test_a_file_that_somebody_wrote_to_is_read_anew(ready):
    plan(ready)
    damage(ready, 'flipped')
    assert plan(ready)['verified'] is False
    assert plan(ready)['action'] == 'cold'


def test_servers_read_from_what_arrives_once_all_of_it_was_read_here(ready, storage_conf, database):
    """The host looks at it when all of it has come: what servers read before is to be right."""
    assert plan(ready)['verified'] is True
    again = ready.tiers = StorageTiers(
        storage_conf, ready.store, ready.exporter, LastUses(database))
    ready.restart()
    gate = threading.Event()
    again._worker.submit(gate.wait)
    before = ready.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))
    gate.set()
    assert (before['action'], before['verified']) == ('cache', False)
    again._worker.submit(lambda: None).result()
    assert plan(ready)['verified'] is True
