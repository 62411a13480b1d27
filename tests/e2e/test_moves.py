"""Servers that move between hosts: with our driver on both, and with Nova's own on one of them."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tools.cloud.bootcache import DRIVER, STOCK_DRIVER, TAP
from tools.cloud.tenant import wait_until


@pytest.fixture(scope='module')
def images(module_tenant, small_image):
    """One whose servers stay on the cache image, and one whose servers are settled."""
    images = [module_tenant.image(small_image, bootcache_settle=settle) for settle in ('no', 'yes')]
    for image in images:
        module_tenant.wait_state(image, 'ready')
    return images


@pytest.fixture
def servers(tenant, images):
    """An unsettled and a settled server on the first host, with data of their own."""
    with ThreadPoolExecutor() as pool:
        servers = list(pool.map(tenant.server, images))
        list(pool.map(tenant.login, servers))
        list(pool.map(lambda server: tenant.command(server, 'write 2'), servers))
    wait_until(lambda: '/_base/' in tenant.backing(servers[1])[1], 'settling')
    return servers


@pytest.fixture(scope='module')
def stock_second(cloud):
    """The second host runs Nova's own driver, and has no base."""
    second = cloud.hosts[1]
    cloud.use_driver(STOCK_DRIVER, second)
    for base in (second.instances / '_base').glob('*'):
        base.unlink()
    yield second
    cloud.use_driver(DRIVER, second)


def live(tenant, server, host):
    tenant.live_migrate(server, host)
    tenant.check(server)
    tenant.command(server, 'write 1')


def cold(tenant, server, host):
    tenant.migrate(server, host)
    tenant.check_after_boot(server)
    tenant.confirm(server)


def each(action, servers):
    """One after the other: two guests that migrate at once have crashed under emulation."""
    for server in servers:
        action(server)


def in_parallel(action, servers):
    with ThreadPoolExecutor() as pool:
        list(pool.map(action, servers))


def test_between_two_hosts_with_our_driver(tenant, servers, cloud):
    first, second = cloud.hosts
    each(lambda server: live(tenant, server, second), servers)
    assert '/_bootcache/' in tenant.backing(servers[0])[1]
    in_parallel(lambda server: cold(tenant, server, first), servers)
    assert '/_bootcache/' in tenant.backing(servers[0])[1]
    for server in servers:
        assert not list(second.instances.glob(f'{server}*'))


def test_a_cold_migration_that_is_reverted(tenant, servers, cloud):
    second = cloud.hosts[1]

    def there_and_back(server):
        tenant.migrate(server, second)
        tenant.check_after_boot(server)
        tenant.revert(server)
        tenant.check_after_boot(server)

    in_parallel(there_and_back, servers)
    assert '/_bootcache/' in tenant.backing(servers[0])[1]
    assert '/_base/' in tenant.backing(servers[1])[1]


def test_a_cold_migration_that_is_reverted_while_the_storage_node_is_away(tenant, servers, cloud):
    """The source needs nothing but what it kept: the guest starts, and waits if it has to."""
    server, _settled = servers
    tenant.migrate(server, cloud.hosts[1])
    tenant.check_after_boot(server)
    cloud.stop(TAP)
    try:
        # What the gateway still has of the base is gone with it.
        os.kill(cloud.gateway_pid(cloud.hosts[0]), signal.SIGKILL)
        tenant.revert(server)
    finally:
        cloud.start(TAP)
    tenant.check_after_boot(server)
    assert '/_bootcache/' in tenant.backing(server)[1]


def test_evacuation(tenant, servers, cloud):
    first, second = cloud.hosts
    with tenant.failed(first):
        for server in servers:
            tenant.evacuate(server, second)
        for server in servers:
            tenant.login(server)
            tenant.command(server, 'verify', 'none')
            tenant.command(server, 'check-all')


def test_live_to_a_stock_host_and_back(tenant, servers, stock_second, cloud):
    first = cloud.hosts[0]
    each(lambda server: live(tenant, server, stock_second), servers)
    for server in servers:
        # It arrives as a stock server.
        assert '/_base/' in tenant.backing(server)[1] and len(tenant.backing(server)) == 2
    each(lambda server: live(tenant, server, first), servers)


def test_cold_to_a_stock_host_and_back(tenant, servers, stock_second, cloud):
    first = cloud.hosts[0]
    in_parallel(lambda server: cold(tenant, server, stock_second), servers)
    for server in servers:
        assert '/_base/' in tenant.backing(server)[1]
    in_parallel(lambda server: cold(tenant, server, first), servers)


def test_a_server_that_was_made_on_a_stock_host(tenant, images, stock_second, cloud):
    server = tenant.server(images[0], host=stock_second)
    tenant.login(server)
    tenant.command(server, 'write 2')
    live(tenant, server, cloud.hosts[0])
    tenant.openstack.nova.servers.reboot(server, 'HARD')
    wait_until(lambda: 'boot number 2' in tenant.openstack.console(server), 'the second boot', 120)
    tenant.openstack.wait_console(server, 'small login:')
    tenant.check(server)
