"""Warming hosts through Nova, which is a stand-in here: tests/e2e warms real hosts."""

import contextlib

import pytest
from fakes_database import locked
from fakes_hosts import holding
from fakes_manager import failed
from fakes_warming import IMAGE, OTHER, done, make_ready, step, tell
from fakes_warming import ready as ready  # the fixture
from keystoneauth1 import exceptions as ks_exceptions

from bootcache import exception
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.storage.store import ImageStore
from glance_bootcache.warming import runner
from glance_bootcache.warming.warmrequests import WarmRequests

AWAY = ks_exceptions.ConnectFailure('refused')


def warm(house, *aggregates):
    return house.endpoints.warm_image({}, IMAGE.upper(), list(aggregates))


def outcomes(house, image=IMAGE):
    return {job['aggregate']: {host: found['outcome'] for host, found in job['hosts'].items()}
            for job in house.endpoints.get_warming({}, image)}


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


def test_a_restart_goes_on_with_what_was_asked_for(ready):
    warm(ready, 'racks')
    step(ready)
    tell(ready, 'one')
    ready.writer.write()
    ready.restart()
    assert done(ready) == [False]
    step(ready)
    assert len(ready.nova.asked) == 2
    tell(ready, 'one', 'existing')
    tell(ready, 'two')
    step(ready)
    assert done(ready) == [True]
    ready.writer.write()
    ready.restart()
    assert done(ready) == []


def test_what_is_asked_for_anew_is_not_over(ready):
    warm(ready, 'racks')
    step(ready)
    tell(ready, 'one')
    tell(ready, 'two')
    step(ready)
    changes = ready.requests.changes(True)
    warm(ready, 'racks')
    ready.store._database.write(changes.write)
    ready.restart()
    assert done(ready) == [False]


def test_what_cannot_be_written_is_refused(ready):
    with locked(ready.store._database), pytest.raises(exception.DatabaseAway):
        warm(ready, 'racks')
    step(ready)
    assert ready.nova.asked == [] and done(ready) == []


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
    ready.table.report('one', holding(IMAGE))
    ready.seconds.now += 1
    warm(ready, 'racks')
    step(ready)
    step(ready)
    assert outcomes(ready)['racks'] == {'one': 'waiting', 'two': 'waiting'}, 'it is not news'
    ready.seconds.now += 1
    ready.table.report('one', None)
    ready.table.report('two', holding(IMAGE))
    step(ready)
    assert outcomes(ready)['racks'] == {'one': 'cached', 'two': 'cached'}


def test_what_a_host_is_to_let_go_of_does_not_make_it_warm(ready):
    ready.controller.let_go(IMAGE)
    warm(ready, 'edge')
    step(ready)
    ready.seconds.now += 1
    ready.table.report('three', holding(IMAGE))
    step(ready)
    assert done(ready) == [False]
    ready.table.report('three', holding(IMAGE, generation=1))
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
    house.changed(IMAGE)
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
    ready.evict(IMAGE)
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
    def lie():
        with contextlib.suppress(exception.MessageRefused):
            tell(ready, host, outcome)

    lie()
    warm(ready, 'edge')
    step(ready)
    lie()
    assert sum(ready.rejected.counts().values()) == 2
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
    ready.table.report('three', holding(IMAGE))
    step(ready)
    assert done(ready) == [True] and outcomes(ready) == {'edge': {'three': 'cached'}}
    step(ready, 600)
    assert len(ready.nova.asked) == 1


# Several storage nodes.

@pytest.fixture
def elsewhere(database, tmp_path):
    """The images of another storage node, by the same database."""
    node = StorageNode(database, str(tmp_path / 'other.json'), 'storage-2', lambda seconds: None)
    (tmp_path / 'other').mkdir()
    store = ImageStore(str(tmp_path / 'other'), database, node.id)
    store.number = node.id
    return store


def move(source, target, home, image=IMAGE):
    """Have another node work on an image, as it is."""
    target.refresh()
    assert target.claim(image, home, lambda known: known)
    source.refresh()


def look(ready):
    """Look at the requests again."""
    step(ready, ready.conf.bootcache.poll_interval + 1)


def requested(database):
    return WarmRequests(database).all()


def test_requests_of_another_node_s_images_are_left(ready, elsewhere, database):
    move(ready.store, elsewhere, 1)
    WarmRequests(database).add(IMAGE, ['racks'])
    look(ready)
    ready.restart()
    look(ready)
    assert ready.nova.asked == [] and done(ready) == []
    ready.writer.write()
    assert requested(database) == [(IMAGE, 'racks')]


def test_what_was_begun_here_goes_on_at_the_node_that_takes_the_image_over(
        ready, elsewhere, database):
    warm(ready, 'racks', 'edge')
    step(ready)
    assert ready.nova.asked == [(('one', 'two'), IMAGE)], 'the other one waits for its turn'
    move(ready.store, elsewhere, 1)
    look(ready)
    assert done(ready) == []
    step(ready, 1000)
    assert len(ready.nova.asked) == 1
    ready.writer.write()
    assert sorted(requested(database)) == [(IMAGE, 'edge'), (IMAGE, 'racks')], \
        'they are not over'


def test_nor_is_it_over_before_the_requests_are_read_again(ready, elsewhere, database):
    warm(ready, 'racks')
    step(ready)
    move(ready.store, elsewhere, 1)
    step(ready)
    look(ready)
    ready.writer.write()
    assert requested(database) == [(IMAGE, 'racks')]


def test_a_request_comes_with_the_image_that_this_node_takes_over(ready, elsewhere, database):
    move(ready.store, elsewhere, 1)
    # Its home wrote it, since this process runs.
    WarmRequests(database).add(IMAGE, ['edge'])
    look(ready)
    assert ready.nova.asked == []
    move(elsewhere, ready.store, elsewhere.number)
    look(ready)
    assert ready.nova.asked == [(('three',), IMAGE)]
    tell(ready, 'three')
    step(ready)
    assert done(ready) == [True]
    ready.writer.write()
    assert requested(database) == []
    look(ready)
    assert len(ready.nova.asked) == 1


def test_a_request_of_an_image_that_nobody_knows_ends_here(ready, database):
    WarmRequests(database).add(OTHER, ['edge'])
    look(ready)
    step(ready)
    job, = ready.endpoints.get_warming({}, OTHER)
    assert job['done'] and job['reason']
    ready.writer.write()
    assert requested(database) == []


def test_while_requests_cannot_be_read_those_that_are_known_go_on(ready, monkeypatch):
    def away():
        raise exception.DatabaseAway('it does not answer')

    warm(ready, 'edge')
    monkeypatch.setattr(ready.requests, 'refresh', away)
    look(ready)
    assert ready.nova.asked == [(('three',), IMAGE)]


def test_a_request_that_is_over_is_not_read_again(ready, database):
    """Its row goes later."""
    warm(ready, 'edge')
    step(ready)
    tell(ready, 'three')
    step(ready)
    assert requested(database) == [(IMAGE, 'edge')]
    ready.requests.refresh()
    assert ready.requests.all() == []
    ready.writer.write()
    ready.requests.refresh()
    assert ready.requests.all() == [] == requested(database)


def test_what_the_home_of_before_has_done_is_not_begun_again(ready, elsewhere, database):
    move(ready.store, elsewhere, 1)
    theirs = WarmRequests(database)
    theirs.add(IMAGE, ['edge'])
    look(ready)
    theirs.end([(IMAGE, 'edge')])
    database.write(theirs.changes(True).write)
    assert requested(database) == []
    move(elsewhere, ready.store, elsewhere.number)
    look(ready)
    assert ready.nova.asked == []
