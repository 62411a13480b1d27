"""A guest that UEFI starts, from an EFI system partition of its image: it has a file of NVRAM
beside its disks, which libvirt makes and Nova looks after."""

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import libvirt
import pytest

from tools.cloud.layout import TOOLS
from tools.cloud.tenant import wait_until

# libvirt 9.0, as Debian 12 has it, refuses what Nova 34 asks for: "loader attribute 'secure'
# cannot be specified when firmware autoselection is enabled".
LIBVIRT = 10_000_000
# An emulated processor takes a minute through firmware, GRUB and Debian's kernel, where it has to
# share a real one.
BOOT_SECONDS = 600
pytestmark = pytest.mark.skipif(
    libvirt.getVersion() < LIBVIRT, reason='Nova starts UEFI guests with libvirt 10 or later')


@pytest.fixture(scope='module')
def image(module_tenant):
    """The small guest, recorded, with a cache image."""
    done = subprocess.run([TOOLS.parent / 'images' / 'uefi.sh'], check=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    image = module_tenant.image(done.stdout.strip(), hw_firmware_type='uefi',
                                hw_machine_type='q35')
    found = module_tenant.wait_state(image, 'ready')
    assert found['cache_image'] and found['reason'] == '', found
    return image


def started(tenant, image, host):
    """Start a server from the image's cache image; the server."""
    server = tenant.server(image, host=host)
    chain = tenant.backing(server)
    assert '/_bootcache/' in chain[1] and 'gateway.sock' in chain[2], chain
    tenant.openstack.wait_console(server, 'boot number 1', BOOT_SECONDS)
    tenant.login(server)
    tenant.command(server, 'write 2')
    return server


def booted_again(tenant, server, number=2):
    """A server has booted so many times, from the disk that it had."""
    tenant.openstack.wait_console(server, f'boot number {number}', BOOT_SECONDS)
    tenant.check_after_boot(server)


def nvram(tenant, server):
    """A server's file of NVRAM, as it is reached from outside of its host."""
    with tenant.openstack.domain(server) as domain:
        assert domain.isPersistent()
        path = ElementTree.fromstring(domain.XMLDesc(0)).findtext('./os/nvram')
    file = tenant.host_of(server).libvirt / 'lib' / Path(path).relative_to('/var/lib/libvirt')
    assert file.exists()
    return file


def test_a_snapshot_of_one_that_runs_boots(tenant, image, cloud):
    server = started(tenant, image, cloud.hosts[0])
    kept = nvram(tenant, server)
    snapshot = tenant.openstack.nova.servers.create_image(server, f'snapshot-of-{server}')
    tenant._images.append(snapshot)
    wait_until(lambda: tenant.property(snapshot, 'status') == 'active', 'the snapshot')
    assert tenant.property(snapshot, 'hw_firmware_type') == 'uefi'
    # Nova has no definition of it while its disk is copied.
    assert nvram(tenant, server) == kept
    tenant.check(server)
    booted_again(tenant, tenant.server(snapshot, host=cloud.hosts[0]))


def test_it_is_suspended_moved_and_rebooted(tenant, image, cloud):
    """While it needs its cache image, and all that is below that."""
    first, second = cloud.hosts
    server = started(tenant, image, first)
    tenant.openstack.nova.servers.suspend(server)
    tenant.openstack.wait_status(server, 'SUSPENDED')
    tenant.openstack.nova.servers.resume(server)
    tenant.openstack.wait_active(server)
    tenant.check(server)
    tenant.live_migrate(server, second)
    assert '/_bootcache/' in tenant.backing(server)[1]
    kept = nvram(tenant, server)
    tenant.check(server)
    tenant.hard_reboot(server)
    booted_again(tenant, server)
    assert nvram(tenant, server) == kept


def test_a_server_settles_and_starts_again(tenant, image, cloud):
    host = cloud.hosts[1]
    server = started(tenant, image, host)
    kept = nvram(tenant, server)
    tenant.openstack.image_api('PATCH', f'/{image}', json=[
        {'op': 'replace', 'path': '/bootcache_settle', 'value': 'yes'}], headers={
            'Content-Type': 'application/openstack-images-v2.1-json-patch'})
    wait_until(lambda: '/_base/' in tenant.backing(server)[1], 'it settles')
    assert nvram(tenant, server) == kept
    tenant.check(server)
    tenant.openstack.nova.servers.stop(server)
    tenant.openstack.wait_status(server, 'SHUTOFF')
    tenant.openstack.nova.servers.start(server)
    tenant.openstack.wait_active(server)
    booted_again(tenant, server)
    assert nvram(tenant, server) == kept
    tenant.delete_server(server)
    assert not kept.exists()
