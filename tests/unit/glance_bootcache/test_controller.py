"""An image's life in the storage service.

Glance, the exporter, QEMU and Nova are stand-ins here (fakes_manager.py, conftest.py): they stand
for services which the tests in tests/functional and tests/e2e run for real.
"""

import dataclasses
import datetime
import os
import threading
import types
import uuid

import pytest
from fakes_manager import failed, until
from keystoneauth1 import exceptions as ks_exceptions
from oslo_messaging import NotificationResult

from bootcache import exception, steps
from bootcache.manifest import ImageState, Manifest, Standing
from bootcache.rpc.messages import PlanBoot
from bootcache.rpc.report import HostReport
from glance_bootcache.images import controller, policy
from glance_bootcache.images.policy import Step
from glance_bootcache.storage import inspection
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


def ready(house, image=IMAGE, **properties):
    house.images.put(image, **properties)
    house.changed(image)
    house.settle()
    assert house.state(image) == 'ready'


def recording(house, image=IMAGE):
    """Begin a recording and stop in the midst of it."""
    house.boots.gate.clear()
    house.images.put(image)
    before = len(house.boots.jobs)
    house.changed(image)
    until(lambda: len(house.boots.jobs) > before, 'a profile boot')
    return house.boots.jobs[-1]


def test_a_name_is_noted_and_follows(house):
    for name in ('old', 'new'):
        house.images.put(IMAGE)
        content, facts = house.images.images[IMAGE]
        house.images.images[IMAGE] = content, dataclasses.replace(facts, name=name)
        house.changed(IMAGE)
        house.settle()
        assert house.operators.get_image(IMAGE)['name'] == name


def told(house):
    found = house.operators.get_image(IMAGE)
    return found['state'], found['reason']


def test_a_registered_image_becomes_ready(house):
    ready(house)
    assert house.images.shown == [(IMAGE, 'ready')]
    document = house.operators.get_image(IMAGE)
    assert document['in_hand'] is False and document['progress'] is None
    assert document['working_set']['bytes'] == 8192 and document['cache_image']['bytes'] == 11
    assert [extent[0] for extent in house.operators.get_working_set(IMAGE)['extents']] == [65536, 0]
    assert (document.pop('kept_for'), document.pop('node')) == ([], 'storage')
    assert house.operators.list_images() == [document]
    base, cache = house.exporter.serving[IMAGE]
    assert os.path.exists(base) and cache.endswith(document['cache_image']['file'])
    assert sorted(os.listdir(house.store.directory(IMAGE))) == sorted(
        [os.path.basename(base), document['cache_image']['file']])


def test_hook_and_notifications_together_give_one_recording(house):
    house.images.put(IMAGE, status='importing')
    house.changed(IMAGE)
    assert house.state(IMAGE) == 'pending' and not house.boots.jobs
    recording(house)
    for _ in range(3):
        house.changed(IMAGE)
    house.boots.gate.set()
    house.settle()
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'ready' and len(house.boots.jobs) == 1


def test_an_import_that_fails_is_told_and_may_come_again(house):
    house.images.put(IMAGE, status='importing', state='pending')
    house.changed(IMAGE)
    house.once()
    assert house.state(IMAGE) == 'pending'
    # Glance's address to download from did not answer: it has put the image back.
    house.images.put(IMAGE, status='queued', state='pending')
    house.later(30)
    assert house.state(IMAGE) == 'failed'
    assert 'import' in house.store.load(IMAGE).reason
    house.later(30)
    house.changed(IMAGE)
    assert house.images.shown == [], 'a property set now may break the next import'
    house.images.put(IMAGE, status='importing', state='pending')
    house.changed(IMAGE)
    assert house.state(IMAGE) == 'pending'
    house.images.put(IMAGE)
    house.later(30)
    house.settle()
    assert house.state(IMAGE) == 'ready'


def test_an_image_without_data_yet_is_not_waited_for(house):
    house.images.put(IMAGE, status='queued')
    house.changed(IMAGE)
    assert house.state(IMAGE) is None and house.images.shown == []
    ready(house)


