"""Snapshots of servers whose image is in Glance's file store, on XFS: only what differs moves, and
what a snapshot has in common with its image is stored once."""

import contextlib
import glob
import hashlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from on_files import PORTS, glance_on_xfs, restart

from tools.cloud import records
from tools.cloud.bootcache import STORAGE_SERVICE
from tools.cloud.tenant import Log, wait_until
from tools.reflinks import used

MIB = 1 << 20
STOCKS = 'is made in stock Nova\'s way'
REGISTERS = 'registers snapshots without copying them'


@pytest.fixture(scope='module')
def place(cloud):
    """The file system; Glance has the driver."""
    begin = (cloud.layout.log / 'glance-bootcache.log').stat().st_size
    with glance_on_xfs(cloud, 'file:bootcache') as place:
        wait_until(lambda: REGISTERS in (cloud.layout.log / 'glance-bootcache.log').read_bytes()
                   [begin:].decode(errors='replace'), 'the trial', 120)
        yield place


@pytest.fixture
def stock_place(place, cloud):
    """The same; Glance has its stock store."""
    cloud.layer('glance', '81-stock', {'DEFAULT': {'enabled_backends': 'file:file'}})
    try:
        restart(cloud)
        yield place
    finally:
        # The services start anew with the end of the module.
        cloud.layer('glance', '81-stock', None)


@pytest.fixture
def image(place, tenant, small_image):
    """The small guest, a qcow2, with a cache image."""
    image = tenant.image(small_image)
    tenant.wait_state(image, 'ready')
    return image


@pytest.fixture
def sent():
    """Count the bytes that hosts send to their exporters; None where this machine cannot."""
    iptables = shutil.which('iptables', path=f'{os.environ["PATH"]}:/usr/sbin')
    rule = ['INPUT', '-p', 'tcp', '--dport', PORTS.replace('-', ':')]
    if not iptables or subprocess.run([iptables, '-w', '-I', *rule], check=False).returncode:
        yield lambda: None
        return

    def count():
        listed = subprocess.run([iptables, '-w', '-nvxL', 'INPUT'], check=True, text=True,
                                capture_output=True).stdout
        return int(re.search(r'^ *\d+ +(\d+) .*dpts:10820', listed, re.MULTILINE)[1])

    yield count
    subprocess.run([iptables, '-w', '-D', *rule], check=True)


def snapshot_of(tenant, server, name='snapshot'):
    name = f'{name}-of-{server}'
    tenant.openstack.run('server', 'image', 'create', '--name', name, '--wait', server)
    return noted(tenant, name)


def noted(tenant, name):
    [found] = tenant.openstack.image_api('GET', f'?name={name}')['images']
    tenant._images.append(found['id'])
    assert found['status'] == 'active'
    return found


def stopped(tenant, server):
    tenant.openstack.nova.servers.stop(server)
    tenant.openstack.wait_status(server, 'SHUTOFF')


def file_of(place, image):
    return f'{place}/images/{image["id"] if isinstance(image, dict) else image}'


def wait_deleted(place, image):
    wait_until(lambda: not os.path.exists(file_of(place, image)), 'its deletion')


