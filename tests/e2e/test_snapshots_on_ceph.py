"""Snapshots of servers whose image is in a real Ceph: only what differs moves and is stored."""

import json
import os
import signal
import subprocess

import pytest
from on_ceph import glance_in_ceph

from tools.cloud import records
from tools.cloud.bootcache import STORAGE_SERVICE
from tools.cloud.rbdstore import SNAPSHOTS
from tools.cloud.tenant import wait_until

MIB = 1 << 20
STOCKS = 'is made in stock Nova\'s way'


@pytest.fixture(scope='module')
def ceph(cloud):
    """A Ceph in which Glance keeps its images, and a storage service that makes snapshots there."""
    with glance_in_ceph(cloud, rbd_snapshot_pool=SNAPSHOTS, export_ports='10820-10829') as ceph:
        yield ceph


@pytest.fixture(scope='module')
def guest_bytes(raw_image):
    return raw_image.stat().st_size


@pytest.fixture
def image(ceph, cloud, tenant, raw_image):
    """The small guest, raw, with a cache image.

    Its clone is open by another host's boot: on a machine that is busy this Ceph may take longer
    for that than the 5 s that a boot waits for the storage service.
    """
    image = tenant.image(raw_image, disk_format='raw')
    tenant.wait_state(image, 'ready')
    tenant.delete_server(tenant.server(image, host=cloud.hosts[1]))
    return image


def made(ceph):
    """Return the names of all that is in the pool of snapshots."""
    return json.loads(ceph.run('rbd', 'ls', '--format', 'json', SNAPSHOTS))


def stored(ceph, image):
    [told] = json.loads(ceph.run('rbd', 'du', '--format', 'json',
                                 f'{SNAPSHOTS}/{image}@snap'))['images']
    return told['used_size']


def snapshot_of(tenant, server):
    name = f'snapshot-of-{server}'
    tenant.openstack.run('server', 'image', 'create', '--name', name, '--wait', server)
    found = tenant.openstack.json('image', 'show', name)
    tenant._images.append(found['id'])
    assert found['status'] == 'active'
    return found


def stopped(tenant, server):
    tenant.openstack.run('server', 'stop', server)
    wait_until(lambda: tenant.openstack.nova.servers.get(server).status == 'SHUTOFF', 'stopping')


def assert_same(ceph, tenant, server, snapshot):
    """A snapshot in Ceph has what the server's disk has."""
    node = {'driver': 'raw', 'file': {'driver': 'rbd', 'pool': SNAPSHOTS, 'image': snapshot,
                                      'snapshot': 'snap', 'conf': str(ceph.conf),
                                      'user': 'glance'}}
    done = subprocess.run(['qemu-img', 'compare', '-U', '-F', 'qcow2', 'json:' + json.dumps(node),
                           str(tenant.openstack.disk(server))], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def nothing_is_left(ceph, cloud, *kept):
    wait_until(lambda: sorted(made(ceph)) == sorted(kept), 'the end of what was under way')
    wait_until(lambda: not records.snapshots_under_way(cloud.state_directory),
               'the end of the records')


def test_a_stopped_servers_snapshot(ceph, cloud, tenant, image, guest_bytes, compute_log):
    server = tenant.server(image)
    tenant.login(server)
    tenant.command(server, 'write 1')
    stopped(tenant, server)
    snapshot = snapshot_of(tenant, server)
    assert snapshot['disk_format'] == 'raw' and made(ceph) == [snapshot['id']]
    assert_same(ceph, tenant, server, snapshot['id'])
    assert stored(ceph, snapshot['id']) < guest_bytes / 4
    assert STOCKS not in compute_log.text()
    nothing_is_left(ceph, cloud, snapshot['id'])
    # Another host boots it: the guest finds what it had.
    tenant.check_after_boot(tenant.server(snapshot['id'], host=cloud.hosts[1]))
    # Its base goes first, as Glance has it.
    tenant.clean_servers()
    tenant.delete_image(image)
    other = tenant.server(snapshot['id'])
    tenant.check_after_boot(other)


def test_a_live_snapshot(ceph, cloud, tenant, image, guest_bytes, compute_log):
    server = tenant.server(image)
    tenant.login(server)
    tenant.openstack.run('server', 'pause', server)
    wait_until(lambda: tenant.openstack.nova.servers.get(server).status == 'PAUSED', 'pausing')
    snapshot = snapshot_of(tenant, server)
    assert made(ceph) == [snapshot['id']]
    assert_same(ceph, tenant, server, snapshot['id'])
    assert stored(ceph, snapshot['id']) < guest_bytes / 4
    assert 'Beginning live snapshot process' in compute_log.text()
    assert STOCKS not in compute_log.text()
    tenant.openstack.run('server', 'unpause', server)
    tenant.command(server, 'check-all')


def test_shelving(ceph, cloud, tenant, image, compute_log):
    server = tenant.server(image)
    tenant.login(server)
    tenant.command(server, 'write 1')
    nova = tenant.openstack.nova
    tenant.openstack.run('server', 'shelve', server)
    wait_until(lambda: nova.servers.get(server).status == 'SHELVED_OFFLOADED', 'shelving')
    assert len(made(ceph)) == 1 and STOCKS not in compute_log.text()
    tenant.openstack.run('server', 'unshelve', server)
    wait_until(lambda: nova.servers.get(server).status == 'ACTIVE', 'unshelving')
    tenant.check_after_boot(server)
    nothing_is_left(ceph, cloud)


def test_a_crash_of_the_storage_service(ceph, cloud, tenant, image, compute_log):
    server = tenant.server(image)
    tenant.login(server)
    stopped(tenant, server)
    daemon = cloud.exporter_directory / 'snapshots.pid'
    name = f'snapshot-of-{server}'
    tenant.openstack.nova.servers.create_image(server, name)
    # It is being sent, or about to.
    wait_until(lambda: daemon.exists() or made(ceph), 'the beginning')
    with cloud.hosts_heard():
        cloud.restart(STORAGE_SERVICE)
    for pid in [int(daemon.read_text())] if daemon.exists() else []:
        with open(f'/proc/{pid}/cmdline') as stream:
            assert 'snapshots' in stream.read()
        os.kill(pid, signal.SIGKILL)
    found = wait_until(lambda: next((one for one in tenant.openstack.image_api(
        'GET', f'?name={name}')['images'] if one['status'] == 'active'), None), 'the snapshot')
    tenant._images.append(found['id'])
    # It came either way, and nothing else is there.
    nothing_is_left(ceph, cloud, *[found['id']] * (found['disk_format'] == 'raw'))
    assert found['disk_format'] == 'raw' or STOCKS in compute_log.text()


def test_glance_that_takes_no_location(ceph, cloud, tenant, image, compute_log):
    cloud.layer('glance', '81-refusing', {'oslo_policy': {
        'policy_file': str(_policy(cloud))}})
    cloud.restart('glance')
    try:
        server = tenant.server(image)
        tenant.login(server)
        stopped(tenant, server)
        snapshot = snapshot_of(tenant, server)
        assert snapshot['disk_format'] == 'qcow2'
        nothing_is_left(ceph, cloud)
    finally:
        cloud.layer('glance', '81-refusing', None)
        cloud.restart('glance')


def _policy(cloud):
    path = cloud.state_directory.parent / 'refusing.yaml'
    path.write_text('add_image_location: "!"\n')
    return path
