"""A gateway's socket that QEMU cannot open: told by a start that failed.

libvirt and Nova's own driver are stand-ins; the files and their modes are real.
"""

import types
from unittest import mock

import pytest
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import imagebackend
from nova.virt.libvirt import utils as libvirt_utils
from oslo_config import cfg

from bootcache import naming, qemuimg
from nova_bootcache import conf as nova_conf
from nova_bootcache.asking.placement import Server
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.gateway import socketfault
from nova_bootcache.novadriver import driver
from nova_bootcache.novadriver.driver import BootCacheLibvirtDriver
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2
from nova_bootcache.novadriver.rootdisks import RootDisks

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SERVER = Server(IMAGE, 'disk', '', False, False, False)


def failed(path, why):
    """What libvirt says of a start, with QEMU 7.2's own words."""
    return ('internal error: process exited while connecting to monitor: qemu-system-x86_64:'
            ' -blockdev {"driver":"qcow2","node-name":"libvirt-1-format","file":"libvirt-1-storage"'
            f'}}: Could not open backing file: Failed to connect to \'{path}\': {why}')


@pytest.mark.parametrize('text, blamed', [
    (failed('/run/s', 'Permission denied'), '/run/s'),
    (failed('/run/other', 'Permission denied'), ''),
    ('Could not open \'/var/lib/nova/cache/ab12\': No such file', '/var/lib/nova/cache/ab12'),
    ('Cannot access backing file \'/var/lib/nova/cache/ab12\' of storage file \'/var/lib/nova/x\'',
     '/var/lib/nova/cache/ab12'),
    ('Could not open \'/var/lib/nova/x\': Permission denied', ''),
    ('Could not open \'/var/lib/nova/cache/x/y\': Permission denied', ''),
    ('machine type pc-bogus-9.9 is not known', '')])
def test_what_a_failed_start_says(text, blamed):
    assert socketfault.blamed(text, '/run/s', '/var/lib/nova/cache') == blamed


@pytest.mark.parametrize('why, was_there, word', [
    ('Permission denied', True, 'gateway_group'), ('Permission denied', False, 'gateway_group'),
    ('Operation not permitted', False, 'gateway_group'),
    ('No such file or directory', True, 'share the folder /run'),
    ('Connection refused', True, 'share the folder /run'),
    # The gateway was away, or its queue full: the next start may go well.
    ('No such file or directory', False, ''), ('Connection refused', False, ''),
    ('Resource temporarily unavailable', True, '')])
def test_whether_the_next_start_would_fail_as_well(why, was_there, word):
    found = socketfault.denial_of_start(failed('/run/s', why), '/run/s', True, was_there)
    assert word in found and bool(found) is bool(word)


@pytest.mark.parametrize('path, is_socket, words', [
    ('/run/s', True, {'[bootcache]gateway_group', 'write to it', '"/run/s rw,"'}),
    ('/tier/ab12', False, {'read it', '"/tier/* rk,"'})])
def test_each_who_may_deny_a_file_is_told_with_its_cure(path, is_socket, words):
    found = socketfault.denial_of_start(failed(path, 'Permission denied'), path, is_socket, True)
    words |= {f'QEMU is denied {path}: ', f'"namei -l {path}"', '"virsh capabilities"', '"ausearch',
              '/etc/apparmor.d/local/abstractions/libvirt-qemu'}
    assert [word for word in words if word not in found] == []
    assert is_socket or 'gateway_group' not in found


@pytest.fixture
def host(tmp_path):
    conf = cfg.ConfigOpts()
    conf([], project='nova', default_config_files=[], default_config_dirs=[])
    nova_conf.register_opts(conf)
    conf.set_override('gateway_run_dir', str(tmp_path / 'run'), 'bootcache')
    conf.set_override('gateway_socket', str(tmp_path / 's'), 'bootcache')
    return ComputeHost(conf, str(tmp_path / 'cache'))


def stock_line(host, tmp_path, caplog):
    caplog.clear()
    with caplog.at_level('INFO'):
        assert host.chains.make_overlay(SERVER, 'server-1', None, str(tmp_path / 'none'), None,
                                        False) is False
    return next(text for text in caplog.messages if 'server-1 goes the stock way' in text)


class Nova:
    """Stands for Nova's own spawn: makes the disk by our backend, and starts it."""

    def __init__(self, host, directory, errors):
        self.host, self.directory, self.errors, self.stock = host, directory, errors, []

    def spawn(self, _driver, context, instance, *args, **kwargs):
        disk = self.directory / 'disk'
        assert not disk.exists(), 'it was cleaned up'
        self.stock.append(self.host.serving.socket.reason_for(instance.uuid) != '')
        if self.stock[-1]:
            disk.write_bytes(b'stock')
            return
        with self.host.needs.making(IMAGE, str(disk)):
            disk.write_bytes(b'overlay')
        self.host.serving.note_made(instance.uuid, str(disk))
        raise RuntimeError(self.errors.pop(0))


@pytest.fixture
def spawn(host, tmp_path, monkeypatch):
    """Starts a server whose first start fails with a text; gives how each try was made."""
    def start(text):
        nova = Nova(host, tmp_path, [text])
        monkeypatch.setattr(libvirt_driver.LibvirtDriver, 'spawn',
                            lambda self, *args, **kwargs: nova.spawn(self, *args, **kwargs))
        monkeypatch.setattr(driver.libvirt_utils, 'get_instance_path',
                            lambda instance: str(tmp_path))
        ours = BootCacheLibvirtDriver.__new__(BootCacheLibvirtDriver)
        ours.bootcache, ours.standing, ours.settler = host, mock.MagicMock(), mock.MagicMock()
        try:
            ours.spawn(None, types.SimpleNamespace(uuid='server-1'), 'image', power_on=True)
        finally:
            start.tries = nova.stock

    return start


