"""What did not come off is tried later, and later each time, up to a longest pause."""

import pytest
from at_once import at_once
from fakes_clock import Clock

from bootcache.util import backoff
from bootcache.util.backoff import Backoff


@pytest.fixture
def clock():
    return Clock(100.0)


@pytest.fixture
def tries(clock):
    return Backoff(10, 60, clock)


@pytest.mark.parametrize('times, seconds', [(1, 10), (2, 20), (3, 40), (4, 60), (5, 60),
                                            (10 ** 9, 60)])
def test_how_long_a_pause_is(times, seconds):
    assert backoff.pause_seconds(times, 10, 60) == seconds


def test_a_first_pause_beyond_the_longest():
    assert backoff.pause_seconds(1, 90, 60) == 60


def test_what_was_never_tried_is_tried_at_once(tries):
    assert tries.is_due('one') and tries.due_at('one') == 0 and 'one' not in tries


def test_pauses_grow_up_to_the_longest(tries, clock):
    lengths = []
    for _try in range(6):
        assert tries.is_due('one')
        lengths.append(tries.postpone('one'))
        assert tries.due_at('one') == clock.now + lengths[-1]
        clock.now += lengths[-1] - 0.1
        assert not tries.is_due('one') and 'one' in tries
        clock.now += 0.1
    assert lengths == [10, 20, 40, 60, 60, 60]


def test_a_pause_begins_when_it_is_postponed(tries, clock):
    """A try takes its time, and the next one is as long after it as after a short one."""
    assert tries.is_due('one')
    clock.now += 300
    tries.postpone('one')
    assert not tries.is_due('one') and tries.due_at('one') == 410


def test_one_key_is_not_another(tries):
    tries.postpone('one')
    assert tries.is_due('two') and not tries.is_due('one')


def test_what_came_off_begins_anew(tries, clock):
    tries.postpone('one')
    tries.postpone('one')
    tries.forget('one')
    tries.forget('two')
    assert tries.is_due('one') and 'one' not in tries
    assert tries.postpone('one') == 10


def test_a_first_try_that_waits_is_no_failure(tries, clock):
    tries.delay_first('one')
    assert not tries.is_due('one') and 'one' in tries
    clock.now += 5
    tries.delay_first('one')
    assert tries.due_at('one') == 110, 'it does not wait anew'
    clock.now += 5
    assert tries.is_due('one')
    assert [tries.postpone('one') for _try in range(2)] == [10, 20]
    tries.delay_first('one')
    assert tries.due_at('one') == clock.now + 20


def test_only_some_are_kept(tries):
    for key in ('one', 'two', 'three'):
        tries.postpone(key)
    tries.keep_only({'two', 'four'})
    assert [key for key in ('one', 'two', 'three', 'four') if key in tries] == ['two']
    assert tries.postpone('two') == 20


def test_the_keys_that_are_remembered_are_bounded(clock):
    tries = Backoff(10, 600, clock, most=3)
    for key, times in (('worst', 4), ('bad', 3), ('poor', 2)):
        for _try in range(times):
            tries.postpone(key)
    for number in range(100):
        tries.postpone(f'other-{number}')
    assert [key for key in ('worst', 'bad', 'poor') if key in tries] == ['worst', 'bad', 'poor']
    assert tries.is_due('other-99'), 'tried too often rather than never'
    tries.forget('poor')
    tries.postpone('other-1')
    assert not tries.is_due('other-1')


def test_threads_that_postpone_at_once_count_each(clock):
    tries = Backoff(1, 1 << 20, clock)
    at_once(lambda: [tries.postpone('one') for _try in range(2)])
    assert tries.postpone('one') == 1 << 16


def test_another_party_says_for_how_long(tries, clock):
    assert tries.postpone('one', 7.5) == 7.5 and tries.due_at('one') == clock.now + 7.5
    assert tries.postpone('one') == 20, 'it has failed before'


def test_pauses_that_do_not_grow(clock):
    rounds = Backoff(10, clock=clock)
    assert rounds.is_due() and [rounds.postpone() for _round in range(3)] == [10, 10, 10]
    assert not rounds.is_due()


def test_a_try_is_postponed_as_it_is_acquired_by_one(clock):
    tries = Backoff(10, 60, clock)
    assert sorted(at_once(lambda: tries.acquire('one'))) == [False] * 7 + [True]
    assert tries.due_at('one') == clock.now + 10 and tries.failures('one') == 1
    clock.now += 10
    assert tries.acquire('one') and tries.due_at('one') == clock.now + 20


def test_who_forgets_learns_what_was_known(tries):
    tries.postpone('one')
    tries.delay_first(('two', 2))
    assert tries.known() == {'one', ('two', 2)}
    assert tries.forget('one') and not tries.forget('one') and tries.known() == {('two', 2)}
