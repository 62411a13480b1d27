"""Metrics, alerts and the page about them agree, and keep Prometheus's conventions."""

import re
import types
from pathlib import Path

import pytest
import yaml
from prometheus_client import Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily

from glance_bootcache import monitoring as service_monitoring
from glance_bootcache.metrics import ServiceMetrics
from nova_bootcache import monitoring as host_monitoring
from nova_bootcache.metrics import HostMetrics

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / 'doc' / 'source' / 'monitoring.rst').read_text()
RULES = TOP / 'etc' / 'prometheus' / 'bootcache.rules.yml'
SECTIONS = {'service': 'Of glance-bootcache:', 'host': 'Of nova-compute:'}
# Names of things that there are thousands of.
NO_LABELS = {'host', 'server', 'image', 'project', 'instance', 'job', 'id'}


def service(conf):
    metrics, nothing = ServiceMetrics(), None
    service_monitoring.sample(
        metrics, conf, store=nothing, running=nothing, tiers=nothing, hosts=nothing, given=nothing,
        rejected=nothing, snapshots=nothing, database=nothing, health_checks=nothing,
        membership=nothing, homes=nothing, standbys=nothing)
    return metrics


def host(_conf):
    metrics = HostMetrics()
    host_monitoring.sample(types.SimpleNamespace(metrics=metrics, room=types.SimpleNamespace(
        limits={})), None, None)
    return metrics


def metrics_of(conf, side):
    """Return type and labels of each metric, by the name that a query has."""
    metrics = {'service': service, 'host': host}[side](conf)
    found = {}
    for source in metrics.sampled._sources:
        is_counter = source.family is CounterMetricFamily
        found[source.name + '_total' * is_counter] = \
            'counter' if is_counter else 'gauge', tuple(source.labels), source.text
    for collector in metrics.registry._collector_to_names:
        if isinstance(collector, Counter | Histogram):
            found[collector._name + '_total' * isinstance(collector, Counter)] = \
                collector._type, collector._labelnames, collector._documentation
    return found


def described(side):
    """Return type and labels of each metric that the page has."""
    text = PAGE[PAGE.index(SECTIONS[side]):]
    text = text[:text.index('\nOf nova-compute:' if side == 'service' else "\nPrometheus's client")]
    return {name: (kind, tuple(re.findall(r'``(\w+)``', labels))) for name, labels, kind in
            re.findall(r'\* - ``(bootcache_\w+)``([^\n]*)\n     - (\w+)\n', text)}


@pytest.mark.parametrize('side', SECTIONS)
def test_the_page_has_all_of_them_and_no_others(storage_conf, side):
    assert described(side) == {name: (kind, labels) for name, (kind, labels, _text)
                               in metrics_of(storage_conf, side).items()}


@pytest.mark.parametrize('side', SECTIONS)
def test_names_are_as_prometheus_has_them(storage_conf, side):
    for name, (kind, labels, text) in metrics_of(storage_conf, side).items():
        assert re.fullmatch(r'bootcache(_[a-z]+)+', name)
        assert name.endswith('_total') == (kind == 'counter')
        assert kind != 'histogram' or name.endswith('_seconds')
        assert not NO_LABELS & set(labels)
        assert text.endswith('.')


def test_what_both_sides_have_is_the_same(storage_conf):
    service, host = (metrics_of(storage_conf, side) for side in SECTIONS)
    for name in service.keys() & host.keys():
        assert service[name][:2] == host[name][:2]


def test_what_alerts_count_is_there_before_it_happens(storage_conf):
    text = generate_latest(host(storage_conf).registry).decode()
    assert 'bootcache_fetch_seconds_count{outcome="failed"} 0.0' in text


def rules():
    group, = yaml.safe_load(RULES.read_text())['groups']
    return group['rules']


def test_alerts_ask_for_metrics_that_there_are(storage_conf):
    known = {name for side in SECTIONS for name in metrics_of(storage_conf, side)}
    known |= {f'{name}_count' for name in known}
    for rule in rules():
        asked = set(re.findall(r'bootcache_\w+', rule['expr']))
        assert asked <= known and (asked or 'up{' in rule['expr'])


def test_alerts_are_on_the_page_with_their_severity():
    assert re.findall(r'\* - ``(Bootcache\w+)``\n     - (\w+)\n', PAGE) == [
        (rule['alert'], rule['labels']['severity']) for rule in rules()]
    for rule in rules():
        assert set(rule['annotations']) == {'summary', 'description'}
