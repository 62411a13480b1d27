"""Warming hosts through Nova, which is a stand-in here: tests/e2e warms real hosts."""

import pytest
from fakes_manager import failed
from keystoneauth1 import exceptions as ks_exceptions
from oslo_messaging.rpc import dispatcher as rpc_dispatcher

from bootcache import exception
from bootcache.manifest import ImageState
from glance_bootcache.warming import runner

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
AWAY = ks_exceptions.ConnectFailure('refused')


def make_ready(house, image=IMAGE, **properties):
    house.images.put(image, **properties)
    house.manager.consider(image)
    house.settle()
    assert house.state(image) == 'ready'


@pytest.fixture
def ready(house):
    """An image that is ready, two aggregates, and nothing to be warmed by policy any more."""
    house.nova.hosts = {'racks': ('one', 'two'), 'edge': ('three',)}
    make_ready(house)
    house.warming.step()
    assert house.nova.asked == []
    return house


def warm(house, *aggregates):
    try:
        return house.endpoints.warm_image({}, IMAGE.upper(), list(aggregates))
    except rpc_dispatcher.ExpectedException as refused:
        # As oslo.messaging takes it.
        raise refused.exc_info[1] from None


def tell(house, host, outcome='cached', reason='', image=IMAGE):
    house.endpoints.report_warm({}, image.upper(), host, outcome, reason)


def step(house, seconds=0.0):
    house.seconds.now += seconds
    house.warming.step()


def outcomes(house, image=IMAGE):
    return {job['aggregate']: {host: found['outcome'] for host, found in job['hosts'].items()}
            for job in house.endpoints.get_warming({}, image)}


def done(house, image=IMAGE):
    return [job['done'] for job in house.endpoints.get_warming({}, image)]


# By hand.

def test_hosts_are_warmed(ready):
    assert warm(ready, 'racks') == [
        {'aggregate': 'racks', 'done': False, 'reason': '', 'hosts': {}}]
    assert ready.nova.asked == [], 'the caller does not wait for it'
    step(ready)
    assert ready.nova.asked == [(('one', 'two'), IMAGE)]
    assert outcomes(ready) == {'racks': {'one': 'waiting', 'two': 'waiting'}}
    tell(ready, 'one')
    tell(ready, 'two', 'existing')
    step(ready)
    assert outcomes(ready) == {'racks': {'one': 'cached', 'two': 'existing'}}
    assert done(ready) == [True]
    step(ready, 1000)
    assert len(ready.nova.asked) == 1


def test_a_host_may_be_faster_than_novas_answer(ready):
    ready.nova.on_ask = lambda image: [tell(ready, 'one'), tell(ready, 'two')]
    warm(ready, 'racks')
    step(ready)
    step(ready)
    assert done(ready) == [True]


def test_a_host_that_fails_is_logged_and_asked_again(ready, caplog):
    warm(ready, 'racks')
    step(ready)
    tell(ready, 'one')
    tell(ready, 'two', 'error', 'no room on /srv')
    step(ready)
    assert f'image {IMAGE}: host two of aggregate racks is not warm' in caplog.text
    assert 'no room on /srv; asked again in 30 s' in caplog.text and done(ready) == [False]
    step(ready, 29)
    assert len(ready.nova.asked) == 1
    step(ready, 1)
    assert len(ready.nova.asked) == 2
    tell(ready, 'one', 'existing')
    tell(ready, 'two')
    step(ready)
    (job,) = ready.warming.progress(IMAGE)
    assert job['done'] and job['hosts'] == {
        'one': {'outcome': 'cached', 'reason': '', 'attempts': 1},
        'two': {'outcome': 'cached', 'reason': '', 'attempts': 2}}


def test_a_host_that_does_not_report_stops_no_other(ready, caplog):
    ready.conf.set_override('warm_timeout', 50, 'bootcache')
    ready.conf.set_override('warm_attempts', 2, 'bootcache')
    warm(ready, 'racks')
    step(ready)
    tell(ready, 'one')
    step(ready, 49)
    assert done(ready) == [False] and not caplog.records
    step(ready, 1)
    assert 'host two of aggregate racks is not warm' in caplog.text and '50 s' in caplog.text
    step(ready, 30)
    assert len(ready.nova.asked) == 2
    step(ready, 50)
    assert outcomes(ready) == {'racks': {'one': 'cached', 'two': 'error'}}
    assert done(ready) == [True]
    # What comes too late for all that is not recorded.
    tell(ready, 'two')
    assert outcomes(ready)['racks']['two'] == 'error'


def test_a_lost_report_is_made_up_for_by_what_the_host_holds(ready):
    ready.table.report('one', {'images': {IMAGE: [1.0, 'disk', 0, 7]}})
    ready.seconds.now += 1
    warm(ready, 'racks')
    step(ready)
    step(ready)
    assert outcomes(ready)['racks'] == {'one': 'waiting', 'two': 'waiting'}, 'it is not news'
    ready.seconds.now += 1
    ready.table.report('one', None)
    ready.table.report('two', {'images': {IMAGE: [1.0, 'disk', 0, 7]}})
    step(ready)
    assert outcomes(ready)['racks'] == {'one': 'existing', 'two': 'cached'}