def test_our_own_property_updates_start_nothing(house):
    """Each state that is shown makes Glance send image.update."""
    house.images.on_show = house.controller.image_changed
    ready(house)
    assert house.images.shown == [(IMAGE, 'ready')]
    assert len(house.boots.jobs) == 1 and len(house.qemu.builds) == 1


def test_no_more_boots_at_once_than_the_operator_allows(house):
    house.conf.set_override('concurrent_builds', 1, 'bootcache')
    house.restart()
    house.boots.gate.clear()
    for image in (IMAGE, OTHER):
        house.images.put(image)
        house.changed(image)
    until(lambda: house.boots.running, 'a profile boot')
    assert sorted(house.state(image) for image in (IMAGE, OTHER)) == ['pending', 'recording']
    house.boots.gate.set()
    house.settle()
    assert house.boots.most_at_once == 1
    assert [house.state(image) for image in (IMAGE, OTHER)] == ['ready', 'ready']


def test_deleted_while_recording(house):
    job = recording(house)
    del house.images.images[IMAGE]
    house.deleted(IMAGE)
    house.settle()
    assert job.cancelled.is_set() and house.state(IMAGE) is None
    assert IMAGE not in house.exporter.serving and not house.qemu.builds
    assert not os.path.exists(house.store.directory(IMAGE))


def test_what_was_recorded_of_an_image_that_is_deleted_meanwhile_leaves_no_file(
        house, monkeypatch):
    monkeypatch.setattr(steps, 'reached', lambda name: name == 'record: kept'
                        and house.controller.evict(IMAGE))
    house.images.put(IMAGE)
    house.boots.servers.add(IMAGE)
    house.changed(IMAGE)
    house.settle()
    base = house.store.load(IMAGE).made.base_path
    assert base and len(house.boots.jobs) == 1
    assert os.listdir(house.store.directory(IMAGE)) == [os.path.basename(base)]


def test_what_an_operator_orders_at_the_end_of_a_recording_is_not_taken_for_done(house):
    """It is written, and its look has not come yet."""
    recording(house)
    house.store.change(IMAGE, policy.requested)
    house.boots.gate.set()
    house.settle()
    assert house.state(IMAGE) == 'ready' and len(house.boots.jobs) == 2
    assert not house.store.load(IMAGE).wished.requested


def test_a_step_whose_turn_comes_is_of_the_record_as_it_is(house):
    house.conf.set_override('concurrent_builds', 1, 'bootcache')
    house.restart()
    recording(house)
    house.images.put(OTHER)
    house.changed(OTHER)
    until(lambda: house.running.is_waiting(OTHER) and house.running.of(OTHER).step == Step.RECORD)
    house.store.change(OTHER, policy.requested)
    house.boots.gate.set()
    house.settle()
    assert [job.image_id for job in house.boots.jobs] == [IMAGE, OTHER], 'it is recorded once'


def test_deleted_while_building(house):
    def delete():
        del house.images.images[IMAGE]
        house.deleted(IMAGE)

    house.qemu.building = delete
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) is None and IMAGE not in house.exporter.serving
    assert not os.path.exists(house.store.directory(IMAGE))


def test_deleted_while_a_server_reads_from_its_base(house):
    ready(house)
    house.exporter.readers.add(IMAGE)
    del house.images.images[IMAGE]
    house.deleted(IMAGE)
    base = house.store.load(IMAGE).made.base_path
    assert os.path.exists(base) and house.state(IMAGE) == 'skipped'
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['action'] == 'stock'
    house.exporter.readers.clear()
    house.later(30)
    assert house.state(IMAGE) is None and not os.path.exists(base)


def test_deleted_and_nobody_told(house):
    ready(house)
    house.images.put(OTHER)
    house.changed(OTHER)
    house.settle()
    del house.images.images[IMAGE]
    house.changed(IMAGE)
    assert house.state(IMAGE) is None


def test_forgetting_what_is_not_known(house):
    house.deleted(IMAGE)
    assert house.evict(IMAGE) is False
    assert house.state(IMAGE) is None and house.store.manifests() == []


