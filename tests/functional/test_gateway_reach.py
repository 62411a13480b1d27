"""Whether an exporter answers, as asked before the gateway is made to wait for it."""

import dataclasses
import socket
import struct
import threading
import time

import pytest
from functional_tools import free_port, frozen, until
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


@pytest.fixture(params=['plain', 'TLS'])
def spoken(request, storage_conf, ca):
    """What the exporter of the node speaks that is made after this."""
    if request.param == 'TLS':
        storage_conf.set_override('tls_directory', ca.issue('node', ['127.0.0.1']), 'bootcache')


def test_it_leaves_no_error_in_the_exporter_s_log(spoken, node):
    node.serve()
    log = node.exporter.common._daemon.log_path
    for _time in range(20):
        check_reachable(node.remote())
    # Who speaks something else does, later than all of these. Of who goes without a word QEMU 10
    # says nothing, and earlier ones an error as well.
    with socket.create_connection(('127.0.0.1', node.remote().port)) as rude:
        assert rude.recv(18, socket.MSG_WAITALL).startswith(b'NBDMAGIC')
        rude.sendall(struct.pack('>I8s', 3, b'no magic'))
        assert rude.recv(1) == b''
    said = until(lambda: text(log), 'what QEMU says of who speaks something else')
    assert said.count('qemu-storage-daemon: ') == 1, said


def text(path):
    with open(path) as stream:
        return stream.read()


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
        began = time.monotonic()
        with pytest.raises(exception.StorageDaemonError, match='cannot be reached'):
            host.gateway.ensure_base(node.remote())
        assert host.gateway.daemon.exports() == {} and host.gateway.daemon.nodes() == set()
        host.upkeep.once()
        assert time.monotonic() - began < 2 * BOUND
    assert host.gateway.daemon.pid() == pid
    host.gateway.ensure_base(node.remote())
    assert host.gateway.serves(IMAGE)
