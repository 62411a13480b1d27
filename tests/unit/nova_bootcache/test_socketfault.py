"""A gateway's socket that QEMU cannot open: told beforehand by modes, or by a start that failed.

libvirt and Nova's own driver are stand-ins; the files and their modes are real.
"""

import os
import pwd
import socket
import types
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import imagebackend
from nova.virt.libvirt import utils as libvirt_utils
from oslo_config import cfg

from bootcache import naming, qemuimg
from nova_bootcache import conf as nova_conf
from nova_bootcache.asking.placement import Server
from nova_bootcache.chains.computehost import ComputeHost
from nova_bootcache.gateway import socketfault
from nova_bootcache.gateway.socketfault import Identity, PathStep
from nova_bootcache.novadriver import driver
from nova_bootcache.novadriver.driver import BootCacheLibvirtDriver
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2
from nova_bootcache.novadriver.rootdisks import RootDisks

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SERVER = Server(IMAGE, 'disk', '', False, False, False)
QEMU = Identity(64055, frozenset({110, 64055}))
DIRECTORY, SOCKET = 0o040000, 0o140000


def failed(path, why):
    """What libvirt says of a start, with QEMU 7.2's own words."""
    return ('internal error: process exited while connecting to monitor: qemu-system-x86_64:'
            ' -blockdev {"driver":"qcow2","node-name":"libvirt-1-format","file":"libvirt-1-storage"'
            f'}}: Could not open backing file: Failed to connect to \'{path}\': {why}')


@pytest.mark.parametrize('steps, word', [
    ([(DIRECTORY | 0o755, 0, 0), (DIRECTORY | 0o755, 42, 42), (SOCKET | 0o660, 42, 110)], None),
    ([(DIRECTORY | 0o755, 0, 0), (SOCKET | 0o660, 42, 42)], '/1'),
    ([(DIRECTORY | 0o750, 0, 0), (SOCKET | 0o666, 42, 42)], '/0'),
    ([(DIRECTORY | 0o750, 0, 110), (SOCKET | 0o666, 42, 42)], None),
    # Its owner's right counts, not that of its group or of all.
    ([(SOCKET | 0o066, 64055, 110)], '/0'), ([(SOCKET | 0o606, 42, 110)], '/0'),
    ([(SOCKET | 0o600, 64055, 42)], None), ([(SOCKET | 0o440, 42, 110)], '/0'), ([], None)])
def test_modes_along_the_path(steps, word):
    found = socketfault.denial([PathStep(f'/{number}', *step) for number, step in enumerate(steps)],
                               QEMU)
    assert bool(found) is (word is not None)
    assert word is None or (f'may not pass {word} ' in found and 'gateway_group' in found)


@given(st.integers(0, 0o777), st.integers(0, 3), st.integers(0, 3))
def test_what_modes_do_not_tell_is_no_denial(mode, uid, gid):
    step = PathStep('/s', SOCKET | mode, uid, gid)
    assert socketfault.denial([step], Identity(0, frozenset({0}))) == '', 'libvirt\'s to know'
    listed = PathStep('/s', SOCKET | mode, uid, gid, has_acl=True)
    assert socketfault.denial([listed], QEMU) == ''


@pytest.mark.parametrize('xml, found', [
    ('<capabilities><host><secmodel><model>none</model></secmodel><secmodel><model>dac</model>'
     '<doi>0</doi><baselabel type="kvm">+64055:+110</baselabel></secmodel></host></capabilities>',
     (64055, 110)),
    ('<capabilities><host><secmodel><model>apparmor</model></secmodel></host></capabilities>',
     None),
    ('<capabilities><host><secmodel><model>dac</model></secmodel></host></capabilities>', None),
    ('<capabilities>', None), ('', None)])
def test_whom_libvirt_runs_qemu_as(xml, found):
    who = socketfault.identity(xml)
    assert (who is None) == (found is None)
    assert who is None or (who.uid == found[0] and found[1] in who.gids)


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
    found = socketfault.denial_of_start(failed('/run/s', why), '/run/s', was_there)
    assert word in found and bool(found) is bool(word)


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


def test_a_socket_of_another_group_is_told_and_its_mending_is_seen(host, tmp_path, caplog):
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / 's'))
    who = Identity(os.getuid() + 1, frozenset({os.getgid() + 1}))
    for path in (tmp_path, *list(tmp_path.parents)[:-2]):
        os.chmod(path, 0o755)
    os.chmod(tmp_path / 's', 0o660)
    host.serving.socket.check(who)
    host.serving.socket.check()
    assert not host.serving.is_on and caplog.text.count('servers go the stock way') == 1
    assert f'may not pass {tmp_path}/s ' in stock_line(host, tmp_path, caplog)
    os.chmod(tmp_path / 's', 0o666)
    host.serving.socket.check()
    assert host.serving.is_on and host.serving.socket.reason == ''
    os.unlink(tmp_path / 's')
    host.serving.socket.check()
    assert host.serving.is_on, 'the gateway is not there yet'
    listening.close()


def test_a_user_whose_groups_nobody_knows_is_no_denial(host, tmp_path, caplog):
    """libvirt's QEMU may run as a user of a container, or of a directory that does not answer."""
    (tmp_path / 's').touch(0o660)
    uid = next(uid for uid in range(40000, 60000) if not known(uid))
    who = socketfault.identity('<capabilities><host><secmodel><model>dac</model><baselabel>'
                               f'+{uid}:+{uid}</baselabel></secmodel></host></capabilities>')
    for path in (tmp_path, *list(tmp_path.parents)[:-2]):
        os.chmod(path, 0o755)
    for _round in range(3):
        host.serving.socket.check(who)
    assert host.serving.is_on and caplog.text.count(f'may not pass {tmp_path}/s ') == 1
    assert 'perhaps' in caplog.text


def known(uid):
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


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
    assert host.serving.socket._stock_only == set() and not host.needs.is_in_making(IMAGE)


def test_a_gateway_that_was_gone_costs_only_this_server_its_speed(host, spawn, tmp_path):
    spawn(failed(tmp_path / 's', 'Connection refused'))
    assert spawn.tries == [False, True]
    assert host.serving.is_on and host.serving.socket._stock_only == set()


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
    assert host.serving.socket._stock_only == set()
    assert host.serving.is_on is (why == 'Connection refused')


def test_its_other_failures_are_novas(finish):
    with pytest.raises(RuntimeError, match='pc-bogus'):
        finish('machine type pc-bogus-9.9 is not known')
    assert finish.tries == [False]
