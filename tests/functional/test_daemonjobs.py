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


def add_image(daemon, path, below):
    """An image that keeps what is read of it, and a sink."""
    qemuimg.create_standalone(path, SIZE, 65536)
    daemon.add_nodes({'driver': 'qcow2', 'node-name': 'image', 'backing': below,
                      'file': {'driver': 'file', 'filename': path}},
                     {'driver': 'copy-on-read', 'node-name': 'filter', 'file': 'image'},
                     {'driver': 'null-co', 'node-name': 'sink', 'size': SIZE})


def add_data(daemon, path):
    with open(path, 'wb') as stream:
        stream.write(b'\x11' * SIZE)
    daemon.add_nodes({'driver': 'file', 'node-name': 'data', 'filename': path})


def test_a_job_that_is_ended_in_the_midst(daemon, directory):
    add_data(daemon, f'{directory}/data')
    with daemon.session() as session:
        session.execute('object-add', **{'qom-type': 'throttle-group', 'id': 'slow',
                                         'limits': {'bps-read': MIB}})
    daemon.add_nodes({'driver': 'throttle', 'node-name': 'below', 'throttle-group': 'slow',
                      'file': 'data'})
    add_image(daemon, f'{directory}/image', 'below')
    daemonjobs.end(daemon, 'none')
    daemonjobs.start_reading(daemon, 'job', 'filter', 'sink', 65536)
    until(lambda: daemonjobs.look(daemon, 'job'), 'the first bytes')
    assert daemonjobs.look(daemon, 'job') < SIZE and daemonjobs.is_there(daemon, 'job')
    daemonjobs.end(daemon, 'job')
    assert jobs(daemon) == [] and not daemonjobs.is_there(daemon, 'job')
    with pytest.raises(exception.StorageDaemonError, match='not all of it could be read'):
        daemonjobs.look(daemon, 'job')
    daemon.remove_nodes('filter', 'image', 'below', 'data', 'sink')


def test_a_job_that_comes_to_its_end_has_all_of_it_copied(daemon, directory):
    add_data(daemon, f'{directory}/data')
    pid = daemon.pid()
    for number in range(5):
        add_image(daemon, f'{directory}/image{number}', 'data')
        daemonjobs.start_reading(daemon, 'job', 'filter', 'sink', 65536)
        while daemonjobs.look(daemon, 'job') is not None:
            daemon.nodes()
        daemonjobs.end(daemon, 'job')
        daemon.remove_nodes('filter', 'image', 'sink')
        assert [part['depth'] for part in json.loads(qemu_img(
            'map', '--output=json', '-f', 'qcow2', f'{directory}/image{number}'))] == [0]
    assert daemon.pid() == pid


def test_a_job_that_meets_an_error_fails(daemon, directory):
    add_data(daemon, f'{directory}/data')
    daemon.add_nodes({'driver': 'blkdebug', 'node-name': 'below', 'image': 'data',
                      'inject-error': [{'event': 'none', 'iotype': 'read', 'errno': 5,
                                        'sector': SIZE // 1024, 'once': False}]})
    add_image(daemon, f'{directory}/image', 'below')
    daemonjobs.start_reading(daemon, 'job', 'filter', 'sink', 65536)
    until(lambda: not daemonjobs.is_there(daemon, 'job'), 'the end of the job')
    with pytest.raises(exception.StorageDaemonError, match='not all of it could be read'):
        daemonjobs.look(daemon, 'job')


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
