"""Servers start while the storage node is away: they read what is here, and wait at the rest.

Gateway, exporter and chains are real; the storage service's answers are a stand-in.
"""

import dataclasses
import subprocess
from concurrent.futures import ThreadPoolExecutor

import nbd
import pytest
from compute_host import boot, compare
from functional_tools import qemu_img, reached, until
from storage_node import IMAGE, MIB, SIZE, content

from bootcache import exception, naming
from bootcache.connectors.connectors import is_parked
from bootcache.workingset import Extent

SET = Extent(4 * MIB, 300_000), Extent(0, 4096)
# Data that no boot has read.
ELSEWHERE = 5 * MIB


@pytest.fixture
def host(hosts, node, directory):
    """A host with a server that is off, whose gateway is a new one, and no storage node."""
    node.build(*SET)
    host = hosts()
    assert boot(host, f'{directory}/disk') is True
    host.service.freeze()
    node.kill()
    host.gateway.daemon.stop()
    return host


@pytest.fixture
def guest(daemons, directory):
    """Opens the server's disk as QEMU does, and reads."""
    daemon = daemons('qemu')
    daemon.ensure_running()

    def start():
        daemon.add_nodes({'driver': 'qcow2', 'node-name': 'disk', 'read-only': True, 'file': {
            'driver': 'file', 'filename': f'{directory}/disk', 'locking': 'off'}})
        daemon.add_export('disk', 'disk')
        handle = nbd.NBD()
        handle.set_export_name('disk')
        handle.connect_unix(daemon.listener.path)
        return handle

    return start


def refused(handle, offset):
    with pytest.raises(nbd.Error) as error:
        handle.pread(4096, offset)
    return error.value.errno == 'EIO'


def reads(handle, node, offset):
    """Tell whether data is read by now, and check it."""
    try:
        data = bytes(handle.pread(4096, offset))
    except nbd.Error:
        return False
    assert data == content(node)[offset:offset + 4096]
    return True


def is_read(host, node):
    return host.connections.is_read(node.remote().export)


def start(host, directory):
    host.chains.keep_chain(IMAGE, f'{directory}/disk', guest_waits=True)


def test_it_reads_what_is_here_and_goes_on_when_the_node_is_back(host, node, guest, directory):
    start(host, directory)
    handle, wanted = guest(), content(node)
    assert bytes(handle.pread(65536, 4 * MIB)) == wanted[4 * MIB:4 * MIB + 65536]
    assert refused(handle, ELSEWHERE) and refused(handle, ELSEWHERE)
    until(lambda: not is_read(host, node), 'news of what cannot be read')
    node.serve()
    reached(host, IMAGE)
    assert is_read(host, node)
    until(lambda: reads(handle, node, ELSEWHERE), 'reads that go on')
    compare(f'{directory}/disk', node)


def test_nobody_takes_what_is_absent_for_zeros(host, node, directory):
    start(host, directory)
    with pytest.raises(subprocess.CalledProcessError):
        qemu_img('convert', '-f', 'qcow2', '-O', 'raw', f'{directory}/disk', f'{directory}/copy')
    handle = nbd.NBD()
    handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    handle.set_export_name(naming.export_name(naming.EXPORT_BASE, IMAGE))
    handle.connect_unix(host.gateway.socket_path)
    assert handle.get_size() == SIZE
    with pytest.raises(nbd.Error):
        handle.block_status(SIZE, 0, lambda *_status: 0)


def test_several_starts_at_once_leave_it_read_by_no_way(host, node, directory):
    """What has its size alone gives whoever reads anything."""
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _number: start(host, directory), range(12)))
    assert not is_read(host, node)
    assert is_parked(host.connections.socket(node.remote().export))


def test_what_needs_the_data_does_not_take_it(host, directory):
    with pytest.raises(exception.StorageNodeAway):
        host.chains.keep_chain(IMAGE, f'{directory}/disk')
    start(host, directory)
    with pytest.raises(exception.StorageNodeAway):
        host.chains.keep_chain(IMAGE, f'{directory}/disk')


def test_a_second_start_changes_nothing_and_a_new_driver_knows_it(host, hosts, node, directory):
    start(host, directory)
    nodes = host.gateway.daemon.nodes()
    start(host, directory)
    again = hosts()
    again.reconcile()
    assert again.gateway.daemon.nodes() == nodes
    until(lambda: not is_read(again, node), 'news of what cannot be read')
    node.serve()
    again.chains.keep_chain(IMAGE, f'{directory}/disk')
    assert is_read(again, node)
    compare(f'{directory}/disk', node)


def test_another_content_does_not_take_its_place_below_a_guest(host, node, guest, directory):
    start(host, directory)
    handle = guest()
    node.serve()
    exporter = node.exporter.common._daemon
    exporter.add_nodes({'driver': 'null-co', 'node-name': 'another', 'size': SIZE,
                        'read-zeroes': True, 'read-only': True})
    exporter.add_export('base-of-another', 'another')
    other = dataclasses.replace(host.cache.known(IMAGE).remote, export='base-of-another')
    with pytest.raises(exception.StorageDaemonError, match='another content'):
        host.gateway.ensure_base(other)
    until(lambda: reads(handle, node, ELSEWHERE), 'reads that go on')
