"""What Prometheus is told: a real server of its client library, read by HTTP."""

import importlib
import socket
import urllib.request

import pytest
from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache import exception
from bootcache.rpc.messages import ExchangeWay, ReportExchange
from glance_bootcache import conf as glance_conf
from glance_bootcache.exchange.offers import Given
from glance_bootcache.metrics import Metrics

pytest.importorskip('prometheus_client')


@pytest.fixture
def conf():
    conf = cfg.ConfigOpts()
    conf([], default_config_files=[], default_config_dirs=[])
    glance_conf.register_opts(conf)
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        conf.set_override('metrics_port', free.getsockname()[1], bootcache_conf.GROUP)
    return conf


def test_sums_are_told(conf):
    given = Given()
    metrics = Metrics(conf, given)
    try:
        given.note(ReportExchange('image', 'two', 'file', ExchangeWay.STALLED,
                                  [('a', 40), ('s', 35)], 25, gives=False),
                   'cache image', 100, {'a': 'one', 's': ''})
        port = conf.bootcache.metrics_port
        with urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics', timeout=30) as answer:
            lines = answer.read().decode().splitlines()
    finally:
        metrics.stop()
    assert 'bootcache_exchange_files_total{way="stalled"} 1.0' in lines
    assert 'bootcache_exchange_files_total{way="exchanged"} 0.0' in lines
    for giver, count in ('hosts', 40), ('storage', 35), ('exporter', 25):
        assert f'bootcache_exchange_bytes_total{{giver="{giver}"}} {count}.0' in lines
    assert not any('image' in line or 'one' in line.split() for line in lines if line[:1] != '#')


def test_what_listens_there_already_is_named(conf):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', conf.bootcache.metrics_port))
        taken.listen()
        with pytest.raises(exception.ConfigurationError, match='metrics_port'):
            Metrics(conf, Given())


def test_nothing_is_needed_where_no_port_is_given(conf, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, 'import_module', missing)
    with pytest.raises(exception.ConfigurationError, match='pip install'):
        Metrics(conf, Given())
    conf.set_override('metrics_port', 0, bootcache_conf.GROUP)
    Metrics(conf, Given()).stop()
