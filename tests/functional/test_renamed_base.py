"""A base that has another name of the exporter's, as of a storage service that knew it no more.

Gateway, exporters and chains are real; the storage service's answers are a stand-in.
"""

import contextlib

import nbd
import pytest
from compute_host import boot, compare
from functional_tools import free_port
from storage_node import IMAGE, MIB, content

from bootcache import exception, naming
from bootcache.storagedaemon import TcpListener
from bootcache.workingset import Extent

NAME = 'base-of-another-name'
SET = Extent(4 * MIB, 300_000), Extent(0, 4096)


@pytest.fixture
def renamed(node, daemons):
    """What a host is told, once the base has another name, and another exporter."""
    port = free_port()
    daemon = daemons('renamed', TcpListener('127.0.0.1', port))
    daemon.ensure_running()
    daemon.add_nodes({'driver': 'qcow2', 'node-name': 'base', 'read-only': True, 'file': {
        'driver': 'file', 'filename': node.base, 'locking': 'off'}})
    daemon.add_export(NAME, 'base')
    return {'server': ['127.0.0.1', port], 'base_export': NAME}


@pytest.fixture
def host(hosts, node, directory):
    """A host with one server, whose disk stands on the image's cache image."""
    node.build(*SET)
    host = hosts()
    assert boot(host, f'{directory}/disk') is True
    return host


@contextlib.contextmanager
def server(host):
    """A server's QEMU that has the base open."""
    handle = nbd.NBD()
    handle.connect_uri(naming.nbd_unix_uri(host.gateway.socket_path, f'base-{IMAGE}'))
    try:
        yield handle
    finally:
        handle.shutdown()


def place(host):
    return host.gateway.present([IMAGE])[IMAGE].place


def test_servers_that_run_read_on_by_its_new_name(host, node, renamed, directory):
    wanted = content(node)
    with server(host) as handle:
        assert handle.pread(4096, MIB) == wanted[MIB:MIB + 4096]
        older = place(host).export
        assert older != NAME
        host.service.freeze()
        host.service.extra = renamed
        node.exporter.stop()
        host.chains.reach_base(IMAGE)
        assert place(host).export == NAME
        assert host.cache.known(IMAGE).remote.earlier == older
        assert handle.pread(MIB, 3 * MIB) == wanted[3 * MIB:4 * MIB]
        # The next server, and the driver after its restart.
        assert boot(host, f'{directory}/second') is True
        host.chains.serve_base(host.cache.known(IMAGE))
        compare(f'{directory}/second', node)
    assert host.cache.known(IMAGE).remote.earlier == older


def test_the_next_server_comes_first(host, node, renamed, directory):
    """Nobody has looked for the base since it has that name."""
    with server(host) as handle:
        host.service.freeze()
        host.service.extra = renamed
        node.exporter.stop()
        assert boot(host, f'{directory}/second') is True
        assert place(host).export == NAME
        assert handle.pread(MIB, 5 * MIB) == content(node)[5 * MIB:6 * MIB]


def test_another_content_is_not_read_by_servers_that_run(host, renamed):
    with server(host):
        older = place(host)
        host.service.freeze()
        host.service.extra = {**renamed, 'image_hash': 'sha512:cd'}
        with pytest.raises(exception.BootcacheError, match='has another content now'):
            host.chains._find_base(host.cache.known(IMAGE))
        assert place(host) == older and not host.cache.known(IMAGE).remote.earlier