def assert_same(place, tenant, server, snapshot):
    """A snapshot's file has what the server's disk has."""
    done = subprocess.run(tenant.cloud.inside(
        tenant.host_of(server), 'qemu-img', 'compare', '-U', '-f', snapshot['disk_format'], '-F',
        'qcow2', file_of(place, snapshot), str(tenant.openstack.disk(server))),
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def assert_as_glance_has_it(tenant, place, snapshot):
    """Its file is what Glance read when it came."""
    told = wait_until(lambda: (told := tenant.openstack.image_api('GET', f'/{snapshot["id"]}'))
                      ['os_hash_value'] and told, 'the hash')
    with open(file_of(place, snapshot), 'rb') as stream:
        assert hashlib.file_digest(stream, 'sha512').hexdigest() == told['os_hash_value']


def nothing_is_left(place):
    """No work file, entry or record is there any more."""
    def is_so():
        return not os.listdir(f'{place}/images/.bootcache') \
            and not os.listdir(f'{place}/state/snapshots') \
            and not records.snapshots_under_way(Path(place, 'state'))

    wait_until(is_so, 'the end of what was under way')


def uploaded(cloud, image):
    """Tell whether an image's data came by Glance's API."""
    return f'/v2/images/{image["id"]}/file' in cloud.layout.access_log.read_text()


def test_a_stopped_servers_snapshot(place, cloud, tenant, image, compute_log, sent):
    # The other host has the image's cache image.
    tenant.login(tenant.server(image, host=cloud.hosts[1]))
    server = tenant.server(image, host=cloud.hosts[0])
    tenant.login(server)
    tenant.command(server, 'write 1')
    stopped(tenant, server)
    stored, began = used(place), sent()
    snapshot = snapshot_of(tenant, server)
    assert snapshot['disk_format'] == 'qcow2' and not uploaded(cloud, snapshot)
    assert_same(place, tenant, server, snapshot)
    assert STOCKS not in compute_log.text()
    nothing_is_left(place)
    whole = os.stat(file_of(place, image)).st_size
    grown = used(place) - stored
    print(f'{whole} bytes of image, {grown} stored, {began and sent() - began} sent')
    assert grown < whole / 2
    assert began is None or sent() - began < whole / 2
    # Nobody has taken it up yet.
    assert 'when a server boots' in tenant.wait_state(snapshot['id'], 'skipped')['reason']
    # Another host boots it: the guest finds what it had. What that has of it is what differs.
    log = Log(cloud.layout.log / f'{cloud.hosts[1].compute}.log')
    tenant.check_after_boot(tenant.server(snapshot['id'], host=cloud.hosts[1]))
    log.wait(f'image {snapshot["id"]}: cache image made in compute')
    told = tenant.wait_state(snapshot['id'], 'ready')
    [difference] = glob.glob(f'{place}/state/images/{snapshot["id"]}/*.difference')
    print(f'{os.stat(difference).st_size} bytes differ, of {told["cache_image"]["bytes"]}')
    assert os.stat(difference).st_size < told['cache_image']['bytes'] / 2


def test_live_and_in_any_order(place, cloud, tenant, image, compute_log):
    """A snapshot of a server that runs, two of one that was made of that; then they go, the child,
    the base and the middle one, and the other child stays."""
    server = tenant.server(image)
    tenant.login(server)
    tenant.command(server, 'write 1')
    tenant.openstack.nova.servers.pause(server)
    tenant.openstack.wait_status(server, 'PAUSED')
    middle = snapshot_of(tenant, server)
    assert 'Beginning live snapshot process' in compute_log.text()
    assert_same(place, tenant, server, middle)
    other = tenant.server(middle['id'])
    tenant.login(other)
    tenant.wait_state(middle['id'], 'ready')
    stopped(tenant, other)
    child = snapshot_of(tenant, other)
    second = snapshot_of(tenant, other, 'again')
    assert STOCKS not in compute_log.text()
    assert not any(uploaded(cloud, one) for one in (middle, child, second))
    tenant.clean_servers()
    for gone, left in ((child['id'], [middle, second]), (image, [middle, second]),
                       (middle['id'], [second])):
        tenant.delete_image(gone)
        wait_deleted(place, gone)
        for one in left:
            assert_as_glance_has_it(tenant, place, one)
    tenant.check_after_boot(tenant.server(second['id'], host=cloud.hosts[1]))
    nothing_is_left(place)


def test_a_settled_server_a_backup_and_shelving(place, tenant, small_image, compute_log, cloud):
    image = tenant.image(small_image, bootcache_settle='yes')
    tenant.wait_state(image, 'ready')
    server = tenant.server(image)
    tenant.login(server)
    wait_until(lambda: '/_base/' in tenant.backing(server)[1], 'settling', 120)
    tenant.command(server, 'write 1')
    tenant.openstack.run('server', 'backup', 'create', '--name', f'backup-{server}', '--type',
                         'daily', '--rotate', '1', '--wait', server)
    backup = noted(tenant, f'backup-{server}')
    assert not uploaded(cloud, backup)
    tenant.openstack.nova.servers.shelve(server)
    tenant.openstack.wait_status(server, 'SHELVED_OFFLOADED')
    [shelved] = tenant.openstack.image_api('GET', '?name=' + tenant.openstack.nova.servers.get(
        server).name + '-shelved')['images']
    assert not uploaded(cloud, shelved) and STOCKS not in compute_log.text()
    tenant.openstack.nova.servers.unshelve(server)
    tenant.openstack.wait_active(server)
    tenant.check_after_boot(server)
    wait_deleted(place, shelved)
    nothing_is_left(place)


def test_a_crash_of_the_storage_service(place, cloud, tenant, image, compute_log):
    server = tenant.server(image)
    tenant.login(server)
    stopped(tenant, server)
    name = f'snapshot-of-{server}'
    tenant.openstack.nova.servers.create_image(server, name)
    wait_until(lambda: records.snapshots_under_way(Path(place, 'state')), 'the beginning')
    killed(cloud)
    with cloud.hosts_heard():
        cloud.start(STORAGE_SERVICE)
    found = wait_until(lambda: next((one for one in tenant.openstack.image_api(
        'GET', f'?name={name}')['images'] if one['status'] == 'active'), None), 'the snapshot')
    tenant._images.append(found['id'])
    # It came either way, and nothing else is there.
    assert not uploaded(cloud, found) or STOCKS in compute_log.text()
    assert_same(place, tenant, server, found)
    nothing_is_left(place)


def killed(cloud):
    """End the storage service as a crash does."""
    pid = cloud.services()[STORAGE_SERVICE]
    children = subprocess.run(['pgrep', '-P', str(pid)], capture_output=True, text=True,
                              check=False).stdout.split()
    for victim in (pid, *map(int, children)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    wait_until(lambda: cloud.services()[STORAGE_SERVICE] is None, 'the service is dead')


def test_glance_that_takes_no_location(place, cloud, tenant, image, compute_log):
    policy = cloud.state_directory.parent / 'refusing.yaml'
    policy.write_text('add_image_location: "!"\n')
    cloud.layer('glance', '81-refusing', {'oslo_policy': {'policy_file': str(policy)}})
    cloud.restart('glance')
    try:
        server = tenant.server(image)
        tenant.login(server)
        stopped(tenant, server)
        snapshot = snapshot_of(tenant, server)
        # The file that was put there has made room for stock Nova's.
        assert uploaded(cloud, snapshot)
        assert_same(place, tenant, server, snapshot)
        nothing_is_left(place)
    finally:
        cloud.layer('glance', '81-refusing', None)
        cloud.restart('glance')


def test_without_the_driver_it_is_uploaded_and_shares(storage_log, stock_place, cloud, tenant,
                                                     small_image, compute_log, sent):
    place = stock_place
    storage_log.wait('no store of Glance registers snapshots, they are uploaded', 120)
    image = tenant.image(small_image)
    tenant.wait_state(image, 'ready')
    server = tenant.server(image)
    tenant.login(server)
    tenant.command(server, 'write 1')
    tenant.openstack.nova.servers.pause(server)
    tenant.openstack.wait_status(server, 'PAUSED')
    stored, began = used(place), sent()
    snapshot = snapshot_of(tenant, server)
    assert uploaded(cloud, snapshot) and STOCKS not in compute_log.text()
    storage_log.wait(f'snapshot {snapshot["id"]}: ')
    assert_same(place, tenant, server, snapshot)
    nothing_is_left(place)
    whole = os.stat(file_of(place, image)).st_size
    grown = used(place) - stored
    print(f'{whole} bytes of image, {grown} stored, {began and sent() - began} sent')
    assert grown < whole / 2
    assert began is None or sent() - began < whole / 2
    tenant.check_after_boot(tenant.server(snapshot['id'], host=cloud.hosts[1]))