def test_opted_out_while_recording_and_in_again(house):
    first = recording(house)
    house.images.put(IMAGE, mode='off')
    house.changed(IMAGE)
    assert first.cancelled.is_set() and house.state(IMAGE) == 'skipped'
    # Before the first recording is on its way out.
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.boots.gate.set()
    until(lambda: house.state(IMAGE) == 'ready', 'ready')
    house.settle()
    assert len(house.boots.jobs) == 2


def test_opted_out_when_ready(house):
    ready(house)
    house.images.put(IMAGE, mode='off')
    house.changed(IMAGE)
    assert told(house) == ('skipped', 'bootcache_mode=off')
    assert IMAGE not in house.exporter.serving
    assert os.listdir(house.store.directory(IMAGE)) == []
    ready(house)
    assert len(house.boots.jobs) == 2


def test_a_bad_property_is_told_and_its_correction_is_seen(house):
    house.images.put(IMAGE, quota='all')
    house.changed(IMAGE)
    assert house.state(IMAGE) == 'skipped'
    assert 'bootcache_quota' in told(house)[1] and not house.boots.jobs
    ready(house, quota='1MiB')


def test_a_new_quota_builds_without_a_boot(house):
    ready(house)
    ready(house, quota='1MiB')
    assert len(house.boots.jobs) == 1
    assert [quota for _extents, quota in house.qemu.builds] == [512 << 20, 1 << 20]


def test_a_new_marker_boots_again(house):
    ready(house)
    ready(house, boot_marker='up')
    assert len(house.boots.jobs) == 2


def test_a_refused_image_is_skipped_and_not_tried_again_by_itself(house):
    house.qemu.refuse = 'the image has a backing file'
    house.images.on_show = house.controller.image_changed
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    house.settle()
    assert told(house) == ('skipped', 'the image has a backing file')
    assert house.images.shown == [(IMAGE, 'skipped')] and not house.boots.jobs
    # Another content is another matter.
    house.qemu.refuse = None
    house.images.put(IMAGE, content=b'\1' * (1 << 20))
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'ready'


@pytest.mark.parametrize('error, reason', [
    (failed('no flavor'), 'no flavor'), (RuntimeError('a fault of ours'), 'a fault of ours')])
