"""A compute host of containers: nova-compute, libvirtd with QEMU, the gateway, and connectors have
mounts and process numbers of their own, and share what the page says."""

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from tools.cloud import containers
from tools.cloud.client import ClientError
from tools.cloud.processes import all_processes
from tools.cloud.tenant import Log, wait_until

PAGE = (Path(__file__).parents[2] / 'doc' / 'source' / 'install.rst').read_text()


@pytest.fixture(scope='module')
def host(cloud):
    """The second host, in containers."""
    host = cloud.hosts[1]
    with containers.contained(cloud, host):
        yield host


@pytest.fixture(scope='module')
def server(host, module_tenant, small_image):
    """A server on a cache image, whose guest reads the rest of its disk through the gateway."""
    image = module_tenant.image(small_image)
    module_tenant.wait_state(image, 'ready')
    server = module_tenant.server(image, host=host)
    module_tenant.login(server)
    module_tenant.command(server, 'write 1')
    assert '/_bootcache/' in module_tenant.backing(server)[1]
    return server


def first(cloud, name):
    """The first process of a container, by its number outside."""
    parent = cloud.services()[name]
    return int(Path(f'/proc/{parent}/task/{parent}/children').read_text().split()[0])


def check_rebooted(tenant, server, number):
    tenant.hard_reboot(server)
    wait_until(lambda: f'boot number {number}' in tenant.openstack.console(server), 'a boot')
    tenant.check_after_boot(server)


def test_they_share_what_the_page_says_and_no_namespace(cloud, host):
    section = PAGE.split('Containers\n==========\n')[1].split('\n====')[0]
    told = re.findall(r'^   \* - ([a-z-]+)\n     - (.*)\n', section, re.MULTILINE)
    ours = {cloud.layout.instances: '/var/lib/nova', cloud.layout.gateway: '/run/bootcache',
            host.libvirt / 'run': '/run/libvirt',
            cloud.certificates / host.hostname: '/etc/bootcache/pki'}
    names = {'nova-compute': host.compute, 'libvirt': host.libvirtd, 'gateway': host.gateway_unit,
             'connectors': host.connectors_unit}
    sees = {name: {ours[path] for path in paths if path in ours}
            for name, paths in containers.shared(cloud, host).items()}
    # libvirt's own folder is no part of the cloud's files for its own container.
    sees[host.libvirtd].add('/run/libvirt')
    # The first row is the table's head.
    assert {names[name]: set(re.findall('``(.*?)``', text)) for name, text in told[1:]} == sees
    for kind in ('pid', 'mnt'):
        assert len({os.readlink(f'/proc/{pid}/ns/{kind}') for pid in (
            'self', *(first(cloud, name) for name in names.values()))}) == 5


def test_a_server_boots_and_settles(host, tenant, small_image):
    image = tenant.image(small_image, bootcache_settle='yes')
    tenant.wait_state(image, 'ready')
    server = tenant.server(image, host=host)
    tenant.login(server)
    assert '/_bootcache/' in tenant.backing(server)[1]
    tenant.command(server, 'write 2')
    wait_until(lambda: '/_base/' in tenant.backing(server)[1], 'settling', 120)
    tenant.check(server)


@pytest.mark.parametrize('name', ['connectors_unit', 'gateway_unit', 'compute'])
@pytest.mark.parametrize('way', ['restarted', 'killed'])
def test_a_container_that_is_started_again_leaves_guests_alone(cloud, host, tenant, server, name,
                                                               way):
    name = getattr(host, name)
    guests = cloud.guests()
    if way == 'killed':
        killed = cloud.services()[name]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: cloud.services()[name] is None, 'its end')
        cloud.start(name)
    else:
        cloud.restart(name)
    assert cloud.guests() == guests
    tenant.check(server)


@contextlib.contextmanager
def nova_goes_on(cloud, host):
    """libvirtd ends in the block; nova-compute is restarted if it has stopped for good.

    Nova 34 in native threads may wait for itself: if libvirtd ends while a thread asks it whether
    it is there, libvirt tells that thread of the end, in ``Host._connection_closed``, which wants
    the lock that the thread holds.
    """
    log = Log(cloud.layout.log / f'{host.compute}.log')
    yield
    try:
        log.wait('Connection to libvirt lost', 20)
    except ClientError:
        cloud.restart(host.compute)


def test_libvirtd_is_killed_and_its_container_starts_it_again(cloud, host, tenant, server):
    guests, inside = cloud.guests(), os.readlink(f'/proc/{first(cloud, host.libvirtd)}/ns/pid')

    def daemon():
        found = [process.pid for process in all_processes() if process.name == 'libvirtd'
                 and os.readlink(f'/proc/{process.pid}/ns/pid') == inside]
        return found[0] if found else None

    killed = daemon()
    with nova_goes_on(cloud, host):
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: daemon() not in (None, killed), 'a new one')
    assert cloud.guests() == guests
    tenant.check(server)
    check_rebooted(tenant, server, 2)


def test_libvirts_container_is_restarted_and_servers_start_again(cloud, host, tenant, server):
    """Guests end with it: it has their processes."""
    with nova_goes_on(cloud, host):
        cloud.restart(host.libvirtd)
    check_rebooted(tenant, server, 3)
