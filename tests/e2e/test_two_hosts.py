"""Nova's own moves between the two hosts, with Nova's own driver.

They are the control: what fails here is not bootcache's. One server goes through all of them, as
its boots would take most of the time; each test finds it on some host, and moves it to the other.
"""

import pytest

from tools.cloud.bootcache import DRIVER, STOCK_DRIVER
from tools.cloud.tenant import wait_until


@pytest.fixture(scope='module')
def server(cloud, module_tenant, small_image):
    """A server on the second host; both hosts run the stock driver."""
    cloud.use_driver(STOCK_DRIVER, *cloud.hosts)
    image = module_tenant.image(small_image, bootcache_mode='off')
    server = module_tenant.server(image, host=cloud.hosts[1])
    assert module_tenant.host_of(server) == cloud.hosts[1]
    module_tenant.login(server)
    yield server
    module_tenant.delete_server(server)
    cloud.use_driver(DRIVER, *cloud.hosts)


@pytest.fixture
def hosts(cloud, tenant, server):
    """The host where the server is, and the other one; the server has new data of its own."""
    tenant.command(server, 'write 4')
    here = tenant.host_of(server)
    return here, next(host for host in cloud.hosts if host != here)


def files(host, server):
    return list(host.instances.glob(f'{server}*'))


def test_live_migration_there_and_back(tenant, server, hosts):
    here, there = hosts
    for host in (there, here):
        tenant.live_migrate(server, host)
        tenant.check(server)
        tenant.command(server, 'write 2')
        assert 'login:' not in tenant.openstack.console(server), 'the same run of the guest'
    assert not files(there, server)


def test_cold_migration(tenant, server, hosts):
    here, there = hosts
    tenant.migrate(server, there)
    tenant.check_after_boot(server)
    tenant.confirm(server)
    assert not files(here, server)


def test_resize_to_the_other_host_and_back(tenant, server, hosts):
    here, there = hosts
    tenant.resize(server, 'm1.small', there)
    tenant.check_after_boot(server)
    tenant.revert(server)
    assert tenant.host_of(server) == here
    tenant.check_after_boot(server)
    assert not files(there, server)


def test_evacuation(tenant, server, hosts):
    here, there = hosts
    with tenant.failed(here):
        tenant.evacuate(server, there)
        tenant.login(server)
        # A new disk, made from the image.
        tenant.command(server, 'verify', 'none')
        tenant.command(server, 'check-all')
    wait_until(lambda: not files(here, server), 'the old files are gone')


def test_a_host_that_reboots(tenant, server, hosts, cloud):
    here, _there = hosts
    cloud.power_off(here)
    assert not cloud.guests()
    cloud.power_on(here)
    tenant.openstack.run('server', 'reboot', '--hard', server)
    wait_until(cloud.guests, 'the guest runs again')
    tenant.openstack.wait_active(server)
    tenant.check_after_boot(server)