def test_a_failed_boot_is_told_and_an_operator_can_try_again(house, error, reason):
    house.boots.fails = error
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'failed' and reason in told(house)[1]
    assert len(house.boots.jobs) == 1
    house.boots.fails = None
    house.build(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'ready'


def test_a_failed_build_is_told(house):
    def fail():
        raise exception.BuildFailed('differs')

    house.qemu.building = fail
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    assert told(house) == ('failed', 'differs')


def test_held_until_an_operator_wants_it_again(house):
    ready(house)
    assert house.evict(IMAGE) is True
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'skipped' and house.store.load(IMAGE).wished.held
    assert 'image build' in told(house)[1] and len(house.boots.jobs) == 1
    house.restart()
    house.recover()
    house.settle()
    assert house.state(IMAGE) == 'skipped' and not house.operators.get_image(IMAGE)['in_hand']
    # As long as nobody has looked at it since.
    house.store.change(IMAGE, policy.requested)
    assert house.state(IMAGE) == 'skipped' and house.operators.get_image(IMAGE)['in_hand']
    house.build(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'ready' and not house.operators.get_image(IMAGE)['in_hand']
    assert not house.store.load(IMAGE).wished.held


def test_the_base_of_an_image_that_an_operator_deletes_goes_when_no_server_needs_it(house):
    ready(house)
    base = house.store.load(IMAGE).made.base_path
    house.boots.servers = {IMAGE}
    house.evict(IMAGE)
    assert os.path.exists(base) and IMAGE in house.exporter.serving
    house.boots.servers = set()
    house.later(30)
    assert IMAGE not in house.exporter.serving and not os.path.exists(base)
    assert house.state(IMAGE) is ImageState.SKIPPED


def test_the_base_of_an_image_that_is_refused_later_goes_when_no_server_needs_it(
        house, monkeypatch):
    ready(house)
    base = house.store.load(IMAGE).made.base_path
    house.boots.servers = {IMAGE}
    monkeypatch.setattr(inspection, 'RULES', 2)
    house.qemu.refuse = 'the image has a backing file'
    house.restart()
    house.recover()
    house.settle()
    assert told(house) == ('skipped', 'the image has a backing file') and os.path.exists(base)
    house.boots.servers = set()
    house.later(60)
    house.settle()
    assert IMAGE not in house.exporter.serving and not os.path.exists(base)


def test_held_while_recording(house):
    recording(house)
    house.evict(IMAGE)
    house.boots.gate.set()
    house.settle()
    assert house.state(IMAGE) == 'skipped' and not house.qemu.builds


def test_an_image_that_glance_cannot_be_asked_about_is_looked_at_again(house):
    house.images.away = True
    house.changed(IMAGE)
    assert house.state(IMAGE) is None and not house.boots.jobs
    house.images.away = False
    house.images.put(IMAGE)
    house.later(30)
    until(lambda: house.state(IMAGE) is ImageState.READY)


@pytest.mark.parametrize('away', [False, True])
def test_a_deleted_images_base_stays_while_nova_has_servers_of_it(house, away):
    ready(house)
    house.boots.servers, house.boots.away = {IMAGE}, away
    base = house.store.load(IMAGE).made.base_path
    del house.images.images[IMAGE]
    house.deleted(IMAGE)
    assert house.state(IMAGE) is ImageState.SKIPPED and os.path.exists(base)
    house.boots.servers, house.boots.away = set(), False
    house.later(30)
    assert house.state(IMAGE) is None and not os.path.exists(base)


def test_a_deleted_images_base_stays_while_a_host_says_that_it_needs_it(house):
    """Nova does not tell of a server that was deleted softly, and nobody reads its base."""
    ready(house)
    house.needs.note('one', HostReport(needs=frozenset([IMAGE])))
    house.needs.note('of an earlier version', HostReport())
    base = house.store.load(IMAGE).made.base_path
    del house.images.images[IMAGE]
    house.deleted(IMAGE)
    house.later(30)
    assert house.state(IMAGE) is ImageState.SKIPPED and os.path.exists(base)
    house.needs.note('one', HostReport(needs=frozenset()))
    house.later(60)
    assert house.state(IMAGE) is None and not os.path.exists(base)


def test_an_image_that_is_opted_in_again_is_not_retired_any_more(house):
    ready(house)
    house.boots.servers = {IMAGE}
    house.images.put(IMAGE, mode='off')
    house.changed(IMAGE)
    assert house.state(IMAGE) is ImageState.SKIPPED and IMAGE in house.exporter.serving
    house.images.put(IMAGE)
    house.changed(IMAGE)
    until(lambda: house.state(IMAGE) is ImageState.READY)
    house.boots.servers = set()
    house.later(300)
    house.settle()
    assert house.state(IMAGE) is ImageState.READY and IMAGE in house.exporter.serving


@pytest.mark.parametrize('image', ['', '../x', 'x'])
def test_only_image_ids(house, image):
    for call in (house.changed, house.deleted):
        with pytest.raises(ValueError):
            call(image)


def test_a_restart_in_the_midst_starts_again(house):
    house.images.put(IMAGE)
    storedimages.put(house.store, Manifest(IMAGE, Standing.WANTED))
    house.restart()
    house.recover()
    assert house.upkeep.recovered
    house.settle()
    assert house.state(IMAGE) == 'ready'
    assert len(house.boots.jobs) == 1


def test_stopping_keeps_the_image_for_the_next_start(house):
    job = recording(house)
    house.controller.stop()
    assert job.cancelled.is_set() and house.store.load(IMAGE).standing is Standing.WANTED
    house.boots.gate.set()
    house.restart()
    house.recover()
    house.settle()
    assert house.state(IMAGE) == 'ready'


def test_a_look_that_waits_for_glance_keeps_no_profile_server_when_the_service_stops(
        house, monkeypatch):
    job, asked, answers = recording(house), threading.Event(), threading.Event()
    monkeypatch.setattr(house.images, 'get', lambda image: asked.set() or answers.wait(20) or None)
    house.controller.image_changed(OTHER)
    assert asked.wait(20)
    stopping = threading.Thread(target=house.controller.stop)
    stopping.start()
    until(lambda: job.cancelled.is_set() and not house.running.images(), 'the end of the step')
    assert stopping.is_alive()
    answers.set()
    stopping.join(20)
    assert not stopping.is_alive()


def test_while_glance_is_away_one_line_tells_for_all_images(house, caplog):
    images = [f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in range(60)]
    monkey, house.images.get = house.images.get, _away
    for image in images:
        house.controller.image_changed(image)
    for _minute in range(5):
        house.later(60)
    assert 1 <= caplog.text.count('is looked at again') <= 3
    house.images.get = monkey


def _away(image_id):
    raise ks_exceptions.ConnectFailure(f'Unable to establish connection to http://g/{image_id}')


def test_an_import_that_does_not_end_is_asked_for_ever_more_seldom(house, monkeypatch):
    """Anybody can leave any number of images so."""
    wall = types.SimpleNamespace(time=house.seconds.time)
    monkeypatch.setattr(controller, 'time', wall)
    house.images.put(IMAGE, status='uploading', updated_at=datetime.datetime.fromtimestamp(
        house.seconds.time(), datetime.UTC).isoformat(), state='mine')
    house.changed(IMAGE)
    asked, get = [], house.images.get
    house.images.get = lambda image: asked.append(image) or get(image)
    for _look in range(4):
        house.later(30)
    assert len(asked) >= 2
    asked.clear()
    for _minute in range(24 * 60):
        house.later(60)
    assert 24 <= len(asked) <= 80
    house.images.put(IMAGE)
    house.later(3600)
    house.settle()
    assert house.state(IMAGE) == 'ready'


def test_the_older_cache_image_serves_while_and_after_a_new_recording_fails(house):
    ready(house)
    older = house.operators.get_image(IMAGE)['cache_image']
    house.boots.gate.clear()
    house.build(IMAGE)
    until(lambda: len(house.boots.jobs) == 2, 'the second profile boot')
    answer = house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))
    assert answer['action'] == 'cache' and answer['cache_image'] == older
    house.boots.fails = failed('no flavor')
    house.boots.gate.set()
    house.settle()
    document = house.operators.get_image(IMAGE)
    assert document['state'] == 'ready' and 'no flavor' in document['reason']
    assert document['cache_image'] == older
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))['cache_image'] == older


