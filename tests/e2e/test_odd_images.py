"""Images and guests that do not go as others do: each says so, and leaves nothing behind."""


import subprocess

import pytest

from bootcache import naming
from tools.cloud.client import ClientError
from tools.cloud.tenant import wait_until


def fails(tenant, image, flavor='m1.tiny'):
    """Start a server that goes to ERROR; its id, and what Nova says of it."""
    with pytest.raises(ClientError) as error:
        tenant.server(image, flavor)
    return tenant._servers[-1], str(error.value)


def left_of(cloud, image):
    """The files that the first host and the storage node still have of an image."""
    name = naming.cache_file_name(image)
    instances = cloud.hosts[0].instances
    files = [path for folder in ('_bootcache', '_base') if (instances / folder).is_dir()
             for path in (instances / folder).iterdir() if path.name.startswith(name)]
    directory = cloud.state_directory / 'images' / image
    return files + ([directory] if directory.exists() else [])


def test_an_image_that_is_larger_than_the_flavor(tenant, small_image, cloud, tmp_path,
                                                 compute_log):
    large = tmp_path / 'large.qcow2'
    large.write_bytes(small_image.read_bytes())
    subprocess.run(['qemu-img', 'resize', '-q', '-f', 'qcow2', str(large), '3G'], check=True)
    image = tenant.image(large)
    wait_until(lambda: (tenant.show(image) or {}).get('base_path'), 'the base')
    _server, fault = fails(tenant, image)
    assert 'too small for requested image' in fault, fault
    assert not (cloud.hosts[0].instances / '_base' / naming.cache_file_name(image)).exists()
    assert 'goes the stock way' not in compute_log.text()


def test_a_server_that_never_starts_leaves_nothing(tenant, small_image, cloud):
    image = tenant.image(small_image, hw_machine_type='pc-bogus-9.9')
    found = tenant.wait_state(image, 'failed')
    assert 'pc-bogus' in found['reason'] and 'flavor' in found['reason'], found['reason']
    server, _fault = fails(tenant, image)
    assert left_of(cloud, image)
    tenant.delete_server(server)
    tenant.delete_image(image)
    wait_until(lambda: not left_of(cloud, image), f'the end of {left_of(cloud, image)}', 240)


def test_a_guest_without_its_disk_s_driver_gets_no_cache_image(tenant, small_image):
    """Its kernel has none for SATA: it waits for its disk in vain, and switches itself off."""
    image = tenant.image(small_image, hw_disk_bus='sata')
    found = tenant.wait_state(image, 'failed')
    assert 'switched itself off' in found['reason'] and 'driver' in found['reason'], found
    assert not found['cache_image']


def test_deactivated_and_activated_while_a_server_runs(tenant, small_image):
    image = tenant.image(small_image)
    tenant.wait_state(image, 'ready')
    server = tenant.server(image)
    tenant.login(server)
    before = tenant.show(image)['base_path']
    tenant.openstack.run('image', 'set', '--deactivate', image)
    tenant.wait_state(image, 'skipped')
    tenant.openstack.run('image', 'set', '--activate', image)
    found = tenant.wait_state(image, 'ready')
    assert found['base_path'] == before and found['reason'] == ''
    tenant.command(server, 'check-all')
