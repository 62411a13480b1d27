"""What both sides' metrics share: values that are read, and seconds by outcome."""

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bootcache.exception import BootcacheError, Cancelled, ImageRefused
from bootcache.http.metrics import SampledMetrics, timed, version


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
