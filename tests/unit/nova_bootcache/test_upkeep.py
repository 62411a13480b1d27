"""What a compute host looks after by itself, and how patiently.

Time, gateway, cache and storage service are stand-ins; tests/functional has real ones."""

import threading

import pytest
from fakes_upkeep import IMAGE, INFO, OTHER, TRIES, looks, offered, times_of, upkeep_of
from fakes_upkeep import clock as clock  # the fixture
from fakes_upkeep import host as host  # the fixture

from bootcache import exception
from bootcache.tier import Medium

# Bases.

def test_a_gateway_that_lost_its_bases_gets_them_again(host, clock):
    host.cache.holds(IMAGE)
    host.cache.holds(OTHER, whole=False)
    host.gateway.exported.add(OTHER)
    upkeep_of(host).serve_bases()
    assert host.chains.tries == [IMAGE] and host.gateway.exported == {IMAGE, OTHER}


def test_a_base_that_no_server_needs_is_not_served(host, clock):
    host.cache.holds(IMAGE)
    host.cache.holds(OTHER)
    host.needs.needed = {OTHER}
    upkeep_of(host).serve_bases()
    assert host.chains.tries == [OTHER]


def test_a_base_that_cannot_be_served_is_tried_ever_less_often(host, clock):
    host.cache.holds(IMAGE)
    host.faults.broken = {'ensure_base'}
    assert times_of(clock, upkeep_of(host).serve_bases, host.chains.tries) == TRIES


def test_patience_with_one_base_is_none_with_another(host, clock):
    host.cache.holds(IMAGE)
    host.faults.broken = {'ensure_base'}
    keeper = upkeep_of(host)
    list(looks(clock, keeper.serve_bases, 60))
    host.chains.tries.clear()
    host.cache.holds(OTHER)
    keeper.serve_bases()
    assert host.chains.tries == [OTHER]


def test_a_base_that_was_served_again_is_tried_at_once_when_it_is_lost_again(host, clock):
    host.cache.holds(IMAGE)
    host.faults.broken = {'ensure_base'}
    keeper = upkeep_of(host)
    list(looks(clock, keeper.serve_bases, 60))
    host.gateway.exported.add(IMAGE)
    keeper.serve_bases()
    host.gateway.exported.clear()
    host.chains.tries.clear()
    assert times_of(clock, keeper.serve_bases, host.chains.tries, 10) == TRIES[:4]


def test_start_waits_for_no_storage_node(host, monkeypatch):
    """init_host calls it: nova-compute is not up before it returns."""
    host.cache.holds(IMAGE)
    begun, end = threading.Event(), threading.Event()

    def hang(image_id, guest_waits):
        begun.set()
        assert end.wait(30)
        raise exception.StorageNodeAway('away')

    monkeypatch.setattr(host.chains, 'keep_chain', hang)
    keeper = upkeep_of(host)
    keeper.start()
    assert begun.wait(30), 'it is looked after at once'
    keeper.stop()
    end.set()


# Empty cache images.

def test_an_empty_cache_image_is_replaced_by_a_whole_one(host, clock):
    host.cache.holds(IMAGE, whole=False)
    host.storage.answers = {IMAGE: {**offered(), 'pinned': True}}
    keeper = upkeep_of(host)
    keeper.replace_empty()
    assert host.fetches.fetched == [(IMAGE, INFO, 'cache-x', Medium.DISK, True)]
    list(looks(clock, keeper.replace_empty, 100))
    assert len(host.fetches.fetched) == 1 and len(host.storage.asked) == 1


def test_it_goes_where_there_is_room(host, clock):
    host.cache.holds(IMAGE, whole=False)
    host.storage.answers, host.room.free = {IMAGE: offered()}, Medium.MEMORY
    upkeep_of(host).replace_empty()
    assert [fetch[3] for fetch in host.fetches.fetched] == [Medium.MEMORY]


def test_it_stays_where_there_is_none(host, clock):
    host.cache.holds(IMAGE, whole=False)
    host.storage.answers, host.room.free = {IMAGE: offered()}, None
    upkeep_of(host).replace_empty()
    assert host.storage.asked == [IMAGE] and host.fetches.fetched == []


