"""What both sides' metrics share: values that are read, and seconds by outcome."""

from wsgiref.util import setup_testing_defaults

import pytest
from fakes_clock import Clock
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bootcache.exception import BootcacheError, Cancelled, ImageRefused
from bootcache.http.metrics import SampledMetrics, app, timed, version


def read(registry):
    return {(sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(generate_latest(registry).decode())
            for sample in family.samples}


def test_values_are_read_when_they_are_asked_for():
    registry, sampled, state = CollectorRegistry(), SampledMetrics(), {'rooms': 1}
    registry.register(sampled)
    sampled.gauge('bootcache_rooms', 'Rooms.', lambda: {(): state['rooms']})
    sampled.counter('bootcache_guests', 'Guests.', lambda: {('a',): 2, ('b',): 3}, ['kind'])
    assert read(registry) == {('bootcache_rooms',): 1, ('bootcache_guests_total', 'a'): 2,
                              ('bootcache_guests_total', 'b'): 3}
    state['rooms'] = 7
    assert read(registry)['bootcache_rooms',] == 7


def test_one_that_cannot_be_read_is_left_out_and_told_once(caplog):
    registry, sampled, broken = CollectorRegistry(), SampledMetrics(), [True]
    registry.register(sampled)

    def rooms():
        if broken[0]:
            raise OSError('no disk')
        return {(): 4}

    sampled.gauge('bootcache_rooms', 'Rooms.', rooms)
    sampled.gauge('bootcache_guests', 'Guests.', lambda: {(): 1})
    for _scrape in range(2):
        assert read(registry) == {('bootcache_guests',): 1}
    assert caplog.text.count('bootcache_rooms cannot be read, and is left out: no disk') == 1
    broken[0] = False
    assert read(registry) == {('bootcache_guests',): 1, ('bootcache_rooms',): 4}


def test_who_asks_again_at_once_takes_no_time_of_the_service():
    registry, sampled, clock, calls = CollectorRegistry(), SampledMetrics(), Clock(), []
    registry.register(sampled)
    counted = sampled.once(lambda: calls.append(1) or len(calls))
    for name in 'rooms', 'guests':
        sampled.gauge(f'bootcache_{name}', 'Both are read as one.', lambda: {(): counted()})
    answer = app(registry, clock)

    def ask(query=''):
        environ = {'QUERY_STRING': query}
        setup_testing_defaults(environ)
        return b''.join(answer(environ, lambda status, headers: None)).decode().splitlines()

    for query in '', 'name[]=bootcache_rooms', '':
        assert {'bootcache_rooms 1.0', 'bootcache_guests 1.0'} <= set(ask(query))
    clock.now += 2
    assert {'bootcache_rooms 2.0', 'bootcache_guests 2.0'} <= set(ask())


@pytest.mark.parametrize(('error', 'outcome'), [
    (None, 'done'), (Cancelled('given up'), 'cancelled'),
    (ImageRefused('it is encrypted'), 'refused'), (BootcacheError('no'), 'failed'),
    (OSError('no disk'), 'failed')], ids=str)
def test_seconds_are_told_by_outcome(error, outcome):
    registry = CollectorRegistry()
    histogram = Histogram('bootcache_step_seconds', 'Seconds.', ['step', 'outcome'],
                          registry=registry)
    try:
        with timed(histogram, 'build'):
            if error is not None:
                raise error
    except type(error) as caught:
        assert caught is error
    assert read(registry)['bootcache_step_seconds_count', 'build', outcome] == 1


def test_the_version_is_told():
    (labels, value), = version().items()
    assert len(labels) == 1 and labels[0] and value == 1
