"""A server's disk that its host keeps while a copy is on another one: it can always be started.

Nova's own methods, qemu-img and the files are real; there is no libvirt, and the gateway and the
storage service are stand-ins.
"""

import os
import shutil
import subprocess
import types

import nova.privsep.path
import pytest
from nova import exception as nova_exception
from nova import objects
from nova.compute import power_state
from nova.virt.libvirt import driver, imagebackend
from nova.virt.libvirt import utils as libvirt_utils
from oslo_concurrency import processutils

from bootcache import exception, naming, qemuimg, savefile
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.novadriver import novaservers
from nova_bootcache.novadriver.driver import BootCacheLibvirtDriver
from nova_bootcache.settling.localservers import LocalServer
from nova_bootcache.storagenode import Remote

SERVER = '5f0d3e7a-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
MIB = 1 << 20


class Host:
    """The driver, and one server on a cache image that is here."""

    def __init__(self, root, nova):
        self.driver, self.bootcache = nova, nova.bootcache
        self.directory, self.kept = root / SERVER, root / f'{SERVER}_resize'
        self.base = root / '_base' / naming.cache_file_name(IMAGE)
        self.cache_image = nova.bootcache.cache.path(IMAGE)
        self.instance = objects.Instance(
            uuid=SERVER, image_ref=IMAGE, kernel_id='', vm_state='active',
            task_state='resize_migrating', metadata={}, trusted_certs=None,
            migration_context=None,
            system_metadata={'image_disk_format': 'raw'},
            flavor=objects.Flavor(root_gb=1, ephemeral_gb=0))
        nova.bootcache.cache.prepare()
        qemuimg.create_standalone(self.cache_image, 16 * MIB, 65536)
        CacheEntry(
            Remote(IMAGE, '10.0.0.1', 10810, f'base-{IMAGE}'), None,
            savefile.file_digest(self.cache_image), 16 * MIB).save(f'{self.cache_image}.json')
        self.directory.mkdir()
        qemuimg.create_overlay(str(self.directory / 'disk'), 16 * MIB, self.cache_image, 'qcow2',
                               cluster_bytes=131072, subclusters=True)

    def backing(self, directory):
        return libvirt_utils.get_disk_backing_file(str(directory / 'disk'), basename=False)

    def send(self):
        """As Nova does, to the same host."""
        self.driver.migrate_disk_and_power_off(
            None, self.instance, 'here', self.instance.flavor, [], None)

    def revert(self):
        """As Nova does; gives what its start finds."""
        self.instance.task_state = 'resize_reverting'
        self.driver.finish_revert_migration(None, self.instance, [], None)
        return subprocess.run(['qemu-io', '-f', 'qcow2', '-c', 'read 0 512',
                               self.directory / 'disk'], capture_output=True, text=True)


@pytest.fixture
def host(monkeypatch, tmp_path):
    def stock(self, virtapi, read_only):
        self.image_backend, self._host = imagebackend.Backend(True), None
        self.job_tracker = None

    def finish_revert(_self, _context, _instance, *_more):
        shutil.rmtree(tmp_path / SERVER, ignore_errors=True)
        os.rename(tmp_path / f'{SERVER}_resize', tmp_path / SERVER)

    objects.register_all()
    nova = driver.LibvirtDriver
    monkeypatch.setattr(nova, '__init__', stock)
    for name, answer in {'power_off': None, 'unplug_vifs': None, '_is_path_shared_with': True,
                         '_is_booted_from_volume': False}.items():
        monkeypatch.setattr(nova, name, lambda *_arguments, answer=answer: answer)
    monkeypatch.setattr(nova, '_get_instance_disk_info', lambda *_arguments: [
        {'path': str(tmp_path / SERVER / 'disk'), 'type': 'qcow2'}])
    monkeypatch.setattr(nova, 'finish_revert_migration', finish_revert)
    monkeypatch.setattr(libvirt_utils, 'create_image', libvirt_utils.create_image)
    monkeypatch.setattr(libvirt_utils, 'save_and_migrate_vtpm_dir', lambda *_arguments: None)
    monkeypatch.setattr(imagebackend.CONF, 'instances_path', str(tmp_path))
    ours = BootCacheLibvirtDriver(None)
    monkeypatch.setattr(ours.settler._nova, 'bounded_domain', lambda *_about, **_how: None)
    monkeypatch.setattr(ours.bootcache.gateway, 'ensure_base', lambda remote: 'base')
    ours.bootcache.storage._client = types.SimpleNamespace(
        send=lambda message: {'action': 'stock', 'reason': 'it is away'})
    return Host(tmp_path, ours)


def test_what_travels_names_novas_base_and_what_is_kept_the_cache_image(host):
    host.send()
    assert host.backing(host.directory) == str(host.base)
    assert host.backing(host.kept) == host.cache_image


def test_a_base_that_is_here_makes_no_difference(host):
    """What somebody has put there may be of another content."""
    host.base.parent.mkdir()
    host.base.touch()
    host.send()
    assert host.backing(host.kept) == host.cache_image


