"""Storage that hosts share: refused at start, by its kind or by Nova's own record of its users."""

import json
import time

import pytest
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import imagebackend
from nova.virt.libvirt import utils as libvirt_utils

from bootcache import tier
from nova_bootcache.asking.placement import Server
from nova_bootcache.novadriver import diskconf, driver
from nova_bootcache.novadriver.driver import BootCacheLibvirtDriver

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SERVER = Server(IMAGE, 'disk', '', False, False, False)
INSTANCES, CACHE = '[DEFAULT]instances_path=/i', '[bootcache]cache_directory=/c'


@pytest.mark.parametrize('kind', ['nfs', 'nfs4', 'ceph', 'fuse.glusterfs', 'fuse.ceph', 'cifs',
                                  'gfs2', 'ocfs2', 'lustre', 'gpfs', 'beegfs', 'fuse.quobyte',
                                  'fuse.vzstorage', 'fuse.sshfs'])
def test_what_hosts_share(kind):
    assert diskconf.is_shared(kind)


@pytest.mark.parametrize('kind', ['ext4', 'xfs', 'btrfs', 'zfs', 'tmpfs', 'overlay', '', '9p',
                                  'virtiofs', 'fuse', 'fuseblk', 'fuse.ntfs-3g', 'nfsd', 'bcachefs',
                                  'glusterfs.fuse'])
def test_what_is_a_hosts_own(kind):
    assert not diskconf.is_shared(kind)


@pytest.mark.parametrize('kinds, users, words', [
    ({INSTANCES: 'ext4', CACHE: 'xfs'}, [], None),
    ({INSTANCES: 'ext4', CACHE: 'xfs'}, ['host-1'], None),
    ({}, [], None),
    ({INSTANCES: 'nfs4', CACHE: 'xfs'}, [], [INSTANCES, 'nfs4', 'LibvirtDriver']),
    ({INSTANCES: 'ext4', CACHE: 'ceph'}, ['host-1'], [CACHE, 'ceph', 'LibvirtDriver']),
    ({INSTANCES: 'ext4', CACHE: 'ext4'}, ['host-3', 'host-1', 'host-2'],
     ['instances_path', 'host-2, host-3', 'compute_nodes', 'LibvirtDriver'])])
def test_what_is_refused(kinds, users, words):
    reason = diskconf.refusal(kinds, users, 'host-1')
    assert bool(reason) is (words is not None)
    assert all(word in reason for word in words or ())


def test_the_kernel_is_asked(tmp_path):
    found = diskconf.types({'a': '/proc', 'b': str(tmp_path / 'missing')})
    assert found == {'a=/proc': 'proc'}


class Settler:
    """Stands for settling, which looks into all directories of servers."""

    def __init__(self):
        self.did = []

    def recover(self):
        self.did.append('recover')

    def start(self):
        self.did.append('start')


@pytest.fixture
def start(monkeypatch, tmp_path, caplog):
    """Starts the driver as nova-compute does; Nova's own start is noted, libvirt is not there."""
    def stock(self, virtapi, read_only):
        self.image_backend, self._host = imagebackend.Backend(True), None

    def begin(name='host-1'):
        ours = BootCacheLibvirtDriver(None)
        ours.settler = Settler()
        for part in (ours.upkeep, ours.standing, ours.bootcache.gateway):
            monkeypatch.setattr(part, 'start', lambda: None)
        # It would be this machine's own.
        monkeypatch.setattr(ours.bootcache._starter, 'listen', lambda: None)
        monkeypatch.setattr(ours.bootcache.gateway.daemon, 'exports', dict)
        monkeypatch.setattr(ours.bootcache.gateway.daemon, 'node_files', dict)
        with caplog.at_level('INFO'):
            ours.init_host(name)
        return ours

    begin.nova_started = []
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, '__init__', stock)
    monkeypatch.setattr(libvirt_driver.LibvirtDriver, 'init_host',
                        lambda self, host: begin.nova_started.append(host))
    monkeypatch.setattr(libvirt_utils, 'create_image', libvirt_utils.create_image)
    monkeypatch.setattr('nova_bootcache.asking.client.StorageClient', lambda conf: None)
    monkeypatch.setattr(driver.CONF, 'instances_path', str(tmp_path / 'instances'))
    (tmp_path / 'instances' / '_bootcache').mkdir(parents=True)
    return begin


def users(tmp_path, **seconds_ago):
    """Write Nova's record of who uses the instances."""
    (tmp_path / 'instances' / 'compute_nodes').write_text(json.dumps(
        {name.replace('_', '-'): time.time() - ago for name, ago in seconds_ago.items()}))


@pytest.mark.parametrize('kind, others', [('nfs4', {}), ('ext4', {'host_2': 60})])
def test_a_host_on_shared_storage_starts_and_serves_nothing(start, tmp_path, monkeypatch, caplog,
                                                            kind, others):
    monkeypatch.setattr(tier, 'file_system', lambda path: kind)
    users(tmp_path, host_1=5, **others)
    leftover = tmp_path / 'instances' / '_bootcache' / 'of-another-host.partial'
    leftover.touch()
    ours = start()
    assert start.nova_started == ['host-1'], 'nova-compute runs'
    assert ours._serves() is False and ours.settler.did == [] and leftover.exists()
    errors = [record.getMessage() for record in caplog.records if record.levelname == 'ERROR']
    assert len(errors) == 1 and 'instances_path' in errors[0] and 'LibvirtDriver' in errors[0]
    caplog.clear()
    with caplog.at_level('INFO'):
        assert ours.bootcache.chains.make_overlay(
            SERVER, 'server-1', None, str(tmp_path / 'disk'), None, False) is False
    assert 'server-1 goes the stock way: [DEFAULT]instances_path' in caplog.text
    assert ours.bootcache.chains.adopt(IMAGE, str(tmp_path / 'disk')) is False


@pytest.mark.parametrize('others', [{}, {'host_2': 25 * 3600}])
def test_a_host_on_its_own_storage_serves(start, tmp_path, monkeypatch, caplog, others):
    monkeypatch.setattr(tier, 'file_system', lambda path: 'ext4')
    users(tmp_path, host_1=5, **others)
    leftover = tmp_path / 'instances' / '_bootcache' / 'mine.partial'
    leftover.touch()
    ours = start()
    assert start.nova_started == ['host-1'] and ours.settler.did == ['recover', 'start']
    assert ours._serves() is True and not leftover.exists()
    assert not [record for record in caplog.records if record.levelname == 'ERROR']
