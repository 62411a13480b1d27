"""Which root disks have their guest wait, as libvirt is told; and which servers Nova has run.

Nova's classes are real, so that this fails where a release of Nova changes them; the disks are
files of qemu-img's.
"""

import inspect
import os
import types
from unittest import mock

import pytest
from lxml import etree
from nova import objects
from nova.compute import task_states, vm_states
from nova.virt import event as virtevent
from nova.virt.libvirt import config, imagebackend, migration
from nova.virt.libvirt import driver as libvirt_driver

from bootcache import naming, qemuimg
from nova_bootcache.novadriver import errorpolicy
from nova_bootcache.novadriver.driver import BootCacheLibvirtDriver
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2
from nova_bootcache.novadriver.novaservers import NovaServers
from nova_bootcache.standstill import errorstop

objects.register_all()
SERVER = '5f0d3e7a-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SOCKET = '/run/gateway/nbd'
MAPPING = {'bus': 'virtio', 'dev': 'vda', 'type': 'disk'}
POLICIES = {'error_policy': 'stop', 'rerror_policy': 'stop'}


@pytest.fixture
def backend(tmp_path, monkeypatch):
    """Our image backend on a host whose cache images are in ``_bootcache``."""
    monkeypatch.setattr(imagebackend.CONF, 'instances_path', str(tmp_path))
    for name in ('_bootcache', '_base', SERVER):
        (tmp_path / name).mkdir()
    cache = types.SimpleNamespace(holds_path=lambda path: path is not None and os.path.dirname(
        path) == str(tmp_path / '_bootcache'))
    return BootCacheQcow2.bound_to(types.SimpleNamespace(
        cache=cache, gateway=types.SimpleNamespace(socket_path=SOCKET)))


def info(backend, name='disk', **mapping):
    instance = objects.Instance(uuid=SERVER, image_ref=IMAGE)
    disk = backend(instance, name, disk_info_mapping={**MAPPING, **mapping})
    return disk.libvirt_info('none', {'quota:disk_read_iops_sec': '100'}, boot_order='1')


def make(directory, name, folder):
    base = directory / folder / 'abc'
    qemuimg.create_standalone(str(base), 1 << 20, 65536)
    qemuimg.create_overlay(str(directory / SERVER / name), 1 << 20, str(base), 'qcow2',
                           cluster_bytes=65536)


def drivers(disk):
    """The attributes of an element's driver, and the rest of it."""
    element = disk.format_dom()
    driver = element.find('driver')
    element.remove(driver)
    return dict(driver.attrib), etree.tostring(element)


@pytest.mark.parametrize('name, folder, waits', [
    ('disk', '_bootcache', True), ('disk', '_base', False), ('disk.rescue', '_bootcache', False),
    ('disk.eph0', '_base', False)])
def test_only_root_disks_on_a_cache_image_wait(backend, tmp_path, name, folder, waits):
    make(tmp_path, name, folder)
    found = info(backend, name)
    assert isinstance(found, config.LibvirtConfigGuestDisk)
    attributes, _rest = drivers(found)
    assert {key: value for key, value in attributes.items() if 'error' in key} \
        == (POLICIES if waits else {})


@pytest.mark.parametrize('export, waits', [
    (f'recording-{SERVER}', True), (f'recording-{IMAGE}', False), (f'base-{IMAGE}', False)])
def test_a_profile_boot_waits_too(backend, tmp_path, export, waits):
    """An error that its guest sees would be what is learned of the image."""
    qemuimg.create_overlay(str(tmp_path / SERVER / 'disk'), 1 << 20,
                           naming.nbd_unix_uri(SOCKET, export), 'raw', cluster_bytes=65536,
                           open_backing=False)
    attributes, _rest = drivers(info(backend))
    assert ({'error_policy', 'rerror_policy'} <= set(attributes)) is waits


def test_nothing_else_of_it_differs_from_novas(backend, tmp_path):
    make(tmp_path, 'disk', '_bootcache')
    ours, rest = drivers(info(backend))
    with mock.patch.object(BootCacheQcow2, '_stands_on', return_value=False):
        stock, stock_rest = drivers(info(backend))
    assert ours == {**stock, **POLICIES} and rest == stock_rest
    assert b'100' in rest, 'what the flavor asks for'


def test_a_disk_that_is_not_there_or_cannot_be_read_is_novas(backend, tmp_path, caplog):
    assert type(info(backend)) is config.LibvirtConfigGuestDisk
    assert caplog.text == ''
    (tmp_path / SERVER / 'disk').write_bytes(b'QFI\xfb and no more')
    assert type(info(backend)) is config.LibvirtConfigGuestDisk
    assert 'is not known' in caplog.text


def test_nova_does_not_write_the_policies_itself():
    """The day that it does, errorpolicy.py goes."""
    disk = config.LibvirtConfigGuestDisk()
    assert not [name for name in vars(disk) if 'error' in name]


