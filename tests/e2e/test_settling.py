"""Settling: when it comes, what it leaves, and all that may come between."""

import os
import re
import signal
import subprocess

import pytest

from tools.cloud.bootcache import DRIVER, STOCK_DRIVER
from tools.cloud.tenant import wait_until


@pytest.fixture(scope='module')
def image(module_tenant, small_image):
    image = module_tenant.image(small_image, bootcache_settle='yes')
    module_tenant.wait_state(image, 'ready')
    return image


def base_of(cloud, image, host=0):
    from bootcache.naming import cache_file_name
    return cloud.hosts[host].instances / '_base' / cache_file_name(image)


def wait_settled(tenant, server, timeout=120):
    wait_until(lambda: '/_base/' in tenant.backing(server)[1], f'{server} settles', timeout)
    wait_until(lambda: not leftovers(tenant, server), 'nothing is left behind')


def leftovers(tenant, server):
    return [file.name for file in tenant.openstack.disk(server).parent.iterdir()
            if 'settle' in file.name]


def test_a_settled_server_needs_nothing_of_ours(tenant, image, small_image, cloud, compute_log,
                                                tmp_path):
    """The plugin is uninstalled, and its files are gone: stock Nova starts, moves, deletes it."""
    first, second = cloud.hosts
    running, stopped = tenant.server(image), tenant.server(image)
    for server in (running, stopped):
        tenant.login(server)
        tenant.command(server, 'write 2')
    tenant.openstack.nova.servers.stop(stopped)
    tenant.openstack.wait_status(stopped, 'SHUTOFF')
    guests = cloud.guests()
    for server in (running, stopped):
        wait_settled(tenant, server)
    assert cloud.guests() == guests
    tenant.command(running, 'verify')
    tenant.command(running, 'check-all')
    # The base is as stock Nova makes it.
    stock = tmp_path / 'stock.raw'
    subprocess.run(['qemu-img', 'convert', '-O', 'raw', '-f', 'qcow2', str(small_image),
                    str(stock)], check=True)
    assert subprocess.run(['cmp', str(stock), str(base_of(cloud, image))],
                          check=False).returncode == 0
    # The gateway does not serve it any more.
    compute_log.wait(f'image {image}: no server of this host needs the gateway')

    cloud.use_driver(STOCK_DRIVER, first, second)
    os.kill(cloud.gateway_pid(), signal.SIGKILL)
    cache = first.instances / '_bootcache'
    cache.rename(cache.with_name('away'))
    try:
        tenant.command(running, 'check-all')
        tenant.openstack.nova.servers.start(stopped)
        wait_until(lambda: 'boot number 2' in tenant.openstack.console(stopped), 'a boot', 120)
        tenant.openstack.wait_console(stopped, 'small login:')
        tenant.command(stopped, 'verify')
        tenant.live_migrate(running, second)
        tenant.command(running, 'verify')
        tenant.command(running, 'check-all')
        tenant.migrate(stopped, second)
        assert 'mark: ok' in tenant.login(stopped)
        tenant.command(stopped, 'verify')
        tenant.confirm(stopped)
        for server in (running, stopped):
            tenant.delete_server(server)
            assert not list(second.instances.glob(f'{server}*'))
    finally:
        cache.with_name('away').rename(cache)
        cloud.use_driver(DRIVER, first, second)


def test_the_next_server_of_a_settled_image_is_stock(tenant, image, cloud, compute_log):
    """An existing stock base is used as it is, whoever made it: that host counts as warm."""
    wait_until(base_of(cloud, image).exists, 'the base')
    server = tenant.server(image)
    tenant.login(server)
    assert '/_base/' in tenant.backing(server)[1]
    assert f'server {server} goes the stock way: the host has the full base already' \
        in compute_log.text()


@pytest.mark.parametrize('number', [0, 1])
def test_a_stopped_server_settles_whoever_its_disk_was_given_to(tenant, small_image, cloud, number):
    """The second host's libvirt does not remember owners: what it stops is root's."""
    host = cloud.hosts[number]
    image = tenant.image(small_image, bootcache_settle='no')
    tenant.wait_state(image, 'ready')
    server = tenant.server(image, host=host)
    tenant.login(server)
    tenant.command(server, 'write 2')
    owner, disk = {0: 'nova', 1: 'root'}[number], tenant.openstack.disk(server)
    assert disk.owner() == 'libvirt-qemu' and '/_bootcache/' in tenant.backing(server)[1]
    tenant.openstack.nova.servers.stop(server)
    tenant.openstack.wait_status(server, 'SHUTOFF')
    assert disk.owner() == owner
    tenant.openstack.image_api('PATCH', f'/{image}', json=[
        {'op': 'replace', 'path': '/bootcache_settle', 'value': 'yes'}], headers={
            'Content-Type': 'application/openstack-images-v2.1-json-patch'})
    wait_settled(tenant, server)
    tenant.openstack.nova.servers.start(server)
    check_booted(tenant, server, 2)


