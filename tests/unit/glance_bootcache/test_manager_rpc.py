"""What compute hosts ask and report. The neighbours are stand-ins, see test_controller.py."""

import dataclasses
import os
import shutil
import threading
import types

import pytest
from fakes_manager import PATIENCE, SIZE, until

from bootcache import exception
from bootcache.manifest import Standing
from bootcache.rpc.messages import PlanBoot, ReportBoot, ReportProgress, ServeStored, StoredExport
from bootcache.workingset import WorkingSet
from glance_bootcache.storage import transfers
from tools import storedimages

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.fixture
def job(house):
    """A recording that waits in mid-boot."""
    house.boots.gate.clear()
    house.images.put(IMAGE)
    house.changed(IMAGE)
    until(lambda: house.boots.jobs, 'a profile boot')
    return house.boots.jobs[0]


def finish(house):
    house.boots.gate.set()
    house.settle()


def plan(house, server='server'):
    return house.hosts.plan_boot(PlanBoot(IMAGE, 'host', server))


def test_a_server_boots_cold_from_an_image_that_was_not_known(house):
    house.images.put(IMAGE)
    assert plan(house) == {'action': 'wait', 'reason': 'the image\'s base is being prepared',
                           'cause': 'base-not-ready', 'ready_in': None}
    house.settle()
    assert house.state(IMAGE) == 'served' and not house.boots.jobs
    answer = plan(house)
    assert answer['action'] == 'cold' and answer['base_export'] == f'base-{IMAGE}'
    assert answer['watch'] == {'quota': 512 << 20, 'marker': house.conf.bootcache.boot_marker,
                               'linger': 20, 'silence': 60, 'timeout': 900}
    assert answer['image_hash'].startswith('sha512:') and answer['pinned'] is False


def test_an_image_that_glance_does_not_have_goes_the_stock_way(house):
    assert plan(house)['action'] == 'wait'
    house.settle()
    assert house.state(IMAGE) is None
    house.images.put(IMAGE, mode='off')
    plan(house)
    house.settle()
    assert plan(house) == {'action': 'stock', 'reason': 'the image is skipped: bootcache_mode=off',
                           'cause': 'mode-off'}


