"""Fences what is internal in Nova and used by us: an upgrade that changes it fails here first.

When a test fails after an upgrade, read Nova's change, adapt the override, then this list.
"""

import inspect

import pytest
from nova import utils
from nova.compute import vm_states
from nova.virt import driver as virt_driver
from nova.virt.libvirt import driver, imagebackend, imagecache
from nova.virt.libvirt import utils as libvirt_utils

from bootcache import naming
from nova_bootcache import snapshots
from nova_bootcache.driver import BootCacheLibvirtDriver
from nova_bootcache.hostcache import HostCache
from nova_bootcache.imagebackend import BootCacheQcow2

OVERRIDDEN = {
    (BootCacheLibvirtDriver, driver.LibvirtDriver): {
        '__init__': '(self, virtapi, read_only=False)',
        'init_host': '(self, host)',
        'cleanup_host': '(self, host)',
        'destroy': '(self, context, instance, network_info, block_device_info=None,'
                   ' destroy_disks=True, destroy_secrets=True)',
        'manage_image_cache': '(self, context, all_instances)',
    },
    (BootCacheQcow2, imagebackend.Qcow2): {
        '__init__': '(self, instance=None, disk_name=None, path=None, disk_info_mapping=None)',
        'cache': '(self, fetch_func, filename, size=None, safe=False, *args, **kwargs)',
    },
}
CASES = [(ours, nova, method) for (ours, nova), methods in OVERRIDDEN.items()
         for method in methods]


@pytest.mark.parametrize('ours, nova, method', CASES)
def test_upstream_signatures(ours, nova, method):
    assert str(inspect.signature(getattr(nova, method))) == OVERRIDDEN[ours, nova][method]


@pytest.mark.parametrize('ours, nova, method', CASES)
def test_our_signatures_take_what_nova_gives(ours, nova, method):
    upstream = inspect.signature(getattr(nova, method)).parameters
    mine = inspect.signature(getattr(ours, method)).parameters
    assert [(p.name, p.kind, p.default) for p in mine.values()] \
        == [(p.name, p.kind, p.default) for p in upstream.values()]


@pytest.mark.parametrize('ours, nova', OVERRIDDEN)
def test_nothing_else_is_overridden(ours, nova):
    shared = {name for name, value in vars(ours).items()
              if callable(value) and hasattr(nova, name)}
    assert shared == set(OVERRIDDEN[ours, nova])


@pytest.mark.parametrize('use_cow, default', [(True, imagebackend.Qcow2),
                                              (False, imagebackend.Flat)])
def test_the_table_of_image_backends(use_cow, default):
    table = imagebackend.Backend(use_cow).BACKEND
    assert type(table) is dict
    assert table['qcow2'] is imagebackend.Qcow2 and table['default'] is default
    # Each has a table of its own, so ours changes nobody else's.
    assert imagebackend.Backend(use_cow).BACKEND is not table


def test_the_driver_has_the_table_where_we_change_it():
    source = inspect.getsource(driver.LibvirtDriver.__init__)
    assert 'self.image_backend = imagebackend.Backend(' in source


def test_our_backend_takes_the_place_of_qcow2_only(monkeypatch, tmp_path):
    monkeypatch.setattr(driver.LibvirtDriver, '__init__', lambda self, virtapi, read_only: setattr(
        self, 'image_backend', imagebackend.Backend(True)))
    # The driver changes it for good; the test gives it back.
    monkeypatch.setattr(libvirt_utils, 'create_image', libvirt_utils.create_image)
    table = BootCacheLibvirtDriver(None).image_backend.BACKEND
    assert issubclass(table['qcow2'], BootCacheQcow2) and table['default'] is table['qcow2']
    stock = imagebackend.Backend(True).BACKEND
    assert {name: kind for name, kind in table.items() if name not in ('qcow2', 'default')} \
        == {name: kind for name, kind in stock.items() if name not in ('qcow2', 'default')}


def test_bases_are_named_as_we_name_cache_images():
    for image in ('7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f', '00000000-0000-0000-0000-000000000000'):
        assert imagecache.get_cache_fname(image) == naming.cache_file_name(image)


@pytest.mark.parametrize('group, option, default', [
    (None, 'instances_path', None), (None, 'use_cow_images', True),
    (None, 'preallocate_images', 'none'), ('libvirt', 'images_type', 'default'),
    ('image_cache', 'subdirectory_name', '_base'),
    ('image_cache', 'remove_unused_base_images', True),
    ('image_cache', 'remove_unused_original_minimum_age_seconds', None)])
def test_options_of_novas(group, option, default):
    section = imagebackend.CONF[group] if group else imagebackend.CONF
    value = getattr(section, option)
    assert default is None or value == default


def test_what_the_image_backend_uses():
    assert str(inspect.signature(libvirt_utils.get_disk_backing_file)) \
        == '(path: str, basename: bool = True, format: str | None = None) -> str | None'
    assert list(inspect.signature(imagebackend.Qcow2.resize_image).parameters) == ['self', 'size']
    assert list(inspect.signature(imagebackend.Qcow2.get_disk_size).parameters) == ['self', 'name']
    assert list(inspect.signature(imagebackend.Qcow2.exists).parameters) == ['self']
    assert vm_states.SHELVED_OFFLOADED == 'shelved_offloaded'


def test_the_root_disk_is_made_with_the_images_id():
    """``image_id`` and ``trusted_certs`` reach ``cache`` as named arguments."""
    fetch = inspect.getsource(driver.LibvirtDriver._try_fetch_image_cache)
    assert 'image_id=image_id' in fetch and 'trusted_certs=instance.trusted_certs' in fetch
    root = inspect.getsource(driver.LibvirtDriver._create_and_inject_local_root)
    assert '_try_fetch_image_cache(' in root
    # The fallback where Glance has lost the image names none: there we stay out of the way.
    assert "filename=filename)" in fetch


def test_snapshots_on_our_cache_images_only(monkeypatch):
    """Nova's create_image is ours for our backing files, and stock for all others."""
    assert list(inspect.signature(libvirt_utils.create_image).parameters)[:4] \
        == ['path', 'disk_format', 'disk_size', 'backing_file']
    assert 'libvirt_utils.create_image(' in inspect.getsource(driver.LibvirtDriver._live_snapshot)
    stock, ours = [], []
    monkeypatch.setattr(libvirt_utils, 'create_image', lambda *a, **named: stock.append((a, named)))
    monkeypatch.setattr(snapshots.qemuimg, 'create_overlay', lambda *a, **named: ours.append(a))
    # Twice, as the driver may be made twice in a process.
    for _ in range(2):
        snapshots.allow_on(HostCache('/cache', '/s'))
    libvirt_utils.create_image('/delta', 'qcow2', '5', backing_file='/cache/abc')
    libvirt_utils.create_image('/delta', 'qcow2', '5', backing_file='/_base/abc', safe=True)
    libvirt_utils.create_image('/delta', 'raw', '5')
    assert ours == [('/delta', 5, '/cache/abc', 'qcow2')]
    assert stock == [(('/delta', 'qcow2', '5', '/_base/abc'), {'safe': True}),
                     (('/delta', 'raw', '5', None), {})]


def test_novas_loader_finds_us_below_nova_virt():
    source = inspect.getsource(virt_driver.load_compute_driver)
    assert "'nova.virt.%s' % compute_driver" in source
    assert 'read_only' in inspect.signature(driver.LibvirtDriver.__init__).parameters
    assert callable(utils.synchronized)
