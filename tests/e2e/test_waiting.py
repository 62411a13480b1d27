"""Servers wait for what is below them, and never see an error: gateway and storage node go away.

Their images are not booted when they are registered, and what is learned of the first servers'
boots makes a small cache image: nearly all that a boot reads comes from the base.
"""

import contextlib
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tools.cloud.bootcache import EXPORT_PORT, STORAGE_SERVICE, TAP
from tools.cloud.tenant import wait_until

RUNNING, PAUSED = 1, 3


@pytest.fixture(scope='module', autouse=True)
def cold(cloud):
    """Images are not booted when they are registered."""
    with service_with(cloud, profile_boots=False):
        yield


@contextlib.contextmanager
def service_with(cloud, **options):
    """The storage service has other options."""
    name = f'50-waiting-{"-".join(options)}'
    cloud.layer(STORAGE_SERVICE, name, {'bootcache': options})
    with cloud.hosts_heard():
        cloud.restart(STORAGE_SERVICE)
    try:
        yield
    finally:
        cloud.layer(STORAGE_SERVICE, name, None)
        with cloud.hosts_heard():
            cloud.restart(STORAGE_SERVICE)


@pytest.fixture
def image(tenant, small_image):
    found = tenant.image(small_image, bootcache_quota='1MiB')
    tenant.wait_state(found, 'served')
    return found


@contextlib.contextmanager
def storage_node_away(cloud):
    """Nobody answers where the hosts find the exporter."""
    cloud.stop(TAP)
    try:
        yield
    finally:
        cloud.start(TAP)


def begin(tenant, image):
    """Boot a server, and return when its boot has begun to read."""
    server = tenant.server(image)
    wait_until(lambda: tenant.openstack.bytes_read(server) > 2_000_000, 'the begin of the boot')
    return server


def as_shown(tenant, server):
    """What users see of a server."""
    found = tenant.openstack.nova.servers.get(server)
    return found.status, getattr(found, 'OS-EXT-STS:power_state')


def runs_for_its_user(tenant, server):
    wait_until(lambda: as_shown(tenant, server) == ('ACTIVE', RUNNING), 'that it is shown to run',
               30)


def test_the_gateway_dies_below_a_server_that_reads(tenant, image, cloud, compute_log):
    server = tenant.server(image)
    tenant.login(server)
    killed = cloud.gateway_pid()
    os.kill(killed, signal.SIGKILL)
    # It reads the whole disk.
    tenant.command(server, 'check-all')
    assert cloud.gateway_pid() not in (None, killed)
    compute_log.wait(f'server {server} is paused')
    compute_log.wait(f'server {server} goes on')
    tenant.command(server, 'write 4')
    tenant.check(server)
    runs_for_its_user(tenant, server)


def test_the_gateway_dies_in_mid_boot(tenant, image, cloud):
    server = begin(tenant, image)
    os.kill(cloud.gateway_pid(), signal.SIGKILL)
    tenant.login(server)
    tenant.command(server, 'check-all')


def test_the_storage_node_is_away_in_mid_boot(tenant, image, cloud, compute_log):
    """For longer than the gateway keeps reads. Who waits, for what and since when is told."""
    server = begin(tenant, image)
    with storage_node_away(cloud):
        compute_log.wait(f'server {server} is paused')

        def told():
            rows = tenant.openstack.bootcache(cloud.config_file, 'host', 'list',
                                              '--unsettled')
            return [row['why'] for row in rows if row['server'] == server
                    and 'it has been paused since' in row['why']]
        why, = wait_until(told, 'that it is told of')
        assert 'cannot be reached' in why
        wait_until(lambda: as_shown(tenant, server) == ('ACTIVE', PAUSED), 'what Nova sees', 30)
    tenant.login(server)
    tenant.command(server, 'check-all')
    runs_for_its_user(tenant, server)
    wait_until(lambda: not told(), 'that nobody waits')


def test_a_server_is_started_while_the_storage_node_is_away(tenant, image, cloud, compute_log):
    """Nova starts it at once, and it goes on where it was when the node is back."""
    server = tenant.server(image)
    tenant.login(server)
    tenant.command(server, 'write 2')
    tenant.openstack.nova.servers.stop(server)
    tenant.openstack.wait_status(server, 'SHUTOFF')
    with storage_node_away(cloud):
        # What the gateway still has of the base is gone with it.
        os.kill(cloud.gateway_pid(), signal.SIGKILL)
        tenant.openstack.nova.servers.start(server)
        tenant.openstack.wait_active(server)
        compute_log.wait(f'server {server} is paused')
    wait_until(lambda: 'boot number 2' in tenant.openstack.console(server), 'its second boot')
    tenant.check_after_boot(server)
    runs_for_its_user(tenant, server)


