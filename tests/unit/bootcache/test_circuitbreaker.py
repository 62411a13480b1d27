"""Who has just not answered is left alone for a while, and then asked once."""

import pytest
from at_once import at_once
from fakes_clock import Clock

from bootcache.util.backoff import CircuitBreaker


@pytest.fixture
def clock():
    return Clock(100.0)


@pytest.fixture
def neighbour(clock):
    return CircuitBreaker(2, 10, clock)


def test_one_failure_is_none(neighbour):
    for _ in range(5):
        assert neighbour.may_ask() and neighbour.seconds_left() == 0
        neighbour.failed()
        assert neighbour.may_ask()
        neighbour.answered()


def test_after_failures_nobody_asks_for_a_while_and_then_one(neighbour, clock):
    neighbour.failed()
    neighbour.failed()
    assert not neighbour.may_ask() and neighbour.seconds_left() == 10
    clock.now += 9.9
    assert not neighbour.may_ask()
    clock.now += 0.1
    assert [neighbour.may_ask() for _ in range(3)] == [True, False, False]
    neighbour.failed()
    clock.now += 9.9
    assert not neighbour.may_ask()
    clock.now += 0.1
    assert neighbour.may_ask()
    neighbour.answered()
    assert all(neighbour.may_ask() for _ in range(3)) and neighbour.seconds_left() == 0


def test_one_who_asks_and_is_never_heard_of_keeps_nobody_for_ever(neighbour, clock):
    neighbour.failed()
    neighbour.failed()
    clock.now += 10
    assert neighbour.may_ask() and not neighbour.may_ask()
    clock.now += 10
    assert neighbour.may_ask()


def test_of_many_who_wait_for_the_pauses_end_one_asks(clock):
    neighbour = CircuitBreaker(1, 10, clock)
    neighbour.failed()
    clock.now += 10
    assert sorted(at_once(neighbour.may_ask)) == [False] * 7 + [True]


def test_an_error_that_is_no_silence_is_an_answer(neighbour):
    def ask(error=None):
        with neighbour.hearing(lambda error: isinstance(error, TimeoutError)):
            if error is not None:
                raise error

    neighbour.failed()
    with pytest.raises(ValueError):
        ask(ValueError())
    for _ in range(2):
        assert neighbour.may_ask()
        with pytest.raises(TimeoutError):
            ask(TimeoutError())
    assert not neighbour.may_ask()
    ask()
    assert neighbour.may_ask()
