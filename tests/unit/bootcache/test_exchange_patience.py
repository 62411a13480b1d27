"""When a fetch by exchange that stalls is helped, and when it is left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootcache.exchange import patience
from bootcache.exchange.patience import Help, Stillness


def helped(events, least=1):
    """Look at times, with what had come by then; return what was done at which time."""
    watch, found = Stillness(0.0), []
    for now, done in events:
        what, watch = patience.look(watch, done, now, least)
        if what is not Help.NONE:
            found.append((now, what))
    return found


def test_what_stands_still_is_helped_once_in_each_way_and_then_left():
    assert helped((step / 10, 0) for step in range(46)) == [
        (1.0, Help.RECONNECT), (2.5, Help.START_OVER), (4.5, Help.GIVE_UP)]


def test_what_goes_on_slowly_is_left_alone():
    assert helped((step * 0.9, step) for step in range(1, 100)) == []


def test_what_hardly_moves_is_left():
    """A block now and then is something new, and would be for hours."""
    least = patience.least_bytes(0)
    assert least > 30 * 16384
    events = [(second, second * 16384) for second in range(100)]
    assert helped(events, least)[0] == (5, Help.GIVE_UP)
    assert helped([(now, now * 10 * 16384) for now in range(100)], least) == []


def test_what_is_slow_as_it_was_told_to_be_goes_on():
    rate = 32 << 10
    events = [(now, now * rate) for now in range(100)]
    assert helped(events, patience.least_bytes(rate)) == []
    assert helped(events, patience.least_bytes(0))


def test_what_goes_on_after_help_may_stand_still_again():
    events = [(0, 0), (1, 0), (1.5, 10), (2, 10), (2.6, 10)]
    assert helped(events) == [(1, Help.RECONNECT), (2.6, Help.RECONNECT)]


def test_bytes_that_were_taken_back_are_nothing_new():
    """A piece with a wrong block comes again and again, from one who lies."""
    assert helped([(0, 0), (0.5, 100), (1, 50), (1.5, 100), (5.1, 100)])[-1] == (5.1, Help.GIVE_UP)


@given(st.lists(st.tuples(st.floats(0.01, 0.5), st.integers(0, 5)), min_size=1, max_size=200))
def test_it_is_left_before_plain_copying_is_five_seconds_late(steps):
    watch, now, best, since, left = Stillness(0.0), 0.0, 0, 0.0, False
    for pause, done in steps:
        now += pause
        if done > best:
            best, since = done, now
        what, watch = patience.look(watch, done, now)
        left = what is Help.GIVE_UP
        if left:
            break
    assert left == (now - since >= patience.GIVE_UP_AFTER)


@pytest.mark.parametrize('earlier, later', [
    ('RECONNECT_AFTER', 'START_OVER_AFTER'), ('START_OVER_AFTER', 'GIVE_UP_AFTER')])
def test_what_costs_less_comes_first(earlier, later):
    assert getattr(patience, earlier) < getattr(patience, later) < 5


@given(st.floats(0, 1e6), st.floats(0, 100), st.floats(0, 100))
def test_however_many_servers_wait_none_waits_beyond_the_bound(since, first, second):
    """Each counts from when the first one began to."""
    ends = {since + later + patience.servers_wait(since, since + later) for later in (first, second)
            if later < patience.SERVERS_WAIT}
    assert all(end == pytest.approx(since + patience.SERVERS_WAIT) for end in ends)
    assert patience.servers_wait(since, since + patience.SERVERS_WAIT + 1) == 0.0
    assert patience.SERVERS_WAIT < 5