def test_a_server_is_rescued_and_back_while_the_storage_node_is_away(tenant, image, cloud,
                                                                     compute_log):
    """Both come off at once, and its guest waits until the node is back."""
    server = tenant.server(image)
    tenant.login(server)
    tenant.command(server, 'write 2')
    with storage_node_away(cloud):
        # What the gateway still has of the base is gone with it.
        os.kill(cloud.gateway_pid(), signal.SIGKILL)
        tenant.openstack.nova.servers.rescue(server)
        tenant.openstack.wait_status(server, 'RESCUE')
        tenant.openstack.nova.servers.unrescue(server)
        tenant.openstack.wait_active(server)
        compute_log.wait(f'server {server} is paused')
    wait_until(lambda: 'boot number 2' in tenant.openstack.console(server), 'its second boot')
    tenant.check_after_boot(server)
    runs_for_its_user(tenant, server)


def test_the_base_is_at_another_address(tenant, image, cloud, compute_log):
    server = begin(tenant, image)
    with storage_node_away(cloud):
        compute_log.wait(f'server {server} is paused')
        with service_with(cloud, advertise_port=EXPORT_PORT):
            tenant.login(server)
            tenant.command(server, 'check-all')
    compute_log.wait(f'server {server} goes on')


def test_a_host_has_an_exporter_of_its_own(tenant, image, cloud, wire):
    """Its gateway reads by that, and by the one of all hosts when there are no others any more."""
    begin = wire.position()

    def by_all_hosts():
        return [request for request in wire.requests(begin, wire.position())
                if image in request.export]

    with service_with(cloud, export_ports='10820-10829'):
        server = tenant.server(image)
        tenant.login(server)
        tenant.command(server, 'check-all')
        known = json.loads((cloud.state_directory / 'clients.json').read_text())['clients']
        assert f'CN={tenant.host_of(server).hostname}' in known
        assert by_all_hosts() == []
    # It is connected there: that goes on.
    tenant.command(server, 'check-all')
    assert by_all_hosts() == []
    for own in cloud.exporter_directory.glob('exporter-*.pid'):
        os.kill(int(own.read_text()), signal.SIGKILL)
    # Another way is found while its reads wait.
    tenant.command(server, 'check-all')
    assert by_all_hosts()
    runs_for_its_user(tenant, server)


def test_a_server_that_its_user_paused_stays_paused(tenant, image, cloud, compute_log):
    """Also one that was paused already; the other one tells when all have been looked at."""
    paused, other = tenant.server(image), tenant.server(image)
    for server in (paused, other):
        tenant.login(server)

    def reads(server):
        text = tenant.openstack.type(server, 'check-all', '.*check-all: .*', 240)
        assert text.rstrip().endswith('check-all: ok'), text

    with ThreadPoolExecutor() as pool:
        with storage_node_away(cloud):
            readers = {server: pool.submit(reads, server) for server in (paused, other)}
            for server in readers:
                compute_log.wait(f'server {server} is paused')
            tenant.openstack.nova.servers.pause(paused)
            tenant.openstack.wait_status(paused, 'PAUSED')
        readers[other].result()
        compute_log.wait(f'server {other} goes on')
        assert as_shown(tenant, paused) == ('PAUSED', PAUSED) and not readers[paused].done()
        tenant.openstack.nova.servers.unpause(paused)
        tenant.openstack.wait_active(paused)
        readers[paused].result()


def test_one_that_stood_still_as_it_was_suspended_is_resumed(tenant, image, cloud, compute_log):
    """Also while the node is still away: Nova would wait without end until it runs."""
    server = tenant.server(image)
    tenant.login(server)
    with storage_node_away(cloud):
        tenant.openstack.type(server, 'check-all', '.*check-all')
        compute_log.wait(f'server {server} is paused')
        tenant.openstack.nova.servers.suspend(server)
        tenant.openstack.wait_status(server, 'SUSPENDED')
        # What the gateway still has of the base is gone with it.
        os.kill(cloud.gateway_pid(), signal.SIGKILL)
        tenant.openstack.nova.servers.resume(server)
        tenant.openstack.wait_active(server)
    # Its console begins anew.
    tenant.openstack.wait_console(server, 'check-all: ok')
    runs_for_its_user(tenant, server)