def test_what_a_host_is_to_let_go_of_does_not_make_it_warm(ready):
    ready.manager.let_go(IMAGE)
    warm(ready, 'edge')
    step(ready)
    ready.seconds.now += 1
    ready.table.report('three', {'images': {IMAGE: [1.0, 'disk', 0, 7]}})
    step(ready)
    assert done(ready) == [False]
    ready.table.report('three', {'images': {IMAGE: [1.0, 'disk', 1, 7]}})
    step(ready)
    assert outcomes(ready)['edge'] == {'three': 'cached'}


def test_one_aggregate_after_the_other(ready):
    warm(ready, 'racks', 'edge')
    step(ready)
    step(ready)
    assert [hosts for hosts, _image in ready.nova.asked] == [('one', 'two')]
    assert outcomes(ready) == {'racks': {'one': 'waiting', 'two': 'waiting'}, 'edge': {}}
    tell(ready, 'one')
    tell(ready, 'two', 'error', 'x')
    # While it waits for its next attempt, another one has its turn.
    step(ready)
    assert [hosts for hosts, _image in ready.nova.asked] == [('one', 'two'), ('three',)]


def test_as_many_at_once_as_the_operator_says(ready):
    ready.conf.set_override('warm_concurrency', 2, 'bootcache')
    warm(ready, 'racks', 'edge')
    step(ready)
    assert len(ready.nova.asked) == 2


def test_what_is_under_way_is_not_begun_again(ready):
    warm(ready, 'edge')
    step(ready)
    assert len(warm(ready, 'edge', 'edge')) == 1
    step(ready)
    assert len(ready.nova.asked) == 1
    tell(ready, 'three')
    step(ready)
    # What has ended is.
    warm(ready, 'edge')
    step(ready)
    assert len(ready.nova.asked) == 2 and outcomes(ready) == {'edge': {'three': 'waiting'}}


def test_an_unknown_aggregate_is_named_and_nothing_is_begun(ready):
    with pytest.raises(exception.RequestRefused, match='nowhere') as caught:
        warm(ready, 'racks', 'nowhere')
    assert '"openstack aggregate list" shows: edge, racks' in str(caught.value)
    step(ready)
    assert ready.nova.asked == [] and ready.warming.progress(IMAGE) == []


def test_an_image_without_a_cache_image_is_refused_with_the_cure(house):
    with pytest.raises(exception.RequestRefused, match=f'image {IMAGE} is not known'):
        warm(house, 'racks')
    house.boots.fails = failed('no flavor')
    house.images.put(IMAGE)
    house.manager.consider(IMAGE)
    house.settle()
    with pytest.raises(exception.RequestRefused, match=r'failed: no flavor; .*image build'):
        warm(house, 'racks')
    assert house.warming.progress(IMAGE) == []


@pytest.mark.parametrize('where', ['fails', 'ask_fails'])
def test_nova_is_asked_until_it_answers(ready, where, caplog):
    setattr(ready.nova, where, AWAY)
    warm(ready, 'racks')
    for _ in range(10):
        step(ready, 600)
        (job,) = ready.warming.progress(IMAGE)
        assert not job['done'] and 'Nova does not answer: refused' in job['reason']
    assert 'cannot be warmed yet: refused' in caplog.text and ready.nova.asked == []
    setattr(ready.nova, where, None)
    step(ready, 600)
    assert len(ready.nova.asked) == 1
    tell(ready, 'one')
    tell(ready, 'two')
    step(ready)
    (job,) = ready.warming.progress(IMAGE)
    assert job['done'] and job['reason'] == '' and job['hosts']['one']['attempts'] == 1


def test_what_nova_refuses_is_not_asked_for_ever(ready, caplog):
    warm(ready, 'racks')
    ready.nova.ask_fails = exception.RequestRefused('Nova refuses to precache an image: 403')
    for _ in range(3):
        step(ready, 600)
    (job,) = ready.warming.progress(IMAGE)
    assert job['done'] and '403' in job['reason']
    assert job['hosts']['one']['outcome'] == 'error' and '403' in caplog.text


@pytest.mark.parametrize('begun', [False, True])
def test_an_image_that_goes_meanwhile_ends_it(ready, begun):
    warm(ready, 'racks')
    if begun:
        step(ready)
    ready.manager.forget(IMAGE, held=True)
    step(ready)
    (job,) = ready.warming.progress(IMAGE)
    assert job['done'] and 'skipped' in job['reason'] and len(ready.nova.asked) == begun
    assert all('skipped' in host['reason'] for host in job['hosts'].values())


def test_the_record_ends_after_an_hour(ready):
    warm(ready, 'edge')
    step(ready)
    tell(ready, 'three')
    step(ready)
    ready.seconds.now += 3600
    assert done(ready) == [True]
    ready.seconds.now += 1
    assert done(ready) == []


