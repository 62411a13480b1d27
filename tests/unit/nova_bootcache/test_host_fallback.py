"""What becomes of a server when the storage side is away, old, broken or lying: the stock way.

The storage service is a stand-in that answers wrongly; tests/functional/test_compute_host.py has
real daemons, tests/e2e the real service.
"""

import os
import types

import oslo_messaging as messaging
import pytest
from nova import exception as nova_exception
from oslo_config import cfg

from bootcache import exception
from bootcache.manifest import CacheInfo
from nova_bootcache import conf as nova_conf
from nova_bootcache.asking.placement import Server
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2
from nova_bootcache.storagenode import Remote
from nova_bootcache.upkeep import HostUpkeep

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SERVER = Server(IMAGE, 'disk', '', False, False, False)
INFO = CacheInfo('cache', 1000, 900, 3, 'ab', 1 << 30, 65536, 1 << 29, 'nbd://', 1.5, 1)
CACHE = {'action': 'cache', 'virtual_bytes': 1 << 30, 'server': ['127.0.0.1', 1],
         'base_export': 'base-x', 'cache_export': 'cache-x', 'cache_image': vars(INFO)}


class Service:
    """Answers messages with a value or an error."""

    def __init__(self, answer):
        self.answer = answer

    def send(self, message):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def host(tmp_path):
    conf = cfg.ConfigOpts()
    conf([], project='nova', default_config_files=[], default_config_dirs=[])
    nova_conf.register_opts(conf)
    conf.set_override('gateway_run_dir', str(tmp_path / 'run'), 'bootcache')
    conf.set_override('gateway_socket', str(tmp_path / 'run' / 's'), 'bootcache')
    host = ComputeHost(conf, str(tmp_path / 'cache'))
    host.cache.prepare()
    return host


def goes_stock(host, answer, tmp_path, caplog, root_bytes=2 << 30):
    host.storage._client = Service(answer)
    with caplog.at_level('INFO'):
        made = host.chains.make_overlay(SERVER, 'server-1', None, str(tmp_path / 'disk'),
                                        root_bytes, False)
    lines = [record.getMessage() for record in caplog.records if 'server-1' in record.getMessage()]
    assert made is False and len(lines) == 1 and 'stock way: ' in lines[0]
    assert not os.path.exists(tmp_path / 'disk')
    return lines[0]


@pytest.mark.parametrize('answer, word', [
    ({'action': 'stock', 'reason': 'the image is recording'}, 'recording'),
    (messaging.MessagingTimeout('x'), 'does not answer'),
    (messaging.MessageDeliveryFailure('x'), 'does not answer'),
    (messaging.RemoteError('StorageDaemonError', 'refused'), 'refused'),
    (messaging.RPCVersionCapError(version='1.0', version_cap='0.9'), 'version'),
    (OSError('no socket'), 'no socket'), (ValueError('bad'), 'bad'), ({}, 'no reason'),
    ({'action': 'cache'}, 'not understood'),
    *(({key: value for key, value in CACHE.items() if key != missing}, missing)
      for missing in ('virtual_bytes', 'server', 'base_export', 'cache_export')),
    ({**CACHE, 'server': ['127.0.0.1', 'port']}, 'ValueError')])
def test_the_stock_way_with_one_line_that_says_why(host, tmp_path, caplog, answer, word):
    assert word in goes_stock(host, answer, tmp_path, caplog)


def test_a_cache_image_that_takes_its_place_just_now_is_no_error(host, tmp_path, caplog):
    """For a moment the image has no entry, and the storage service does not answer either."""
    host.needs.begin_arrival(IMAGE)
    line = goes_stock(host, messaging.MessagingTimeout('x'), tmp_path, caplog)
    assert 'the storage service does not answer' in line and 'unexpected' not in line


@pytest.mark.parametrize('answer', [
    RuntimeError('a fault of the service'), TypeError('a fault of the service'),
    AttributeError('a fault of the service'), AssertionError('a fault of the service'), [],
    {**CACHE, 'server': None}, {**CACHE, 'virtual_bytes': None}, {**CACHE, 'virtual_bytes': 'x'}],
    ids=repr)
