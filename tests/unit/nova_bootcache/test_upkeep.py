"""What a compute host looks after by itself, and how patiently.

Time, gateway, cache and storage service are stand-ins; tests/functional has real ones."""

import threading

import pytest
from fakes_upkeep import IMAGE, INFO, OTHER, TRIES, looks, offered, times_of
from fakes_upkeep import clock as clock  # the fixture
from fakes_upkeep import host as host  # the fixture

from bootcache import exception
from bootcache.tier import Medium
from nova_bootcache.upkeep import HostUpkeep

THIRD = '11111111-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


# Bases.

def test_a_gateway_that_lost_its_bases_gets_them_again(host, clock):
    host.holds(IMAGE)
    host.holds(OTHER, whole=False)
    host.served[f'base-{OTHER}'] = 'node'
    HostUpkeep(host, host).serve_bases()
    assert host.tries == [IMAGE] and set(host.served) == {f'base-{IMAGE}', f'base-{OTHER}'}


def test_a_base_that_no_server_needs_is_not_served(host, clock):
    host.holds(IMAGE)
    host.holds(OTHER)
    host.needed = {OTHER}
    HostUpkeep(host, host).serve_bases()
    assert host.tries == [OTHER]


def test_a_base_that_cannot_be_served_is_tried_ever_less_often(host, clock):
    host.holds(IMAGE)
    host.broken = {'ensure_base'}
    assert times_of(clock, HostUpkeep(host, host).serve_bases, host.tries) == TRIES


def test_patience_with_one_base_is_none_with_another(host, clock):
    host.holds(IMAGE)
    host.broken = {'ensure_base'}
    keeper = HostUpkeep(host, host)
    list(looks(clock, keeper.serve_bases, 60))
    host.tries.clear()
    host.holds(OTHER)
    keeper.serve_bases()
    assert host.tries == [OTHER]


def test_a_base_that_was_served_again_is_tried_at_once_when_it_is_lost_again(host, clock):
    host.holds(IMAGE)
    host.broken = {'ensure_base'}
    keeper = HostUpkeep(host, host)
    list(looks(clock, keeper.serve_bases, 60))
    host.served[f'base-{IMAGE}'] = 'node'
    keeper.serve_bases()
    host.served.clear()
    host.tries.clear()
    assert times_of(clock, keeper.serve_bases, host.tries, 10) == TRIES[:4]


def test_a_storage_node_that_is_away_is_waited_for_once_a_round(host, clock):
    for image in (IMAGE, THIRD):
        host.holds(image)
    host.holds(OTHER, node='10.0.0.2')
    host.nodes_away = {'10.0.0.1'}
    keeper = HostUpkeep(host, host)
    keeper.serve_bases()
    assert host.tries == [IMAGE, OTHER] and set(host.served) == {f'base-{OTHER}'}
    host.nodes_away.clear()
    list(looks(clock, keeper.serve_bases, 2))
    assert set(host.served) == {f'base-{image}' for image in (IMAGE, OTHER, THIRD)}


def test_start_waits_for_no_storage_node(host, monkeypatch):
    """init_host calls it: nova-compute is not up before it returns."""
    host.holds(IMAGE)
    begun, end = threading.Event(), threading.Event()

    def hang(entry):
        begun.set()
        assert end.wait(30)
        raise exception.StorageNodeAway('away')

    monkeypatch.setattr(host, 'serve_base', hang)
    keeper = HostUpkeep(host, host)
    keeper.start()
    assert begun.wait(30), 'it is looked after at once'
    keeper.stop()
    end.set()


# Empty cache images.

def test_an_empty_cache_image_is_replaced_by_a_whole_one(host, clock):
    host.holds(IMAGE, whole=False)
    host.answers = {IMAGE: {**offered(), 'pinned': True}}
    keeper = HostUpkeep(host, host)
    keeper.replace_empty()
    assert host.fetched == [(IMAGE, INFO, 'cache-x', Medium.DISK, True)]
    list(looks(clock, keeper.replace_empty, 100))
    assert len(host.fetched) == 1 and len(host.asked) == 1


def test_it_goes_where_there_is_room(host, clock):
    host.holds(IMAGE, whole=False)
    host.answers, host.free = {IMAGE: offered()}, Medium.MEMORY
    HostUpkeep(host, host).replace_empty()
    assert [fetch[3] for fetch in host.fetched] == [Medium.MEMORY]


