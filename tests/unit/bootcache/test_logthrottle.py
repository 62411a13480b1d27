"""A failure is logged when it begins, seldom meanwhile, and once when it is over."""

import logging
import math

import pytest
from at_once import at_once
from fakes_clock import Clock

from bootcache.util import logthrottle
from bootcache.util.logthrottle import REPEAT_SECONDS, LogThrottle

LOG = logging.getLogger(__name__)


@pytest.fixture
def clock():
    return Clock(100.0)


@pytest.fixture
def throttle(clock, caplog):
    caplog.set_level(logging.INFO)
    return LogThrottle(LOG, clock=clock)


def lines(caplog):
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_the_same_is_logged_twice_an_hour(throttle, clock, caplog):
    for _round in range(3):
        throttle.warning('ceph', 'away: %s', 'timeout')
    assert lines(caplog) == ['away: timeout']
    clock.now += REPEAT_SECONDS - 0.1
    throttle.warning('ceph', 'away: %s', 'timeout')
    assert lines(caplog) == []
    clock.now += 0.1
    throttle.warning('ceph', 'away: %s', 'timeout')
    assert lines(caplog) == ['away: timeout']


def test_another_text_and_another_topic_are_logged(throttle, caplog):
    throttle.warning('ceph', 'away')
    throttle.warning('ceph', 'refused')
    throttle.warning('glance', 'away')
    throttle.warning('ceph', 'away')
    assert lines(caplog) == ['away', 'refused', 'away']


def test_its_end_is_logged_once_and_the_next_failure_at_once(throttle, caplog):
    throttle.recovered('ceph', 'it is back')
    assert lines(caplog) == [], 'it has not failed'
    for _time in range(2):
        throttle.warning('ceph', 'away')
        throttle.recovered('ceph', 'it is back')
        throttle.recovered('ceph', 'it is back')
        assert lines(caplog) == ['away', 'it is back']


def test_that_it_is_ready_is_logged_first_and_after_a_failure(throttle, caplog):
    for _round in range(2):
        throttle.ready('service', 'ready: %s', 'all')
    assert lines(caplog) == ['ready: all']
    throttle.warning('service', 'away')
    throttle.ready('service', 'ready: %s', 'all')
    assert lines(caplog) == ['away', 'ready: all']


def test_once_for_a_key(clock):
    throttle = LogThrottle(LOG, math.inf, clock)
    assert throttle.is_new('image') and not throttle.is_new('image')
    clock.now += 1e9
    assert not throttle.is_new('image') and throttle.is_new('other')
    throttle.forget('image')
    throttle.forget('never')
    assert throttle.is_new('image')


def test_a_clock_that_is_set_back(clock):
    throttle = LogThrottle(LOG, 3600, clock)
    assert throttle.is_new('certificate')
    clock.now -= 50
    assert throttle.is_new('certificate') and not throttle.is_new('certificate')


def test_what_is_remembered_of_a_topic_is_bounded(throttle):
    for number in range(logthrottle._MOST_TEXTS + 1):
        assert throttle.is_new('ceph', str(number))
    assert throttle.is_new('ceph', '0'), 'rather twice than without end'


def test_of_more_topics_than_are_remembered_one_line_tells(throttle, clock, caplog):
    def failing(topics):
        for topic in topics:
            throttle.warning(str(topic), 'away: %s', topic)

    most = logthrottle._MOST_TOPICS
    failing(range(most))
    assert len(lines(caplog)) == most
    for _round in range(2):
        clock.now += REPEAT_SECONDS / 4
        failing(range(most + 2))
    assert lines(caplog) == [
        '10000 failures are logged already; what fails beside them is not logged']
    # Who recovers, or was logged long ago, leaves its place.
    throttle.recovered('7', 'it is back')
    failing([most])
    assert lines(caplog) == ['it is back', f'away: {most}']
    clock.now += REPEAT_SECONDS / 2
    failing([most + 1])
    assert lines(caplog) == [f'away: {most + 1}']


def test_of_threads_that_fail_at_once_one_logs(clock):
    throttle = LogThrottle(LOG, clock=clock)
    assert sorted(at_once(lambda: throttle.is_new('ceph'))) == [False] * 7 + [True]
