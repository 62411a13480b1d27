"""The ``bootcache`` command against the running storage service, as the README shows it."""

import datetime
import json
import os
import subprocess

import pytest

from tools.cloud.client import ClientError
from tools.cloud.layout import VENV
from tools.cloud.tenant import wait_until


@pytest.fixture
def bootcache(cloud, tenant):
    def run(*arguments):
        return tenant.openstack.bootcache(cloud.config_file, *arguments)
    return run


def plain(cloud, *arguments):
    return subprocess.run([str(VENV / 'bin' / 'bootcache'), '--config-file',
                           str(cloud.config_file), *arguments], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False,
                          env={**cloud.layout.environment()})


def test_list_and_show(bootcache, ready_image, cloud):
    listed = {image['image_id']: image for image in bootcache('image', 'list')}
    assert listed[ready_image]['state'] == 'ready' and listed[ready_image]['name']
    shown = bootcache('image', 'show', ready_image)
    assert shown['cache_bytes'] == listed[ready_image]['cache_bytes'] > 0
    assert len(shown['cache_sha256']) == 64
    where = plain(cloud, 'image', 'where', ready_image)
    assert '(storage node)' in where.stdout and 'None' not in where.stdout, where.stderr


def test_delete_holds_until_build(bootcache, tenant, small_image, cloud, storage_log):
    image = tenant.image(small_image)
    tenant.wait_state(image, 'ready')
    assert bootcache('image', 'delete', image) == [{'image_id': image, 'deleted': True}]
    assert tenant.wait_state(image, 'skipped')['held'] is True
    # Its own property's change must not start it again.
    storage_log.wait(f'image {image}: nothing')
    assert bootcache('image', 'show', image)['state'] == 'skipped'
    built = bootcache('image', 'build', image, '--wait')
    assert built['state'] == 'ready'


def test_pin_and_unpin(bootcache, ready_image):
    for command, pinned in (('pin', True), ('unpin', False)):
        assert bootcache(command, ready_image) == [{'image_id': ready_image, 'pinned': pinned}]
        assert bootcache('image', 'show', ready_image)['pinned'] is pinned


def holders(bootcache, image):
    """The names of the hosts that have told that they hold an image's cache image."""
    rows = bootcache('image', 'where', image)
    assert rows[0]['tier'].startswith('storage') and rows[0]['host'] is None
    assert rows[0]['bytes'] > 0
    assert all(row['tier'].startswith('compute') and row['bytes'] > 0 for row in rows[1:])
    return [row['host'] for row in rows[1:]]


def wait_holders(bootcache, image, *hosts):
    names = sorted(host.hostname for host in hosts)
    wait_until(lambda: holders(bootcache, image) == names, f'{names} hold {image}')


def test_warm_where_and_evict(bootcache, tenant, ready_image, cloud):
    first, second = cloud.hosts
    with tenant.aggregate(first, second) as aggregate:
        rows = bootcache('warm', ready_image, '--aggregate', aggregate)
    assert [(row['aggregate'], row['host']) for row in rows] \
        == [(aggregate, host) for host in sorted((first.hostname, second.hostname))]
    assert {row['outcome'] for row in rows} <= {'cached', 'existing'}
    wait_holders(bootcache, ready_image, first, second)
    hosts = {row['host']: row for row in bootcache('host', 'list')}
    for host in (first, second):
        assert hosts[host.hostname]['state'] == 'reporting'
        assert hosts[host.hostname]['images'] >= 1 and hosts[host.hostname]['disk_quota'] > 0
        # Theirs are made as the cloud is.
        assert datetime.datetime.fromisoformat(hosts[host.hostname]['certificates_end']) \
            > datetime.datetime.now(datetime.UTC)
    assert bootcache('evict', ready_image, '--host', second.hostname) \
        == [{'image_id': ready_image, 'host': second.hostname, 'outcome': 'gone'}]
    assert holders(bootcache, ready_image) == [first.hostname]
    assert [row['outcome'] for row in bootcache('evict', ready_image)] == ['gone']
    assert holders(bootcache, ready_image) == []


def test_a_host_whose_server_uses_it_lets_go_later(bootcache, tenant, ready_image, cloud):
    host = cloud.hosts[0]
    server = tenant.server(ready_image, host=host)
    tenant.login(server)
    wait_holders(bootcache, ready_image, host)
    # Hosts report every ten seconds here.
    done = plain(cloud, 'evict', ready_image, '--timeout', '45', '-f', 'json')
    assert done.returncode == 1
    assert [row['outcome'] for row in json.loads(done.stdout)] == ['in use']
    assert f'{host.hostname}: still in use' in done.stderr.splitlines()[-1]
    tenant.delete_server(server)
    wait_holders(bootcache, ready_image)


def test_a_pinned_image_is_not_evicted(bootcache, cloud, ready_image):
    bootcache('pin', ready_image)
    try:
        done = plain(cloud, 'evict', ready_image)
        assert done.returncode == 1 and f'image {ready_image} is pinned' in done.stderr
    finally:
        bootcache('unpin', ready_image)


