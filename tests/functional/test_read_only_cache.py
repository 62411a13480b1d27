"""A directory of cache images that nobody can write to: servers start from what it has."""

import contextlib
import os
import subprocess

import pytest
from compute_host import boot, compare
from functional_tools import free_port
from storage_node import IMAGE, MIB

from bootcache.storagedaemon import TcpListener
from bootcache.workingset import Extent

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='only root mounts anything')
SET = Extent(4 * MIB, 300_000), Extent(0, 4096)


@contextlib.contextmanager
def read_only(path):
    """As a file system becomes at an error of its disk."""
    subprocess.run(['mount', '--bind', path, path], check=True)
    try:
        subprocess.run(['mount', '-o', 'remount,bind,ro', path], check=True)
        with pytest.raises(OSError, match='Read-only file system'):
            os.utime(path)
        yield
    finally:
        subprocess.run(['umount', '-l', path], check=True)


def test_servers_start_and_are_made(hosts, node, directory, daemons):
    node.build(*SET)
    host = hosts()
    first, second = f'{directory}/disk', f'{directory}/second'
    assert boot(host, first) is True
    with read_only(host.cache.directory):
        # A hard reboot, and a new server.
        host.chains.keep_chain(IMAGE, first, guest_waits=True)
        assert boot(host, second) is True
        for path in (first, second):
            compare(path, node)
        # Where the base is now cannot be noted.
        port = free_port()
        daemon = daemons('moved', TcpListener('127.0.0.1', port))
        daemon.ensure_running()
        daemon.add_nodes({'driver': 'qcow2', 'node-name': 'base', 'read-only': True, 'file': {
            'driver': 'file', 'filename': node.base, 'locking': 'off'}})
        daemon.add_export(node.remote().export, 'base')
        host.service.freeze()
        host.service.extra = {'server': ['127.0.0.1', port]}
        third = f'{directory}/third'
        assert boot(host, third) is True
        compare(third, node)
