"""Two storage nodes on one MariaDB: the one that servers read from in mid-boot dies for good."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tools.cloud.storagenodes import register_at, storage_nodes
from tools.cloud.tenant import wait_until


@pytest.fixture(scope='module')
def nodes(cloud):
    with storage_nodes(cloud, ['storage-a', 'storage-b']) as found:
        yield found


def listed(cloud, tenant, config_file):
    """Each node's state and count of images, by its name, as the operator sees them."""
    return {row['node']: (row['state'], row['images'])
            for row in tenant.openstack.bootcache(config_file, 'node', 'list')}


@pytest.mark.parametrize('count', [4, pytest.param(20, marks=pytest.mark.long)])
def test_the_node_that_serves_servers_in_mid_boot_dies_for_good(cloud, tenant, nodes, count):
    for node in nodes:
        node.start()
    home, other = nodes

    def states():
        return listed(cloud, tenant, other.config_file)

    image = register_at(tenant, home, [other])
    wait_until(lambda: states() == {home.name: ('up', 1), other.name: ('up', 0)}, 'the home')

    servers = [tenant.ask(image, host=cloud.hosts[number % len(cloud.hosts)])
               for number in range(count)]
    for server in servers:
        tenant.openstack.wait_active(server)
    wait_until(lambda: any(tenant.openstack.bytes_read(server) > 2_000_000 for server in servers),
               'the begin of the boots')
    home.kill()
    with ThreadPoolExecutor(4) as pool:
        # No guest sees an error: each checks all of its disk.
        list(pool.map(tenant.login, servers))
        list(pool.map(lambda server: tenant.command(server, 'check-all', timeout=240), servers))
    assert states() == {home.name: ('away', 0), other.name: ('up', 1)}
    late = tenant.server(image)
    tenant.login(late)
