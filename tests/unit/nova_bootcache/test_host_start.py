"""Nova's start waits until it can resume the servers that stand on cache images.

The driver is our own, over stand-ins of Nova's methods; gateway and connectors' supervisor too.
"""

import os
import socket
import types
import urllib.error
import urllib.request

import pytest
from fakes_clock import Clock
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import imagebackend
from nova.virt.libvirt import utils as libvirt_utils

from bootcache import exception, qemuimg
from nova_bootcache import conf
from nova_bootcache.chains import computehost
from nova_bootcache.novadriver import driver
from nova_bootcache.novadriver.driver import BootCacheLibvirtDriver
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2
from tools.ports import free_port

SERVER = '5f0d3e7a-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
AWAY = exception.StorageDaemonError('gateway: nothing answers on /run/bootcache/gateway.qmp')


@pytest.fixture
def host(monkeypatch, tmp_path, caplog):
    """A host that starts, with a server on a cache image.

    Gateway and supervisor answer from a second on; the patience with which chains are opened after
    Nova's start is in ``patience``.
    """
    def stock(self, virtapi, read_only):
        self.image_backend, self._host = imagebackend.Backend(True), None

    def init_host(_self, name):
        found.started.append((name, found.clock.now))
        # As Nova does with one that it resumes.
        found.driver._hard_reboot(None, types.SimpleNamespace(uuid=SERVER, image_ref=None), None)

    def start_gateway():
        if found.clock.now < found.gateway:
            raise AWAY

    found = types.SimpleNamespace(clock=Clock(0), started=[], patience=[], gateway=0, supervisor=0,
                                  log=caplog)
    found.clock.retry_by(monkeypatch)
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, '__init__', stock)
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, 'init_host', init_host)
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, '_hard_reboot', lambda *_arguments: None)
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, 'cleanup_host', lambda *_arguments: None)
    monkeypatch.setattr(libvirt_utils, 'create_image', libvirt_utils.create_image)
    monkeypatch.setattr('nova_bootcache.asking.client.StorageClient', lambda conf: None)
    monkeypatch.setattr(driver.CONF, 'instances_path', str(tmp_path))
    monkeypatch.setattr(driver.CONF, 'resume_guests_state_on_host_boot', True)
    monkeypatch.setattr(computehost.listening, 'is_served',
                        lambda _path: found.clock.now >= found.supervisor)
    monkeypatch.setattr(BootCacheQcow2, 'open_chain',
                        lambda _disk, _path, patience, _guest_waits: found.patience.append(
                            patience))
    conf.register_opts(driver.CONF)
    driver.CONF.set_override('gateway_autostart', False, 'bootcache')
    found.driver = ours = BootCacheLibvirtDriver(None)
    monkeypatch.setattr(ours.bootcache, 'start', lambda _name: None)
    monkeypatch.setattr(ours.bootcache.gateway, 'start', start_gateway)
    for part in (ours.upkeep, ours.standing, ours.settler):
        monkeypatch.setattr(part, 'start', lambda: None)
    monkeypatch.setattr(ours.settler._nova, 'bounded_domain', lambda *_about, **_how: None)
    (tmp_path / SERVER).mkdir()
    found.disk = str(tmp_path / SERVER / 'disk')
    chain(found, str(tmp_path / '_bootcache' / 'cache-image'))
    yield found
    for option in 'gateway_autostart', 'metrics_port':
        driver.CONF.clear_override(option, 'bootcache')


def chain(host, backing):
    """Put the server's disk onto a file."""
    qemuimg.create_standalone(backing, 1 << 20, 64 << 10)
    qemuimg.create_overlay(host.disk, 1 << 20, backing, 'qcow2', cluster_bytes=64 << 10)


def told(host, level):
    return [record.getMessage() for record in host.log.records if record.levelname == level]


@pytest.mark.parametrize('gateway, supervisor', [(0, 0), (40, 0), (0, 40), (50, 59)])
def test_servers_are_resumed_once_their_disks_can_be_opened(host, gateway, supervisor):
    host.gateway, host.supervisor = gateway, supervisor
    host.driver.init_host('host-1')
    assert host.started == [('host-1', max(gateway, supervisor))]
    # A gateway that answers may be busy.
    assert host.patience == [60] and told(host, 'ERROR') == []
    waits = [line for line in told(host, 'WARNING') if 'Nova\'s start waits' in line]
    assert len(waits) == bool(gateway or supervisor)


def test_a_gateway_that_does_not_come_keeps_nova_no_longer(host):
    host.gateway = 3600
    host.driver.init_host('host-1')
    assert host.started == [('host-1', 60)]
    # Hundreds of servers would each wait for it.
    assert host.patience == [0]
    (line,) = told(host, 'ERROR')
    assert str(AWAY) in line and 'openstack server reboot --hard' in line


def test_a_supervisor_that_does_not_come_is_named(host):
    host.supervisor = 3600
    host.driver.init_host('host-1')
    (line,) = told(host, 'ERROR')
    assert 'start bootcache-connectors.service' in line


def test_a_nova_compute_that_is_told_to_stop_starts_no_server(host):
    def sleep(seconds):
        host.clock.now += seconds
        if host.clock.now == 10:
            host.driver.cleanup_host('host-1')

    host.gateway, host.clock.sleep = 100, sleep
    with pytest.raises(exception.StorageDaemonError):
        host.driver.init_host('host-1')
    assert host.started == [] and host.clock.now == 10


def test_servers_of_which_none_stands_on_a_cache_image_do_not_wait(host, tmp_path):
    host.gateway = 100
    os.unlink(host.disk)
    chain(host, str(tmp_path / 'base'))
    host.driver.init_host('host-1')
    assert host.started == [('host-1', 0)] and told(host, 'ERROR') == []


def test_where_nova_resumes_no_servers_nobody_waits(host, monkeypatch):
    host.gateway = 100
    monkeypatch.setattr(driver.CONF, 'resume_guests_state_on_host_boot', False)
    host.driver.init_host('host-1')
    assert host.started == [('host-1', 0)] and told(host, 'ERROR') == []


def test_a_host_that_is_watched_tells_its_metrics_until_it_is_stopped(host):
    port = free_port()
    driver.CONF.set_override('metrics_port', port, 'bootcache')
    host.driver.init_host('host-1')
    with urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics', timeout=60) as answer:
        text = answer.read().decode()
    assert 'bootcache_guests_paused 0.0' in text and 'bootcache_build_info' in text
    host.driver.cleanup_host('host-1')
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics', timeout=60)


def test_a_port_that_somebody_has_keeps_nova_from_nothing(host):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        driver.CONF.set_override('metrics_port', port, 'bootcache')
        host.driver.init_host('host-1')
    assert host.started == [('host-1', 0)]
    (line,) = told(host, 'ERROR')
    assert f'metrics_port={port}' in line and 'nobody can watch this host' in line