def test_a_host_hears_when_a_base_that_is_downloaded_will_be_here(house, monkeypatch):
    """By the size that Glance tells, and how fast it comes."""
    pieces, gate = [b'\0' * (SIZE // 4)] * 4, threading.Event()
    now = [5000.0]
    monkeypatch.setattr(transfers, 'time', types.SimpleNamespace(monotonic=lambda: now[0]))

    def download(_image_id):
        yield pieces[0]
        now[0] += 30
        assert gate.wait(PATIENCE)
        yield from pieces[1:]

    house.images.put(IMAGE)
    monkeypatch.setattr(house.images, 'download', download)
    plan(house)
    until(lambda: plan(house).get('ready_in'), 'the estimate')
    assert plan(house) == {'action': 'wait', 'reason': 'the image\'s base is being prepared',
                           'cause': 'base-not-ready', 'ready_in': 90.0}
    gate.set()
    house.settle()
    assert plan(house)['action'] == 'cold'


def test_an_image_in_hand_boots_cold(house, job):
    answer = plan(house)
    assert answer['action'] == 'cold' and answer['watch']
    assert job.host == ''
    # What the server read is not looked at: the profile boot will tell.
    house.hosts.report_boot(ReportBoot(IMAGE, house.store.load(IMAGE).image_hash, 'host', 65536,
                                       [[0, 65536]], 'marker', 1.0))
    assert house.operators.get_working_set(IMAGE) is None


def test_an_image_that_waits_for_its_profile_boot_boots_cold(house):
    house.conf.set_override('concurrent_builds', 1, 'bootcache')
    house.restart()
    house.boots.gate.clear()
    other = IMAGE.replace('7', '8', 1)
    for image in (IMAGE, other):
        house.images.put(image)
        house.changed(image)
        until(lambda: house.boots.jobs, 'a profile boot')
    until(lambda: house.store.load(other).made.base_path and house.running.is_waiting(other),
          'the base')
    assert house.state(other) == 'pending'
    assert house.hosts.plan_boot(PlanBoot(other, 'host', 'server'))['action'] == 'cold'


def report(house, extents, image_hash=None, granularity=65536, server='server'):
    """A host is asked for a report, and makes it."""
    house.hosts.plan_boot(PlanBoot(IMAGE, 'host', server))
    house.hosts.report_boot(ReportBoot(IMAGE, image_hash or house.store.load(IMAGE).image_hash,
                                       'host', granularity, extents, 'marker', 12.34))
    house.settle()


def cold(house, **properties):
    house.images.put(IMAGE, **properties)
    plan(house)
    house.settle()


def test_a_cold_boots_report_makes_the_cache_image(house):
    cold(house)
    report(house, [[65536, 65536, 0.0], [0, 65536, 0.5]])
    manifest = house.store.load(IMAGE)
    assert manifest.state == 'ready' and manifest.made.cache_image is not None
    info = manifest.made.working_set
    assert (info.recorded_by, info.ended_by, info.boot_seconds, info.version) \
        == ('server', 'marker', 12.3, 1)
    assert plan(house)['action'] == 'cache' and not house.boots.jobs


@pytest.mark.parametrize('hash_', ['sha512:00', ''])
def test_a_report_of_another_content_is_ignored(house, hash_):
    cold(house)
    house.hosts.report_boot(ReportBoot(IMAGE, hash_, 'host', 65536, [[0, 65536]], 'marker', 1.0))
    house.hosts.report_boot(ReportBoot(IMAGE.replace('7', '8', 1), hash_, 'host', 65536, [],
                                       'marker', 1.0))
    assert house.state(IMAGE) == 'served'


@pytest.mark.parametrize('granularity, extents', [
    (65536, [[0, SIZE + 1]]), (65536, [[-1, 5]]), (512, [[0, 512]]), ('x', []), (65536, 'no'),
    (65536, [['0', 5]])])
def test_a_servers_report_that_cannot_be_is_refused(house, granularity, extents):
    cold(house)
    with pytest.raises(exception.InvalidWorkingSet):
        report(house, extents, granularity=granularity)
    assert house.state(IMAGE) == 'served'


def test_boots_refine_the_working_set_until_they_bring_nothing_new(house):
    cold(house)
    report(house, [[0, 65536]])
    for server in ('one', 'two'):
        report(house, [[0, 65536], [131072, 65536]], server=server)
    manifest = house.store.load(IMAGE)
    assert manifest.made.working_set.version == 2 and len(house.qemu.builds) == 2
    document = house.operators.get_working_set(IMAGE)
    assert [extent[0] for extent in document['extents']] == [0, 131072]
    for _boot in range(3):
        assert plan(house)['watch']
        report(house, [[131072, 65536]])
    assert 'watch' not in plan(house)
    assert house.store.load(IMAGE).made.working_set.version == 2 and len(house.qemu.builds) == 2


def test_three_hosts_at_a_time_are_asked_for_reports(house):
    """The others of a storm boot at once: a boot that is watched waits for the cache image."""
    cold(house)
    report(house, [[0, 65536]])

    def asked(host):
        return 'watch' in house.hosts.plan_boot(PlanBoot(IMAGE, host, 'server'))

    assert [asked(f'host-{number}') for number in range(5)] == [True] * 3 + [False] * 2
    assert asked('host-1') and not asked('host-4')
    for _server in range(2):
        house.hosts.report_boot(ReportBoot(IMAGE, house.store.load(IMAGE).image_hash, 'host-1',
                                           65536, [], 'marker', 1.0))
    assert asked('host-4')


def test_no_more_versions_than_the_operator_wants(house):
    house.conf.set_override('refine_boots', 1, 'bootcache')
    cold(house)
    report(house, [[0, 65536]])
    for server in ('one', 'two'):
        report(house, [[131072, 65536]], server=server)
    assert house.store.load(IMAGE).made.working_set.version == 2
    assert 'watch' not in plan(house)


def test_without_profile_boots_registering_serves_the_base(house):
    house.conf.set_override('profile_boots', False, 'bootcache')
    house.restart()
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'served' and not house.boots.jobs
    house.build(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'ready' and len(house.boots.jobs) == 1


def test_an_evicted_cache_image_is_built_again_when_a_server_boots(house):
    cold(house)
    report(house, [[0, 65536]])
    manifest = house.store.load(IMAGE)
    storedimages.put(house.store, dataclasses.replace(
        manifest, standing=Standing.DONE).making(cache_image=None))
    assert plan(house)['action'] == 'cold'
    house.settle()
    assert plan(house)['action'] == 'cache'


def test_a_base_whose_disk_was_lost_is_got_again_when_a_server_boots(house):
    """With another database than SQLite it is known still; so are working sets."""
    cold(house)
    report(house, [[0, 65536]])
    lost = house.store.load(IMAGE)
    shutil.rmtree(house.store.directory(IMAGE))
    storedimages.put(house.store, lost.making(cache_image=None))  # As it is found to be damaged.
    house.restart()
    assert plan(house)['action'] == 'wait'
    house.settle()
    assert os.path.exists(house.store.load(IMAGE).made.base_path)
    assert plan(house)['action'] == 'cold'
    house.settle()
    assert plan(house)['action'] == 'cache' and not house.boots.jobs


def test_building_evicts_what_was_used_least_recently(house):
    cold(house)
    report(house, [[0, 65536]])
    other = IMAGE.replace('7', '8', 1)
    house.tiers.evict = [IMAGE]
    house.images.put(other)
    house.changed(other)
    house.settle()
    evicted = house.store.load(IMAGE)
    assert evicted.state == 'served' and evicted.made.working_set
    assert IMAGE in house.tiers.forgotten and house.state(other) == 'ready'


def test_what_is_being_fetched_is_not_evicted(house):
    cold(house)
    report(house, [[0, 65536]])
    house.exporter.fetching.add(IMAGE)
    house.tiers.evict = [IMAGE]
    house.disk_room.keep_quota(house.store.manifests())
    assert house.store.load(IMAGE).made.cache_image is not None


def test_without_room_on_storage_disk_nothing_is_built(house):
    house.tiers.fits = False
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'failed'
    assert 'storage_disk_quota' in house.operators.get_image(IMAGE)['reason']
    # Servers boot cold.
    assert plan(house)['action'] == 'cold'


def test_stored_bytes_for_settling(house):
    assert house.hosts.serve_stored(ServeStored(IMAGE, 'host')) is None
    cold(house, settle='no')
    answer = house.hosts.serve_stored(ServeStored(IMAGE, 'host'))
    assert answer == StoredExport(
        False, ('storage', 1), True, f'stored-{IMAGE}', f'base-{IMAGE}', SIZE,
        house.store.load(IMAGE).image_hash, 'raw', '')


def test_what_is_stored_of_an_image_that_gets_a_signature_is_not_for_settling(house):
    """Nobody has checked it: stock Nova does that, when it makes the full base itself."""
    cold(house)
    house.boots.servers.add(IMAGE)
    assert house.hosts.serve_stored(ServeStored(IMAGE, 'host')).settle is True
    content, facts = house.images.images[IMAGE]
    house.images.images[IMAGE] = content, dataclasses.replace(
        facts, properties={**facts.properties, 'img_signature': 'x'})
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'skipped'
    assert house.hosts.serve_stored(ServeStored(IMAGE, 'host')).settle is False


def test_a_deleted_images_servers_find_its_base(house, job):
    finish(house)
    house.boots.servers.add(IMAGE)
    house.exporter.readers.add(IMAGE)
    del house.images.images[IMAGE]
    house.changed(IMAGE)
    answer = plan(house)
    assert answer['action'] == 'stock' and answer['base_export'] == f'base-{IMAGE}'
    assert 'cache_image' not in answer


def test_a_ready_image_is_served(house, job):
    finish(house)
    house.exporter.serving.clear()
    answer = house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))
    assert answer['action'] == 'cache' and answer['virtual_bytes'] == SIZE
    assert answer['cache_image'] == house.operators.get_image(IMAGE)['cache_image']
    # An exporter that was restarted, and so was empty, serves it again.
    assert IMAGE in house.exporter.serving


def test_a_failed_profile_boot_leaves_it_to_servers(house, job):
    house.boots.fails = exception.ProfileBootFailed('no flavor')
    finish(house)
    assert house.operators.get_image(IMAGE)['reason'] == 'no flavor'
    # Its base is there: a server boots cold, and is recorded in the profile boot's place.
    assert plan(house)['action'] == 'cold'
    report(house, [[0, 65536]])
    assert house.state(IMAGE) == 'ready'


def test_the_profile_boot_itself_records(house, job):
    answer = house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server', job.token))
    assert answer['action'] == 'record' and answer['server'] == ['storage', 1]
    assert set(answer['watch']) == {'quota', 'marker', 'linger', 'silence', 'timeout'}
    assert job.host == 'host'
    assert house.operators.get_image(IMAGE)['progress'] == {'host': 'host', 'recorded_bytes': 0}


@pytest.mark.parametrize('token', ['', 'x', 'f' * 32])
def test_a_wrong_token_records_nothing(house, job, token):
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server', token))['action'] == 'stock'
    assert job.host == ''
    house.hosts.report_progress(ReportProgress(IMAGE, token, 5))
    assert job.recorded_bytes == 0
    house.hosts.report_profile(ReportBoot(IMAGE, 'sha512:ab', 'host', 4096, [[0, 4096]], 'marker',
                                          1.0, token, ''))
    assert job.report is None


def test_a_token_is_over_with_its_job(house, job):
    finish(house)
    before = house.operators.get_working_set(IMAGE)
    assert house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server', job.token))['action'] == 'stock'
    house.hosts.report_profile(ReportBoot(IMAGE, 'sha512:ab', 'host', 4096, [[8192, 4096]],
                                          'marker', 1.0, job.token, ''))
    assert house.operators.get_working_set(IMAGE) == before


def test_progress_is_shown(house, job):
    house.hosts.report_progress(ReportProgress(IMAGE, job.token, 12345))
    document = house.operators.get_image(IMAGE)
    assert document['in_hand'] is True and document['progress']['recorded_bytes'] == 12345
    assert job.heard_at > 0


@pytest.mark.parametrize('granularity, extents', [
    (4096, [[SIZE, 4096]]), (4096, [[0, SIZE + 1]]), (4096, [[-4096, 4096]]), (4096, 'all'),
    (7, [[0, 4096]]), (4096, [[0, 4096], [0]])])
def test_a_report_outside_the_base_is_refused(house, job, granularity, extents):
    with pytest.raises(exception.InvalidWorkingSet):
        house.hosts.report_profile(ReportBoot(IMAGE, 'sha512:ab', 'host', granularity, extents,
                                              'marker', 1.0, job.token, ''))
    assert job.report is None


def test_a_report_is_what_is_built(house, job):
    house.hosts.report_profile(ReportBoot(IMAGE, 'sha512:ab', 'host', 4096, [[8192, 100, 0.0], [0,
        1, 0.1]], 'marker', 1.0, job.token, ''))
    assert job.changed.is_set()
    finish(house)
    document = house.operators.get_working_set(IMAGE)
    assert document['extents'] == [[8192, 4096, 0.0], [0, 4096, 0.1]]
    (built, _quota), = house.qemu.builds
    assert built == list(WorkingSet.from_json(document).extents)


def test_endpoints_hand_on(house, job):
    endpoints = house.endpoints
    upper = IMAGE.upper()
    assert endpoints.plan_boot({}, upper, 'host', 'server', job.token)['action'] == 'record'
    endpoints.report_progress({}, IMAGE, job.token, 5)
    assert job.recorded_bytes == 5
    endpoints.report_boot({}, upper, 'sha512:ab', 'host', 4096, [[0, 4096]], 'stuck', 1.5,
                          profile_token=job.token, line='panic')
    assert (job.report.ended_by, job.report.line) == ('stuck', 'panic')
    finish(house)
    assert [image['image_id'] for image in endpoints.list_images({})] == [IMAGE]
    assert endpoints.get_image({}, upper)['state'] == 'ready'
    assert endpoints.get_working_set({}, upper)['extents'] == [[0, 4096]]
    assert endpoints.delete_image({}, upper) is True
    endpoints.build_image({}, upper)
    house.settle()
    assert endpoints.get_image({}, IMAGE)['state'] == 'ready' and len(house.boots.jobs) == 2
    assert endpoints.pin_image({}, upper, True) is True
    assert endpoints.get_image({}, IMAGE)['pinned'] is True
    endpoints.promote_image({}, upper)
    assert house.tiers.promoted == [IMAGE]
    assert endpoints.serve_stored({}, upper, 'host')['export'] == f'stored-{IMAGE}'
    del house.images.images[IMAGE]
    endpoints.image_registered({}, IMAGE)
    house.looked()
    assert endpoints.get_image({}, IMAGE)['state'] == 'skipped'
    # Glance notified no deletion, and has no other image.
    assert endpoints.delete_image({}, IMAGE) is True
    house.looked()
    assert endpoints.get_image({}, IMAGE) is None


@pytest.mark.parametrize('method, arguments', [
    ('plan_boot', ('host', 'server', None)), ('get_image', ()), ('get_working_set', ()),
    ('delete_image', ()), ('build_image', ()), ('image_registered', ()),
    ('report_boot', ('sha512:ab', 'host', 4096, [], 'marker', 1.5))])
def test_endpoints_take_only_image_ids(house, method, arguments):
    with pytest.raises(exception.MessageRefused, match=r'^image_id: .\.\./\.\./etc. is not'):
        getattr(house.endpoints, method)({}, '../../etc',
                                         *arguments)
