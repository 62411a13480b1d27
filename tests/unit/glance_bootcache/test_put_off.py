"""Images of which the storage node could not make its part: they are tried again by themselves."""

import os
import shutil
import types

import pytest
from fakes_clock import Clock
from fakes_database import Rows

from bootcache import exception
from bootcache.manifest import Made, Manifest, Standing
from bootcache.reasons import Cause, Reason
from bootcache.rpc.messages import PlanBoot
from glance_bootcache import decisions
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
ERRORS = [exception.StorageDaemonError('exporter: no answer'),
          exception.StorageDaemonBusy('exporter: it hangs'),
          OSError(28, 'No space left on device'),
          exception.BootcacheError('qemu-img create failed: Disk quota exceeded'),
          exception.BuildFailed('qemu-img convert failed: No space left on device'),
          RuntimeError('nbd_pwrite: write: No space left on device (ENOSPC)'),
          exception.Interrupted('the look at the image did not come to its end'),
          exception.ServiceAway('Nova does not run a profile boot just now')]


def register(house):
    house.images.put(IMAGE)
    house.manager.consider(IMAGE)
    house.settle()


def fail(house, errors):
    """Have the next builds fail, one with each error."""
    def building():
        if errors:
            raise errors.pop(0)
    house.qemu.building = building


@pytest.mark.parametrize('error', ERRORS, ids=repr)
def test_what_the_storage_node_could_not_do_is_tried_again(house, error):
    clock = house.upkeep._put_off._clock = Clock()
    house.upkeep.recovered = True
    fail(house, [error])
    register(house)
    manifest = house.store.load(IMAGE)
    assert decisions.is_put_off(manifest) and str(error) in manifest.reason
    assert house.state(IMAGE) == 'pending'
    house.upkeep.go_on(house.store.manifests())
    clock.sleep(29)
    house.upkeep.go_on(house.store.manifests())
    house.settle()
    assert house.state(IMAGE) == 'pending'
    clock.sleep(1)
    house.upkeep.go_on(house.store.manifests())
    house.settle()
    assert house.state(IMAGE) == 'ready' and house.store.load(IMAGE).reason == ''


def test_the_pauses_grow_and_have_an_end(house):
    clock = house.upkeep._put_off._clock = Clock()
    house.upkeep.recovered = True
    fail(house, [OSError(28, 'No space left on device') for _ in range(100)])
    register(house)
    began, tries = clock.now, []
    while clock.now < began + 20_000:
        recorded = len(house.boots.jobs)
        house.upkeep.go_on(house.store.manifests())
        house.settle()
        if len(house.boots.jobs) > recorded:
            tries.append(clock.now - began)
        clock.sleep(30)
    pauses = [after - before for before, after in zip([0, *tries], tries, strict=False)]
    assert pauses[:4] == [30, 30, 60, 120]
    assert max(pauses) == pauses[-1] == 3600


def test_a_change_of_the_image_in_glance_does_not_try_again(house):
    fail(house, [OSError(28, 'No space left on device')])
    register(house)
    recorded = len(house.boots.jobs)
    house.manager.consider(IMAGE)
    house.settle()
    assert decisions.is_put_off(house.store.load(IMAGE)) and len(house.boots.jobs) == recorded
    house.manager.consider(IMAGE, forced=True)
    house.settle()
    assert house.state(IMAGE) == 'ready'


def test_a_fault_of_the_image_or_of_its_boot_is_for_good(house):
    fail(house, [exception.BuildFailed('the quota leaves no room')])
    register(house)
    assert house.store.load(IMAGE).standing is Standing.FAILED


def test_where_an_older_cache_image_serves_it_goes_on_serving(house):
    register(house)
    fail(house, [OSError(28, 'No space left on device')])
    house.manager.consider(IMAGE, forced=True)
    house.settle()
    manifest = house.store.load(IMAGE)
    assert manifest.standing is Standing.DONE and manifest.made.cache_image is not None
    assert 'No space left' in manifest.reason


def test_a_file_system_without_room_is_no_fault_of_the_image(house, monkeypatch):
    fail(house, [exception.BuildFailed('qemu-img create failed')])
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: types.SimpleNamespace(free=100))
    register(house)
    manifest = house.store.load(IMAGE)
    assert decisions.is_put_off(manifest)
    assert 'has no room' in manifest.reason and 'qemu-img create failed' in manifest.reason


@pytest.mark.parametrize('where', ['exporter', 'row', 'stop'])
def test_what_was_built_in_vain_is_not_left(house, monkeypatch, where):
    """Each try left another one, which no quota counted: where the disk is full, that much more."""
    def building():
        if where == 'exporter':
            house.exporter.fails = ERRORS[0]
        elif where == 'row':
            rows.is_away = True
        else:
            house.manager.jobs.of(IMAGE).cancel()
            house.manager.jobs._stopping.set()

    rows = Rows(house.store, monkeypatch)
    house.qemu.building = building
    register(house)
    assert len(house.qemu.builds) == 1 and house.store.load(IMAGE).made.cache_image is None
    assert [name for name in os.listdir(house.store.directory(IMAGE))
            if name.startswith('cache')] == []


def test_a_server_does_not_wait_for_a_base_that_could_not_be_had(house):
    cause = Cause(Reason.RETRY, 'No space left on device')
    storedimages.put(house.store, Manifest(IMAGE, Standing.WANTED, cause, 'sha512:11'))
    answer = house.hosts.plan_boot(PlanBoot(IMAGE, 'host-1', 'server-1'))
    assert answer['action'] == 'stock' and 'No space left' in answer['reason']
    storedimages.put(house.store, Manifest(
        IMAGE, Standing.WANTED, image_hash='sha512:11', made=Made()))
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host-1', 'server-1'))['action'] == 'wait'
