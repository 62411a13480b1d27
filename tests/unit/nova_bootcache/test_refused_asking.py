"""A host whose question is one too many just now asks again: many ask at one moment."""

import concurrent.futures
import contextlib
import threading

import oslo_messaging as messaging
import pytest
from oslo_config import cfg

from bootcache import exception
from glance_bootcache.rpc import ratelimit
from nova_bootcache import conf as nova_conf
from nova_bootcache.asking import client
from nova_bootcache.asking.client import HostsClient
from nova_bootcache.asking.placement import Offer

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
PLACE = {'action': 'cold', 'server': ['127.0.0.1', 10810], 'base_export': 'base',
         'virtual_bytes': 512}
MANY = 2 * ratelimit.MOST_NEW_AT_ONCE


class Service:
    """Stands for RabbitMQ and the service, whose own bounds are real."""

    def __init__(self):
        self._rates = ratelimit.RateLimiter()
        self._lock = threading.Lock()
        self.refused, self.goes_on = 0, threading.Event()

    def send(self, message):
        """As validation has it answered: no answer before half of them were refused."""
        try:
            with self._rates.admitted(f'queue reply_{message.host}'):
                assert self.goes_on.wait(60)
                return PLACE
        except exception.TooManyMessages as error:
            with self._lock:
                self.refused += 1
            if self.refused >= MANY - ratelimit.MOST_NEW_AT_ONCE:
                self.goes_on.set()
            raise messaging.RemoteError(type(error).__name__, str(error)) from error


@pytest.fixture
def conf():
    conf = cfg.ConfigOpts()
    conf([], project='nova', default_config_files=[], default_config_dirs=[])
    nova_conf.register_opts(conf)
    return conf


def host(conf, service, number=0):
    made = HostsClient(conf)
    made._client, made.hostname = service, f'host-{number}'
    return made


def test_all_hosts_of_a_cloud_that_begin_at_one_moment_are_served(conf, monkeypatch):
    monkeypatch.setattr(client, '_ASK_AGAIN_SECONDS', 0.01)
    service = Service()
    with concurrent.futures.ThreadPoolExecutor(MANY) as pool:
        offered = list(pool.map(lambda number: host(conf, service, number).ask_patiently(
            IMAGE, 'server'), range(MANY)))
    assert service.refused >= MANY - ratelimit.MOST_NEW_AT_ONCE
    assert {one.storage.offer for one in offered} == {Offer.COLD}


@pytest.mark.parametrize('patience', ['cold_wait', 'its own'])
def test_a_service_that_refuses_for_long_is_one_that_is_away(conf, monkeypatch, patience):
    if patience == 'cold_wait':
        conf.set_override('cold_wait', 0, 'bootcache')
    else:
        monkeypatch.setattr(client, '_REFUSED_SECONDS', 0.0)
    service = Service()
    with contextlib.ExitStack() as stack:
        for number in range(ratelimit.MOST_NEW_AT_ONCE):
            stack.enter_context(service._rates.admitted(f'queue {number}'))
        offered = host(conf, service).ask_patiently(IMAGE, 'server')
        assert offered.storage.offer is Offer.AWAY and service.refused == 1
        # Upkeep, which asks for many images, comes again anyway.
        assert host(conf, service).ask(IMAGE, '') is None and service.refused == 2


def test_an_id_in_capital_letters_is_not_asked_for(conf):
    """Glance on PostgreSQL has two images then, of which the other one may be somebody else's."""
    service = Service()
    service.goes_on.set()
    assert host(conf, service).ask_patiently(IMAGE, 'server').storage.offer is Offer.COLD
    offered = host(conf, service).ask_patiently(IMAGE.upper(), 'server')
    assert offered.storage.offer is Offer.STOCK and 'lower case' in offered.reason
