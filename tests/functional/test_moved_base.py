"""A base that is at another address, or nowhere: what is below servers that read goes on, or says.

Gateway, exporters and chains are real; the storage service's answers are a stand-in.
"""

import contextlib
import threading

import pytest
from compute_host import boot, compare
from functional_tools import free_port, reached, read_base, until
from storage_node import IMAGE, MIB, SIZE, content

from bootcache import exception, naming
from bootcache.connectors.ways import nbd_way
from bootcache.rpc.messages import PlanBoot
from bootcache.storagedaemon import TcpListener
from bootcache.workingset import Extent
from nova_bootcache.gateway import graph
from nova_bootcache.storagenode import Remote

SET = Extent(4 * MIB, 300_000), Extent(0, 4096)


@pytest.fixture
def places(node, daemons):
    """Makes further exporters of the node's base; each has another address."""
    def make(name):
        port = free_port()
        daemon = daemons(name, TcpListener('127.0.0.1', port))
        daemon.ensure_running()
        daemon.add_nodes({'driver': 'qcow2', 'node-name': 'base', 'read-only': True, 'file': {
            'driver': 'file', 'filename': node.base, 'locking': 'off'}})
        daemon.add_export(node.remote().export, 'base')
        return daemon, port

    return make


@pytest.fixture
def host(hosts, node, directory):
    """A host with one server, whose disk stands on the image's cache image."""
    node.build(*SET)
    host = hosts()
    assert boot(host, f'{directory}/disk') is True
    return host


def move(host, port):
    """Have the storage service tell that the base is at another port."""
    if not host.service.frozen:
        host.service.freeze()
    host.service.extra = {'server': ['127.0.0.1', port]}


def told(host):
    """What the host is told of where the base is."""
    return Remote.from_answer(IMAGE, host.service.plan_boot(PlanBoot(IMAGE, 'host-1', '')))


def kinds(host):
    return {kind for kind in graph.KINDS
            if naming.node_name(kind, IMAGE) in host.gateway.daemon.nodes()}


def is_read_at(host, port):
    """Whether a connector runs that reads the base at a port, and the host's link leads to it."""
    export = host.gateway.present([IMAGE])[IMAGE].content
    connectors = host.connections._connectors
    return connectors.is_by(connectors.name_of(export), nbd_way('127.0.0.1', port, export))


def fails(host, text):
    """Tell whether servers cannot read the base, for a reason with a text."""
    try:
        host.chains.reach_base(IMAGE)
    except exception.BootcacheError as error:
        return text in str(error)
    return False


def test_a_storage_node_that_comes_back_at_another_address(host, node, places, directory):
    wanted = content(node)
    assert read_base(host, IMAGE, MIB, 4096) == wanted[MIB:MIB + 4096]
    second, port = places('second')
    move(host, port)
    node.exporter.stop()
    until(lambda: is_read_at(host, port), 'the way to the second')
    reached(host, IMAGE)
    assert kinds(host) == {'g', 'n'}
    assert host.cache.known(IMAGE).remote.port == port
    assert read_base(host, IMAGE, 3 * MIB, MIB) == wanted[3 * MIB:4 * MIB]
    compare(f'{directory}/disk', node)
    # And on.
    third, another = places('third')
    move(host, another)
    second.stop()
    until(lambda: is_read_at(host, another), 'the way to the third')
    assert kinds(host) == {'g', 'n'}
    compare(f'{directory}/disk', node)
    third.stop()
    until(lambda: fails(host, 'cannot be reached'), 'the end of the third')
    assert kinds(host) == {'g', 'n'}


def test_whoever_reads_does_not_notice(host, node, places):
    """Through a growing store, too, which keeps what it has."""
    wanted, (_daemon, port) = content(node), places('second')
    first = node.remote().port
    read, failed, ended = [], [], threading.Event()
    store = host.below.open_store(IMAGE, SIZE, host.cache.medium(IMAGE), 64 * MIB)

    def read_on():
        import nbd
        handle = nbd.NBD()
        handle.connect_uri(naming.nbd_unix_uri(host.gateway.socket_path, f'base-{IMAGE}'))
        try:
            while not ended.is_set():
                offset = len(read) * 4096 % (SIZE - 8192)
                if handle.pread(4096, offset) != wanted[offset:offset + 4096]:
                    failed.append(offset)
                read.append(offset)
        except nbd.Error as error:
            failed.append(error)
        handle.shutdown()

    readers = [threading.Thread(target=read_on) for _number in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(20):
            move(host, (port, first)[number % 2])
            host.chains.serve_base(host.cache.update(
                host.cache.known(IMAGE), told(host), False, 0))
            host.upkeep.connect_bases()
            assert is_read_at(host, (port, first)[number % 2])
    finally:
        ended.set()
        for reader in readers:
            reader.join()
    assert not failed and len(read) > 100
    assert store.is_there() and store.size() > MIB


def test_a_node_that_is_back_without_the_image(host, node, places):
    """It answers, so that only the export tells; the storage service is asked, and serves it."""
    remote = node.remote()
    with contextlib.ExitStack() as stack:
        empty = places('second')[0]
        stack.callback(empty.stop)
        move(host, empty.listener.port)
        node.exporter.stop()
        empty.remove_export(remote.export, disconnect=True)
        until(lambda: fails(host, f'{remote.export} is not served now'), 'what it says')
        # It is told what the storage service says of it.
        answer, host.service.frozen = host.service.frozen, {'action': 'stock', 'reason': 'deleted'}
        host.service.extra = {'action': 'stock', 'reason': 'the image was deleted'}
        until(lambda: fails(host, 'the image was deleted'), 'what the storage service says')
        host.service.frozen = answer
        host.service.extra = {'server': ['127.0.0.1', empty.listener.port]}
        empty.add_export(remote.export, 'base')
        reached(host, IMAGE)
    assert is_read_at(host, empty.listener.port)


def test_another_content_is_never_taken_for_it(host, node, places):
    (_daemon, port), export = places('second'), node.remote().export
    move(host, port)
    host.service.extra['base_export'] = f'base-{IMAGE}-0000000000000000'
    host.service.extra['image_hash'] = 'sha512:00'
    node.exporter.stop()
    until(lambda: fails(host, 'another content'), 'what the storage service says')
    assert host.gateway.present([IMAGE])[IMAGE].content == export
