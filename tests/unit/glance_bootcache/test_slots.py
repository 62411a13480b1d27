"""Hosts that get full bases from the storage node: few at a time, and each in its turn."""

import pytest
from fakes_clock import Clock
from hypothesis import given
from hypothesis import strategies as st

from glance_bootcache.exchange import slots as slots_module
from glance_bootcache.exchange.slots import (
    AGAIN_SECONDS,
    GRACE_SECONDS,
    HELD_SECONDS,
    LONGEST_SECONDS,
    Slots,
)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def slots(clock):
    return Slots(2, clock)


def take(slots, names):
    """Those of some hosts, which ask one after the other, that have a slot."""
    return ''.join(name for name in names if not slots.take(name))


def test_so_many_have_one_and_no_more(slots):
    assert take(slots, 'abcd') == 'ab'
    # Who has one may ask again.
    assert take(slots, 'abcd') == 'ab'


def test_who_waits_longest_is_next(slots):
    assert take(slots, 'abcde') == 'ab'
    slots.hold('a', False)
    assert take(slots, 'edc') == 'c'
    slots.hold('b', False)
    # A new one does not come before those that wait.
    assert take(slots, 'fed') == 'd'


def test_who_can_do_without_one_keeps_nobody_waiting(slots):
    assert take(slots, 'ab') == 'ab' and slots.take('c', waits=False)
    slots.take('d')
    slots.take('e')
    # It needs it no longer: it came from others.
    slots.hold('d', False)
    slots.hold('a', False)
    assert take(slots, 'fce') == 'e'


def test_a_host_that_vanishes_loses_its_slot(slots, clock):
    assert take(slots, 'abc') == 'ab'
    for _time in range(4):
        clock.now += HELD_SECONDS / 2
        slots.hold('b', True)
        found = take(slots, 'c')
    assert found == 'c' and take(slots, 'bd') == 'b'


def test_one_that_waits_and_vanishes_loses_its_place(slots, clock):
    assert take(slots, 'abcd') == 'ab'
    slots.hold('a', False)
    assert take(slots, 'd') == ''
    for _time in range(5):
        slots.hold('b', True)
        clock.now += GRACE_SECONDS / 4
        found = take(slots, 'd')
    assert found == 'd' and take(slots, 'bc') == 'b'


def test_who_was_given_none_here_takes_none_by_saying_so(slots, clock):
    """Made-up names, or hosts that had one before this service was started anew."""
    for _time in range(3):
        for name in 'xyz':
            slots.hold(name, True)
        assert take(slots, 'abc') == 'ab'
        clock.now += HELD_SECONDS / 2
    # Nor does it take another one's place.
    slots.hold('c', True)
    slots.hold('a', False)
    assert take(slots, 'dc') == 'c'


def test_made_up_names_that_ask_and_never_go_keep_nobody_waiting_for_good(slots, clock):
    assert take(slots, 'xy') == 'xy' and take(slots, 'a') == ''
    began, got = clock.now, ''
    while not got:
        clock.now += HELD_SECONDS / 4
        for name in 'xy':
            slots.hold(name, True)
        got = take(slots, 'axy').strip('xy')
        assert clock.now - began <= 2 * LONGEST_SECONDS
    assert clock.now - began >= LONGEST_SECONDS / 2, 'a long copy keeps its slot'


def test_one_that_is_far_back_asks_less_often(slots):
    waits = [slots.take(str(number)) for number in range(2002)]
    assert waits[:3] == [0, 0, AGAIN_SECONDS] and waits[100] == AGAIN_SECONDS
    assert 90 < waits[-1] < 110
    assert sum(1 / seconds for seconds in waits[2:]) < 100


def test_names_that_somebody_makes_up_are_bounded(slots, monkeypatch):
    monkeypatch.setattr(slots_module, '_MOST_HOSTS', 10)
    for number in range(100):
        slots.take(f'a{number}')
        slots.hold(f'b{number}', True)
    assert len(slots._waiting) <= 10 and len(slots._held) <= 10


STEPS = st.lists(st.tuples(st.sampled_from(['take', 'hold', 'give back']), st.integers(0, 6)),
                 max_size=60)


@given(st.integers(1, 3), STEPS)
def test_whatever_hosts_do_each_that_keeps_asking_gets_one(most, steps):
    clock = Clock()
    slots = Slots(most, clock)
    for step, host in steps:
        if step == 'take':
            slots.take(str(host))
        else:
            slots.hold(str(host), step == 'hold')
    waited = 0
    while slots.take('last'):
        # Who has one uses it for a while, and tells nothing more.
        clock.now += AGAIN_SECONDS
        waited += AGAIN_SECONDS
        assert waited <= 8 * (HELD_SECONDS + GRACE_SECONDS)
