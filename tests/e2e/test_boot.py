"""Servers that boot from a cache image, and what happens when something is missing."""

import concurrent.futures
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tools.cloud.bootcache import DRIVER, STOCK_DRIVER
from tools.cloud.tenant import guest_image, wait_until


def base_requests(wire, begin):
    return [request for request in wire.requests(begin, wire.position())
            if request.export.startswith('base-')]


def test_first_boot_fetches_the_cache_image_and_the_second_nothing(tenant, ready_image, wire,
                                                                   cloud):
    cache = tenant.show(ready_image)['cache_image']
    begin = wire.position()
    first = tenant.server(ready_image)
    tenant.login(first)
    chain = tenant.backing(first)
    assert len(chain) == 3, chain
    assert '/_bootcache/' in chain[1] and 'gateway.sock' in chain[2]
    fetched = [request for request in wire.requests(begin, wire.position())
               if request.export.startswith('cache-')]
    assert cache['bytes'] * 0.9 <= sum(request.length for request in fetched) <= cache['bytes']
    assert sum(request.length for request in base_requests(wire, begin)) \
        < 0.01 * tenant.show(ready_image)['working_set']['bytes']
    assert wire.downloaded(begin, wire.position(), ready_image) == 0

    begin = wire.position()
    second = tenant.server(ready_image)
    tenant.login(second)
    assert wire.requests(begin, wire.position()) == []
    tenant.delete_server(second)
    assert not tenant.openstack.disk(second).exists()
    tenant.delete_server(first)


def test_overlays_have_subclusters(tenant, ready_image):
    server = tenant.server(ready_image)
    details = json.loads(subprocess.run(
        ['qemu-img', 'info', '-U', '--output=json', str(tenant.openstack.disk(server))],
        check=True, capture_output=True, text=True).stdout)
    assert details['cluster-size'] == 128 << 10
    assert details['format-specific']['data']['extended-l2'] is True
    assert details['format-specific']['data']['lazy-refcounts'] is True
    assert details['backing-filename-format'] == 'qcow2'


def chain_differs(cloud, image, file):
    """Compare a host's cache image, and all below it, with the image; what differs, or ''."""
    from bootcache.naming import cache_file_name
    cache = cloud.layout.hosts[0].instances / '_bootcache' / cache_file_name(image)
    done = subprocess.run(['qemu-img', 'compare', '-f', 'qcow2', '-F', 'qcow2', str(cache),
                           str(file)], capture_output=True, text=True, check=False)
    return '' if done.returncode == 0 else done.stdout + done.stderr


def test_the_chain_is_the_image_bit_for_bit(tenant, ready_image, small_image, cloud):
    tenant.server(ready_image)
    assert chain_differs(cloud, ready_image, small_image) == ''


def test_an_opted_out_image_boots_the_stock_way(tenant, small_image, compute_log):
    image = tenant.image(small_image, bootcache_mode='off')
    tenant.wait_state(image, 'skipped')
    server = tenant.server(image)
    tenant.login(server)
    assert '/_base/' in tenant.backing(server)[1]
    assert f'server {server} goes the stock way: the image is skipped: bootcache_mode=off' \
        in compute_log.text()


def test_without_the_storage_service_servers_boot_the_stock_way(tenant, small_image, cloud,
                                                                compute_log):
    image = tenant.image(small_image)
    tenant.wait_state(image, 'ready')
    with cloud.storage_service_down():
        server = tenant.server(image)
        tenant.login(server)
    assert '/_base/' in tenant.backing(server)[1]
    assert f'server {server} goes the stock way: the storage service does not answer' \
        in compute_log.text()


def test_a_warm_host_needs_no_storage_service(tenant, ready_image, cloud, wire):
    tenant.login(tenant.server(ready_image))
    begin = wire.position()
    with cloud.storage_service_down():
        server = tenant.server(ready_image)
        tenant.login(server)
    assert '/_bootcache/' in tenant.backing(server)[1]
    assert wire.requests(begin, wire.position()) == []


