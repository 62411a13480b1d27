"""A live snapshot of an unsettled server whose base goes away meanwhile.

Nova's own method, a real libvirt and QEMU.
"""

import subprocess
import types

import libvirt
import nova.privsep.path
import pytest
from guests import at_home
from nova import exception as nova_exception
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import guest as libvirt_guest
from nova.virt.libvirt import utils as libvirt_utils

from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.novadriver import directsnapshots
from nova_bootcache.novadriver.directsnapshots import SnapshottingDriver

AGENT = types.SimpleNamespace(properties={})


@pytest.fixture
def guest():
    """One that runs, with parts of clusters of its own: the copy reads the rest from below."""
    with at_home('bcls') as make:
        guest = make('guest')
        subprocess.run(['qemu-io', '-f', 'qcow2', '-c', 'write -P 7 1M 4k', guest.disk],
                       check=True, capture_output=True)
        guest.domain.create()
        yield guest


@pytest.fixture
def ours(guest, monkeypatch):
    """The driver; ``told`` has what the guest's agent was told."""
    for module in (libvirt_driver, libvirt_guest):
        monkeypatch.setattr(module, 'libvirt', libvirt)
    monkeypatch.setattr(nova.privsep.path, 'chown', lambda *_about, **_how: None)
    monkeypatch.setattr(libvirt_utils, 'create_image', libvirt_utils.create_image)
    directsnapshots.allow_on(CacheFiles(guest.home))
    driver = object.__new__(SnapshottingDriver)
    driver.told = []
    driver._host = types.SimpleNamespace(write_instance_config=guest.connection.defineXML)
    driver._can_quiesce = lambda *_about: None
    driver.quiesce = lambda *_about: driver.told.append('freeze')
    driver.unquiesce = lambda *_about: driver.told.append('thaw')
    driver._delete_guest_configuration = lambda guest, **_how: guest._domain.undefine()
    return driver


def snapshot(ours, guest):
    instance = types.SimpleNamespace(uuid=guest.domain.UUIDString(), name='guest', image_meta=AGENT)
    ours._live_snapshot(None, instance, libvirt_guest.Guest(guest.domain), guest.disk,
                        f'{guest.home}/out', 'qcow2', 'raw', AGENT)


def test_the_domain_stays_defined_and_its_file_systems_are_thawed(ours, guest, monkeypatch):
    rebase = libvirt_guest.BlockDevice.rebase

    def base_goes(device, *about, **how):
        guest.images.gateway.stop()
        return rebase(device, *about, **how)

    monkeypatch.setattr(libvirt_guest.BlockDevice, 'rebase', base_goes)
    with pytest.raises((libvirt.libvirtError, nova_exception.NovaException)):
        snapshot(ours, guest)
    assert guest.domain.isPersistent() and guest.domain.isActive()
    assert ours.told == ['freeze', 'thaw']
    volume = f'{guest.home}/volume'
    subprocess.run(['truncate', '-s', '1M', volume], check=True)
    guest.domain.attachDeviceFlags(
        f"<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{volume}'/>"
        "<target dev='vdb' bus='virtio'/></disk>",
        libvirt.VIR_DOMAIN_AFFECT_CONFIG | libvirt.VIR_DOMAIN_AFFECT_LIVE)


def test_one_that_succeeds(ours, guest):
    snapshot(ours, guest)
    assert guest.domain.isPersistent() and ours.told == ['freeze', 'thaw']
    subprocess.run(['qemu-img', 'info', '-f', 'raw', f'{guest.home}/out'], check=True,
                   capture_output=True)
