"""Images that come into Glance: each way, each kind."""

import os
import signal
import subprocess

import pytest

from tools.cloud.bootcache import STORAGE_SERVICE
from tools.cloud.client import ClientError
from tools.cloud.tenant import wait_until


def profile_servers(tenant):
    return [server for server in tenant.openstack.nova.servers.list(search_opts={'all_tenants': 1})
            if server.name.startswith('bootcache-profile-')]


def test_import_is_announced_by_the_hook_and_recorded_once(tenant, small_image, storage_log):
    image = tenant.image(small_image, by_import=True)
    found = tenant.wait_state(image, 'ready')
    text = storage_log.text()
    assert f'image {image}: announced by the Glance hook' in text
    # The hook and the notification both tell of it.
    assert text.count(f'image {image}: profile boot as server') == 1
    assert found['working_set']['ended_by'] == 'marker'
    assert found['working_set']['bytes'] > 5_000_000
    # Nova deletes it while the cache image is built.
    wait_until(lambda: not profile_servers(tenant), 'the profile server is deleted')


def test_direct_upload_is_recorded_once(tenant, small_image, storage_log):
    image = tenant.image(small_image)
    tenant.wait_state(image, 'ready')
    text = storage_log.text()
    assert f'image {image}: announced' not in text
    assert text.count(f'image {image}: profile boot as server') == 1


def test_a_marker_of_the_users_choice_ends_the_recording(tenant, small_image):
    image = tenant.image(small_image, bootcache_boot_marker='^boot number [0-9]+',
                         bootcache_quota='2MiB')
    found = tenant.wait_state(image, 'ready')
    assert found['working_set']['boot_marker'] == '^boot number [0-9]+'
    assert found['cache_image']['quota'] == 2 << 20
    assert found['cache_image']['bytes'] <= 2 << 20
    # A new quota needs no new boot.
    tenant.openstack.run('image', 'set', '--property', 'bootcache_quota=256MiB', image)
    wait_until(lambda: (tenant.show(image)['cache_image'] or {}).get('quota') == 256 << 20,
               'the cache image of the new quota')
    tenant.wait_state(image, 'ready')


@pytest.mark.parametrize('properties, reason, told', [
    ({'bootcache_mode': 'off'}, 'bootcache_mode=off', 'bootcache_mode=off'),
    ({'bootcache_mode': 'sometimes'}, "bootcache_mode='sometimes' is not one of: auto, off",
     'has to be one of: auto, off'),
    ({'bootcache_quota': 'plenty'}, "bootcache_quota='plenty' is not a size", 'to be a size'),
    ({'bootcache_quota': '9TiB'}, 'is not between', 'that this cloud allows'),
    ({'bootcache_boot_marker': '(['}, 'is not a regular expression', 'a regular expression'),
    ({'kernel_id': 'deadbeef'}, 'a separate kernel', 'images with a kernel'),
])
def test_images_that_are_skipped_say_why(tenant, small_image, properties, reason, told):
    image = tenant.image(small_image, **properties)
    found = tenant.wait_state(image, 'skipped')
    assert reason in found['reason']
    tenant.wait_property(image, 'bootcache_reason', told)


@pytest.fixture
def special_flavor(cloud, tenant):
    """A flavor for hosts with GPUs, of which there are none: the smallest for profile boots."""
    flavor = tenant.openstack.nova.flavors.create('a.gpu', ram=512, vcpus=1, disk=1)
    flavor.set_keys({'resources:CUSTOM_GPU': '1'})
    yield flavor
    flavor.delete()
    cloud.layer(STORAGE_SERVICE, '50-test', None)
    with cloud.hosts_heard():
        cloud.restart(STORAGE_SERVICE)


def test_flavors_for_other_hosts_are_not_taken_and_no_host_is_no_end(
        tenant, small_image, cloud, special_flavor, storage_log):
    image = tenant.image(small_image)
    tenant.wait_state(image, 'ready')
    assert 'flavor a.gpu' not in storage_log.text()
    # An operator may want it.
    cloud.layer(STORAGE_SERVICE, '50-test', {'bootcache': {'profile_flavor': 'a.gpu'}})
    with cloud.hosts_heard():
        cloud.restart(STORAGE_SERVICE)
    other = tenant.image(small_image)
    wait_until(lambda: all(text in (tenant.show(other) or {'reason': ''})['reason']
                           for text in ('No valid host was found', 'flavor a.gpu')),
               'the reason why it waits')
    special_flavor.unset_keys(['resources:CUSTOM_GPU'])
    tenant.wait_state(other, 'ready')


@pytest.fixture
def remote_and_impatient(cloud):
    """The storage service cannot read Glance's store, and ends silent boots soon."""
    cloud.layer(STORAGE_SERVICE, '50-test',
                {'bootcache': {'glance_store_dirs': '', 'profile_silence': 8}})
    with cloud.hosts_heard():
        cloud.restart(STORAGE_SERVICE)
    yield
    cloud.layer(STORAGE_SERVICE, '50-test', None)
    with cloud.hosts_heard():
        cloud.restart(STORAGE_SERVICE)


