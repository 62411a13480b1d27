"""Servers that boot before there is a cache image, and images whose first boot is a server's."""

import contextlib
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tools.cloud.bootcache import STORAGE_SERVICE
from tools.cloud.tenant import wait_until


def size(file):
    """Bytes of a file; none of one that has been renamed meanwhile."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.fixture(scope='module', autouse=True)
def no_profile_boots(cloud):
    """Images are not booted when they are registered: as if they had been there before us."""
    cloud.layer(STORAGE_SERVICE, '50-cold', {'bootcache': {
        'profile_boots': False, 'profile_linger': 3, 'profile_silence': 20}})
    with cloud.hosts_heard():
        cloud.restart(STORAGE_SERVICE)
    yield
    cloud.layer(STORAGE_SERVICE, '50-cold', None)
    with cloud.hosts_heard():
        cloud.restart(STORAGE_SERVICE)


def base_bytes(wire, begin, image):
    return sum(request.length for request in wire.requests(begin, wire.position())
               if request.export.startswith(f'base-{image}'))


def test_a_cold_server_boots_at_once_and_its_boot_makes_the_cache_image(tenant, small_image, wire,
                                                                        cloud):
    """And two cold servers on one host fetch once."""
    image = tenant.image(small_image)
    tenant.wait_state(image, 'served')
    begin = wire.position()
    first = tenant.server(image)
    chain = tenant.backing(first)
    assert '/_bootcache/' in chain[1] and 'gateway.sock' in chain[2]
    tenant.login(first)
    alone = base_bytes(wire, begin, image)
    assert wire.downloaded(begin, wire.position(), image) == 0
    found = tenant.wait_state(image, 'ready')
    assert found['working_set']['recorded_by'] == 'server'
    assert found['working_set']['bytes'] > 5_000_000

    # The host replaces its empty cache image; the server that runs goes on with the old one.
    cache = tenant.openstack.disk(first).parent.parent / '_bootcache'
    wait_until(lambda: any(size(file) > 5_000_000 for file in cache.iterdir()),
               'the whole cache image')
    tenant.command(first, 'check-all')
    begin = wire.position()
    warm = tenant.server(image)
    tenant.login(warm)
    assert base_bytes(wire, begin, image) < 0.05 * alone
    tenant.delete_server(first)
    tenant.delete_server(warm)

    other = tenant.image(small_image)
    tenant.wait_state(other, 'served')
    begin = wire.position()
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _number: tenant.server(other), range(2)))
        list(pool.map(tenant.login, both))
    together = base_bytes(wire, begin, other)
    assert together <= 1.1 * alone, (together, alone)


def test_an_image_that_nobody_announced(tenant, small_image, cloud, compute_log):
    """The storage service hears of it from the first server."""
    with cloud.storage_service_down():
        cloud.override('glance', 'oslo_messaging_notifications', 'driver', 'noop')
        cloud.restart('glance')
        try:
            image = tenant.image(small_image)
        finally:
            cloud.override('glance', 'oslo_messaging_notifications', 'driver', None)
            cloud.restart('glance')
    server = tenant.server(image)
    assert '/_bootcache/' in tenant.backing(server)[1], compute_log.text()
    tenant.login(server)
    tenant.wait_state(image, 'ready')


def test_boots_refine_a_working_set(tenant, small_image, wire):
    """The first server is deleted in mid-boot: the next one is the first whole boot.

    A set of a whole boot would take two; tests/unit/glance_bootcache/test_reports.py has these.
    """
    image = tenant.image(small_image)
    tenant.wait_state(image, 'served')
    first = tenant.server(image)
    wait_until(lambda: tenant.openstack.bytes_read(first) > 2_000_000, 'the begin of the boot')
    tenant.delete_server(first)
    found = tenant.wait_state(image, 'ready')
    assert found['working_set']['ended_by'] == 'shutdown'
    assert found['working_set']['version'] == 1
    missed = []
    for boot in range(2):
        begin = wire.position()
        server = tenant.server(image)
        tenant.login(server)
        missed.append(base_bytes(wire, begin, image))
        if boot == 0:
            wait_until(lambda: tenant.show(image)['working_set']['version'] == 2, 'a new version')
            tenant.wait_state(image, 'ready')
        tenant.delete_server(server)
    assert missed[1] < 0.2 * missed[0], missed
    # What the third one read beyond that has been read by one server only.
    found = tenant.show(image)['working_set']
    assert found['version'] == 2 and found['ended_by'] in ('marker', 'silence'), (found, missed)


def test_a_snapshot_in_mid_boot_is_not_taken_for_the_boot(tenant, small_image, compute_log):
    """Its reads are in the same growing store: a working set six times the boot's came of it."""
    image = tenant.image(small_image)
    tenant.wait_state(image, 'served')
    server = tenant.server(image)
    wait_until(lambda: tenant.openstack.bytes_read(server) > 2_000_000, 'the begin of the boot')
    name = f'snapshot-of-{server}'
    tenant.openstack.run('server', 'image', 'create', '--wait', '--name', name, server)
    tenant._images.append(tenant.openstack.json('image', 'show', name)['id'])
    compute_log.wait(f'what server {server} read while it booted is not reported')
    tenant.login(server)
    tenant.delete_server(server)
    assert not tenant.show(image)['working_set']
    whole = tenant.server(image)
    tenant.login(whole)
    found = tenant.wait_state(image, 'ready')['working_set']
    assert found['version'] == 1 and found['ended_by'] in ('marker', 'silence')
    # The image has 172 MB of data, all of which the snapshot read.
    assert 5_000_000 < found['bytes'] < 40_000_000, found
    tenant.delete_server(whole)


@contextlib.contextmanager
def small_memory_tier(cloud, mebibytes):
    """The first host has compute memory of a few MiB, and growing stores of all of it."""
    host = cloud.hosts[0]
    path = cloud.layout.run / 'small-memory'
    path.mkdir(exist_ok=True)
    # As doc/source/install.rst has it.
    mount = ['mount', '-t', 'tmpfs', '-o', f'size={mebibytes}m,mode=0755,uid=nova,gid=nova',
             'tmpfs', str(path)]
    subprocess.run(cloud.inside(host, *mount), check=True)
    cloud.layer(host.compute, '50-memory', {'bootcache': {
        'compute_memory_directory': path, 'compute_memory_quota': f'{mebibytes}MiB',
        'high_watermark': 100, 'store_quota': f'{mebibytes}MiB'}})
    cloud.restart(host.compute)
    try:
        yield path
    finally:
        cloud.layer(host.compute, '50-memory', None)
        cloud.restart(host.compute)
        # The gateway holds what servers that still run have read.
        subprocess.run(cloud.inside(host, 'umount', '--lazy', str(path)), check=True)


@pytest.mark.parametrize('mebibytes', [1, 3])
def test_a_full_growing_store_is_no_error_for_the_guest(tenant, small_image, cloud, compute_log,
                                                        mebibytes):
    image = tenant.image(small_image)
    tenant.wait_state(image, 'served')
    with small_memory_tier(cloud, mebibytes):
        server = tenant.server(image)
        tenant.login(server)
        tenant.command(server, 'check-all')
        compute_log.wait('and stops to grow')
        assert 'read without a growing store' not in compute_log.text()
        tenant.delete_server(server)
