"""Warming by the policy."""

import pytest
from fakes_warming import IMAGE, OTHER, done, make_ready, step, tell
from fakes_warming import ready as ready  # the fixture

from bootcache import exception
from bootcache.manifest import ImageState
from bootcache.rpc.messages import PlanBoot, ReportBoot
from glance_bootcache.warming import runner

# By the policy.

@pytest.fixture
def policy(house):
    """Hosts of two aggregates are warmed when an image is registered."""
    house.conf.set_override('warm_on_register', ['racks', 'edge'], 'bootcache')
    house.nova.hosts = {'racks': ('one', 'two'), 'edge': ('three',)}
    house.restart()
    return house


def scan(house):
    step(house, house.conf.bootcache.poll_interval)


def finish(house):
    for _ in range(4):
        for host in ('one', 'two', 'three'):
            tell(house, host)
        step(house)


def test_a_registered_image_warms_hosts(policy):
    policy.boots.gate.clear()
    policy.images.put(IMAGE)
    policy.changed(IMAGE)
    scan(policy)
    assert policy.nova.asked == [] and policy.warming.progress(IMAGE) == []
    policy.boots.gate.set()
    policy.settle()
    scan(policy)
    assert [hosts for hosts, _image in policy.nova.asked] == [('one', 'two')]
    finish(policy)
    assert done(policy) == [True, True] and len(policy.nova.asked) == 2
    scan(policy)
    assert policy.store.load(IMAGE).wished.warm_due is False


def warmed(house):
    """By policy, once."""
    make_ready(house)
    scan(house)
    finish(house)
    scan(house)
    assert len(house.nova.asked) == 2
    house.seconds.now += 4000


@pytest.mark.parametrize('again', ['image build', 'quota', 'marker', 'property', 'refined',
                                   'evicted', 'restart'])
def test_later_builds_warm_nobody(policy, again):
    warmed(policy)
    if again == 'image build':
        policy.build(IMAGE)
    elif again in ('quota', 'marker', 'property'):
        name = {'marker': 'boot_marker', 'property': 'other'}.get(again, again)
        make_ready(policy, **{name: '1MiB'})
    elif again == 'refined':
        policy.controller.rebuild(IMAGE)
    elif again == 'evicted':
        assert policy.disk_room.evict(IMAGE)
        policy.controller.rebuild(IMAGE)
    else:
        policy.restart()
        policy.recover()
    policy.settle()
    assert policy.state(IMAGE) == 'ready'
    scan(policy)
    assert len(policy.nova.asked) == 2


@pytest.mark.parametrize('again', ['content', 'opted in'])
def test_another_content_warms_again(policy, again):
    warmed(policy)
    if again == 'opted in':
        policy.images.put(IMAGE, mode='off')
        policy.changed(IMAGE)
        scan(policy)
        make_ready(policy)
    else:
        make_ready(policy, content=b'\1' * (1 << 20))
    scan(policy)
    finish(policy)
    assert len(policy.nova.asked) == 4


def test_an_image_that_is_opted_out_and_in_again_while_it_is_remembered(policy):
    make_ready(policy)
    scan(policy)
    finish(policy)
    policy.images.put(IMAGE, mode='off')
    policy.changed(IMAGE)
    scan(policy)
    make_ready(policy)
    scan(policy)
    assert len(policy.nova.asked) == 3


def test_an_operator_may_ask_again_for_what_the_policy_has_done(policy):
    make_ready(policy)
    scan(policy)
    for host in ('one', 'two'):
        tell(policy, host)
    step(policy)
    # The other aggregate is not done.
    assert done(policy) == [True, False]
    policy.warming.warm(IMAGE, ['racks'])
    assert sorted(done(policy)) == [False, False]
    finish(policy)
    scan(policy)
    assert len(policy.nova.asked) == 3 and policy.store.load(IMAGE).wished.warm_due is False


def test_what_is_done_while_it_is_built_again_stays_done(policy):
    make_ready(policy)
    assert policy.store.load(IMAGE).wished.warm_due

    def building():
        scan(policy)
        policy.store.change(IMAGE, runner._is_warm)

    policy.qemu.building = building
    policy.controller.rebuild(IMAGE)
    policy.settle()
    assert policy.state(IMAGE) == 'ready' and policy.store.load(IMAGE).wished.warm_due is False


