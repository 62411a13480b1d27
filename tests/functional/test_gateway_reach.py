"""Whether an exporter answers, as asked before the gateway is made to wait for it."""

import socket
import threading
import time

import pytest
from functional_tools import free_port, frozen
from storage_node import IMAGE

from bootcache import exception
from nova_bootcache import storagenode
from nova_bootcache.storagenode import Remote, check_reachable

# What the gateway's users wait for an answer at most; slow machines included.
BOUND = 3 * storagenode._REACH_SECONDS


@pytest.fixture
def listener():
    """A port of the loopback interface on which connections are taken."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        yield server


def refused(port):
    """What is said of a port that does not answer as an exporter, within the bound."""
    began = time.monotonic()
    with pytest.raises(exception.StorageDaemonError) as caught:
        check_reachable(Remote(IMAGE, '127.0.0.1', port, 'base-x'))
    assert time.monotonic() - began < BOUND
    assert f'the exporter at 127.0.0.1:{port} cannot be reached' in str(caught.value)
    return str(caught.value)


def test_a_listener_that_says_nothing(listener):
    """Such as a storage node that is frozen: its kernel goes on taking connections."""
    assert 'timed out' in refused(listener.getsockname()[1])


def test_nobody_listens():
    assert 'refused' in refused(free_port())


@pytest.mark.parametrize('word', [b'', b'SSH-2.0-x', b'NBD'], ids=['bye', 'other', 'cut short'])
def test_something_else_listens(listener, word):
    def answer():
        connection, _address = listener.accept()
        with connection:
            connection.sendall(word)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        assert 'does not speak NBD' in refused(listener.getsockname()[1])
    finally:
        thread.join()


def test_an_exporter(node):
    node.serve()
    check_reachable(node.remote())
    with frozen(node.exporter.common._daemon.pid()):
        refused(node.remote().port)
    check_reachable(node.remote())


def test_a_frozen_storage_node_does_not_hold_the_gateway_up(hosts, node, directory):
    """The gateway is neither made to wait nor ended: it goes on for what it serves already."""
    node.serve()
    host = hosts()
    pid = host.gateway.daemon.pid()
    with frozen(node.exporter.common._daemon.pid()):
        began = time.monotonic()
        with pytest.raises(exception.StorageDaemonError, match='cannot be reached'):
            host.gateway.ensure_base(node.remote())
        assert host.gateway.daemon.exports() == {} and host.gateway.daemon.nodes() == set()
        host.upkeep.once()
        assert time.monotonic() - began < 2 * BOUND
    assert host.gateway.daemon.pid() == pid
    host.gateway.ensure_base(node.remote())
    assert host.gateway.serves(IMAGE)