def test_servers_that_depend_on_bootcache_are_listed(bootcache, tenant, ready_image, cloud,
                                                     compute_log):
    server = tenant.server(ready_image, host=cloud.hosts[0])

    def why():
        return {row['server']: row['why'] for row in bootcache('host', 'list', '--unsettled')
                if row['host'] == cloud.hosts[0].hostname}.get(server)

    # Its boot is watched until it is over.
    wait_until(lambda: 'bootcache_settle=no' in (why() or ''), 'why it is not settled', 240)
    tenant.openstack.run('server', 'suspend', server)
    tenant.openstack.wait_status(server, 'SUSPENDED')
    wait_until(lambda: why() == 'it is suspended: resume it', 'what keeps it')
    compute_log.wait(f'server {server} goes on needing its cache image')
    tenant.delete_server(server)
    wait_until(lambda: why() is None, 'nothing that keeps it')


def test_clean_takes_the_properties_from_an_image(bootcache, tenant, ready_image, cloud):
    tenant.wait_property(ready_image, 'bootcache_state', 'ready')
    done = plain(cloud, 'image', 'clean', '--all')
    assert done.returncode == 1 and 'stop it first' in done.stderr
    assert ready_image in {row['image_id']
                           for row in bootcache('image', 'clean', '--all', '--dry-run')}
    with cloud.storage_service_down():
        (row,) = bootcache('image', 'clean', ready_image)
        assert (row['outcome'], row['properties']) == ('removed', 'bootcache_state')
        assert tenant.property(ready_image, 'bootcache_state') is None
    tenant.wait_property(ready_image, 'bootcache_state', 'ready')


def test_working_set_show_and_plot(bootcache, cloud, ready_image, tmp_path):
    extents = bootcache('working-set', 'show', ready_image)
    shown = bootcache('image', 'show', ready_image)
    assert sum(extent['length'] for extent in extents) == shown['working_set_bytes']
    assert any(extent['seconds'] for extent in extents)
    picture = tmp_path / 'pattern.png'
    drawn = bootcache('working-set', 'plot', ready_image, '-o', str(picture))
    assert drawn['file'] == str(picture) and drawn['bytes'] == shown['working_set_bytes']
    assert picture.read_bytes().startswith(b'\x89PNG')


def test_progress_is_shown_while_one_waits(cloud, ready_image):
    done = plain(cloud, 'image', 'show', ready_image, '--wait')
    assert 'ready' in done.stderr


@pytest.mark.parametrize('arguments, message', [
    (('image', 'show', '00000000-0000-4000-8000-000000000000'), 'is not known'),
    (('image', 'show', '../../etc'), 'is not an image id'),
    (('working-set', 'show', 'nonsense'), 'neither a file nor an image id'),
    (('image', 'build', '00000000-0000-4000-8000-000000000000'), 'Glance has no image'),
    (('image', 'where', '00000000-0000-4000-8000-000000000000'), 'is not known'),
    (('warm', '../../etc', '--aggregate', 'racks'), 'is not an image id'),
    (('warm', 'READY', '--aggregate', 'no-such'), 'there is no aggregate no-such'),
    (('warm', '00000000-0000-4000-8000-000000000000', '--aggregate', 'no-such'), 'is not known'),
    (('evict', 'READY', '--host', 'no-such'), 'not heard of: no-such'),
])
def test_bad_input_says_what_is_wrong(cloud, ready_image, arguments, message):
    done = plain(cloud, *(ready_image if one == 'READY' else one for one in arguments))
    assert done.returncode != 0
    assert message in done.stderr
    assert 'Traceback' not in done.stderr


def test_without_the_service_the_command_says_so(cloud, bootcache, ready_image):
    with cloud.storage_service_down():
        with pytest.raises(ClientError, match='does not answer'):
            bootcache('image', 'list')


def test_build_of_a_file_needs_no_cloud(small_image, tmp_path):
    """With libvirt alone: a private QEMU driver, TCG where KVM runs no guest."""
    environment = {'PATH': os.environ['PATH'], 'HOME': str(tmp_path), 'PYTHONWARNINGS': 'ignore'}
    output = tmp_path / 'cache.qcow2'
    command = [str(VENV / 'bin' / 'bootcache'), 'build', str(small_image), '--allow-tcg',
               '--memory', '192', '-o', str(output), '-f', 'json']
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          check=False, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result['ended_by'] == 'marker'
    assert 5_000_000 < result['working_set_bytes'] < result['cache_data_bytes'] * 1.1
    assert 0 < result['cache_bytes'] < result['cache_data_bytes'], 'it is compressed'
    compared = subprocess.run(['qemu-img', 'compare', '-f', 'qcow2', '-F', 'qcow2', str(output),
                               str(small_image)], capture_output=True, text=True, check=False)
    assert compared.returncode == 0, compared.stdout
    again = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                           check=False, env=environment)
    assert again.returncode == 1 and 'exists' in again.stderr
