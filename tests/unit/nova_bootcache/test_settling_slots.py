"""Hosts that wait for their turn to get a full base; the house is fakes_settling.py's."""

import oslo_messaging as messaging
import pytest
from fakes_clock import Clock
from fakes_settling import IMAGE, settled
from fakes_settling import house as house  # the fixture
from fakes_settling import settler as settler  # the fixture
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache import exception
from bootcache.rpc.messages import HoldSlot, TakeSlot
from nova_bootcache import conf as nova_conf
from nova_bootcache.asking.client import HostsClient
from nova_bootcache.settling import serversbases
from nova_bootcache.settling.fullbase import StorageSlot


@pytest.fixture
def completing(house, monkeypatch):
    """Makes a base as fullbase.complete does where it is copied: with the slot."""
    made = serversbases.fullbase.complete

    def complete(*arguments, slot, **how):
        slot.take()
        try:
            return made(*arguments, slot=slot, **how)
        finally:
            slot.give_back()

    monkeypatch.setattr(serversbases.fullbase, 'complete', complete)


def test_a_host_waits_for_its_turn_and_asks_again(house, settler, completing, caplog):
    house.boots('one')
    house.slot_again = 40.0
    settler.once()
    assert settled(house) == [] and house.done('slot') == ['taken']
    assert 'settle_slots' in settler.unsettled.report().named[0].why
    # It is no failure: it is not asked later and later, nor by every look.
    for _time in range(20):
        house.clock.now += 8
        settler.once()
    assert 4 <= len(house.done('slot')) <= 6
    assert IMAGE not in settler._backoff
    assert caplog.text.count("this host's turn") <= 1
    house.slot_again = 0.0
    house.clock.now += 50
    settler.once()
    assert settled(house) == ['one'] and house.done('slot')[-3:] == ['taken', *2 * ['given back']]
    assert not settler.unsettled.queued


def test_a_place_is_left_where_nobody_needs_it(house, settler, completing):
    house.boots('one')
    house.slot_again = 40.0
    settler.once()
    house.known.pop('one')
    settler.once()
    assert house.done('slot') == ['taken', 'given back'] and not settler.unsettled.queued


def test_a_base_that_is_there_is_compared_with_a_slot(house, settler, monkeypatch):
    house.boots('one')
    open(house.base(IMAGE), 'w').close()

    def check(path, image_format, content, source, *_how):
        source()
        assert house.done('slot') == ['taken']
        return serversbases.fullbase.identity(path)

    monkeypatch.setattr(serversbases.fullbase, 'check', check)
    monkeypatch.setattr(serversbases.storagenode, 'nbd_node', lambda *_arguments: {})
    monkeypatch.setattr(house, 'ask', lambda *_arguments: None, raising=False)
    house.slot_again = 10.0
    settler.once()
    assert settled(house) == [] and house.done('slot') == ['taken']


class Told:
    """Stands for the storage service."""

    def __init__(self, answer=0.0):
        self.answer, self.held = answer, []

    def send(self, message):
        if isinstance(message, HoldSlot):
            self.held.append(message.holds)
            return None
        assert isinstance(message, TakeSlot)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def client(monkeypatch):
    def make(told):
        conf = cfg.ConfigOpts()
        conf([], project='nova', default_config_files=[], default_config_dirs=[])
        nova_conf.register_opts(conf)
        assert bootcache_conf.GROUP in conf
        monkeypatch.setattr('nova_bootcache.asking.client.StorageClient', lambda _conf: told)
        client = HostsClient(conf)
        client.start('host')
        return client

    return make


def test_a_slot_is_told_of_now_and_then_and_given_back_once(client):
    told, clock = Told(), Clock()
    slot = StorageSlot(client(told), clock)
    slot.keep()
    slot.give_back()
    assert told.held == []
    slot.take()
    for _time in range(60):
        clock.now += 1
        slot.keep()
    assert told.held == [True] * 4
    slot.give_back()
    slot.give_back()
    assert told.held == [True] * 4 + [False]


def test_it_is_others_turn(client):
    slot = StorageSlot(client(Told(30.0)))
    with pytest.raises(exception.NoSlot, match='settle_slots') as raised:
        slot.take()
    assert raised.value.seconds == 30.0


def test_a_service_that_does_not_answer_is_asked_later(client):
    with pytest.raises(messaging.MessagingTimeout):
        StorageSlot(client(Told(messaging.MessagingTimeout('nobody')))).take()