def test_a_server_that_was_denied_the_socket_starts_stock_and_so_do_all_later(
        host, spawn, tmp_path, caplog):
    spawn(failed(tmp_path / 's', 'Permission denied'))
    assert spawn.tries == [False, True] and (tmp_path / 'disk').read_bytes() == b'stock'
    assert not host.serving.is_on and 'AppArmor' in stock_line(host, tmp_path, caplog)
    assert host.serving.socket._stock_only._counts == {} and not host.needs.is_in_making(IMAGE)


def test_a_socket_that_is_mended_is_tried_again(host, spawn, tmp_path, caplog):
    path = tmp_path / 's'
    for mend in (lambda: path.chmod(0o666), path.unlink, path.touch):
        path.touch()
        (tmp_path / 'disk').unlink(missing_ok=True)
        host.serving.socket.check()
        spawn(failed(path, 'Permission denied'))
        host.serving.socket.check()
        assert not host.serving.is_on
        mend()
        host.serving.socket.check()
        assert host.serving.is_on and host.serving.reason_for('server-2') == ''
    assert caplog.text.count('servers go the stock way') == 3


def test_a_gateway_that_was_gone_costs_only_this_server_its_speed(host, spawn, tmp_path):
    spawn(failed(tmp_path / 's', 'Connection refused'))
    assert spawn.tries == [False, True]
    assert host.serving.is_on and host.serving.socket._stock_only._counts == {}


def test_a_disk_that_was_there_before_the_start_stays(host, tmp_path):
    """As of a server that is evacuated to a host with the same disks: it has a tenant's data."""
    disk = tmp_path / 'disk'
    disk.write_bytes(b'written by a tenant')
    with host.serving.starting('server-1'):
        with host.needs.making(IMAGE, str(disk)):
            pass
        assert host.serving.did_not_start('server-1', str(disk)) is False
    assert disk.read_bytes() == b'written by a tenant'


def test_other_failures_are_novas(host, spawn, tmp_path):
    with pytest.raises(RuntimeError, match='pc-bogus'):
        spawn('machine type pc-bogus-9.9 is not known')
    assert spawn.tries == [False] and host.serving.is_on


# Servers that come from another host.

@pytest.fixture
def finish(host, tmp_path, monkeypatch):
    """Finishes the move of a server whose first start fails with a text; headers are a stand-in.

    Gives what the disk was on at each try.
    """
    monkeypatch.setattr(imagebackend.CONF, 'instances_path', str(tmp_path))
    instance = types.SimpleNamespace(uuid='server-1', image_ref=IMAGE, name='server-1',
                                     trusted_certs=None, system_metadata={})
    path = tmp_path / 'server-1' / 'disk'
    path.parent.mkdir()
    path.write_bytes(b'written by a tenant')
    base = str(tmp_path / '_base' / naming.cache_file_name(IMAGE))
    header = {'backing': base}
    monkeypatch.setattr(libvirt_utils, 'get_disk_backing_file',
                        lambda *_a, **_n: header['backing'])
    monkeypatch.setattr(qemuimg, 'set_backing_pointer',
                        lambda _path, backing, _format: header.update(backing=backing))
    monkeypatch.setattr(host.chains, 'keep_chain', lambda *_arguments, **_how: None)
    monkeypatch.setattr(libvirt_driver.imagebackend.Qcow2, 'cache',
                        lambda self, *_a, **_n: None)
    monkeypatch.setattr(driver.libvirt_utils, 'get_instance_path', lambda _i: str(path.parent))
    kind = BootCacheQcow2.bound_to(host)
    ours = BootCacheLibvirtDriver.__new__(BootCacheLibvirtDriver)
    ours.bootcache, ours.standing, ours.settler = host, mock.MagicMock(), mock.MagicMock()

    def disk_of(*_arguments):
        disk = object.__new__(kind)
        disk.path, disk._instance = str(path), instance
        return disk

    ours._disks = RootDisks(types.SimpleNamespace(by_name=disk_of), lambda _directory: None)

    def finish(text):
        finish.tries = []

        def nova(self, context, migration, instance, *args, **kwargs):
            disk_of().cache(None, 'name', None, image_id=IMAGE)
            finish.tries.append(header['backing'] == base)
            if not finish.tries[-1]:
                raise RuntimeError(text)

        monkeypatch.setattr(libvirt_driver.LibvirtDriver, 'finish_migration', nova)
        ours.finish_migration(None, None, instance, 'disk info', power_on=True)

    finish.path = path
    return finish


@pytest.mark.parametrize('why', ['Permission denied', 'Connection refused'])
def test_a_server_that_comes_from_another_host_gets_a_base_of_stock_novas(host, finish, tmp_path,
                                                                          why):
    finish(failed(tmp_path / 's', why))
    assert finish.tries == [False, True] and finish.path.read_bytes() == b'written by a tenant'
    assert host.serving.socket._stock_only._counts == {}
    assert host.serving.is_on is (why == 'Connection refused')


def test_its_other_failures_are_novas(finish):
    with pytest.raises(RuntimeError, match='pc-bogus'):
        finish('machine type pc-bogus-9.9 is not known')
    assert finish.tries == [False]
