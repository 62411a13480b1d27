"""Images that are registered before a compute host has the driver: they wait, and say for what."""

import fakes_manager

from bootcache.reasons import Cause, Reason

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
HOLDINGS = {'images': {}, 'quotas': {'disk': 1}}


def lonely(house):
    """The service right after its start: it has heard of no host."""
    house.restart(has_hosts=False)
    return house


def ready(house):
    """Have the service recover, and wait until the image is ready."""
    house.recover()
    fakes_manager.until(lambda: house.state(IMAGE) == 'ready', 'ready')
    house.settle()


def test_an_image_waits_and_says_for_what(house):
    lonely(house).images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    found = house.operators.get_image(IMAGE)
    assert found['state'] == 'pending' and found['reason'] == str(Cause(Reason.NO_HOST))
    assert not house.boots.jobs
    assert house.images.shown == [], 'a state that is to change is not for its owner'


def test_the_first_report_of_a_host_begins_it(house):
    lonely(house).images.put(IMAGE)
    house.changed(IMAGE)
    house.endpoints.report_holdings({}, 'cn-1', HOLDINGS)
    ready(house)
    assert house.operators.get_image(IMAGE)['reason'] == '' and len(house.boots.jobs) == 1
    assert house.images.shown == [(IMAGE, 'ready')]


def test_a_server_that_boots_tells_of_its_host_as_well(house):
    lonely(house).images.put(IMAGE)
    house.changed(IMAGE)
    house.endpoints.plan_boot({}, IMAGE, 'cn-1', 'server', None)
    ready(house)


def test_while_it_waits_nobody_is_asked_again(house):
    lonely(house).images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    asked = []
    real = house.images.get
    house.images.get = lambda image_id: asked.append(image_id) or real(image_id)
    house.later(24 * 3600)
    assert asked == []
    house.changed(IMAGE)
    assert asked == [IMAGE]


def test_what_waits_outlives_the_service(house):
    lonely(house).images.put(IMAGE)
    house.changed(IMAGE)
    house.restart()
    ready(house)


def test_a_build_that_is_ordered_waits_too(house):
    lonely(house).images.put(IMAGE)
    house.endpoints.build_image({}, IMAGE)
    house.settle()
    assert house.operators.get_image(IMAGE)['reason'] == str(Cause(Reason.NO_HOST_REQUESTED))
    house.controller.host_reported()
    ready(house)


def test_an_image_that_is_skipped_meanwhile_stays_so(house):
    lonely(house).images.put(IMAGE)
    house.changed(IMAGE)
    house.images.put(IMAGE, mode='off')
    house.changed(IMAGE)
    house.controller.host_reported()
    house.recover()
    house.settle()
    assert house.state(IMAGE) == 'skipped' and not house.boots.jobs


def test_a_cache_image_that_serves_goes_on_serving(house):
    house.images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    lonely(house).images.put(IMAGE, boot_marker='another')
    house.changed(IMAGE)
    found = house.operators.get_image(IMAGE)
    assert found['state'] == 'pending' and found['cache_image'] is not None


def test_what_an_operator_asked_for_is_done_when_a_host_comes(house):
    """Images are not booted by themselves here, and this one is served already."""
    house.conf.set_override('profile_boots', False, 'bootcache')
    lonely(house).images.put(IMAGE)
    house.changed(IMAGE)
    house.settle()
    assert house.state(IMAGE) == 'served' and not house.boots.jobs
    house.build(IMAGE)
    house.settle()
    # Anything may change meanwhile.
    lonely(house).changed(IMAGE)
    found = house.operators.get_image(IMAGE)
    assert (found['state'], found['reason']) == ('pending', str(Cause(Reason.NO_HOST_REQUESTED)))
    house.endpoints.report_holdings({}, 'cn-1', HOLDINGS)
    house.boots.gate.clear()
    house.recover()
    fakes_manager.until(lambda: house.boots.jobs, 'a profile boot')
    assert house.store.load(IMAGE).wished.requested
    house.boots.gate.set()
    fakes_manager.until(lambda: house.state(IMAGE) == 'ready', 'ready')
    house.settle()
    assert house.operators.get_image(IMAGE)['reason'] == '' and len(house.boots.jobs) == 1