def test_a_whole_cache_image_is_left_alone(host, clock):
    host.cache.holds(IMAGE)
    host.storage.answers = {IMAGE: offered()}
    upkeep_of(host).replace_empty()
    assert host.storage.asked == []


def test_a_boot_that_is_watched_is_not_disturbed(host, clock):
    host.cache.holds(IMAGE, whole=False)
    host.cache.holds(OTHER, whole=False)
    host.storage.answers = {IMAGE: offered(), OTHER: offered(OTHER)}
    host.needs.booting = {IMAGE}
    keeper = upkeep_of(host)
    keeper.replace_empty()
    assert [fetch[0] for fetch in host.fetches.fetched] == [OTHER]
    host.needs.booting.clear()
    keeper.replace_empty()
    assert [fetch[0] for fetch in host.fetches.fetched] == [OTHER, IMAGE]


@pytest.mark.parametrize('answer', [
    None, {'action': 'wait'}, {'action': 'stock', 'reason': 'skipped'},
    {**offered(), 'action': 'stock'}, {'action': 'cache'},
    {key: value for key, value in {**offered(), 'action': 'cold'}.items()
     if not key.startswith('cache_')}], ids=['away', 'wait', 'stock', 'base', 'damaged', 'cold'])
def test_the_service_is_asked_ever_less_often_while_there_is_none(host, clock, answer):
    host.cache.holds(IMAGE, whole=False)
    host.room.in_use = {IMAGE}
    host.storage.answers = {IMAGE: answer}
    assert times_of(clock, upkeep_of(host).replace_empty, host.storage.asked) == TRIES
    assert host.fetches.fetched == []


@pytest.mark.parametrize('answer, stays', [
    (None, True), ({'action': 'wait', 'reason': 'prepared'}, True),
    ({'action': 'stock', 'reason': 'Glance does not give the image out'}, False),
    ({**offered(), 'action': 'stock', 'reason': 'the image is skipped'}, False)])
def test_one_that_the_storage_service_does_not_serve_goes_with_its_last_server(
        host, clock, caplog, answer, stays):
    host.cache.holds(IMAGE, whole=False)
    host.room.in_use = {IMAGE}
    host.storage.answers = {IMAGE: answer}
    keeper = upkeep_of(host)
    keeper.replace_empty()
    assert IMAGE in host.cache.held
    host.room.in_use.clear()
    clock.now += 600
    with caplog.at_level('INFO'):
        keeper.replace_empty()
    assert (IMAGE in host.cache.held) is stays
    assert stays or answer['reason'] in caplog.text


def test_after_a_boot_the_service_is_asked_at_once(host, clock):
    host.cache.holds(IMAGE, whole=False)
    keeper = upkeep_of(host)
    list(looks(clock, keeper.replace_empty, 100))
    host.needs.booting = {IMAGE}
    keeper.replace_empty()
    host.needs.booting.clear()
    host.storage.asked.clear()
    keeper.replace_empty()
    assert host.storage.asked == [IMAGE]


def test_one_that_arrives_is_not_waited_for(host, clock):
    """That takes minutes, and all else waits with it."""
    host.cache.holds(IMAGE, whole=False)
    host.storage.answers, host.needs.arriving = {IMAGE: offered()}, {IMAGE}
    keeper = upkeep_of(host)
    keeper.replace_empty()
    assert host.storage.asked == [] and host.fetches.fetched == []
    host.needs.arriving.clear()
    keeper.replace_empty()
    assert [fetch[0] for fetch in host.fetches.fetched] == [IMAGE]


def test_nor_is_one_that_somebody_brings(host, clock):
    host.cache.holds(IMAGE, whole=False)
    host.storage.answers, host.cache.placing = {IMAGE: offered()}, {IMAGE}
    keeper = upkeep_of(host)
    keeper.replace_empty()
    assert host.storage.asked == [IMAGE] and host.fetches.fetched == []
    host.cache.placing.clear()
    list(looks(clock, keeper.replace_empty, 2))
    assert [fetch[0] for fetch in host.fetches.fetched] == [IMAGE]
