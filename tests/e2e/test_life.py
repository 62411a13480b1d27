"""All that Nova does with a server after its boot: with one on its cache image, and a settled one.

Both go through each operation at the same time, with guests that check their own data: a state
ACTIVE alone proves nothing.
"""

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tools.cloud.tenant import Tenant, wait_until


class Pair:
    """Two servers of one kind of guest: one stays on its cache image, the other one is settled."""

    def __init__(self, tenant: Tenant, small_image):
        self.tenant = tenant
        self.nova = tenant.openstack.nova
        with ThreadPoolExecutor() as pool:
            lazy, settling = pool.map(
                lambda settle: tenant.image(small_image, bootcache_settle=settle), ('no', 'yes'))
        tenant.wait_state(lazy, 'ready')
        tenant.wait_state(settling, 'ready')
        self.images = lazy, settling
        self.servers = self.both(lambda image: tenant.server(image, 'm1.disks'), self.images)
        self.each(tenant.login)
        self.each(lambda server: tenant.command(server, 'write 2'))
        self.settled = self.servers[1]
        wait_until(lambda: '/_base/' in tenant.backing(self.settled)[1], 'settling')
        self.boots = 1
        self.check()

    def both(self, action, values):
        with ThreadPoolExecutor() as pool:
            return tuple(pool.map(action, values))

    def each(self, action):
        """Do something with both servers at the same time."""
        return self.both(action, self.servers)

    def status(self, status):
        self.each(lambda server: self.tenant.openstack.wait_status(server, status))

    def check(self):
        """The guests' own data is right, and each is on the chain that it should be on."""
        self.each(lambda server: self.tenant.command(server, 'verify'))
        self.check_chains()

    def check_chains(self):
        # In the midst of a pivot the disk's file is one, and then the other.
        wait_until(lambda: '/_base/' in self.tenant.backing(self.settled)[1], 'settling')
        unsettled, settled = self.each(self.tenant.backing)
        assert '/_bootcache/' in unsettled[1] and len(unsettled) == 3, unsettled
        assert '/_base/' in settled[1] and len(settled) == 2, settled

    def booted_again(self):
        """Both booted once more, from the disks that they had."""
        self.boots += 1
        self.each(lambda server: wait_until(
            lambda: f'boot number {self.boots}' in self.tenant.openstack.console(server),
            f'boot {self.boots} of {server}', 150))
        self.each(lambda server: self.tenant.openstack.wait_console(server, 'small login:'))
        for console in self.each(self.tenant.openstack.console):
            assert 'BAD' not in console and 'mark: ok' in console, console
        self.check()


@pytest.fixture(scope='module')
def pair(module_tenant, small_image):
    return Pair(module_tenant, small_image)


def test_swap_ephemeral_and_config_drive_beside_the_root_disk(pair):
    """A server that boots from a volume has no root disk here; this cloud has no volume service,
    so that case is in tests/unit/nova_bootcache/test_placement.py only."""
    for server in pair.servers:
        files = {file.name for file in pair.tenant.openstack.disk(server).parent.iterdir()}
        assert {'disk', 'disk.eph0', 'disk.swap', 'disk.config'} <= files
        with pair.tenant.openstack.domain(server) as domain:
            assert domain.XMLDesc().count("<disk type='file'") == 4


def test_hard_reboot(pair):
    pair.each(pair.tenant.hard_reboot)
    pair.booted_again()


def test_soft_reboot(pair):
    pair.each(lambda server: pair.nova.servers.reboot(server, 'SOFT'))
    pair.booted_again()


def test_stop_and_start(pair):
    pair.each(pair.nova.servers.stop)
    pair.status('SHUTOFF')
    pair.check_chains()
    pair.each(pair.nova.servers.start)
    pair.booted_again()


def test_pause_and_unpause(pair):
    pair.each(pair.nova.servers.pause)
    pair.status('PAUSED')
    pair.each(pair.nova.servers.unpause)
    pair.status('ACTIVE')
    pair.check()