def test_what_nova_reads_of_a_domain_is_told_by_what_we_write():
    disk = config.LibvirtConfigGuestDisk()
    disk.driver_name, disk.driver_format, disk.source_path = 'qemu', 'qcow2', '/disk'
    disk.target_dev, disk.target_bus = 'vda', 'virtio'
    written = errorpolicy.WaitingDisk.like(disk).to_xml()
    assert errorstop.waits_at(f'<domain><devices>{written}</devices></domain>') == {'vda': ''}
    assert errorstop.waits_at(f'<domain><devices>{disk.to_xml()}</devices></domain>') == {}


def test_root_disks_wait_on_their_way_to_another_host(monkeypatch):
    """Where a settled one may come to stand on a cache image again; other disks are Nova's."""
    sent = """<domain><name>a</name><devices>
        <disk type='file'><driver name='qemu' type='qcow2' cache='none'/><source file='/a/disk'/>
          <target dev='vda'/></disk>
        <disk type='file'><driver name='qemu' type='qcow2'/><source file='/a/disk.eph0'/>
          <target dev='vdb'/></disk>
        <disk type='file'><driver name='qemu' type='raw'/><source file='/b/disk'/>
          <target dev='vdc'/></disk>
        <disk type='network'><driver name='qemu' type='raw'/><source protocol='rbd'/>
          <target dev='vdd'/></disk></devices></domain>"""
    asked = []
    monkeypatch.setattr(migration, 'get_updated_guest_xml',
                        lambda *arguments, **named: asked.append((arguments, named)) or sent)
    # Twice, as the driver may be made twice in a process.
    for _again in range(2):
        errorpolicy.add_to_migrations()
    found = migration.get_updated_guest_xml('instance', 'guest', new_resources=None)
    assert asked == [(('instance', 'guest'), {'new_resources': None})]
    assert set(errorstop.waits_at(found)) == {'vda'}
    assert [disk.find('driver').get('cache') for disk in etree.fromstring(found).iter('disk')] \
        == ['none', None, None, None]


@pytest.mark.parametrize('sent', ['', 'no XML', '<domain><devices/></domain  >', b'<a'])
def test_what_has_no_such_disk_is_sent_as_nova_made_it(monkeypatch, sent):
    monkeypatch.setattr(migration, 'get_updated_guest_xml', lambda *_arguments: sent)
    errorpolicy.add_to_migrations()
    assert migration.get_updated_guest_xml('instance') is sent


def test_nova_asks_for_that_description_by_its_module():
    source = inspect.getsource(libvirt_driver.LibvirtDriver._live_migration_operation)
    assert 'libvirt_migrate.get_updated_guest_xml(' in source


# Which servers are to run.

VM_STATES = sorted({value for name, value in vars(vm_states).items()
                    if name.isupper() and isinstance(value, str)})
TASK_STATES = sorted({value for name, value in vars(task_states).items()
                      if name.isupper() and isinstance(value, str)})
RUN = {'active', 'rescued', 'resized', 'error'}
COPY = {'image_snapshot', 'image_snapshot_pending', 'image_backup', 'image_pending_upload',
        'image_uploading'}
START = {'spawning', 'powering-on', 'rebooting', 'reboot_started', 'rebooting_hard',
         'reboot_started_hard', 'resuming', 'rescuing', 'unrescuing', 'resize_finish',
         'resize_reverting', 'rebuild_spawning', 'unshelving', 'restoring'}


def runs(vm_state, task_state):
    return NovaServers._local(types.SimpleNamespace(
        uuid=SERVER, image_ref=IMAGE, launched_at=None, root_device_name='/dev/vda',
        vm_state=vm_state, task_state=task_state)).runs


def test_servers_that_nova_has_run_or_starts():
    assert len(VM_STATES) > 8 and len(TASK_STATES) > 30 and set(TASK_STATES) > START | COPY
    for vm_state in VM_STATES:
        assert runs(vm_state, None) == (vm_state in RUN), vm_state
        for task_state in TASK_STATES:
            assert runs(vm_state, task_state) == (
                task_state in START or (task_state in COPY and vm_state in RUN)), task_state


# What the driver hears of libvirt.

@pytest.mark.parametrize('event, wakes', [
    (virtevent.LifecycleEvent(SERVER, virtevent.EVENT_LIFECYCLE_PAUSED), True),
    (virtevent.LifecycleEvent(SERVER, virtevent.EVENT_LIFECYCLE_RESUMED), False),
    (virtevent.LifecycleEvent(SERVER, virtevent.EVENT_LIFECYCLE_STOPPED), False),
    ({'conn': None}, False)], ids=str)
def test_a_guest_that_stands_still_is_looked_at_at_once(monkeypatch, event, wakes):
    passed_on = []
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, 'emit_event',
                        lambda _self, got: passed_on.append(got))
    ours = BootCacheLibvirtDriver.__new__(BootCacheLibvirtDriver)
    ours.standing = mock.Mock()
    ours.emit_event(event)
    assert passed_on == [event] and ours.standing.wake.called is wakes


def test_nova_hands_libvirts_events_to_that_method():
    source = inspect.getsource(libvirt_driver.LibvirtDriver.__init__)
    assert 'lifecycle_event_handler=self.emit_event' in source