def test_it_stays_where_there_is_none(host, clock):
    host.holds(IMAGE, whole=False)
    host.answers, host.free = {IMAGE: offered()}, None
    HostUpkeep(host, host).replace_empty()
    assert host.asked == [IMAGE] and host.fetched == []


def test_a_whole_cache_image_is_left_alone(host, clock):
    host.holds(IMAGE)
    host.answers = {IMAGE: offered()}
    HostUpkeep(host, host).replace_empty()
    assert host.asked == []


def test_a_boot_that_is_watched_is_not_disturbed(host, clock):
    host.holds(IMAGE, whole=False)
    host.holds(OTHER, whole=False)
    host.answers = {IMAGE: offered(), OTHER: offered(OTHER)}
    host.booting = {IMAGE}
    keeper = HostUpkeep(host, host)
    keeper.replace_empty()
    assert [fetch[0] for fetch in host.fetched] == [OTHER]
    host.booting.clear()
    keeper.replace_empty()
    assert [fetch[0] for fetch in host.fetched] == [OTHER, IMAGE]


@pytest.mark.parametrize('answer', [
    None, {'action': 'wait'}, {'action': 'stock', 'reason': 'skipped'},
    {**offered(), 'action': 'stock'}, {'action': 'cache'},
    {key: value for key, value in {**offered(), 'action': 'cold'}.items()
     if not key.startswith('cache_')}], ids=['away', 'wait', 'stock', 'base', 'damaged', 'cold'])
def test_the_service_is_asked_ever_less_often_while_there_is_none(host, clock, answer):
    host.holds(IMAGE, whole=False)
    host.in_use = {IMAGE}
    host.answers = {IMAGE: answer}
    assert times_of(clock, HostUpkeep(host, host).replace_empty, host.asked) == TRIES
    assert host.fetched == []


@pytest.mark.parametrize('answer, stays', [
    (None, True), ({'action': 'wait', 'reason': 'prepared'}, True),
    ({'action': 'stock', 'reason': 'Glance does not give the image out'}, False),
    ({**offered(), 'action': 'stock', 'reason': 'the image is skipped'}, False)])
def test_one_that_the_storage_service_does_not_serve_goes_with_its_last_server(
        host, clock, caplog, answer, stays):
    host.holds(IMAGE, whole=False)
    host.in_use = {IMAGE}
    host.answers = {IMAGE: answer}
    keeper = HostUpkeep(host, host)
    keeper.replace_empty()
    assert IMAGE in host.held
    host.in_use.clear()
    clock.now += 600
    with caplog.at_level('INFO'):
        keeper.replace_empty()
    assert (IMAGE in host.held) is stays
    assert stays or answer['reason'] in caplog.text


def test_after_a_boot_the_service_is_asked_at_once(host, clock):
    host.holds(IMAGE, whole=False)
    keeper = HostUpkeep(host, host)
    list(looks(clock, keeper.replace_empty, 100))
    host.booting = {IMAGE}
    keeper.replace_empty()
    host.booting.clear()
    host.asked.clear()
    keeper.replace_empty()
    assert host.asked == [IMAGE]


def test_one_that_arrives_is_not_waited_for(host, clock):
    """That takes minutes, and all else waits with it."""
    host.holds(IMAGE, whole=False)
    host.answers, host.arriving = {IMAGE: offered()}, {IMAGE}
    keeper = HostUpkeep(host, host)
    keeper.replace_empty()
    assert host.asked == [] and host.fetched == []
    host.arriving.clear()
    keeper.replace_empty()
    assert [fetch[0] for fetch in host.fetched] == [IMAGE]


def test_nor_is_one_that_somebody_brings(host, clock):
    host.holds(IMAGE, whole=False)
    host.answers, host.placing = {IMAGE: offered()}, {IMAGE}
    keeper = HostUpkeep(host, host)
    keeper.replace_empty()
    assert host.asked == [IMAGE] and host.fetched == []
    host.placing.clear()
    list(looks(clock, keeper.replace_empty, 2))
    assert [fetch[0] for fetch in host.fetched] == [IMAGE]
