"""Images of which the storage node could not make its part: they are tried again by themselves."""

import itertools
import os
import types

import pytest
from fakes_database import Rows
from fakes_manager import until

from bootcache import exception
from bootcache.manifest import Made, Manifest, Standing, WorkingSetInfo
from bootcache.reasons import Cause, Reason
from bootcache.rpc.messages import PlanBoot
from glance_bootcache.images import imagework, policy, saving
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SET = WorkingSetInfo('set', 900, 3, 4096, 'servers', 'marker', 12.5, 'login:')
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
    house.changed(IMAGE)
    house.settle()


def fail(house, errors):
    """Have the next builds fail, one with each error."""
    def building():
        if errors:
            raise errors.pop(0)
    house.qemu.building = building


@pytest.mark.parametrize('error', ERRORS, ids=repr)
def test_what_the_storage_node_could_not_do_is_tried_again(house, error):
    fail(house, [error])
    register(house)
    manifest = house.store.load(IMAGE)
    assert policy.is_put_off(manifest) and str(error) in manifest.reason
    assert house.state(IMAGE) == 'pending'
    house.later(29)
    house.settle()
    assert house.state(IMAGE) == 'pending'
    house.later(1)
    house.settle()
    assert house.state(IMAGE) == 'ready' and house.store.load(IMAGE).reason == ''


def test_the_pauses_grow_and_have_an_end(house):
    errors = [OSError(28, 'No space left on device') for _ in range(100)]
    fail(house, errors)
    register(house)
    began, tries = house.seconds.now, []
    while house.seconds.now < began + 20_000:
        left = len(errors)
        house.later(30)
        house.settle()
        if len(errors) < left:
            tries.append(house.seconds.now - began)
    pauses = [after - before for before, after in itertools.pairwise([0, *tries])]
    assert pauses[:4] == [30, 60, 120, 240]
    assert max(pauses) == pauses[-1] == 3600
    assert len(house.boots.jobs) == 1, 'what was recorded stays'


def test_a_change_of_the_image_in_glance_does_not_try_again(house):
    fail(house, [OSError(28, 'No space left on device')])
    register(house)
    recorded = len(house.boots.jobs)
    house.changed(IMAGE)
    house.settle()
    assert policy.is_put_off(house.store.load(IMAGE)) and len(house.boots.jobs) == recorded
    house.build(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'ready'


def test_a_fault_of_the_image_or_of_its_boot_is_for_good(house):
    fail(house, [exception.BuildFailed('the quota leaves no room')])
    register(house)
    assert house.store.load(IMAGE).standing is Standing.FAILED


def test_where_an_older_cache_image_serves_it_goes_on_serving(house):
    register(house)
    fail(house, [OSError(28, 'No space left on device')])
    house.build(IMAGE)
    house.settle()
    manifest = house.store.load(IMAGE)
    assert manifest.standing is Standing.DONE and manifest.made.cache_image is not None
    assert 'No space left' in manifest.reason


def test_a_file_system_without_room_is_no_fault_of_the_image(house, monkeypatch):
    fail(house, [exception.BuildFailed('qemu-img create failed')])
    monkeypatch.setattr(imagework, 'shutil', types.SimpleNamespace(
        disk_usage=lambda path: types.SimpleNamespace(free=100)))
    register(house)
    manifest = house.store.load(IMAGE)
    assert policy.is_put_off(manifest)
    assert 'has no room' in manifest.reason and 'qemu-img create failed' in manifest.reason


@pytest.fixture
def rows(house, monkeypatch):
    return Rows(house.store, monkeypatch)


@pytest.fixture
def _soon(monkeypatch):
    monkeypatch.setattr(saving, '_AGAIN_SECONDS', 0.01)


@pytest.mark.parametrize('error', [exception.BuildFailed('x'), exception.ImageRefused('x'),
                                   RuntimeError('x')], ids=repr)
def test_a_failure_is_written_when_the_database_answers(house, rows, error, caplog, _soon):
    def building():
        rows.is_away = True
        raise error

    house.qemu.building = building
    house.images.put(IMAGE)
    house.changed(IMAGE)
    until(lambda: rows.tries > 10, 'the database is asked again')
    assert house.running.of(IMAGE) is not None
    rows.is_away = False
    house.settle()
    assert house.store.load(IMAGE).standing is (
        Standing.SKIPPED if isinstance(error, exception.ImageRefused) else Standing.FAILED)
    assert caplog.text.count('is written when the database answers') == 1


def test_what_was_recorded_is_kept_while_the_database_is_away(house, monkeypatch, _soon):
    tries, write = [], house.store.save_working_set

    def away(*arguments):
        tries.append(arguments)
        raise exception.DatabaseAway('it is away')

    monkeypatch.setattr(house.store, 'save_working_set', away)
    house.images.put(IMAGE)
    house.changed(IMAGE)
    until(lambda: len(tries) > 3, 'the database is asked again')
    monkeypatch.setattr(house.store, 'save_working_set', write)
    house.settle()
    assert house.state(IMAGE) == 'ready' and len(house.boots.jobs) == 1


def test_what_was_made_of_an_image_that_goes_meanwhile_waits_no_more(house, rows, _soon):
    def building():
        rows.is_away = not house.qemu.builds

    house.qemu.building = building
    house.images.put(IMAGE)
    house.changed(IMAGE)
    until(lambda: rows.tries > 10, 'the database is asked again')
    (left,) = [name for name in os.listdir(house.store.directory(IMAGE))
               if name.startswith('cache')]
    house.running.cancel(IMAGE)
    rows.is_away = False
    house.settle()
    assert house.state(IMAGE) == 'ready' and len(house.qemu.builds) == 2
    assert left not in os.listdir(house.store.directory(IMAGE))


def test_a_working_set_that_cannot_be_written_leaves_the_image_to_its_recording(house, rows):
    house.conf.set_override('concurrent_builds', 1, 'bootcache')
    house.restart()
    house.boots.gate.clear()
    for image in (OTHER, IMAGE):
        house.images.put(image)
        house.changed(image)
        until(lambda: house.boots.running, 'the recording of one')
    until(lambda: house.running.is_waiting(IMAGE), 'the other waits for its turn')
    rows.is_away = True
    with pytest.raises(exception.DatabaseAway):
        house.controller.set_working_set(house.store.load(IMAGE), SET)
    rows.is_away = False
    assert house.running.is_waiting(IMAGE)
    house.boots.gate.set()
    house.settle()
    assert house.state(IMAGE) == 'ready'
    assert house.store.load(IMAGE).made.working_set.recorded_by == 'nova'


def test_a_new_image_that_cannot_be_written_is_not_lost(house, rows):
    rows.is_away = True
    register(house)
    assert house.store.load(IMAGE) is None
    rows.is_away = False
    house.later(5)
    house.settle()
    assert house.state(IMAGE) == 'ready'


@pytest.mark.parametrize('where', ['exporter', 'stop'])
def test_what_was_built_in_vain_is_not_left(house, where):
    """Each try left another one, which no quota counted: where the disk is full, that much more."""
    def building():
        if where == 'exporter':
            house.exporter.fails = ERRORS[0]
        else:
            house.controller.stop(wait=False)

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
