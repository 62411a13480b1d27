"""Settling: what the gateway goes on serving, when Nova is asked, and what is told."""

import dataclasses
import os
import shutil

import pytest
from fakes_settling import (
    DELAY,
    IMAGE,
    OTHER,
    nova_works_on,
    settled,
)
from fakes_settling import house as house  # the fixture
from fakes_settling import settler as settler  # the fixture

from bootcache import tier
from bootcache.rpc.report import UnsettledServer, UnsettledServers
from nova_bootcache.settling.settler import LONGEST_SECONDS, Settler

# The gateway.

def test_what_servers_need_of_the_gateway(house, settler):
    assert house.needs.needs_base(IMAGE) and house.needs.needs_base(OTHER), 'not known yet'
    house.boots('one', age=0)
    settler.once()
    assert house.needs.needs_base(IMAGE) and not house.needs.needs_base(OTHER)


@pytest.mark.parametrize('goes', [lambda house: house.known.pop('one'),
                                  lambda house: house.stands_on('one', house.base())],
                         ids=['deleted', 'settled'])
def test_an_image_that_nobody_needs_leaves_the_gateway(house, settler, goes):
    house.boots('one', age=0)
    house.boots('two', OTHER, age=0)
    settler.once()
    assert house.done('stop serving') == []
    goes(house)
    settler.once()
    assert house.done('stop serving') == [IMAGE] and house.served == {OTHER}
    assert not house.needs.needs_base(IMAGE)


def test_a_settled_image_that_a_restart_left_in_the_gateway_leaves_it(house, settler):
    house.boots('one')
    house.stands_on('one', house.base())
    open(house.base(), 'w').close()
    settler.once()
    assert house.served == set()


def test_an_image_that_boots_stays_in_the_gateway(house, settler):
    house.boots('one')
    house.stands_on('one', house.base())
    open(house.base(), 'w').close()
    house.booting = {IMAGE}
    settler.once()
    assert house.done('stop serving') == []
    house.booting = set()
    settler.once()
    assert house.served == set()


def test_an_image_that_nova_boots_a_server_from_stays_in_the_gateway(house, settler):
    house.boots('one', age=0)
    settler.once()
    del house.known['one']
    # Its disk is not there yet.
    house.boots('two', settles=False)
    os.unlink(house.known['two'].disk)
    settler.once()
    assert house.done('stop serving') == []


def test_a_cache_image_without_servers_and_base_stays_ready_for_the_next_one(house, settler):
    house.boots('one', age=0)
    house.known.clear()
    settler.once()
    assert house.did == []


def test_what_was_served_to_a_server_that_was_never_seen_is_let_go(house, settler):
    """Its domain did not start, and Nova has removed it before anybody looked."""
    house.boots('one', age=0)
    house.known.clear()
    house.empty = {IMAGE}
    house.booting = {IMAGE}
    settler.once()
    assert house.done('stop serving') == []
    house.booting = set()
    settler.once()
    assert house.done('stop serving') == [IMAGE] and house.served == set()


@pytest.mark.parametrize('is_seen', [True, False])
def test_a_cache_image_that_only_the_gateway_has_open_is_let_go(house, settler, monkeypatch,
                                                               is_seen):
    """Its server began while it came, and was deleted before anybody looked."""
    house.boots('one', age=0)
    monkeypatch.setattr(tier, 'is_open', lambda path: path == house.path(IMAGE))
    if is_seen:
        settler.once()
        assert house.done('stop serving') == [], 'while a server stands on it'
    house.known.clear()
    settler.once()
    assert house.done('stop serving') == [IMAGE] and IMAGE not in house.served


def test_an_image_that_is_connected_to_is_asked_for_again(house, settler):
    house.boots('one')
    house.stands_on('one', house.base())
    open(house.base(), 'w').close()
    house.connected = {IMAGE}
    settler.once()
    house.connected = set()
    settler.once()
    assert house.done('stop serving') == [IMAGE, IMAGE] and house.served == set()


def test_without_bandwidth_images_that_nobody_needs_leave_the_gateway_too(house):
    settler = Settler(house, house, 0, DELAY)
    house.boots('one')
    settler.once()
    house.known.clear()
    settler.once()
    assert house.served == set()


# Settled servers are not looked at each time.

def test_a_settled_server_is_looked_at_once(house, settler):
    house.boots('one')
    settler.once()
    house.looked_at.clear()
    for _ in range(3):
        settler.once()
    assert house.looked_at == ['one']


def test_nova_may_have_changed_a_settled_servers_disk(house, settler):
    house.boots('one')
    for _ in range(2):
        settler.once()
    house.looked_at.clear()
    nova_works_on(house, settler)
    settler.once()
    settler.once()
    assert house.looked_at == ['one']


def test_another_file_in_the_place_of_a_settled_servers_disk_is_looked_at(house, settler):
    house.boots('one')
    for _ in range(2):
        settler.once()
    # As a rebuild makes it.
    house.stands_on('one', house.path(IMAGE))
    settler.once()
    assert house.done('finish') == ['one', 'one'] and settled(house) == ['one']


# When Nova is asked at all.