def test_a_downloaded_base_and_a_boot_that_silence_ends(tenant, small_image, cloud,
                                                        remote_and_impatient):
    image = tenant.image(small_image, bootcache_boot_marker='never on this console')
    found = tenant.wait_state(image, 'ready')
    assert found['working_set']['ended_by'] == 'silence'
    base, = (cloud.state_directory / 'images' / image).glob('base-*')
    assert base.stat().st_nlink == 1, 'downloaded, not linked'
    assert base.read_bytes() == small_image.read_bytes()


def test_opting_out_and_in_again(tenant, small_image, cloud):
    image = tenant.image(small_image)
    tenant.wait_state(image, 'ready')
    tenant.openstack.run('image', 'set', '--property', 'bootcache_mode=off', image)
    wait_until(lambda: tenant.show(image)['state'] == 'skipped', 'opting out')
    assert not list((cloud.state_directory / 'images' / image).glob('cache-*'))
    tenant.openstack.run('image', 'set', '--property', 'bootcache_mode=auto', image)
    wait_until(lambda: tenant.show(image)['state'] == 'ready', 'opting in again', 120)


def test_an_image_deleted_while_it_is_recorded_leaves_nothing(tenant, small_image, cloud):
    # Its boot lasts until it was looked at.
    image = tenant.image(small_image, bootcache_boot_marker='never on this console')
    wait_until(lambda: (tenant.show(image) or {}).get('state') == 'recording'
               and (tenant.show(image)['progress'] or {}).get('recorded_bytes'), 'recording')
    assert profile_servers(tenant)
    tenant.openstack.run('image', 'delete', image)
    tenant._images.remove(image)
    wait_until(lambda: not profile_servers(tenant), 'the profile server is deleted')
    wait_until(lambda: tenant.show(image) is None, 'the image is forgotten')
    # Who was at it has gone a moment later.
    wait_until(lambda: not (cloud.state_directory / 'images' / image).exists(), 'its files go')
    wait_until(lambda: image not in cloud.exports(), 'its export goes')


@pytest.fixture
def careless_glance(cloud):
    """Glance lets through what is not of the format that it is said to be."""
    cloud.override('glance', 'image_format', 'require_image_format_match', 'false')
    cloud.restart('glance')
    yield
    cloud.override('glance', 'image_format', 'require_image_format_match', None)
    cloud.restart('glance')


def hostile(path):
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', '-u', '-b', '/etc/passwd', '-F',
                    'raw', str(path), '64M'], check=True)
    return path


def test_a_hostile_image_is_refused_by_glance_already(tenant, tmp_path):
    """tests/functional/test_inspection.py has what happens to one that gets through."""
    with pytest.raises(ClientError, match='415'):
        tenant.image(hostile(tmp_path / 'hostile.qcow2'))


def test_an_image_that_lies_about_its_format_is_refused(tenant, tmp_path, careless_glance,
                                                        storage_log):
    """Said to be raw, but a qcow2: whoever probes it would follow what its header says."""
    liar = tmp_path / 'liar.qcow2'
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', str(liar), '64M'], check=True)
    image = tenant.image(liar, disk_format='raw')
    found = tenant.wait_state(image, 'skipped')
    assert 'the content is qcow2, but disk_format says raw' in found['reason']
    assert not profile_servers(tenant)
    # It is not tried again and again.
    tenant.openstack.run('image', 'set', '--property', 'something=else', image)
    storage_log.wait(f'image {image}: nothing')
    assert tenant.show(image)['updated_at'] == found['updated_at']


def test_the_service_killed_in_mid_recording_starts_again(tenant, small_image, cloud, storage_log):
    image = tenant.image(small_image)
    wait_until(lambda: (tenant.show(image)['progress'] or {}).get('recorded_bytes')
               if tenant.show(image) else None, 'recording')
    before = profile_servers(tenant)
    assert len(before) == 1
    pid = cloud.services()[STORAGE_SERVICE]
    children = subprocess.run(['pgrep', '-P', str(pid)], capture_output=True, text=True,
                              check=False).stdout.split()
    for victim in (pid, *map(int, children)):
        os.kill(victim, signal.SIGKILL)
    wait_until(lambda: cloud.services()[STORAGE_SERVICE] is None, 'the service is dead')
    with cloud.hosts_heard():
        cloud.start(STORAGE_SERVICE)
    storage_log.wait(f'deleting server {before[0].id}, of a profile boot that is over')
    found = tenant.wait_state(image, 'ready')
    assert found['cache_image']['bytes'] > 0
    wait_until(lambda: not profile_servers(tenant), 'no profile server is left')