def test_no_fault_of_the_service_fails_a_boot(host, tmp_path, caplog, answer):
    goes_stock(host, answer, tmp_path, caplog)


def test_a_disk_that_is_too_small_is_refused_before_anything_is_fetched(host, tmp_path):
    """The stock way gets all of the image, refuses the server, and leaves the host with a base."""
    host.storage._client = Service(CACHE)
    with pytest.raises(exception.FlavorTooSmall) as refused:
        host.chains.make_overlay(SERVER, 'server-1', None, str(tmp_path / 'disk'), 1 << 20, False)
    assert (refused.value.flavor_bytes, refused.value.image_bytes) == (1 << 20, 1 << 30)
    assert os.listdir(tmp_path / 'cache') == [] and not os.path.exists(tmp_path / 'disk')


def test_nova_hears_of_it_as_stock_nova_says_it(tmp_path):
    """It gives such a server up, and tries no other host."""
    class Host:
        @staticmethod
        def make_overlay(*arguments, **named):
            raise exception.FlavorTooSmall(1 << 20, 1 << 30)

    disk = object.__new__(BootCacheQcow2.bound_to(types.SimpleNamespace(chains=Host)))
    disk._instance = types.SimpleNamespace(kernel_id='', vm_state=None, task_state=None,
                                           metadata={}, uuid='server-1')
    disk.path, disk.preallocate = str(tmp_path / 'disk'), False
    with pytest.raises(nova_exception.FlavorDiskSmallerThanImage, match=str(1 << 30)):
        disk.cache(None, 'name', 1 << 20, image_id=IMAGE)
    assert issubclass(nova_exception.FlavorDiskSmallerThanImage,
                      nova_exception.FlavorDiskTooSmall)


def test_all_that_is_said_of_a_gateway_that_nobody_started_names_the_cure(host, tmp_path, caplog):
    """One line tells of it, and what needs the gateway tells of no cause of its own."""
    conf = cfg.ConfigOpts()
    conf([], project='nova', default_config_files=[], default_config_dirs=[])
    nova_conf.register_opts(conf)
    for name, value in {'gateway_run_dir': str(tmp_path / 'run'), 'gateway_autostart': False,
                        'gateway_socket': str(tmp_path / 'run' / 's')}.items():
        conf.set_override(name, value, 'bootcache')
    host = ComputeHost(conf, str(tmp_path / 'cache'))
    host.storage._client = Service(messaging.MessagingTimeout('x'))
    CacheEntry(Remote(IMAGE, '127.0.0.1', 1, 'base-x'), None, 'ab', 1 << 30).save(
        f'{host.cache.path(IMAGE)}.json')
    HostUpkeep(host, types.SimpleNamespace(exchange=lambda: '')).once()
    lines = [record.getMessage() for record in caplog.records
             if record.levelname in ('WARNING', 'ERROR') and 'gateway' in record.getMessage()]
    assert len(lines) == 1 and 'start bootcache-gateway.service' in lines[0]


def test_before_the_driver_is_started(host, tmp_path):
    assert host.chains.make_overlay(SERVER, 'server-1', None, str(tmp_path / 'disk'), None,
                                    False) is False


def test_nobody_is_asked_where_stock_is_sure(host, tmp_path):
    host.storage._client = Service(AssertionError('asked'))
    assert host.chains.make_overlay(SERVER, 'server-1', None, str(tmp_path / 'disk'), None,
                                    True) is False


@pytest.mark.parametrize('answer, word', [
    (messaging.MessagingTimeout('x'), 'does not answer'),
    ({'action': 'stock', 'reason': 'the image was deleted'}, 'deleted')])
def test_a_chain_that_cannot_be_kept_says_why(host, answer, word):
    host.storage._client = Service(answer)
    with pytest.raises(exception.BootcacheError, match=word):
        host.chains.keep_chain(IMAGE)


def test_a_server_that_was_no_profile_boot_reports_nothing(host):
    host.storage._client = Service(AssertionError('asked'))
    host.recordings.finish('server-1')
