"""The stand-in of the message bus, on which processes are killed."""

import socket
import tempfile
import types

import pytest

from bench.faults import bus
from bootcache.bus import within


@pytest.fixture
def directory():
    # Unix socket paths end at 107 bytes.
    with tempfile.TemporaryDirectory(prefix='bcbus', dir='/tmp') as path:
        yield path


def test_a_client_that_is_killed_as_it_connects_keeps_nobody_from_being_served(directory):
    server = bus.Server(directory, types.SimpleNamespace(
        call=lambda method, arguments: 2 * arguments['number']))
    server.start()
    for sent in (b'', b'\0\0', b'\0\0\0\4abcd'):
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(f'{directory}/bus')
            other.sendall(sent)
    client = bus.StageClient.__new__(bus.StageClient)
    client._directory = directory
    # Where nobody serves it is connected, and waits for ever.
    assert within(30, lambda: client._ask(30, 'twice', {'number': 4})) == 8
    server.stop()