@pytest.mark.parametrize('has_base', [False, True])
def test_what_the_kept_disk_needs_stays_here_while_the_copy_travels(host, monkeypatch, has_base):
    """The storage service asks to let go of an image that Glance does not have any more."""
    if has_base:
        host.base.parent.mkdir()
        host.base.touch()
    settler, asked, real = host.driver.settler, [], libvirt_utils.copy_image
    server = LocalServer(SERVER, IMAGE, False, 3600.0, str(host.directory), 'vda', 'active')
    here = [server]
    monkeypatch.setattr(type(settler._nova), 'servers', lambda _self: here)

    def ask():
        settler.look(lambda: None)
        asked.append(host.bootcache.room.let_go(IMAGE))

    def copy(*arguments, **named):
        real(*arguments, **named)
        ask()

    monkeypatch.setattr(libvirt_utils, 'copy_image', copy)
    host.send()
    here.clear()
    settler.once(lambda: None)
    asked.append(host.bootcache.room.let_go(IMAGE))
    assert len(asked) == 3 and not any(asked), 'of both copies, and afterwards'
    assert os.path.exists(host.cache_image)


@pytest.mark.parametrize('is_here', [True, False])
def test_one_of_a_deleted_image_waits_for_the_storage_node(host, monkeypatch, is_here):
    """Nova asks Glance, and then the source host, which has no stock base either."""
    def lacks_image(*_arguments, **_named):
        raise nova_exception.ImageNotFound(image_id=IMAGE)

    def lacks_file(*_arguments, **_named):
        raise processutils.ProcessExecutionError(stderr='scp: No such file or directory')

    host.send()
    storage_node_away(host, monkeypatch)
    monkeypatch.setattr(libvirt_utils, 'copy_image', lacks_file)
    if not is_here:
        os.unlink(host.cache_image)
        os.unlink(f'{host.cache_image}.json')
    host.instance.task_state = 'resize_finish'
    asked = lambda: host.driver._try_fetch_image_cache(  # noqa: E731
        host.driver.image_backend.by_name(host.instance, 'disk'), lacks_image, None,
        naming.cache_file_name(IMAGE), IMAGE, host.instance, 32 * MIB, 'source')
    if is_here:
        asked()
        assert host.backing(host.directory) == host.cache_image
        assert libvirt_utils.get_disk_size(str(host.directory / 'disk')) == 32 * MIB
    else:
        with pytest.raises(processutils.ProcessExecutionError):
            asked()
        assert host.backing(host.directory) == str(host.base)


def test_a_disk_that_could_not_be_sent_stays_on_its_cache_image(host, monkeypatch):
    def fails(*_arguments, **_named):
        assert host.backing(host.kept) == str(host.base), 'the header that is sent'
        raise nova_exception.NovaException('no room there')

    monkeypatch.setattr(libvirt_utils, 'copy_image', fails)
    with pytest.raises(nova_exception.NovaException, match='no room there'):
        host.send()
    assert not host.kept.exists() and host.backing(host.directory) == host.cache_image


@pytest.mark.parametrize('runs', [True, False])
def test_a_disk_that_cannot_be_renamed_does_not_leave(host, monkeypatch, runs):
    """libvirt has given it to root, and Nova's privsep helper does not work: it goes on here."""
    def fails(path, uid):
        raise OSError('sudo: a password is required')

    started = []
    monkeypatch.setattr(novaservers.os, 'access', lambda path, mode: False)
    monkeypatch.setattr(nova.privsep.path, 'chown', fails)
    monkeypatch.setattr(host.driver, 'power_on', lambda *arguments: started.append(arguments))
    host.instance.power_state = power_state.RUNNING if runs else power_state.SHUTDOWN
    with pytest.raises(nova_exception.InstanceFaultRollback, match='a password is required'):
        host.send()
    assert not host.kept.exists() and host.backing(host.directory) == host.cache_image
    assert started == [(None, host.instance, [], None)] * runs


def storage_node_away(host, monkeypatch):
    def away(_remote):
        raise exception.StorageNodeAway('the exporter cannot be reached')

    monkeypatch.setattr(host.bootcache.gateway, 'ensure_base', away)
    monkeypatch.setattr(host.bootcache.gateway, 'serve_absent', lambda remote, size: None)


def off(host, monkeypatch):
    monkeypatch.setattr(host.bootcache.serving._conf, 'enabled', False)


def signed(host, monkeypatch):
    host.instance.system_metadata.update(img_signature='x', image_img_signature='x',
                                         image_img_signature_hash_method='SHA-256')


def socket_denied(host, monkeypatch):
    monkeypatch.setattr(host.bootcache.serving.socket, 'reason_for', lambda server_id: 'denied')


SITUATIONS = [lambda *_arguments: None, storage_node_away, off, signed, socket_denied]


@pytest.mark.parametrize('is_killed', [False, True])
@pytest.mark.parametrize('situation', SITUATIONS)
def test_a_reverted_resize_starts_from_the_cache_image(host, monkeypatch, situation, is_killed):
    """Also after a kill of nova-compute while it sent the copy: Nova reverts when it starts."""
    if is_killed:
        host.driver.image_backend.by_name(host.instance, 'disk').name_stock_base()
        os.rename(host.directory, host.kept)
    else:
        host.send()
        shutil.rmtree(host.directory)
    situation(host, monkeypatch)
    opened = host.revert()
    assert opened.returncode == 0, opened.stderr + opened.stdout
    assert host.backing(host.directory) == host.cache_image


def test_a_settled_disk_that_is_kept_stays_on_its_base(host):
    host.base.parent.mkdir()
    subprocess.run(['truncate', '-s', str(16 * MIB), host.base], check=True)
    qemuimg.set_backing_pointer(str(host.directory / 'disk'), str(host.base), 'raw')
    host.send()
    shutil.rmtree(host.directory)
    assert host.revert().returncode == 0 and host.backing(host.directory) == str(host.base)
