"""What storage daemons do for a while, and what a crash leaves of a server's disk: real daemons."""

import json
import os
import signal

import nbd
import pytest
from functional_tools import qemu_img, until
from storage_node import MIB

from bootcache import daemonjobs, exception, qemuimg
from bootcache.storagedaemon import StorageDaemon, UnixListener

SIZE = 8 * MIB


@pytest.fixture
def daemon(directory):
    made = StorageDaemon('jobs', directory, UnixListener(f'{directory}/nbd.sock'))
    made.ensure_running()
    yield made
    made.stop()


def details(path):
    return json.loads(qemu_img('info', '--output=json', path))


def jobs(daemon):
    with daemon.session() as session:
        return session.execute('query-jobs')


def test_an_image_whose_data_is_elsewhere(daemon, directory):
    """Each byte is at its place in the other file, also if its name has a comma."""
    path, data = f'{directory}/map', f'{directory}/a,b'
    qemuimg.create_standalone(path, SIZE, 65536, data)
    daemon.add_nodes({'driver': 'qcow2', 'node-name': 'image',
                      'file': {'driver': 'file', 'filename': path},
                      'data-file': {'driver': 'file', 'filename': data}})
    daemon.add_export('image', 'image', writable=True)
    handle = nbd.NBD()
    handle.connect_uri(f'nbd+unix:///image?socket={directory}/nbd.sock')
    # Not in the order of the file.
    handle.pwrite(b'\x22' * 65536, 5 * MIB)
    handle.pwrite(b'\x11' * 65536, MIB)
    handle.flush()
    handle.shutdown()
    expected = bytearray(SIZE)
    expected[MIB:MIB + 65536] = b'\x11' * 65536
    expected[5 * MIB:5 * MIB + 65536] = b'\x22' * 65536
    with open(data, 'rb') as stream:
        assert stream.read() == expected


def test_a_stream_that_is_ended_in_the_midst(daemon, directory):
    path, data = f'{directory}/image', f'{directory}/data'
    with open(data, 'wb') as stream:
        stream.write(b'\x11' * SIZE)
    qemuimg.create_standalone(path, SIZE, 65536)
    with daemon.session() as session:
        session.execute('object-add', **{'qom-type': 'throttle-group', 'id': 'slow',
                                         'limits': {'bps-read': MIB}})
    daemon.add_nodes({'driver': 'file', 'node-name': 'data', 'filename': data},
                     {'driver': 'throttle', 'node-name': 'below', 'throttle-group': 'slow',
                      'file': 'data'},
                     {'driver': 'qcow2', 'node-name': 'image', 'backing': 'below',
                      'file': {'driver': 'file', 'filename': path}})
    daemonjobs.end(daemon, 'none')
    assert daemonjobs.is_filled(daemon, 'image') is False
    daemonjobs.start_stream(daemon, 'job', 'image')
    until(lambda: daemonjobs.progress(daemon, 'job'), 'the first bytes')
    assert daemonjobs.progress(daemon, 'job') < SIZE
    daemonjobs.end(daemon, 'job')
    assert jobs(daemon) == [] and daemonjobs.progress(daemon, 'job') is None
    assert daemonjobs.is_filled(daemon, 'image') is False
    daemon.remove_nodes('image', 'below', 'data')
    with pytest.raises(exception.StorageDaemonError, match='no node image'):
        daemonjobs.is_filled(daemon, 'image')


def test_nodes_can_be_queried_while_a_stream_ends(daemon, directory):
    data = f'{directory}/data'
    with open(data, 'wb') as stream:
        stream.write(b'\x11' * SIZE)
    pid = daemon.pid()
    for number in range(10):
        path = f'{directory}/image{number}'
        qemuimg.create_standalone(path, SIZE, 65536)
        daemon.add_nodes({'driver': 'file', 'node-name': 'data', 'filename': data},
                         {'driver': 'qcow2', 'node-name': 'image', 'backing': 'data',
                          'file': {'driver': 'file', 'filename': path}})
        daemonjobs.start_stream(daemon, 'job', 'image')
        with daemon.session() as session:
            while session.execute('query-jobs'):
                session.execute('query-named-block-nodes', flat=True)
        assert daemonjobs.is_filled(daemon, 'image') is True
        daemon.remove_nodes('image', 'data')
    assert daemon.pid() == pid


def test_a_disk_after_a_crash_has_what_was_flushed(daemon, directory):
    """Its refcounts are lazy: they are not there, and are made anew when it is opened."""
    base, disk = f'{directory}/base', f'{directory}/disk'
    with open(base, 'wb') as stream:
        stream.write(b'\x11' * SIZE)
    qemuimg.create_overlay(disk, SIZE, base, 'raw', cluster_bytes=128 << 10, subclusters=True)

    def open_disk():
        daemon.ensure_running()
        daemon.add_nodes({'driver': 'qcow2', 'node-name': 'disk',
                          'file': {'driver': 'file', 'filename': disk}})
        daemon.add_export('disk', 'disk', writable=True)
        handle = nbd.NBD()
        handle.connect_uri(f'nbd+unix:///disk?socket={directory}/nbd.sock')
        return handle

    handle = open_disk()
    for offset in range(0, SIZE, MIB):
        handle.pwrite(b'\x22' * 4096, offset + 8192)
    handle.flush()
    handle.pwrite(b'\x33' * 4096, 0)
    os.kill(daemon.pid(), signal.SIGKILL)
    until(lambda: daemon.pid() is None, 'the end of the daemon')
    assert details(disk)['dirty-flag'] is True
    handle = open_disk()
    expected = bytearray(b'\x11' * SIZE)
    for offset in range(0, SIZE, MIB):
        expected[offset + 8192:offset + 12288] = b'\x22' * 4096
    # What was written after the flush may be there, or not.
    assert handle.pread(SIZE - 4096, 4096) == expected[4096:]
    handle.shutdown()
    daemon.stop()
    assert details(disk)['dirty-flag'] is False
    qemuimg.check(disk)
