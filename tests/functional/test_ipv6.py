"""A storage network that has IPv6 addresses only: exporter, gateway and fetches."""

import socket

import nbd
import pytest
from compute_host import fetched
from functional_tools import free_port
from storage_node import IMAGE, MIB, SIZE, content

from bootcache import exception, listening
from bootcache.manifest import CacheInfo
from bootcache.workingset import Extent
from glance_bootcache import startchecks
from nova_bootcache.storagenode import Remote

HERE = '::1'


@pytest.fixture
def storage_conf(storage_conf):
    """With an IPv6 address; node and hosts are made with it."""
    try:
        listening.listen(HERE, 0).close()
    except OSError as error:
        pytest.skip(f'no IPv6 on this machine: {error}')
    storage_conf.set_override('export_host', HERE, 'bootcache')
    return storage_conf


def read(handle):
    pieces = [handle.pread(min(MIB, SIZE - offset), offset) for offset in range(0, SIZE, MIB)]
    handle.shutdown()
    return b''.join(pieces)


def test_it_is_an_address_to_listen_on(storage_conf, directory):
    startchecks.check_place(storage_conf)


def test_any_address_is_of_both_kinds():
    with listening.listen('::', 0) as server:
        for host in ('127.0.0.1', HERE):
            socket.create_connection((host, server.getsockname()[1]), 10).close()


def test_a_base_is_served_through_the_gateway(node, hosts):
    node.serve()
    host = hosts()
    export = host.gateway.ensure_base(node.remote())
    handle = nbd.NBD()
    handle.set_export_name(export)
    handle.connect_unix(host.gateway.socket_path)
    assert read(handle) == content(node)


@pytest.mark.parametrize('rate', [0, 64 * MIB], ids=['waited for', 'paced'])
def test_a_cache_image_is_fetched(node, hosts, rate):
    node.build(Extent(4 * MIB, 300_000), Extent(0, 4096))
    answer = node.answer()
    wanted = CacheInfo(**answer['cache_image'])
    entry = fetched(hosts().fetches, node.remote(), wanted, answer['cache_export'], rate=rate)
    assert entry.file_sha256 == wanted.sha256


def test_who_does_not_answer_is_named_with_brackets(hosts):
    port = free_port()
    with pytest.raises(exception.StorageNodeAway, match=rf'exporter at \[::1\]:{port} cannot'):
        hosts().gateway.ensure_base(Remote(IMAGE, HERE, port, 'base-x'))


def test_a_taken_port_is_named_with_brackets(node, storage_conf):
    with listening.listen(HERE, storage_conf.bootcache.export_port):
        with pytest.raises(exception.StorageDaemonError, match=r'listen on \[::1\]:\d+ \(Address'):
            node.exporter.start()
