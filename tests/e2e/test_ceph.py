"""Glance keeps its images in a real Ceph: bases are read there, and nothing is downloaded."""

import json
import subprocess

import pytest
from on_ceph import glance_in_ceph, restart

from bootcache.naming import cache_file_name
from tools.cloud.rbdstore import STORAGE_NAMESPACE as NAMESPACE
from tools.cloud.tenant import wait_until


@pytest.fixture(scope='module')
def ceph(cloud):
    """A Ceph in which Glance keeps its images, with the keys of the page about it."""
    with glance_in_ceph(cloud) as ceph:
        yield ceph


def clones(ceph, image):
    return [name for name in json.loads(ceph.run('rbd', 'ls', '--format', 'json', NAMESPACE))
            if image in name]


def test_a_life_on_ceph(ceph, cloud, tenant, raw_image, wire, storage_log):
    begin = wire.position()
    image = tenant.image(raw_image, disk_format='raw', bootcache_settle='yes')
    found = tenant.wait_state(image, 'ready')
    [clone] = clones(ceph, image)
    assert found['base_path'] == f'rbd:{NAMESPACE}/{clone}'
    files = [path.name for path in (cloud.state_directory / 'images' / image).iterdir()]
    assert not [name for name in files if name.startswith(('base', 'look'))]

    server = tenant.server(image)
    tenant.login(server)
    tenant.command(server, 'check-all')
    base = cloud.hosts[0].instances / '_base' / cache_file_name(image)
    wait_until(lambda: '/_base/' in tenant.backing(server)[1], 'the server settles', 240)
    assert subprocess.run(['cmp', str(raw_image), str(base)], check=False).returncode == 0
    tenant.command(server, 'check-all')
    # All of that came from Ceph.
    assert wire.downloaded(begin, wire.position(), image) == 0

    # Glance deletes what is being read, and says nothing against it.
    other = tenant.server(image, host=cloud.hosts[1])
    tenant.login(other)
    tenant.delete_image(image)
    assert image in ceph.run('rbd', 'trash', 'ls', 'images')
    tenant.command(other, 'check-all')
    tenant.clean_servers()
    wait_until(lambda: not (cloud.state_directory / 'images' / image).exists(),
               'the end of the image', 240)
    # A start of the service looks for what nothing needs.
    restart(cloud)
    wait_until(lambda: not clones(ceph, image), 'the end of the clone')
    ceph.run('rbd', 'trash', 'purge', '--no-progress', 'images')
    assert image not in ceph.run('rbd', 'trash', 'ls', 'images')


def test_a_qcow2_is_downloaded_as_before(ceph, tenant, small_image, wire, storage_log):
    begin = wire.position()
    image = tenant.image(small_image)
    found = tenant.wait_state(image, 'ready')
    assert found['base_path'].startswith('/') and not clones(ceph, image)
    storage_log.wait(f'image {image}: its base is not read in Ceph')
    assert wire.downloaded(begin, wire.position(), image) > small_image.stat().st_size / 2
    tenant.login(tenant.server(image))
