"""Changes of images while the state directory's disk is full: followed when it has room again.

The neighbours are stand-ins, see test_manager.py; tools/faults.sh fills a file system.
"""

import errno
import itertools
import logging
import os

import pytest
from fakes_clock import Clock

from bootcache import savefile
from bootcache.manifest import Manifest, Standing
from glance_bootcache.images import unwritten

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
IMAGES = [f'{number:08x}{IMAGE[8:]}' for number in range(20)]


class Disk:
    """A file system that is full, or has room; what is spoilt cannot be written for good."""

    def __init__(self, write):
        self._write = write
        self.is_full = False
        self.spoilt = ''
        self.tries = 0

    def write_json(self, path, document):
        self.tries += 1
        if self.is_full or (self.spoilt and self.spoilt in path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._write(path, document)


@pytest.fixture
def disk(house, monkeypatch):
    """The state directory's; ``house.again`` is upkeep's step, after seconds."""
    disk = Disk(savefile.write_json)
    monkeypatch.setattr(savefile, 'write_json', disk.write_json)
    clock = house.manager._unwritten._pauses._clock = Clock()
    house.notify = lambda event, payload: house.events.info({}, 'image.host', event, payload, {})

    def again(seconds=30):
        clock.sleep(seconds)
        house.manager.write_again()
        house.settle()

    house.again = again
    return disk


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]


def test_an_image_whose_first_manifest_cannot_be_written_is_not_forgotten(house, disk, caplog):
    disk.is_full = True
    house.images.put(IMAGE)
    house.notify('image.activate', {'id': IMAGE})
    assert house.store.load(IMAGE) is None
    for _again in range(5):
        house.again()
    assert house.store.load(IMAGE) is None
    # It is told once, with the cure.
    assert warnings(caplog) == [
        f'image {IMAGE}: its change cannot be written: [Errno 28] No space left on device; make'
        ' room in [bootcache]state_dir. It is tried again by itself']
    disk.is_full = False
    house.again(300)
    assert house.state(IMAGE) == 'ready' and len(warnings(caplog)) == 1
    assert not house.manager._unwritten._changes


def test_upkeep_does_it(house, disk):
    disk.is_full = True
    house.images.put(IMAGE)
    house.manager.consider(IMAGE)
    disk.is_full = False
    house.upkeep.once()
    assert house.store.load(IMAGE) is None, 'before its time'
    house.manager._unwritten._pauses._clock.sleep(30)
    house.upkeep.once()
    house.settle()
    assert house.state(IMAGE) == 'ready'


@pytest.mark.parametrize('change', ['deleted', 'deactivated', 'opted out'])
def test_an_image_that_is_not_given_out_any_more(house, disk, change):
    house.images.put(IMAGE)
    house.notify('image.activate', {'id': IMAGE})
    house.settle()
    disk.is_full = True
    if change == 'deleted':
        del house.images.images[IMAGE]
        house.notify('image.delete', {'id': IMAGE})
    else:
        house.images.put(IMAGE, **({'status': 'deactivated'} if change == 'deactivated'
                                   else {'mode': 'off'}))
        house.notify('image.update', {'id': IMAGE})
    assert house.store.load(IMAGE).standing is Standing.DONE
    disk.is_full = False
    house.again()
    manifest = house.store.load(IMAGE)
    assert manifest is None if change == 'deleted' else manifest.standing is Standing.SKIPPED
    assert house.hosts.plan_boot(IMAGE, 'host', 'server', None)['action'] in ('stock', 'wait')


def test_an_image_that_fewer_people_see(house, disk):
    """Nothing in Glance's image tells of it later."""
    house.images.put(IMAGE)
    house.manager.consider(IMAGE)
    house.settle()
    disk.is_full = True
    house.notify('image.member.delete', {'image_id': IMAGE})
    house.notify('image.update', {'id': IMAGE})
    house.again()
    assert house.store.load(IMAGE).wished.generation == 0
    disk.is_full = False
    house.again(60)
    assert house.store.load(IMAGE).wished.generation == 1
    house.again(60)
    assert house.store.load(IMAGE).wished.generation == 1


def test_an_operator_is_told(house, disk):
    house.images.put(IMAGE)
    house.store.save(Manifest(IMAGE, Standing.FAILED))
    disk.is_full = True
    for ask in (lambda: house.endpoints.build_image({}, IMAGE),
                lambda: house.endpoints.delete_image({}, IMAGE),
                lambda: house.endpoints.evict_image({}, IMAGE, None)):
        with pytest.raises(OSError, match='No space left'):
            ask()
    assert not house.manager._unwritten._changes


def test_a_server_that_boots_goes_on_waiting_for_its_base(house, disk):
    disk.is_full = True
    house.images.put(IMAGE)
    assert house.hosts.plan_boot(IMAGE, 'host', 'server', None)['action'] == 'wait'
    house.settle()
    disk.is_full = False
    house.again()
    assert house.state(IMAGE) == 'ready'


def test_while_the_disk_is_full_a_few_are_tried_and_less_and_less_often(house, disk):
    disk.is_full = True
    for image in IMAGES:
        house.images.put(image)
        house.manager.consider(image)
    clock, tries = house.manager._unwritten._pauses._clock, []
    for _second in range(2000):
        disk.tries = 0
        house.again(1)
        if disk.tries:
            assert disk.tries == 3
            tries.append(clock.now)
    assert [after - before for before, after in itertools.pairwise(tries)] == [
        30, 60, 120, 240, *[300] * (len(tries) - 5)] and len(tries) > 6
    disk.is_full = False
    house.again(300)
    assert {house.state(image) for image in IMAGES} == {'ready'}


def test_an_image_that_can_never_be_written_holds_up_no_other(house, disk):
    disk.is_full = True
    for image in IMAGES:
        house.images.put(image)
        house.manager.consider(image)
    disk.is_full, disk.spoilt = False, IMAGES[7]
    house.again()
    assert [house.state(image) for image in IMAGES].count('ready') == 19
    assert house.state(IMAGES[7]) is None
    disk.spoilt = ''
    house.again(300)
    assert house.state(IMAGES[7]) == 'ready'


def test_how_many_are_noted_is_bounded_and_told(house, disk, monkeypatch, caplog):
    monkeypatch.setattr(unwritten, '_MOST_IMAGES', 1)
    disk.is_full = True
    for image in (IMAGE, OTHER):
        house.images.put(image)
        house.manager.consider(image)
    assert list(house.manager._unwritten._changes) == [IMAGE]
    assert f'"bootcache image build {OTHER}" takes it up' in caplog.text


def test_a_change_that_comes_while_one_is_followed_is_followed_too(house, disk):
    changes, followed = house.manager._unwritten, []

    def follow(image_id, let_go):
        followed.append(let_go)
        if len(followed) == 1:
            with changes.noted(image_id, let_go=True):
                raise OSError(errno.ENOSPC, 'no space')

    with changes.noted(IMAGE):
        raise OSError(errno.ENOSPC, 'no space')
    for _again in range(3):
        changes._pauses._clock.sleep(300)
        changes.again(follow)
    assert followed == [False, True]


def test_glance_may_be_away_as_well(house, disk):
    disk.is_full = house.images.away = True
    house.images.put(IMAGE)
    house.notify('image.activate', {'id': IMAGE})
    disk.is_full = False
    with pytest.raises(RuntimeError, match='Glance is away'):
        house.again()
    house.images.away = False
    house.upkeep.recovered = True
    house.upkeep.go_on()
    house.settle()
    assert house.state(IMAGE) == 'ready'
