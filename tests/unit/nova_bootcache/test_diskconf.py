"""Whether Nova makes root disks as overlays: by Nova's own backends, and by the disks they make.

Launchpad 2038898 has what all combinations of the options do.
"""

import itertools
import os
import subprocess
import types

import fixtures
import nova.privsep
import pytest
from nova.virt.libvirt import imagebackend
from oslo_utils import units

from bootcache import qemuimg
from nova_bootcache.novadriver import diskconf
from nova_bootcache.novadriver.novaservers import NovaServers

CONF = imagebackend.CONF
ROWS = list(itertools.product(
    ['default', 'qcow2', 'raw', 'flat', 'lvm', 'rbd', 'ploop'], [True, False], [True, False]))
OVERLAYS = {('qcow2', True), ('qcow2', False), ('default', True)}


@pytest.fixture(params=ROWS, ids=lambda row: '-'.join(map(str, row)))
def row(request):
    """Nova's options of one row: the disks' type, use_cow_images, force_raw_images."""
    images_type, use_cow, force_raw = request.param
    CONF.set_override('images_type', images_type, 'libvirt')
    CONF.set_override('use_cow_images', use_cow)
    CONF.set_override('force_raw_images', force_raw)
    yield request.param
    CONF.clear_override('images_type', 'libvirt')
    CONF.clear_override('use_cow_images')
    CONF.clear_override('force_raw_images')


def test_every_row_is_told_as_nova_has_it(row):
    is_overlay = row[:2] in OVERLAYS
    backend = imagebackend.Backend(CONF.use_cow_images).backend()
    assert (backend is imagebackend.Qcow2) is is_overlay
    assert diskconf.has_overlays(CONF) is diskconf.serves(CONF) is is_overlay
    assert any('all servers of this host go the stock way; set' in warning
               for warning in diskconf.warnings(CONF)) is not is_overlay


@pytest.mark.parametrize('images_type, use_cow, preallocate, words', [
    ('default', True, 'none', []), ('qcow2', False, 'none', []),
    ('default', False, 'none', ['use_cow_images=false', 'images_type = qcow2']),
    ('rbd', True, 'none', ['images_type=rbd', 'images_type = qcow2']),
    ('qcow2', True, 'space', ['preallocate_images=space', 'none'])])
def test_a_warning_names_the_option_and_its_cure(images_type, use_cow, preallocate, words):
    conf = types.SimpleNamespace(
        libvirt=types.SimpleNamespace(images_type=images_type), use_cow_images=use_cow,
        preallocate_images=preallocate, glance=CONF.glance)
    found = diskconf.warnings(conf)
    assert len(found) == bool(words) and all(word in found[0] for word in words)


def test_shared_storage_is_looked_at_where_there_are_overlays(row, monkeypatch):
    monkeypatch.setattr('bootcache.tier.file_system', lambda path: 'nfs4')
    assert bool(NovaServers.shared_storage('/cache', 'host')) is (row[:2] in OVERLAYS)


def test_the_disk_that_nova_makes(row, tmp_path, monkeypatch):
    """Nova's real backend, of a real image, which it would have fetched as the option says."""
    images_type, _use_cow, force_raw = row
    if images_type not in ('default', 'qcow2', 'raw', 'flat'):
        pytest.skip('no file')
    base_format = 'raw' if force_raw else 'qcow2'
    base = tmp_path / 'base'
    subprocess.run(['qemu-img', 'create', '-q', '-f', base_format, base, '1M'], check=True)
    monkeypatch.setattr(CONF, 'instances_path', str(tmp_path))
    os.mkdir(tmp_path / 'server')
    monkeypatch.setattr(nova.privsep.sys_admin_pctxt, 'client_mode', False)
    with fixtures.MonkeyPatch('oslo_concurrency.lockutils._get_lock_path',
                              lambda name, *_args: f'{tmp_path}/{name.replace("/", "_")}'):
        disk = imagebackend.Backend(CONF.use_cow_images).by_name(
            types.SimpleNamespace(uuid='server'), 'disk')
        disk.create_image(lambda **_arguments: None, str(base), units.Mi, image_id='image')
    info = qemuimg.info(disk.path, 'qcow2' if diskconf.has_overlays(CONF) else base_format)
    assert ('backing-filename' in info) is diskconf.has_overlays(CONF)