def test_suspend_and_resume(pair):
    pair.each(pair.nova.servers.suspend)
    pair.status('SUSPENDED')
    pair.each(pair.nova.servers.resume)
    pair.status('ACTIVE')
    pair.check()


def test_suspend_and_resume_on_a_host_that_rebooted_meanwhile(pair, cloud):
    """The gateway and libvirtd are new ones when the server resumes."""
    pair.each(pair.nova.servers.suspend)
    pair.status('SUSPENDED')
    cloud.power_off(cloud.hosts[0])
    cloud.power_on(cloud.hosts[0])
    pair.each(pair.nova.servers.resume)
    pair.status('ACTIVE')
    pair.check()


def snapshots(pair, tmp_path):
    """Take a snapshot of each, and compare it with the disk."""
    names = {server: f'snapshot-{server}' for server in pair.servers}

    def snapshot(server):
        image = pair.nova.servers.create_image(server, names[server])
        ask = pair.tenant.openstack.image_api
        wait_until(lambda: ask('GET', f'/{image}')['status'] == 'active', 'the snapshot', 180)
        pair.tenant._images.append(image)
        return image

    for server, image in zip(pair.servers, pair.each(snapshot), strict=True):
        file = tmp_path / image
        pair.tenant.openstack.run('image', 'save', '--file', str(file), image)
        compare = pair.tenant.cloud.inside(
            pair.tenant.host_of(server), 'qemu-img', 'compare', '-U', '-f', 'qcow2', '-F', 'qcow2',
            str(pair.tenant.openstack.disk(server)), str(file))
        done = subprocess.run(compare, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        pair.tenant.delete_image(image)


def test_snapshot_of_a_running_server(pair, tmp_path):
    """Paused, so that nothing is written between the snapshot and the comparison."""
    pair.each(pair.nova.servers.pause)
    pair.status('PAUSED')
    snapshots(pair, tmp_path)
    pair.each(pair.nova.servers.unpause)
    pair.status('ACTIVE')
    pair.check()


def test_snapshot_of_a_stopped_server(pair, tmp_path):
    pair.each(pair.nova.servers.stop)
    pair.status('SHUTOFF')
    snapshots(pair, tmp_path)
    pair.each(pair.nova.servers.start)
    pair.booted_again()


def test_resize_up_and_its_revert(pair, cloud):
    with pair.tenant.only(cloud.hosts[0]):
        pair.each(lambda server: pair.nova.servers.resize(server, 'm1.disks.large'))
        pair.status('VERIFY_RESIZE')
    for server in pair.servers:
        assert pair.tenant.host_of(server) == cloud.hosts[0]
    # Nova starts the console's file anew in the new directory.
    pair.booted_again()
    pair.each(pair.nova.servers.revert_resize)
    pair.status('ACTIVE')
    # What the larger one wrote is gone with it.
    pair.boots -= 1
    pair.booted_again()


def test_rescue_and_unrescue(pair):
    """Nova makes a stock disk for the rescue, from the whole image, which stays here as a base."""
    pair.each(pair.nova.servers.rescue)
    pair.status('RESCUE')
    pair.check_chains()
    pair.each(pair.nova.servers.unrescue)
    pair.status('ACTIVE')
    pair.booted_again()


def test_nova_compute_restarts(pair, cloud):
    guests = cloud.guests()
    cloud.restart('compute')
    assert cloud.guests() == guests
    pair.check()


def test_the_gateway_restarts(pair, cloud):
    """The unsettled one waits for it where it has to, and a hard reboot finds it; the settled one
    does not notice anything."""
    killed = cloud.gateway_pid()
    os.kill(killed, signal.SIGKILL)
    pair.each(lambda server: pair.tenant.command(server, 'check-all'))
    wait_until(lambda: cloud.gateway_pid() not in (None, killed), 'a new gateway')
    pair.each(pair.tenant.hard_reboot)
    pair.booted_again()
    pair.each(lambda server: pair.tenant.command(server, 'check-all'))


def test_the_host_reboots(pair, cloud):
    """The other host does not notice: it keeps its gateway, and its directories."""
    other = cloud.gateway_pid(cloud.hosts[1])
    cloud.power_off(cloud.hosts[0])
    assert not cloud.guests()
    cloud.power_on(cloud.hosts[0])
    assert other and cloud.gateway_pid(cloud.hosts[1]) == other
    seen = subprocess.run(cloud.inside(cloud.hosts[1], 'cat', str(cloud.layout.gateway /
                          'gateway.pid')), capture_output=True, text=True, check=True)
    assert int(seen.stdout) == other
    pair.each(pair.tenant.hard_reboot)
    pair.booted_again()


def test_novas_image_cache_manager_leaves_both_kinds_of_files(pair, cloud, compute_log):
    """It runs often, and removes what is unused at once."""
    cloud.layer('compute', '50-cache', {'image_cache': {
        'manager_interval': 2, 'remove_unused_original_minimum_age_seconds': 0}})
    cloud.restart('compute')
    try:
        wait_until(lambda: compute_log.text().count('image_cache_manager') or
                   'Verify base images' in compute_log.text()
                   or 'checking' in compute_log.text(), 'the cache manager')
        pair.check()
        instances = cloud.hosts[0].instances
        assert any((instances / '_base').iterdir()) and any((instances / '_bootcache').iterdir())
    finally:
        cloud.layer('compute', '50-cache', None)
        cloud.restart('compute')
    pair.each(pair.tenant.hard_reboot)
    pair.booted_again()


def test_image_deactivated_and_deleted_while_servers_run(pair, cloud):
    for image in pair.images:
        pair.tenant.openstack.run('image', 'set', '--deactivate', image)
    pair.each(pair.tenant.hard_reboot)
    pair.booted_again()
    for image in pair.images:
        pair.tenant.delete_image(image)
    # The host forgets all that it can get again.
    cloud.power_off(cloud.hosts[0])
    cache = cloud.hosts[0].instances / '_bootcache'
    for file in cache.iterdir():
        file.unlink()
    cloud.power_on(cloud.hosts[0])
    pair.each(pair.tenant.hard_reboot)
    pair.booted_again()
    pair.each(lambda server: pair.tenant.command(server, 'check-all'))


def test_shelve_and_unshelve(pair):
    """Nova puts the disk onto the image that it came from, or flattens it where that is gone."""
    pair.each(pair.nova.servers.shelve)
    pair.status('SHELVED_OFFLOADED')
    pair.each(pair.nova.servers.unshelve)
    pair.status('ACTIVE')
    pair.boots += 1
    pair.each(lambda server: wait_until(
        lambda: f'boot number {pair.boots}' in pair.tenant.openstack.console(server), 'a boot',
        150))
    pair.each(lambda server: pair.tenant.openstack.wait_console(server, 'small login:'))
    pair.each(lambda server: pair.tenant.command(server, 'verify'))
    pair.each(lambda server: pair.tenant.command(server, 'check-all'))


def test_rebuild_to_another_image(pair, small_image):
    image = pair.tenant.image(small_image)
    pair.tenant.wait_state(image, 'ready')
    pair.each(lambda server: pair.nova.servers.rebuild(server, image))
    pair.status('ACTIVE')
    pair.each(pair.tenant.login)
    for chain in pair.each(pair.tenant.backing):
        assert '/_bootcache/' in chain[1], chain
    pair.each(lambda server: pair.tenant.command(server, 'verify', 'none'))


def test_delete(pair, cloud):
    pair.each(pair.tenant.delete_server)
    for server in pair.servers:
        assert not list(cloud.hosts[0].instances.glob(f'{server}*'))
