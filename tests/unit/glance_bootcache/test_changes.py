"""An owner who changes images without end has so many of them followed within an hour.

The neighbours are stand-ins, see test_controller.py."""

import collections

import pytest
from fakes_clock import Clock
from fakes_manager import SIZE
from hypothesis import given
from hypothesis import strategies as st

from bootcache.manifest import Manifest, Standing
from bootcache.reasons import Reason
from bootcache.rpc.messages import PlanBoot
from glance_bootcache.images.turns import HOUR, Changes
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.storage import inspection
from tools import storedimages


@given(st.integers(1, 5), st.lists(st.tuples(st.sampled_from('ab'), st.floats(0, HOUR)),
                                   max_size=60))
def test_within_any_hour_there_are_no_more(most, asked):
    clock = Clock(0.0)
    changes, followed = Changes(most, clock), collections.defaultdict(list)
    for owner, seconds in asked:
        clock.now += seconds
        too_many = changes.seconds_left(owner) > 0
        recent = [when for when in followed[owner] if when + HOUR > clock.now]
        assert too_many == (len(recent) == most), 'and none waits in vain'
        if not too_many:
            changes.begin(owner)
            followed[owner].append(clock.now)


def test_none_waits_where_any_number_may_be():
    changes = Changes(0)
    for _change in range(1000):
        changes.begin('a')
        assert not changes.seconds_left('a')


def image(number):
    return f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.fixture
def house(house):
    house.conf.set_override('changes_per_hour', 3, 'bootcache')
    house.restart()
    return house


def register(house, number, owner='one', content=b'1' * SIZE):
    house.images.put(image(number), content, owner=owner)
    house.changed(image(number))
    house.settle()
    return house.store.load(image(number))


def standing(house, numbers):
    return [house.store.load(image(number)).standing for number in numbers]


def test_the_fourth_waits_for_the_hour_and_another_owners_does_not(house):
    for number in range(5):
        register(house, number)
    done, waits = Standing.DONE, Standing.WANTED
    assert standing(house, range(5)) == [done, done, done, waits, waits]
    manifest = house.store.load(image(4))
    assert manifest.cause.reason is Reason.TOO_MANY_CHANGES
    assert register(house, 9, owner='two').standing is done
    asked, get = [], house.images.get
    house.images.get = lambda image_id: asked.append(image_id) or get(image_id)
    house.later(HOUR / 2)
    assert not asked, 'Glance is not asked in vain'
    house.later(HOUR / 2)
    house.settle()
    assert standing(house, range(5)) == [done] * 5


def test_those_of_another_node_count_as_well(house, database, tmp_path):
    other = StorageNode(database, str(tmp_path / 'node.json'), 'other')
    house.controller._home_for = lambda parent_id: other.id
    for number in range(4):
        assert register(house, number) is None
    reasons = [house.store.anywhere(image(number)).cause.reason for number in range(4)]
    assert reasons.index(Reason.TOO_MANY_CHANGES) == 3


def test_one_that_waits_is_looked_at_when_it_changes_in_glance(house):
    for number in range(4):
        register(house, number)
    house.images.put(image(3), mode='off', owner='one')
    house.changed(image(3))
    assert house.store.load(image(3)).standing is Standing.SKIPPED
    register(house, 4)
    del house.images.images[image(4)]
    house.deleted(image(4))
    assert house.store.load(image(4)) is None


def test_servers_of_one_that_waits_boot_as_ever(house):
    for number in range(3):
        register(house, number)
    changed = register(house, 0, content=b'2' * SIZE)
    assert changed.cause.reason is Reason.TOO_MANY_CHANGES
    assert house.hosts.plan_boot(PlanBoot(image(0), 'host', 'server'))['action'] == 'stock'
    assert house.hosts.plan_boot(PlanBoot(image(1), 'host', 'server'))['action'] == 'cache'
    # What a server that boots needs, and an operator orders, is not counted.
    house.images.put(image(7))
    assert house.hosts.plan_boot(PlanBoot(image(7), 'host', 'server'))['action'] == 'wait'
    house.settle()
    assert house.hosts.plan_boot(PlanBoot(image(7), 'host', 'server'))['action'] == 'cold'
    assert register(house, 8).cause.reason is Reason.TOO_MANY_CHANGES
    assert house.hosts.plan_boot(PlanBoot(image(8), 'host', 'server'))['action'] == 'wait'
    house.settle()
    assert house.hosts.plan_boot(PlanBoot(image(8), 'host', 'server'))['action'] == 'cold'
    house.build(image(0))
    house.settle()
    assert house.store.load(image(0)).standing is Standing.DONE


def test_what_is_looked_at_and_needs_nothing_is_not_counted(house):
    for _look in range(10):
        assert register(house, 0).standing is Standing.DONE
    assert register(house, 1).standing is Standing.DONE


def test_what_is_done_again_is_not_counted(house, monkeypatch):
    """After an upgrade with other rules all images of an owner are looked at at once."""
    for number in range(3):
        register(house, number)
    house.later(HOUR)
    for number in range(3, 6):
        register(house, number)
    monkeypatch.setattr(inspection, 'RULES', 2)
    house.restart()
    house.recover()
    house.settle()
    assert standing(house, range(6)) == [Standing.DONE] * 6


def test_what_was_taken_up_before_a_restart_is_not_counted_again(house):
    for number in range(3):
        house.images.put(image(number), owner='one')
        # What the earlier process has written.
        storedimages.put(house.store, Manifest(
            image(number), Standing.WANTED,
            image_hash=house.images.get(image(number)).image_hash))
    for number in range(10, 13):
        register(house, number)
    house.recover()
    house.settle()
    assert standing(house, range(3)) == [Standing.DONE] * 3
    # One that waited, as there were too many, is.
    assert register(house, 20).cause.reason is Reason.TOO_MANY_CHANGES
    assert register(house, 20).cause.reason is Reason.TOO_MANY_CHANGES


def test_one_that_opts_out_and_in_again_is_counted(house):
    for _time in range(3):
        register(house, 0)
        house.images.put(image(0), mode='off', owner='one')
        house.changed(image(0))
        house.settle()
    assert register(house, 0).cause.reason is Reason.TOO_MANY_CHANGES