def wait_expanded(cache):
    """Wait until nothing replaces a host's cache image any more: one that came compressed is."""
    def stays():
        entry = json.loads(Path(f'{cache}.json').read_text())
        return entry['expanded'] or not entry['cache_image']['file'].endswith('.zstd.qcow2')

    wait_until(stays, 'the expanded cache image')


def test_a_damaged_cache_image_is_fetched_again(tenant, ready_image, cloud, compute_log):
    server = tenant.server(ready_image)
    cache = tenant.backing(server)[1]
    tenant.delete_server(server)
    wait_expanded(cache)
    with open(cache, 'r+b') as stream:
        stream.seek(100_000)
        stream.write(b'rot')
    server = tenant.server(ready_image)
    tenant.login(server)
    assert tenant.backing(server)[1] == cache
    assert 'cannot be used and is fetched again' in compute_log.text()


def test_the_gateway_killed_comes_back_with_its_bases(tenant, ready_image, cloud):
    tenant.server(ready_image)
    killed = cloud.gateway_pid()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: cloud.gateway_pid() not in (None, killed), 'a new gateway', 60)
    server = tenant.server(ready_image)
    tenant.login(server)
    assert '/_bootcache/' in tenant.backing(server)[1]


def test_the_exporter_killed_comes_back(tenant, ready_image, small_image, cloud):
    first = tenant.server(ready_image)
    killed = cloud.exporter_pid()
    cloud.kill_exporter()
    wait_until(lambda: cloud.exporter_pid() not in (None, killed), 'a new exporter', 60)
    wait_until(lambda: cloud.serves(ready_image), 'the base is served again')
    # The gateway connects again by itself: all of the base is read through it.
    assert chain_differs(cloud, ready_image, small_image) == ''
    tenant.login(first)
    second = tenant.server(ready_image)
    tenant.login(second)
    assert '/_bootcache/' in tenant.backing(second)[1]


def test_servers_survive_a_restart_of_nova_compute_and_a_hard_reboot(tenant, ready_image, cloud):
    server = tenant.server(ready_image)
    tenant.login(server)
    gateway = cloud.gateway_pid()
    cloud.restart('compute')
    assert cloud.gateway_pid() == gateway, 'the gateway is adopted, not started anew'
    guests = cloud.guests()
    assert guests
    tenant.openstack.run('server', 'reboot', '--hard', server)
    wait_until(lambda: set(cloud.guests()) - set(guests), 'a new guest process')
    tenant.openstack.wait_active(server)
    wait_until(lambda: 'boot number 2' in tenant.openstack.console(server), 'the second boot', 120)
    console = tenant.openstack.wait_console(server, 'mark: ok')
    assert 'BAD' not in console


def test_a_host_comes_up_while_the_storage_node_is_away(tenant, ready_image, cloud, compute_log):
    """Nova resumes the server: nova-compute's start waits for the gateway, and can be stopped
    meanwhile; for the storage node the guest waits, before it reads from there.
    """
    host, nova = cloud.hosts[0], tenant.openstack.nova
    server = tenant.server(ready_image)
    tenant.login(server)

    def waits(times):
        wait_until(lambda: compute_log.text().count('Nova\'s start waits') == times,
                   f'it waits for the {times}. time', 120)
        assert not cloud.guests() and nova.servers.get(server).status == 'ACTIVE'

    # To start one takes until Nova has done with its servers.
    starter = concurrent.futures.ThreadPoolExecutor()
    try:
        cloud.layer('compute', '50-resume', {
            'DEFAULT': {'resume_guests_state_on_host_boot': True}})
        with cloud.storage_service_down():
            cloud.power_off(host)
            cloud.kill_exporter()
            cloud.power_on(host, host.gateway_unit, host.compute)
            stopped = starter.submit(cloud.start, host.compute)
            waits(1)
            cloud.stop(host.compute)
            assert stopped.exception(), 'it was not up'
            started = starter.submit(cloud.start, host.compute)
            waits(2)
            cloud.start(host.gateway_unit)
            started.result()
            wait_until(cloud.guests, 'the guest', 120)
            compute_log.wait('cannot be read now: a guest that needs it is paused')
        wait_until(lambda: 'boot number 2' in tenant.openstack.console(server), 'the second boot',
                   240)
        assert 'BAD' not in tenant.openstack.wait_console(server, 'mark: ok')
        wait_until(lambda: getattr(nova.servers.get(server), 'OS-EXT-STS:task_state') is None,
                   'Nova is done with it')
        assert nova.servers.get(server).status == 'ACTIVE'
        tenant.command(server, 'check-all')
    finally:
        cloud.start(host.gateway_unit)
        starter.shutdown()
        cloud.layer('compute', '50-resume', None)
        cloud.restart('compute')