def test_images_that_somebody_makes_up_are_not_all_looked_at_before_others(house, monkeypatch):
    """plan_boot in names of hosts that are made up as well, as the limits of senders let pass."""
    asked, may_answer, get = [], threading.Event(), house.images.get

    def slow(image_id):
        may_answer.wait()
        asked.append(image_id)
        return get(image_id)

    monkeypatch.setattr(house.images, 'get', slow)
    house.images.put(IMAGE)
    try:
        for number in range(2000):
            house.hosts.plan_boot(PlanBoot(str(uuid.uuid4()), f'x{number}', 'server'))
        house.hosts.plan_boot(PlanBoot(IMAGE, 'honest', 'server'))
    finally:
        may_answer.set()
        house.settle()
    assert asked.index(IMAGE) <= 200


def test_images_that_somebody_makes_up_do_not_fill_the_state_directory(house):
    house.images.away = True
    for _number in range(1100):
        house.controller.image_changed(str(uuid.uuid4()))
    house.looked()
    assert len(list(house.store.manifests())) <= 1000


def test_an_event_of_a_new_image_stays_on_the_bus_until_it_was_looked_at(house):
    """Else it would be lost with this process, and no sweep finds it after a start."""
    def told():
        return house.events.info({}, 'image.host', 'image.activate', {'id': IMAGE}, {})

    house.images.put(IMAGE)
    house.images.away = True
    assert told() is NotificationResult.REQUEUE
    house.images.away = False
    house.later(60)
    assert told() is NotificationResult.HANDLED
    house.settle()
    assert house.state(IMAGE) == 'ready'
    house.controller.queue.stop()
    assert house.events.info({}, 'image.host', 'image.activate', {'id': OTHER}, {}) \
        is NotificationResult.REQUEUE
