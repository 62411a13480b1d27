"""Images that wait for their turn to be read or recorded: nobody's image or guest holds up those of
other owners, and what servers' boots tell meanwhile counts. The neighbours are stand-ins, see
test_controller.py."""

import threading
import uuid

import pytest
from fakes_manager import SIZE, until

from bootcache.rpc.messages import PlanBoot
from glance_bootcache.images import imagework
from glance_bootcache.storage import inspection

FIRST, SECOND, THIRD = (f'{number}a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in (1, 2, 3))


@pytest.fixture
def busy(house):
    """One place; an image whose boot does not end has it."""
    house.conf.set_override('concurrent_builds', 1, 'bootcache')
    house.restart()
    house.boots.gate.clear()
    register(house, FIRST, owner='hostile')
    until(lambda: house.boots.running, 'a profile boot')
    return house


def register(house, image, **options):
    house.images.put(image, **options)
    house.changed(image)


def waits(house, image):
    """Wait until an image's base is there and its turn is not."""
    until(lambda: house.running.is_waiting(image), 'its turn to be waited for')


def boot(house, image, extents=((0, 4096),)):
    """A server boots, and its host reports it."""
    answer = house.hosts.plan_boot(PlanBoot(image, 'host', 'server'))
    assert answer['action'] == 'cold' and 'watch' in answer
    house.endpoints.report_boot({}, image, answer['image_hash'], 'host', 65536,
                                [list(extent) for extent in extents], 'marker', 1.0)


def test_another_owners_image_is_recorded_beside_those_that_do_not_end(house):
    house.boots.gate.clear()
    for image in (FIRST, THIRD):
        register(house, image, owner='hostile')
    until(lambda: house.boots.running == 2, 'as many profile boots as there are places')
    register(house, SECOND, owner='another')
    until(lambda: house.boots.running == 3, 'another one')
    assert {job.image_id for job in house.boots.jobs} - {FIRST, THIRD} == {SECOND}
    house.boots.gate.set()
    house.settle()
    assert [house.state(image) for image in (FIRST, SECOND, THIRD)] == ['ready'] * 3


def test_an_image_says_that_it_waits_for_its_turn(busy):
    """It was pending for minutes, without a reason."""
    register(busy, SECOND, owner='another')
    waits(busy, SECOND)
    found = busy.operators.get_image(SECOND)
    assert found['state'] == 'pending' and 'waits for its turn to be recorded' in found['reason']
    assert busy.operators.get_image(FIRST)['reason'] == ''


def test_an_image_that_does_not_boot_holds_up_none_of_its_owner_s(house):
    house.boots.gate.clear()
    register(house, FIRST, owner='one')
    until(lambda: house.boots.running, 'a profile boot')
    register(house, SECOND, owner='one')
    until(lambda: house.boots.running == 2, 'the second one')


def test_a_servers_boot_makes_an_image_ready_that_waits(busy):
    register(busy, SECOND, owner='another')
    waits(busy, SECOND)
    boot(busy, SECOND)
    until(lambda: busy.state(SECOND) == 'ready', 'ready')
    assert [job.image_id for job in busy.boots.jobs] == [FIRST]
    found = busy.store.load(SECOND).made.working_set
    assert (found.recorded_by, found.bytes) == ('server', 65536)
    busy.boots.gate.set()
    busy.settle()
    assert busy.state(FIRST) == 'ready' and len(busy.boots.jobs) == 1


def test_a_recording_that_an_operator_wants_is_not_replaced(busy):
    busy.images.put(SECOND, owner='another')
    busy.build(SECOND)
    waits(busy, SECOND)
    boot(busy, SECOND)
    assert busy.store.load(SECOND).made.working_set is None
    busy.boots.gate.set()
    busy.settle()
    assert busy.store.load(SECOND).made.working_set.recorded_by == 'nova'


def test_a_report_in_mid_recording_is_not_taken(busy):
    boot(busy, FIRST)
    assert busy.store.load(FIRST).made.working_set is None
    busy.boots.gate.set()
    busy.settle()
    assert busy.store.load(FIRST).made.working_set.recorded_by == 'nova'


@pytest.mark.parametrize('how', ['deleted', 'opted out'])
def test_an_image_that_waits_goes_at_once(busy, how):
    register(busy, SECOND, owner='another')
    waits(busy, SECOND)
    if how == 'deleted':
        del busy.images.images[SECOND]
        busy.deleted(SECOND)
    else:
        register(busy, SECOND, mode='off')
    until(lambda: busy.running.of(SECOND) is None, 'its end')
    assert busy.state(SECOND) == (None if how == 'deleted' else 'skipped')
    assert busy.boots.running == 1


def test_a_build_does_not_wait_for_recordings(busy):
    register(busy, SECOND, owner='another')
    waits(busy, SECOND)
    boot(busy, SECOND)
    until(lambda: busy.state(SECOND) == 'ready', 'ready')
    until(lambda: busy.running.of(SECOND) is None)
    register(busy, SECOND, owner='another', quota='1MiB')
    until(lambda: [quota for _extents, quota in busy.qemu.builds] == [512 << 20, 1 << 20])
    assert busy.boots.running == 1


def test_an_owner_whose_builds_take_long_holds_up_no_other(house):
    """Of images that servers boot from: each was evicted, and is built again."""
    hostile = [FIRST.replace('1', str(number), 1) for number in range(4, 9)]
    for image in (*hostile, SECOND):
        register(house, image, owner='another' if image == SECOND else 'hostile')
        house.settle()
    evict(house, *hostile, SECOND)
    gate, building = threading.Event(), []

    def build():
        building.append(threading.current_thread())
        assert gate.wait(60)

    house.qemu.building = build
    for image in hostile:
        house.hosts.plan_boot(PlanBoot(image, 'host', 'server'))
    until(lambda: len(building) == 2, 'as many builds as there are places')
    house.qemu.building = lambda: None
    house.hosts.plan_boot(PlanBoot(SECOND, 'host', 'server'))
    until(lambda: house.store.load(SECOND).made.cache_image, 'the build of another owner')
    assert len(building) == 2
    # One that waits for its turn to be built goes at once, too.
    register(house, hostile[-1], owner='hostile', mode='off')
    until(lambda: house.running.of(hostile[-1]) is None, 'its end')
    gate.set()
    house.settle()
    assert [house.state(image) for image in hostile] == [*['ready'] * 4, 'skipped']


def evict(house, *images):
    """Have cache images leave storage disk, as when it is full."""
    house.tiers.evict = list(images)
    house.disk_room.keep_quota(house.store.manifests())
    house.tiers.evict = []
    assert [house.state(image) for image in images] == ['served'] * len(images)


@pytest.fixture
def reading(house, monkeypatch):
    """The images of one owner are read for minutes: their clusters are compressed for it."""
    house.read, house.reading, house.hostile = threading.Event(), [], False

    def read_through(path, inspected, stored_bytes, check):
        if house.hostile:
            house.reading.append(path)
            assert house.read.wait(60)

    monkeypatch.setattr(inspection, 'read_through', read_through)
    register(house, SECOND, owner='hostile')
    house.settle()
    # A server runs from it.
    house.exporter.readers.add(SECOND)
    house.hostile = True
    for number in range(4, 9):
        register(house, FIRST.replace('1', str(number), 1), owner='hostile')
    until(lambda: len(house.reading) == 2, 'two that are read')
    house.hostile = False
    yield house
    house.read.set()
    house.settle()


def test_an_owner_whose_images_take_long_to_read_holds_up_no_other(reading):
    register(reading, THIRD, owner='another')
    until(lambda: reading.state(THIRD) == 'ready', 'ready')
    assert len(reading.reading) == 2


def test_what_has_its_base_waits_for_no_base(reading):
    """Of the same owner: active again, a smaller cache image, and a server that boots."""
    for options, state in (({'status': 'deactivated'}, 'skipped'), ({}, 'ready'),
                           ({'quota': '64MiB'}, 'ready')):
        register(reading, SECOND, owner='hostile', **options)
        until(lambda state=state: reading.running.of(SECOND) is None
              and reading.state(SECOND) == state, state)
    looked, get = [], reading.images.get
    reading.images.get = lambda image_id: looked.append(image_id) or get(image_id)
    reading.controller.prepare(THIRD)
    until(lambda: THIRD in looked, 'a look')


def test_an_image_that_is_deleted_while_it_waits_for_its_base(reading):
    waiting = FIRST.replace('1', '8', 1)
    assert reading.running.is_waiting(waiting)
    del reading.images.images[waiting]
    reading.deleted(waiting)
    until(lambda: reading.running.of(waiting) is None, 'its end')
    assert reading.state(waiting) is None


def test_a_file_store_that_hangs_stops_no_image_of_another(house, monkeypatch, tmp_path):
    stores = tmp_path / 'hangs', tmp_path / 'answers'
    house.conf.set_override('glance_store_dirs', list(map(str, stores)), 'bootcache')
    house.restart()
    digest, goes_on = imagework.savefile.file_digest, threading.Event()

    def read(path, *arguments):
        if FIRST not in path:
            goes_on.wait()
        return digest(path, *arguments)

    hanging = [str(uuid.uuid4()) for _number in range(40)]
    for store, images in zip(stores, (hanging, [FIRST]), strict=True):
        store.mkdir()
        for image in images:
            (store / image).write_bytes(bytes(SIZE))
            house.images.put(image, owner=f'of-{image}')
    monkeypatch.setattr(imagework.savefile, 'file_digest', read)
    try:
        for image in (*hanging, FIRST):
            house.changed(image)
        until(lambda: house.state(FIRST) == 'ready', 'ready')
        assert {house.state(image) for image in hanging} == {'pending'}
    finally:
        goes_on.set()
        house.settle()
