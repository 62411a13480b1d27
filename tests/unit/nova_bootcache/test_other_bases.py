"""A server whose disk Nova puts onto the base of another image than it was made from.

So it is with one that comes from another cell, as with one that is unshelved: it is made from a
temporary snapshot. Nova's own methods and qemu-img are real; Glance and the chains are stand-ins.
"""

import os
import types

import nova.privsep.path
import pytest
from nova import objects
from nova.virt.libvirt import driver, imagebackend
from nova.virt.libvirt import utils as libvirt_utils

from bootcache import naming, qemuimg
from nova_bootcache.asking import placement
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.novadriver.imagebackend import BootCacheQcow2

SERVER = '5f0d3e7a-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
ORIGINAL = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SNAPSHOT = '11111111-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
MIB = 1 << 20


class Chains:
    """Makes chains for servers that do not go the stock way."""

    def __init__(self, cache):
        self._cache, self.kept = cache, []

    def make_overlay(self, server, server_id, token, path, size, has_base, console,
                     is_moving=False, as_user=None):
        if placement.stock_reason(server, True, has_base):
            return False
        self.put(server.image_id, path)
        return True

    def put(self, image_id, path):
        qemuimg.create_standalone(self._cache.path(image_id), 16 * MIB, 65536)
        qemuimg.create_overlay(path, 16 * MIB, self._cache.path(image_id), 'qcow2',
                               cluster_bytes=131072, subclusters=True)

    def keep_chain(self, image_id, path, patience=0.0, guest_waits=False):
        self.kept.append(image_id)


@pytest.fixture
def host(monkeypatch, tmp_path):
    objects.register_all()
    monkeypatch.setattr(imagebackend.CONF, 'instances_path', str(tmp_path))
    for directory in ('_base', '_bootcache', SERVER):
        (tmp_path / directory).mkdir()
    cache, fetched = CacheFiles(str(tmp_path / '_bootcache')), []

    def fetch(target, image_id, **_named):
        fetched.append(image_id)
        with open(target, 'wb') as stream:
            stream.truncate(16 * MIB)

    monkeypatch.setattr(libvirt_utils, 'fetch_image', fetch)
    monkeypatch.setattr(nova.privsep.path, 'utime', os.utime)
    chains = Chains(cache)
    host = types.SimpleNamespace(cache=cache, chains=chains,
                                 serving=types.SimpleNamespace(is_on=True))
    ours = object.__new__(driver.LibvirtDriver)
    ours.image_cache_manager = types.SimpleNamespace(cache_dir=str(tmp_path / '_base'))
    instance = objects.Instance(
        uuid=SERVER, image_ref=SNAPSHOT, kernel_id='', vm_state='active',
        task_state='resize_finish', migration_context=None, metadata={}, trusted_certs=None,
        project_id='p', system_metadata={'image_base_image_ref': ORIGINAL,
                                         'image_disk_format': 'raw'})

    def finish():
        """As Nova's spawn and finish_migration do."""
        disk = BootCacheQcow2.bound_to(host)(instance, 'disk')
        ours._try_fetch_image_cache(disk, libvirt_utils.fetch_image, None,
                                    naming.cache_file_name(SNAPSHOT), SNAPSHOT, instance,
                                    16 * MIB, None)
        ours._rebase_original_qcow2_image(None, instance, disk)
        return libvirt_utils.get_disk_backing_file(disk.path, basename=False)

    return types.SimpleNamespace(finish=finish, fetched=fetched, chains=chains, instance=instance,
                                 disk=str(tmp_path / SERVER / 'disk'),
                                 original=str(tmp_path / '_base'
                                              / naming.cache_file_name(ORIGINAL)))


@pytest.mark.parametrize('task_state, vm_state', [('resize_finish', 'active'),
                                                  ('spawning', 'shelved_offloaded')])
def test_one_from_a_temporary_snapshot_is_made_the_stock_way(host, task_state, vm_state):
    host.instance.task_state, host.instance.vm_state = task_state, vm_state
    assert host.finish() == host.original
    assert host.fetched == [SNAPSHOT, ORIGINAL] and os.listdir(host.chains._cache.directory) == []


def test_a_chain_of_one_image_that_is_put_onto_another_ones_base(host):
    """One that was booted from a snapshot for good, and is resized: Nova does it there, too."""
    host.chains.put(SNAPSHOT, host.disk)
    assert host.finish() == host.original
    assert host.fetched == [ORIGINAL] and host.chains.kept == [SNAPSHOT]


def test_a_server_of_an_image_is_resized_on_its_cache_image(host):
    host.instance.system_metadata['image_base_image_ref'] = SNAPSHOT
    assert host.finish() == host.chains._cache.path(SNAPSHOT) and host.fetched == []
