"""Hosts that are warm before they are asked, and hosts that let go, in the real cloud."""

import contextlib

import pytest

from bootcache import naming
from bootcache.rpc.messages import GetWarming, PlanBoot, WarmImage
from tools.cloud.bootcache import STORAGE_SERVICE
from tools.cloud.tenant import Log, wait_until


def files(host, image):
    """What a host has of a cache image: the file and its entry, not what is being expanded."""
    directory = host.instances / '_bootcache'
    return sorted(path.name for path in directory.glob(f'{naming.cache_file_name(image)}*')
                  if not path.name.endswith('.expanded.partial'))


def whole(image):
    """What a host that is warm has."""
    name = naming.cache_file_name(image)
    return [name, f'{name}.json']


def wait_warm(image, *hosts):
    wait_until(lambda: all(files(host, image) == whole(image) for host in hosts), 'warm hosts')


def wait_gone(image, *hosts):
    wait_until(lambda: not any(files(host, image) for host in hosts), 'hosts that have let go')


def crossed(wire, begin, end):
    """The bytes that hosts read from the exporter in between."""
    return sum(request.length for request in wire.requests(begin, end))


@pytest.fixture
def image(tenant, small_image):
    """An image of its own, with its cache image ready."""
    image = tenant.image(small_image)
    tenant.wait_state(image, 'ready')
    return image


@pytest.fixture
def warm(tenant, image, cloud):
    """The image, both hosts warmed for it by Nova's API; none of them has a server of it."""
    with tenant.aggregate(*cloud.hosts) as aggregate:
        tenant.openstack.run('aggregate', 'cache', 'image', aggregate, image)
        wait_warm(image, *cloud.hosts)
    return image


def test_an_aggregate_is_warmed_with_the_plain_client(tenant, image, cloud, wire):
    conductor = Log(cloud.layout.log / 'conductor.log')
    size = tenant.show(image)['cache_image']['bytes']
    begin = wire.position()
    with tenant.aggregate(*cloud.hosts) as aggregate:
        tenant.openstack.run('aggregate', 'cache', 'image', aggregate, image)
        conductor.wait('2 cached, 0 existing, 0 errors, 0 unsupported')
        tenant.openstack.run('aggregate', 'cache', 'image', aggregate, image)
        conductor.wait('0 cached, 2 existing, 0 errors, 0 unsupported')
    wait_warm(image, *cloud.hosts)
    # Twice the cache image crossed the wire, but for its holes, and never the image.
    end = wire.position()
    assert 1.9 * size <= crossed(wire, begin, end) <= 2 * size
    assert wire.downloaded(begin, end, image) == 0
    assert not [host for host in cloud.hosts
                if (host.instances / '_base' / naming.cache_file_name(image)).exists()]
    # Its first server there fetches nothing.
    tenant.login(tenant.server(image, host=cloud.hosts[1]))
    assert crossed(wire, end, wire.position()) == 0


def test_a_server_boots_while_the_cache_image_is_on_its_way(tenant, image, cloud, wire,
                                                            compute_log):
    """Its boot is not watched: then the host would wait for the whole of it."""
    host = cloud.hosts[0]
    size = tenant.show(image)['cache_image']['bytes']
    with storage_with(cloud, refine_boots=0), tenant.aggregate(cloud.hosts[1]) as aggregate:
        # A service that has just begun has to read all of the file before servers read from it on
        # its way: it does when the other host is warmed.
        tenant.openstack.run('aggregate', 'cache', 'image', aggregate, image)
        wait_warm(image, cloud.hosts[1])
        begin = wire.position()
        first = tenant.server(image, host=host)
        tenant.login(first)
        assert f'server {first} boots from the cache image, on its way here, of {image}' \
            in compute_log.text()
        wait_warm(image, host)
        # Each byte once, whoever asked for it; and (nearly) none of the base.
        end = wire.position()
        assert 0.9 * size <= crossed(wire, begin, end) <= 1.01 * size
        assert wire.downloaded(begin, end, image) == 0
        second = tenant.server(image, host=host)
        tenant.login(second)
        assert crossed(wire, end, wire.position()) < 0.01 * size
    # The first one's disk is chained to a name: from its next start on it is warm, too.
    tenant.openstack.run('server', 'reboot', '--hard', first)
    wait_until(lambda: 'boot number 2' in tenant.openstack.console(first), 'the second boot', 120)
    tenant.login(first)
    tenant.command(first, 'check-all')


