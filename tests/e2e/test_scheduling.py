"""Where Nova's real scheduler puts servers, with the weigher and the filter and without them.

Both hosts have the same size; each test makes the second one busier, so that without bootcache's
weigher Nova chooses the first one.
"""

import contextlib
import uuid

import pytest

from bootcache import naming
from nova_bootcache.published import warmth
from nova_bootcache.published.warmth import Level
from tools.cloud import records
from tools.cloud.bootcache import DRIVER, STOCK_DRIVER
from tools.cloud.client import ClientError
from tools.cloud.tenant import Log, wait_until

NOVA_WEIGHERS = 'nova.scheduler.weights.all_weighers'


@pytest.fixture(scope='module', autouse=True)
def published_soon(cloud):
    """Hosts publish what they hold every two seconds, not every minute."""
    computes = [host.compute for host in cloud.hosts]
    for compute in computes:
        cloud.override(compute, 'DEFAULT', 'update_resources_interval', 2)
    cloud.restart(*computes)
    yield
    for compute in computes:
        cloud.override(compute, 'DEFAULT', 'update_resources_interval', None)
    cloud.restart(*computes)


@contextlib.contextmanager
def scheduler_with(cloud, option, value):
    """nova-scheduler runs with another value of an option in between, and remembers nothing."""
    cloud.override('scheduler', 'filter_scheduler', option, value)
    cloud.restart('scheduler')
    try:
        yield
    finally:
        cloud.override('scheduler', 'filter_scheduler', option, None)
        cloud.restart('scheduler')


def level(cloud, host, image):
    """How warm a host is for an image, by what it has published; None if it publishes nothing."""
    text = records.statistics(cloud.layout, host).get(warmth.STATS_KEY)
    return None if text is None else warmth.decode(text).level(warmth.image_key(image))


def wait_level(cloud, host, image, wanted):
    wait_until(lambda: level(cloud, host, image) is wanted,
               f'{host.hostname} publishes {wanted} of {image}')


def warmed(tenant, image, host):
    """Boot a server on a host, and wait until the host says that it is warm; the server.

    And that it builds none any more: Nova's weigher of I/O counts that against it.
    """
    server = tenant.server(image, host=host)
    wait_level(tenant.cloud, host, image, Level.DISK)
    wait_until(lambda: records.statistics(tenant.cloud.layout, host).get('io_workload') == '0',
               f'{host.hostname} publishes that it builds nothing')
    return server


def anywhere(tenant, image, *more):
    """Boot a server where Nova's scheduler wants it; its host."""
    server = tenant.openstack.create_server(f'e2e-{uuid.uuid4().hex[:8]}', image, 'm1.tiny', *more)
    tenant._servers.append(server)
    tenant.openstack.wait_active(server)
    return tenant.host_of(server)


def test_the_second_server_goes_to_the_warm_host_and_without_the_weigher_it_does_not(
        tenant, ready_image, cloud):
    first, second = cloud.hosts
    tenant.login(warmed(tenant, ready_image, second))
    assert level(cloud, first, ready_image) is Level.COLD
    # Restarted, the scheduler knows only what the hosts publish.
    with scheduler_with(cloud, 'weight_classes', NOVA_WEIGHERS):
        assert anywhere(tenant, ready_image) == first
    tenant.clean_servers()
    # The first host is warm now, too: it has to forget it.
    forget(cloud, ready_image, first)
    warmed(tenant, ready_image, second)
    assert anywhere(tenant, ready_image) == second


def forget(cloud, image, *hosts):
    """Take an image's cache image away from hosts without servers; the scheduler forgets, too."""
    for host in hosts:
        for file in (host.instances / '_bootcache').glob(f'{naming.cache_file_name(image)}*'):
            # What is being expanded goes by itself as well.
            file.unlink(missing_ok=True)
    for host in hosts:
        wait_level(cloud, host, image, Level.COLD)
    cloud.restart('scheduler')


def test_an_aggregate_overrides_the_multiplier(tenant, ready_image, cloud):
    first, second = cloud.hosts
    forget(cloud, ready_image, first)
    warmed(tenant, ready_image, second)
    with tenant.aggregate(second, bootcache_weight_multiplier='0'):
        assert anywhere(tenant, ready_image) == first
    tenant.clean_servers()
    forget(cloud, ready_image, first)
    warmed(tenant, ready_image, second)
    assert anywhere(tenant, ready_image) == second


def test_a_storm_follows_the_first_server_if_the_multiplier_says_so(tenant, small_image, cloud):
    """Both hosts are cold, and nothing is published between the servers of one request."""
    image = tenant.image(small_image)
    tenant.wait_state(image, 'ready')
    # Nova's weigher of I/O counts more against a host that builds a server than warmth for it.
    assert len({host.hostname for host in tenant.storm(image, 3)}) == 2
    tenant.clean_servers()
    forget(cloud, image, *cloud.hosts)
    with scheduler_with(cloud, 'bootcache_weight_multiplier', 4):
        assert len({host.hostname for host in tenant.storm(image, 3)}) == 1


def test_an_image_requires_the_driver(tenant, small_image, cloud):
    first, second = cloud.hosts
    image = tenant.image(small_image, bootcache_require='driver', bootcache_mode='off')
    log = Log(cloud.layout.log / 'scheduler.log')
    tenant.server(image, host=second)
    cloud.use_driver(STOCK_DRIVER, first)
    try:
        wait_until(lambda: level(cloud, first, image) is None, 'the first host publishes nothing')
        assert anywhere(tenant, image) == second
    finally:
        cloud.use_driver(DRIVER, first)
    log.wait(f'host {first.hostname}: does not run bootcache\'s driver, which image {image} asks')


def test_an_image_requires_a_warm_host(tenant, small_image, cloud):
    image = tenant.image(small_image, bootcache_require='warm')
    tenant.wait_state(image, 'ready')
    log = Log(cloud.layout.log / 'scheduler.log')
    with pytest.raises(ClientError, match='No valid host'):
        anywhere(tenant, image)
    for host in cloud.hosts:
        log.wait(f'host {host.hostname}: is not warm for image {image}, which asks for it')
    with tenant.aggregate(cloud.hosts[1]) as aggregate:
        tenant.openstack.run('aggregate', 'cache', 'image', aggregate, image)
        wait_level(cloud, cloud.hosts[1], image, Level.DISK)
    assert anywhere(tenant, image) == cloud.hosts[1]


def test_hosts_have_the_trait_while_bootcache_is_on(tenant, cloud):
    first, second = cloud.hosts
    wait_until(lambda: all('CUSTOM_BOOTCACHE' in tenant.openstack.traits(host)
                           for host in cloud.hosts), 'both hosts have the trait')
    cloud.override(first.compute, 'bootcache', 'enabled', False)
    cloud.restart(first.compute)
    try:
        wait_until(lambda: 'CUSTOM_BOOTCACHE' not in tenant.openstack.traits(first),
                   'the trait is gone')
        assert 'CUSTOM_BOOTCACHE' in tenant.openstack.traits(second)
    finally:
        cloud.override(first.compute, 'bootcache', 'enabled', None)
        cloud.restart(first.compute)