def test_a_base_that_is_damaged_on_its_way_is_not_used(tenant, small_image, cloud, compute_log):
    image = tenant.image(small_image, bootcache_settle='yes')
    tenant.wait_state(image, 'ready')
    stored, = (cloud.state_directory / 'images' / image).glob('base-*')
    # As on a disk that rots: by its inode, size and time it is the file that was verified.
    before = stored.stat()
    with stored.open('r+b') as stream:
        stream.seek(30_000_000)
        stream.write(b'rot')
    os.utime(stored, ns=(before.st_atime_ns, before.st_mtime_ns))
    cloud.kill_exporter()
    # While nothing serves it a server boots the stock way.
    wait_until(lambda: cloud.serves(image), 'a new exporter')
    server = tenant.server(image)
    tenant.login(server)
    # Not what is said of a copy that begins anew: that is under way then.
    wait_until(lambda: re.search(f'image {image}: its servers are not settled yet.*but Glance says',
                                 compute_log.text()), 'the hash is compared', 120)
    assert not base_of(cloud, image).exists()
    assert '/_bootcache/' in tenant.backing(server)[1]
    assert not list(base_of(cloud, image).parent.glob('*.bootcache*'))


@pytest.fixture(scope='module')
def slow(cloud, module_tenant, small_image):
    """The base is there, but a server's own data is copied slowly: there is time in between."""
    image = module_tenant.image(small_image, bootcache_settle='yes')
    module_tenant.wait_state(image, 'ready')
    first = module_tenant.server(image)
    module_tenant.login(first)
    wait_settled(module_tenant, first)
    base = base_of(cloud, image)
    away = base.with_name('away')
    base.rename(away)
    # A base that is there ends the copying of another one, if that has begun already.
    cloud.layer('nova', '80-slow', {'bootcache': {'settle_bandwidth': '128KiB',
                                                  'settle_delay': 10}})
    for host in cloud.hosts:
        cloud.restart(host.compute)
    yield image, base, away
    away.unlink(missing_ok=True)
    cloud.layer('nova', '80-slow', None)
    for host in cloud.hosts:
        cloud.restart(host.compute)


@pytest.fixture
def settling(tenant, slow):
    """A server in the midst of its settling."""
    image, base, away = slow
    base.unlink(missing_ok=True)
    server = tenant.server(image)
    tenant.login(server)
    tenant.command(server, 'write 8')
    os.link(away, base)
    wait_until(lambda: leftovers(tenant, server), 'settling begins', 120)
    with tenant.openstack.domain(server) as domain:
        wait_until(lambda: domain.blockJobInfo('vda'), 'a block job')
    return server


def check_booted(tenant, server, number):
    wait_until(lambda: f'boot number {number}' in tenant.openstack.console(server), 'a boot', 150)
    console = tenant.openstack.wait_console(server, 'small login:')
    assert 'BAD' not in console, console
    tenant.command(server, 'verify')
    tenant.command(server, 'check-all')


def test_stop_and_start_in_the_midst(tenant, settling):
    tenant.openstack.nova.servers.stop(settling)
    tenant.openstack.wait_status(settling, 'SHUTOFF')
    tenant.openstack.nova.servers.start(settling)
    check_booted(tenant, settling, 2)


def test_live_migration_in_the_midst(tenant, settling, cloud):
    tenant.live_migrate(settling, cloud.hosts[1])
    assert not list(cloud.hosts[0].instances.glob(f'{settling}*'))
    tenant.command(settling, 'verify')
    tenant.command(settling, 'check-all')


def test_snapshot_in_the_midst(tenant, settling, tmp_path):
    image = tenant.openstack.nova.servers.create_image(settling, 'in-the-midst')
    tenant._images.append(image)
    wait_until(lambda: tenant.openstack.image_api('GET', f'/{image}')['status'] == 'active',
               'the snapshot', 180)
    tenant.command(settling, 'verify')
    # Another server starts from it, with the data that the first one had.
    copy = tenant.server(image)
    console = tenant.login(copy)
    assert 'boot number 2' in console and 'mark: ok' in console
    tenant.command(copy, 'verify')


def test_resize_in_the_midst(tenant, settling, cloud):
    with tenant.only(cloud.hosts[0]):
        tenant.openstack.nova.servers.resize(settling, 'm1.small')
        tenant.openstack.wait_status(settling, 'VERIFY_RESIZE')
    check_booted(tenant, settling, 2)
    tenant.openstack.nova.servers.revert_resize(settling)
    tenant.openstack.wait_active(settling)
    check_booted(tenant, settling, 2)


def test_delete_in_the_midst(tenant, settling, cloud):
    tenant.delete_server(settling)
    assert not list(cloud.hosts[0].instances.glob(f'{settling}*'))


def test_nova_compute_killed_in_the_midst(tenant, settling, cloud):
    killed = cloud.services()['compute']
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: cloud.services()['compute'] is None, 'its end')
    tenant.command(settling, 'verify')
    cloud.start('compute')
    tenant.command(settling, 'verify')
    tenant.hard_reboot(settling)
    check_booted(tenant, settling, 2)


def test_the_host_lost_in_the_midst(tenant, settling, cloud):
    cloud.power_off(cloud.hosts[0])
    cloud.power_on(cloud.hosts[0])
    wait_until(lambda: not leftovers(tenant, settling), 'nothing is left behind')
    tenant.hard_reboot(settling)
    check_booted(tenant, settling, 2)


def test_space_is_reserved_in_placement(tenant, cloud):
    inventory = tenant.openstack.inventory(cloud.hosts[0])
    # The default quota of compute disk; this cloud reserves nothing else.
    assert inventory['DISK_GB']['reserved'] == 10
    assert inventory['MEMORY_MB']['reserved'] == 512, 'Nova\'s own default: no memory tier'