def test_a_live_snapshot_is_the_servers_disk(tenant, ready_image, tmp_path, compute_log):
    server = tenant.server(ready_image)
    tenant.login(server)
    # A live snapshot all the same; but nothing is written between it and the comparison.
    tenant.openstack.run('server', 'pause', server)
    wait_until(lambda: tenant.openstack.nova.servers.get(server).status == 'PAUSED', 'pausing')
    name = f'snapshot-of-{server}'
    tenant.openstack.run('server', 'image', 'create', '--name', name, '--wait', server)
    snapshot = tenant.openstack.json('image', 'show', name)
    tenant._images.append(snapshot['id'])
    assert snapshot['status'] == 'active'
    assert 'bootcache_state' not in snapshot['properties']
    file = tmp_path / 'snapshot.qcow2'
    tenant.openstack.run('image', 'save', '--file', str(file), snapshot['id'])
    done = subprocess.run(['qemu-img', 'compare', '-U', '-f', 'qcow2', '-F', 'qcow2',
                           str(tenant.openstack.disk(server)), str(file)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert 'Beginning live snapshot process' in compute_log.text()
    tenant.openstack.run('server', 'unpause', server)
    found = tenant.wait_state(snapshot['id'], 'skipped')
    assert 'a snapshot of a server' in found['reason']


def test_stock_driver_and_back_leaves_servers_alone(tenant, ready_image, cloud):
    """An operator takes the plugin out and puts it in again while a server runs."""
    server = tenant.server(ready_image)
    tenant.login(server)
    guests = cloud.guests()
    cloud.use_driver(STOCK_DRIVER)
    try:
        assert cloud.guests() == guests
    finally:
        cloud.use_driver(DRIVER)
    assert cloud.guests() == guests
    assert '/_bootcache/' in tenant.backing(server)[1]


@pytest.mark.timeout(2400)
def test_a_real_distribution(tenant, wire):
    """Debian with systemd and cloud-init, recorded up to the unit cloud-final.service, which starts
    after the login prompt."""
    unit = r"running 'modules:final'"
    image = tenant.image(guest_image('debian'), by_import=True, bootcache_boot_marker=unit)
    found = tenant.wait_state(image, 'ready', 1200)
    assert found['working_set']['ended_by'] == 'marker'
    assert found['working_set']['boot_marker'] == unit
    assert found['cache_image']['bytes'] <= 1.02 * found['cache_image']['data_bytes']
    server = tenant.server(image, 'm1.small')
    begin = wire.position()
    console = tenant.openstack.wait_console(server, 'login:', 600)
    wait_until(lambda: re.search(unit, tenant.openstack.console(server)), 'the unit')
    login = console.index('login:')
    assert re.search(unit, tenant.openstack.console(server)).start() > login
    assert sum(request.length for request in base_requests(wire, begin)) \
        < 0.01 * found['working_set']['bytes']