def test_an_image_that_opted_out_is_warmed_as_stock_nova_does(tenant, small_image, cloud):
    image = tenant.image(small_image, bootcache_mode='off')
    with tenant.aggregate(cloud.hosts[0]) as aggregate:
        tenant.openstack.run('aggregate', 'cache', 'image', aggregate, image)
        base = cloud.hosts[0].instances / '_base' / naming.cache_file_name(image)
        wait_until(base.exists, 'the full base')
    assert files(cloud.hosts[0], image) == []


@contextlib.contextmanager
def storage_with(cloud, **options):
    """The storage service runs with other options in between."""
    cloud.layer(STORAGE_SERVICE, '80-warming', {'bootcache': options})
    with cloud.hosts_heard():
        cloud.restart(STORAGE_SERVICE)
    try:
        yield
    finally:
        cloud.layer(STORAGE_SERVICE, '80-warming', None)
        with cloud.hosts_heard():
            cloud.restart(STORAGE_SERVICE)


def test_hosts_are_warmed_when_an_image_is_registered(tenant, small_image, cloud):
    with tenant.aggregate(cloud.hosts[1]) as aggregate, \
            storage_with(cloud, warm_on_register=aggregate):
        image = tenant.image(small_image)
        tenant.wait_state(image, 'ready')
        wait_warm(image, cloud.hosts[1])
        done, = wait_until(lambda: [one for one in tenant.storage_client.send(GetWarming(image))
                                    if one['done']], 'the warming')
    assert done['aggregate'] == aggregate
    assert [(host, found['outcome']) for host, found in done['hosts'].items()] \
        == [(cloud.hosts[1].hostname, 'cached')]
    # The first host ran the profile boot, perhaps, but holds no cache image.
    assert files(cloud.hosts[0], image) == []


def test_a_host_that_fails_is_reported_and_stops_no_other(tenant, image, cloud):
    first, second = cloud.hosts
    storage = Log(cloud.layout.log / 'glance-bootcache.log')
    blocker = first.instances / '_bootcache' / f'{naming.cache_file_name(image)}.partial'
    # A folder where the file is to be made: nova-compute cannot fetch, whoever it runs as.
    blocker.mkdir()
    try:
        with tenant.aggregate(first, second) as aggregate, \
                storage_with(cloud, warm_attempts=2, warm_timeout=30):
            tenant.storage_client.send(WarmImage(image, [aggregate]))
            wait_warm(image, second)
            done, = wait_until(lambda: [one for one in tenant.storage_client.send(GetWarming(image))
                                        if one['done']], 'the end of trying', 150)
    finally:
        blocker.rmdir()
    assert done['hosts'][second.hostname]['outcome'] in ('cached', 'existing')
    failed = done['hosts'][first.hostname]
    assert (failed['outcome'], failed['attempts']) == ('error', 2) and failed['reason']
    assert first.hostname in storage.text() and failed['reason'] in storage.text()
    assert files(first, image) == []


# Letting go.

def test_a_deleted_image_leaves_the_hosts(tenant, warm, cloud):
    tenant.delete_image(warm)
    wait_gone(warm, *cloud.hosts)


def test_a_deactivated_image_is_not_given_out_and_leaves_the_hosts(tenant, warm, cloud):
    server = tenant.server(warm, host=cloud.hosts[0])
    tenant.login(server)
    tenant.openstack.run('image', 'set', '--deactivate', warm)
    # The host with a server keeps it, the other one does not.
    wait_gone(warm, cloud.hosts[1])
    wait_until(lambda: tenant.storage_client.send(PlanBoot(warm, 'host', 'server'))['action']
               == 'stock', 'it is not given out')
    assert files(cloud.hosts[0], warm) == whole(warm)
    tenant.command(server, 'check-all')
    tenant.delete_server(server)
    wait_gone(warm, cloud.hosts[0])
    tenant.openstack.run('image', 'set', '--activate', warm)


def test_an_image_that_fewer_people_may_see_leaves_the_hosts(tenant, warm, cloud):
    tenant.openstack.run('image', 'set', '--public', warm)
    wait_until(lambda: tenant.show(warm)['visibility'] == 'public', 'the storage service sees it')
    assert files(cloud.hosts[0], warm) == whole(warm), 'more people may see it: nothing goes'
    tenant.openstack.run('image', 'set', '--private', warm)
    wait_gone(warm, *cloud.hosts)
    # Whoever may see it boots from its cache image as before.
    tenant.login(tenant.server(warm, host=cloud.hosts[0]))
    wait_warm(warm, cloud.hosts[0])
    assert tenant.show(warm)['state'] == 'ready'
