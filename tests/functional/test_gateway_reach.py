"""Storage nodes that cannot be reached: hosts are told, and their gateway goes on."""

import dataclasses
import socket
import threading

import pytest
from functional_tools import free_port, frozen
from storage_node import IMAGE

from bootcache import exception
from nova_bootcache.storagenode import Remote


@pytest.fixture
def listener():
    """A port of the loopback interface on which connections are taken."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        yield server


def refused(host, port):
    """Have a base be served that cannot be reached at a port; the gateway is not held up by it."""
    with pytest.raises(exception.StorageNodeAway) as caught:
        host.gateway.ensure_base(Remote(IMAGE, '127.0.0.1', port, 'base-x'))
    assert f'the exporter at 127.0.0.1:{port} cannot be reached' in str(caught.value)
    assert host.gateway.daemon.exports() == {} and host.gateway.daemon.nodes() == set()


def test_a_listener_that_says_nothing(hosts, listener):
    """Such as a storage node that is frozen: its kernel goes on taking connections."""
    refused(hosts(), listener.getsockname()[1])


def test_nobody_listens(hosts):
    refused(hosts(), free_port())


@pytest.mark.parametrize('word', [b'', b'SSH-2.0-x', b'NBD'], ids=['bye', 'other', 'cut short'])
def test_something_else_listens(hosts, listener, word):
    def answer():
        # Who connects may try several times.
        while True:
            try:
                connection, _address = listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(word)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        refused(hosts(), listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_base_that_is_not_served_any_more(hosts, node):
    """As of an image that was deleted just now: said in words, and not in QEMU's."""
    node.serve()
    gone = dataclasses.replace(node.remote(), export='base-gone')
    with pytest.raises(exception.StorageDaemonError) as caught:
        hosts().gateway.ensure_base(gone)
    assert 'base-gone is not served now: its image was deleted' in str(caught.value)
    assert 'blockdev-add' not in str(caught.value)


def test_a_frozen_storage_node_does_not_hold_the_gateway_up(hosts, node, directory):
    """The gateway is neither made to wait nor ended: it goes on for what it serves already."""
    node.serve()
    host = hosts()
    pid = host.gateway.daemon.pid()
    with frozen(node.exporter.common._daemon.pid()):
        with pytest.raises(exception.StorageNodeAway, match='cannot be reached'):
            host.gateway.ensure_base(node.remote())
        assert host.gateway.daemon.exports() == {} and host.gateway.daemon.nodes() == set()
        host.upkeep.once()
    assert host.gateway.daemon.pid() == pid
    host.gateway.ensure_base(node.remote())
    assert host.gateway.serves(IMAGE)
