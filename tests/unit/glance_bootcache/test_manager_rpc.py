"""What compute hosts ask and report. The neighbours are stand-ins, see test_manager.py."""

import pytest
from fakes_manager import SIZE, until

from bootcache import exception
from bootcache.workingset import WorkingSet
from glance_bootcache.endpoints import Endpoints

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.fixture
def job(house):
    """A recording that waits in mid-boot."""
    house.boots.gate.clear()
    house.images.put(IMAGE)
    house.manager.consider(IMAGE)
    until(lambda: house.boots.jobs, 'a profile boot')
    return house.boots.jobs[0]


def finish(house):
    house.boots.gate.set()
    house.settle()


def test_an_unknown_image_goes_the_stock_way(house):
    assert house.manager.plan_boot(IMAGE, 'host', 'server', None) == {
        'action': 'stock', 'reason': 'the image is not known to the storage service'}


def test_an_image_in_hand_goes_the_stock_way(house, job):
    answer = house.manager.plan_boot(IMAGE, 'host', 'server', None)
    assert answer['action'] == 'stock' and 'recording' in answer['reason']
    assert job.host == ''


def test_a_ready_image_is_served(house, job):
    finish(house)
    house.exporter.serving.clear()
    answer = house.manager.plan_boot(IMAGE, 'host', 'server', None)
    assert answer['action'] == 'cache' and answer['virtual_bytes'] == SIZE
    assert answer['cache_image'] == house.manager.get_image(IMAGE)['cache_image']
    # An exporter that was restarted, and so was empty, serves it again.
    assert IMAGE in house.exporter.serving


def test_a_failed_image_tells_its_reason(house, job):
    house.boots.fails = exception.ProfileBootFailed('no flavor')
    finish(house)
    assert house.manager.plan_boot(IMAGE, 'host', 'server', None) == {
        'action': 'stock', 'reason': 'the image is failed: no flavor'}


def test_the_profile_boot_itself_records(house, job):
    answer = house.manager.plan_boot(IMAGE, 'host', 'server', job.token)
    assert answer['action'] == 'record' and answer['server'] == ['storage', 1]
    assert job.host == 'host'
    assert house.manager.get_image(IMAGE)['progress'] == {'host': 'host', 'recorded_bytes': 0}


@pytest.mark.parametrize('token', ['', 'x', 'f' * 32])
def test_a_wrong_token_records_nothing(house, job, token):
    assert house.manager.plan_boot(IMAGE, 'host', 'server', token)['action'] == 'stock'
    assert job.host == ''
    house.manager.recording_progress(IMAGE, token, 5, 0.0)
    assert job.recorded_bytes == 0
    house.manager.report_working_set(IMAGE, token, 4096, [[0, 4096]])
    assert job.working_set is None


def test_a_token_is_over_with_its_job(house, job):
    finish(house)
    before = house.manager.get_working_set(IMAGE)
    assert house.manager.plan_boot(IMAGE, 'host', 'server', job.token)['action'] == 'stock'
    house.manager.report_working_set(IMAGE, job.token, 4096, [[8192, 4096]])
    assert house.manager.get_working_set(IMAGE) == before


def test_progress_is_shown(house, job):
    house.manager.recording_progress(IMAGE, job.token, 12345, 1.5)
    document = house.manager.get_image(IMAGE)
    assert document['in_hand'] is True and document['progress']['recorded_bytes'] == 12345
    assert job.idle_seconds == 1.5


@pytest.mark.parametrize('granularity, extents', [
    (4096, [[SIZE, 4096]]), (4096, [[0, SIZE + 1]]), (4096, [[-4096, 4096]]), (4096, 'all'),
    (7, [[0, 4096]]), (4096, [[0, 4096], [0]])])
def test_a_report_outside_the_base_is_refused(house, job, granularity, extents):
    with pytest.raises(exception.InvalidWorkingSet):
        house.manager.report_working_set(IMAGE, job.token, granularity, extents)
    assert job.working_set is None


def test_a_report_is_what_is_built(house, job):
    house.manager.report_working_set(IMAGE, job.token, 4096, [[8192, 100, 0.0], [0, 1, 0.1]])
    assert job.changed.is_set()
    finish(house)
    document = house.manager.get_working_set(IMAGE)
    assert document['extents'] == [[8192, 4096, 0.0], [0, 4096, 0.1]]
    (built, _quota), = house.qemu.builds
    assert built == list(WorkingSet.from_json(document).extents)


def test_endpoints_hand_on(house, job):
    endpoints = Endpoints(house.manager)
    upper = IMAGE.upper()
    assert endpoints.plan_boot({}, upper, 'host', 'server', job.token)['action'] == 'record'
    endpoints.recording_progress({}, IMAGE, job.token, 5, 0.5)
    assert job.recorded_bytes == 5
    endpoints.report_working_set({}, upper, job.token, 4096, [[0, 4096]])
    finish(house)
    assert [image['image_id'] for image in endpoints.list_images({})] == [IMAGE]
    assert endpoints.get_image({}, upper)['state'] == 'ready'
    assert endpoints.get_working_set({}, upper)['extents'] == [[0, 4096]]
    assert endpoints.delete_image({}, upper) is True
    endpoints.build_image({}, upper)
    house.settle()
    assert endpoints.get_image({}, IMAGE)['state'] == 'ready' and len(house.boots.jobs) == 2
    del house.images.images[IMAGE]
    endpoints.image_registered({}, IMAGE)
    assert endpoints.get_image({}, IMAGE) is None


@pytest.mark.parametrize('method, arguments', [
    ('plan_boot', ('host', 'server', None)), ('get_image', ()), ('get_working_set', ()),
    ('delete_image', ()), ('build_image', ()), ('image_registered', ()),
    ('report_working_set', ('token', 4096, []))])
def test_endpoints_take_only_image_ids(house, method, arguments):
    with pytest.raises(ValueError):
        getattr(Endpoints(house.manager), method)({}, '../../etc', *arguments)