def test_there_is_an_end_to_jobs(ready, monkeypatch):
    monkeypatch.setattr(runner, '_MOST_JOBS', 2)
    ready.nova.hosts = {name: ('one',) for name in 'abc'}
    with pytest.raises(exception.RequestRefused, match='2 at most'):
        warm(ready, 'a', 'b', 'c')
    assert done(ready) == []
    warm(ready, 'a', 'b')
    with pytest.raises(exception.RequestRefused, match='2 at most'):
        warm(ready, 'c')
    step(ready)
    tell(ready, 'one')
    step(ready)
    # What has ended makes room.
    warm(ready, 'c')
    assert list(outcomes(ready)) == ['b', 'c']


@pytest.mark.parametrize('host, outcome', [
    ('elsewhere', 'cached'), ('three', 'skipped'), ('', ''), (5, None), ('three', 'waiting')])
def test_reports_that_nobody_waits_for(ready, host, outcome):
    tell(ready, host, outcome)
    warm(ready, 'edge')
    step(ready)
    tell(ready, host, outcome)
    tell(ready, 'three', 'cached', image=OTHER)
    assert outcomes(ready) == {'edge': {'three': 'waiting'}}


def test_one_image_of_two(ready):
    make_ready(ready, OTHER)
    ready.warming.warm(IMAGE, ['edge'])
    ready.warming.warm(OTHER, ['edge'])
    step(ready)
    tell(ready, 'three')
    step(ready)
    assert done(ready) == [True] and done(ready, OTHER) == [False]
    assert ready.nova.asked == [(('three',), IMAGE), (('three',), OTHER)]


def test_the_thread_goes_on_after_an_error(ready, monkeypatch, caplog):
    steps = []

    def fail():
        steps.append(1)
        if len(steps) == 3:
            ready.warming.stop()
        raise RuntimeError('a fault of ours')

    monkeypatch.setattr(runner, '_TICK_SECONDS', 0.001)
    monkeypatch.setattr(ready.warming, 'step', fail)
    ready.warming._run()
    assert len(steps) == 3 and 'a fault of ours' in caplog.text


def test_a_host_that_is_warmed_while_it_waits_for_its_next_attempt(ready):
    warm(ready, 'edge')
    step(ready)
    tell(ready, 'three', 'error', 'no room')
    step(ready)
    assert done(ready) == [False]
    ready.seconds.now += 1
    ready.table.report('three', {'images': {IMAGE: [1.0, 'disk', 0, 7]}})
    step(ready)
    assert done(ready) == [True] and outcomes(ready) == {'edge': {'three': 'cached'}}
    step(ready, 600)
    assert len(ready.nova.asked) == 1


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
    policy.manager.consider(IMAGE)
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
        policy.manager.consider(IMAGE, forced=True)
    elif again in ('quota', 'marker', 'property'):
        name = {'marker': 'boot_marker', 'property': 'other'}.get(again, again)
        make_ready(policy, **{name: '1MiB'})
    elif again == 'refined':
        policy.manager.rebuild(IMAGE)
    elif again == 'evicted':
        assert policy.manager.disk_room.evict(IMAGE)
        policy.manager.rebuild(IMAGE)
    else:
        policy.restart()
        policy.upkeep.recover()
    policy.settle()
    assert policy.state(IMAGE) == 'ready'
    scan(policy)
    assert len(policy.nova.asked) == 2


@pytest.mark.parametrize('again', ['content', 'opted in'])
def test_another_content_warms_again(policy, again):
    warmed(policy)
    if again == 'opted in':
        policy.images.put(IMAGE, mode='off')
        policy.manager.consider(IMAGE)
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
    policy.manager.consider(IMAGE)
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
    policy.manager.rebuild(IMAGE)
    policy.settle()
    assert policy.state(IMAGE) == 'ready' and policy.store.load(IMAGE).wished.warm_due is False


def test_what_is_without_a_cache_image_for_a_while_is_warmed_later(policy):
    make_ready(policy)
    scan(policy)
    assert len(policy.nova.asked) == 1
    # Evicted while hosts are being warmed, and built again with a server's boot.
    policy.manager.disk_room.evict(IMAGE)
    scan(policy)
    assert policy.store.load(IMAGE).wished.warm_due and policy.warming.progress(IMAGE) == []
    policy.manager.rebuild(IMAGE)
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
    policy.images.put(IMAGE)
    policy.manager.consider(IMAGE)
    policy.settle()
    assert policy.state(IMAGE) == 'served'
    scan(policy)
    assert policy.nova.asked == []
    policy.hosts.plan_boot(IMAGE, 'one', 'server', None)
    policy.hosts.report_boot(IMAGE, policy.store.load(IMAGE).image_hash, 'one', 65536,
                             [[0, 65536]], 'marker', 1.0)
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
    assert policy.hosts.plan_boot(IMAGE, 'one', 'server', None)['action'] == 'cache'
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


def test_images_of_earlier_versions_are_not_warmed_by_an_upgrade(policy):
    make_ready(policy)
    scan(policy)
    finish(policy)
    scan(policy)
    document = policy.store.load(IMAGE).to_json()
    del document['wished']['warm_due']
    policy.store.save(type(policy.store.load(IMAGE)).from_json(document))
    policy.restart()
    policy.upkeep.recover()
    scan(policy)
    assert len(policy.nova.asked) == 2


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