def test_what_is_without_a_cache_image_for_a_while_is_warmed_later(policy):
    make_ready(policy)
    scan(policy)
    assert len(policy.nova.asked) == 1
    # Evicted while hosts are being warmed, and built again with a server's boot.
    policy.disk_room.evict(IMAGE)
    scan(policy)
    assert policy.store.load(IMAGE).wished.warm_due and policy.warming.progress(IMAGE) == []
    policy.controller.rebuild(IMAGE)
    policy.settle()
    scan(policy)
    assert [hosts for hosts, _image in policy.nova.asked] == [('one', 'two')] * 2
    finish(policy)
    scan(policy)
    assert policy.store.load(IMAGE).wished.warm_due is False


def test_a_restart_in_between_loses_nothing(policy):
    make_ready(policy)
    policy.restart()
    scan(policy)
    assert len(policy.nova.asked) == 1
    tell(policy, 'one')
    policy.restart()
    scan(policy)
    assert [hosts for hosts, _image in policy.nova.asked] == [('one', 'two')] * 2
    finish(policy)
    scan(policy)
    assert policy.store.load(IMAGE).wished.warm_due is False


def test_the_first_boot_of_a_server_makes_it_ready(policy):
    policy.conf.set_override('profile_boots', False, 'bootcache')
    policy.restart()
    policy.images.put(IMAGE)
    policy.changed(IMAGE)
    policy.settle()
    assert policy.state(IMAGE) == 'served'
    scan(policy)
    assert policy.nova.asked == []
    policy.hosts.plan_boot(PlanBoot(IMAGE, 'one', 'server'))
    policy.hosts.report_boot(ReportBoot(IMAGE, policy.store.load(IMAGE).image_hash, 'one', 65536,
                                        [[0, 65536]], 'marker', 1.0))
    policy.settle()
    scan(policy)
    assert policy.nova.asked == [(('one', 'two'), IMAGE)]


@pytest.mark.parametrize('fault', ['unknown aggregate', 'nova refuses', 'hosts fail'])
def test_a_failure_never_harms_the_image(policy, fault, caplog):
    if fault == 'unknown aggregate':
        policy.nova.hosts = {}
    elif fault == 'nova refuses':
        policy.nova.ask_fails = exception.RequestRefused('Nova refuses')
    make_ready(policy)
    for _ in range(30):
        scan(policy)
        for host in ('one', 'two', 'three'):
            tell(policy, host, 'error', 'no room')
    assert done(policy) == [True, True] and 'warm' in caplog.text
    manifest = policy.store.load(IMAGE)
    assert (manifest.state, manifest.reason) == (ImageState.READY, '')
    assert not manifest.wished.warm_due
    assert policy.hosts.plan_boot(PlanBoot(IMAGE, 'one', 'server'))['action'] == 'cache'
    asked = len(policy.nova.asked)
    scan(policy)
    assert len(policy.nova.asked) == asked


def test_without_a_policy_nobody_is_warmed_also_not_later(house):
    make_ready(house)
    scan(house)
    assert house.nova.asked == [] and house.store.load(IMAGE).wished.warm_due is False
    house.conf.set_override('warm_on_register', ['racks'], 'bootcache')
    house.restart()
    scan(house)
    assert house.nova.asked == []


def test_more_images_than_may_be_warmed_at_once_wait(policy, monkeypatch):
    monkeypatch.setattr(runner, '_MOST_JOBS', 2)
    for image in (IMAGE, OTHER):
        make_ready(policy, image)
    for _ in range(12):
        scan(policy)
        for image in (IMAGE, OTHER):
            for host in ('one', 'two', 'three'):
                tell(policy, host, image=image)
    scan(policy)
    assert [policy.store.load(image).wished.warm_due for image in (IMAGE, OTHER)] == [False, False]
    assert sorted(policy.nova.asked) == sorted(
        (hosts, image) for hosts in (('one', 'two'), ('three',)) for image in (IMAGE, OTHER))