def asked(house, settler, seconds):
    """How often Nova is asked for its servers in a time."""
    count, servers = [], house.servers
    house.servers = lambda: count.append(1) or servers()
    try:
        for _look in range(0, seconds, 10):
            house.clock.now += 10
            settler.look()
    finally:
        house.servers = servers
    return len(count)


def test_a_host_whose_servers_are_settled_does_not_ask_nova(house, settler):
    house.boots('one')
    settler.look()
    assert house.backing('one') == house.base()
    # Once more, as its disk is another one now.
    assert asked(house, settler, 100) <= 2
    assert asked(house, settler, 300) == 0
    house.boots('two')
    assert asked(house, settler, 20) >= 1
    assert house.backing('two') == house.base()


def test_nova_is_asked_every_ten_minutes_in_any_case(house, settler):
    settler.look()
    assert asked(house, settler, LONGEST_SECONDS - 10) == 0
    assert asked(house, settler, 10) == 1 and asked(house, settler, 100) == 0


def test_what_nova_did_not_answer_is_asked_again(house, settler, monkeypatch):
    settler.look()
    house.boots('one')
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(house, 'servers', lambda: 1 / 0)
        settler.look()
    assert asked(house, settler, 10) == 1 and settled(house) == ['one']


def test_what_changes_while_nova_is_asked_is_another_reason(house, settler):
    house.boots('one', settles=False, state='suspended')
    settler._bandwidth = 0
    servers = house.servers
    house.servers = lambda: (servers(), house.boots('two', settles=False, state='suspended'))[0]
    settler.look()
    house.servers = servers
    assert asked(house, settler, 10) == 1 and asked(house, settler, 50) == 0
    shutil.rmtree(house.known.pop('two').directory)
    assert asked(house, settler, 50) == 1


def test_a_host_with_a_server_that_cannot_be_settled_yet_asks_again(house, settler):
    house.boots('one', settles=False)
    settler.look()
    assert asked(house, settler, 100) == 10


def test_a_host_whose_servers_are_not_to_be_settled_asks_once_a_minute(house, settler):
    """As often as it asks whether they are to be settled now."""
    house.boots('one')
    house.stored[IMAGE]['settle'] = False
    settler.look()
    assert 10 <= asked(house, settler, 600) <= 12


@pytest.mark.parametrize('sees', [True, False], ids=['looked at in between', 'not looked at'])
def test_a_server_that_is_rebuilt_from_another_image_is_seen(house, settler, sees):
    """Its directory is the same, and stands on a cache image before and after."""
    for image in (IMAGE, OTHER):
        house.stored[image] = None
    house.boots('one')
    house.stored[IMAGE] = None
    settler._bandwidth = 0
    settler.look()
    assert house.needs.needs_base(IMAGE) and not house.needs.needs_base(OTHER)
    # Nova rebuilds by destroy, which holds it, and spawn.
    house.known['one'] = dataclasses.replace(house.known['one'], settles=False, image_id=OTHER,
                                             state='rebuilding')
    with settler.held('one'):
        house.clock.now += 10
        settler.look()
    if sees:
        house.clock.now += 10
        settler.look()
    house.boots('one', OTHER)
    for _ in range(3):
        house.clock.now += 10
        settler.look()
    assert house.needs.needs_base(OTHER) and not house.needs.needs_base(IMAGE)


# What is told of it.

def test_who_is_unsettled_and_why_is_told(house, settler):
    assert settler.unsettled.report() is None
    house.boots('one')
    house.boots('two', settles=False, state='suspended')
    house.boots('three', image=OTHER)
    house.stored[OTHER]['settle'] = False
    settler.once()
    settler.once()
    assert settler.unsettled.report() == UnsettledServers(2, (
        UnsettledServer('three',
                        'its image says bootcache_settle=no: say yes, or migrate the server'),
        UnsettledServer('two', 'it is suspended: resume it')))
    house.stored[OTHER]['settle'] = True
    house.known['two'] = dataclasses.replace(house.known['two'], settles=True, state='active')
    house.clock.now += 7 * 3600
    settler.once()
    settler.once()
    assert settler.unsettled.report() == UnsettledServers(0, ())


def test_whose_guest_does_not_wait_is_told_until_it_does(house, settler):
    house.boots('one')
    house.stored[IMAGE]['settle'] = False
    house.see_errors = {'one'}
    for told in (True, False):
        settler.once()
        (named,) = settler.unsettled.report().named
        assert ('sees an I/O error' in named.why) is told
        # As it was hard rebooted.
        house.see_errors = set()


def test_why_is_told_as_it_is_now_and_a_suspended_server_is_seen_soon(house, settler):
    house.boots('one')
    house.stored[IMAGE]['settle'] = False
    settler.look()
    (named,) = settler.unsettled.report().named
    assert 'bootcache_settle=no' in named.why
    # Nova is at work on it, and a moment later it is not.
    house.clock.now += 10
    with settler.held('one'):
        house.known['one'] = dataclasses.replace(house.known['one'], settles=False,
                                                 state='suspending')
    for state, told in (('suspending', 'at work on it'), ('suspended', 'resume it')):
        house.known['one'] = dataclasses.replace(house.known['one'], state=state)
        house.clock.now += 10
        settler.look()
        (named,) = settler.unsettled.report().named
        assert told in named.why
