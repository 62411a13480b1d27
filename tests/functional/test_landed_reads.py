"""How the gateway reads a cache image that has arrived, with real daemons."""

import contextlib
import os
import subprocess

import pytest
from compute_host import boot, compare
from storage_node import IMAGE, content
from test_arrival import SET, read
from test_arrival import host as host  # the fixture
from test_arrival import way as way  # the fixture

from bootcache import exception
from nova_bootcache.gateway import graph


def rings(host):
    """The io_urings that the gateway has open."""
    with open(f'{os.path.dirname(host.gateway.socket_path)}/gateway.pid') as stream:
        pid = int(stream.read())
    found = []
    for name in os.listdir(f'/proc/{pid}/fd'):
        # It closes connections meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f'/proc/{pid}/fd/{name}'))
    return [target for target in found if 'io_uring' in target]


def has_rings(path):
    """Whether QEMU can have one on this machine."""
    bench = 'qemu-img', 'bench', '-q', '-c', '1', '-i', 'io_uring', '-f', 'raw', path
    return subprocess.run(bench, capture_output=True).returncode == 0


@pytest.mark.parametrize('refuses', [False, True], ids=['io_uring', 'threads'])
def test_how_the_gateway_reads_what_has_landed(host, node, directory, monkeypatch, refuses):
    """By an io_uring; where the gateway refuses that, as before."""
    refused, real = [], host.gateway.daemon.add_nodes

    def add_nodes(*nodes):
        if refuses and any('io_uring' in str(node) for node in nodes):
            refused.append(nodes)
            raise exception.StorageDaemonError('gateway: aio=io_uring is not supported')
        real(*nodes)

    monkeypatch.setattr(host.gateway.daemon, 'add_nodes', add_nodes)
    boot(host, f'{directory}/disk')
    assert host.arrivals.wait(IMAGE, 60) and len(refused) == refuses
    assert graph.LANDED in host.gateway.present([IMAGE])[IMAGE].kinds
    assert bool(rings(host)) is (not refuses and has_rings(host.cache.path(IMAGE)))
    data = content(node)
    for extent in SET:
        assert read(host, extent.offset, extent.length) == data[extent.offset:extent.end]
    compare(f'{directory}/disk', node)
