"""A daemon that hangs with bases from Ceph open, below a real gateway; without a Ceph, which is not
asked by then: what stands for a clone is a file. test_ceph_hosts.py has a real one."""

import threading

import nbd
import pytest
from functional_tools import free_port, frozen

from bootcache import naming
from bootcache.ceph.places import RbdOrigin
from bootcache.ceph.rights import RbdAccess
from bootcache.storagedaemon import TcpListener
from nova_bootcache.gateway.daemon import Gateway
from nova_bootcache.gateway.hostclones import HostClones
from nova_bootcache.storagenode import Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
ORIGIN = RbdOrigin('f', 'images', IMAGE, 'snap', '1a', '4')
MIB = 1 << 20


def serve(daemon, path):
    daemon.ensure_running()
    daemon.add_nodes({'driver': 'file', 'node-name': 'base', 'read-only': True,
                      'filename': path, 'locking': 'off'})
    daemon.add_export('base-x', 'base')


@pytest.fixture
def clones(directory, make_base, monkeypatch):
    clones = HostClones(RbdAccess('images', 'bootcache', 'host-1', 'host-1', '/none', '', '', '',
                                  ''), True, f'{directory}/gw', 1)
    # Ceph answers.
    monkeypatch.setattr(clones.daemon, 'check', lambda clone: None)
    path = make_base(f'{directory}/base', 4 * MIB, [(0, 4 * MIB, 'data')])
    serve(clones.daemon._daemon, path)
    yield clones
    clones.leave()


@pytest.fixture
def remote(daemons, directory, clones):
    port = free_port()
    serve(daemons('exporter', TcpListener('127.0.0.1', port)), f'{directory}/base')
    return Remote(IMAGE, '127.0.0.1', port, 'base-x', rbd=ORIGIN)


@pytest.fixture
def gateway(directory, clones, remote):
    gateway = Gateway(f'{directory}/gw', f'{directory}/gw/sock', 1, clones=clones)
    gateway.ensure_base(remote)
    yield gateway
    gateway.daemon.stop()


@pytest.mark.parametrize('knows', [True, False])
def test_a_boot_is_not_held_up_by_reads_that_wait(gateway, clones, remote, directory, knows):
    assert gateway.present([IMAGE])[IMAGE].place.socket == clones.daemon.socket
    with open(f'{directory}/base', 'rb') as stream:
        content = stream.read()
    guest = nbd.NBD()
    guest.connect_uri(naming.nbd_unix_uri(gateway.socket_path, f'base-{IMAGE}'))
    read, buffer = [], nbd.Buffer(MIB)
    with frozen(clones.daemon._daemon.pid()):
        guest.aio_pread(buffer, MIB, lambda error: read.append(error) or 1)
        while guest.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
            guest.poll(-1)
        # The gateway has asked for it when it answers to somebody else.
        assert gateway.daemon.exports() and not read
        boot = remote if knows else Remote(IMAGE, '127.0.0.1', remote.port, 'base-x')
        thread = threading.Thread(target=gateway.ensure_base, args=[boot])
        thread.start()
        thread.join()
        assert gateway.present([IMAGE])[IMAGE].place.port == remote.port
    while not read:
        guest.poll(-1)
    # What waited there had an error, at which a guest stands still, and is read again.
    if read != [0]:
        guest.shutdown()
        guest = nbd.NBD()
        guest.connect_uri(naming.nbd_unix_uri(gateway.socket_path, f'base-{IMAGE}'))
    assert guest.pread(MIB, MIB) == content[MIB:2 * MIB]
    guest.shutdown()
    assert not clones.daemon.runs
