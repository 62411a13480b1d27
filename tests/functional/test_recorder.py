"""Recording what is read through a growing store, in a real storage daemon."""

import json
import os

import nbd
import pytest
from functional_tools import qemu_img, until

from bootcache import cacheimage, exception, naming, qemuimg, workingset
from bootcache.cacheimage import Base
from bootcache.recorder import GRANULARITY, Recording
from bootcache.workingset import Extent

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
MIB = 1 << 20
SIZE = 8 * MIB + 512


@pytest.fixture
def base(directory, make_base):
    """Data, a hole from 2 to 3 MiB, written zeros to 4, data to an end within a cluster."""
    return Base(make_base(f'{directory}/base', SIZE, [
        (0, 2 * MIB, 'data'), (3 * MIB, MIB, 'zeros'), (4 * MIB, SIZE, 'data')]), 'raw', SIZE)


@pytest.fixture
def daemon(daemons):
    daemon = daemons('recorder')
    daemon.ensure_running()
    return daemon


@pytest.fixture
def recording(daemon, base, directory):
    recording = Recording(daemon, IMAGE, base.nodes('b-1'), SIZE, f'{directory}/store')
    yield recording
    recording.discard()


def connect(daemon):
    handle = nbd.NBD()
    handle.set_export_name(naming.export_name(naming.EXPORT_RECORDING, IMAGE))
    handle.connect_unix(daemon.listener.path)
    return handle


def read(handle, base, offset, length):
    with open(base.path, 'rb') as stream:
        stream.seek(offset)
        assert handle.pread(length, offset) == stream.read(length)


def grown(recording):
    """Wait until the recorder has seen all that the store has."""
    until(lambda: recording._samples
          and recording._samples[-1].file_bytes == os.stat(recording.store_path).st_size,
          'a look at the store')


READS = [(6 * MIB, 4096), (0, 8192), (5 * MIB + 4096, 512), (MIB, 65536), (SIZE - 512, 512),
         (0, 4096), (4 * MIB - 4096, 4096), (2 * MIB, 4096)]


def test_reads_are_recorded_in_order_with_ascending_times(recording, daemon, base):
    recording.open(interval=0.01)
    handle = connect(daemon)
    for offset, length in READS:
        grown(recording)
        read(handle, base, offset, length)
    grown(recording)
    handle.shutdown()
    extents = recording.finish()
    # The second read of the same place counts once, zeros come last; the hole is answered by the
    # NBD server out of the block status, and no recorder sees it.
    assert [(extent.offset, extent.end) for extent in extents] == [
        (6 * MIB, 6 * MIB + 4096), (0, 8192), (5 * MIB + 4096, 5 * MIB + 8192),
        (MIB, MIB + 65536), (8 * MIB, SIZE), (4 * MIB - 4096, 4 * MIB)]
    times = [extent.seconds for extent in extents]
    assert times[-1] is None
    # On a busy machine the store is looked at while the first read is still being written.
    assert times[:-1] == sorted(times[:-1]) and times[4] > times[0] >= 0.0
    assert not os.path.exists(recording.store_path)
    assert daemon.exports() == {} and daemon.nodes() == set()


def test_the_overlays_own_reads_are_recorded(recording, daemon, base, directory):
    """A guest's small write makes the overlay read from below; that belongs to the boot."""
    recording.open(interval=0.01)
    overlay = f'{directory}/overlay'
    qemuimg.create_overlay(overlay, SIZE, naming.nbd_unix_uri(daemon.listener.path,
                                                              recording.export), 'raw',
                           cluster_bytes=65536)
    qemu_img('bench', '-w', '-c', '1', '-s', '512', '-o', MIB + 512, '-f', 'qcow2', overlay)
    extents = recording.finish()
    assert workingset.uncovered([Extent(MIB, 512), Extent(MIB + 1024, 65536 - 1024)], extents) == 0
    assert workingset.total_bytes(extents) < 200_000


def test_nothing_read_is_an_empty_set(recording, daemon):
    recording.open()
    assert recording.finish() == []
    assert daemon.nodes() == set()


def test_the_store_never_changes_what_is_read(recording, daemon, base):
    recording.open()
    handle = connect(daemon)
    assert handle.is_read_only()
    for _ in range(2):
        for offset in range(0, SIZE, MIB):
            read(handle, base, offset, min(MIB, SIZE - offset))
    handle.shutdown()
    extents = recording.finish()
    # All but the hole, which the NBD server answers by itself.
    assert workingset.total_bytes(extents) == 8 * MIB + 512 - MIB
    assert all(extent.offset % GRANULARITY == 0 for extent in extents)


def test_progress_is_told(recording, daemon, base):
    told = []
    recording.open(lambda size, idle: told.append((size, idle)), interval=0.01)
    handle = connect(daemon)
    read(handle, base, 0, MIB)
    until(lambda: told and told[-1][0] >= MIB, 'the listener')
    handle.shutdown()
    assert all(size >= 0 and idle >= 0 for size, idle in told)


def test_a_listener_that_fails_does_not_end_the_recording(recording, daemon, base):
    calls = []

    def fail(size, idle):
        calls.append(size)
        raise RuntimeError('the bus is away')

    recording.open(fail, interval=0.01)
    until(lambda: calls, 'the listener')
    handle = connect(daemon)
    read(handle, base, 0, 4096)
    grown(recording)
    handle.shutdown()
    assert [extent.offset for extent in recording.finish()] == [0]


def test_what_an_earlier_process_left_is_replaced(recording, daemon, base, directory):
    recording.open()
    handle = connect(daemon)
    read(handle, base, 0, 4096)
    again = Recording(daemon, IMAGE, base.nodes('b-1'), SIZE, f'{directory}/store')
    again.open()
    fresh = connect(daemon)
    read(fresh, base, MIB, 4096)
    fresh.shutdown()
    assert [extent.offset for extent in again.finish()] == [MIB]


def test_discard_leaves_nothing(recording, daemon):
    recording.open()
    recording.discard()
    recording.discard()
    assert daemon.exports() == {} and daemon.nodes() == set()
    assert not os.path.exists(recording.store_path)


def test_a_daemon_that_died_loses_the_record_and_leaves_nothing(recording, daemon):
    recording.open()
    os.kill(daemon.pid(), 9)
    until(lambda: daemon.pid() is None, 'the end of the daemon')
    with pytest.raises(exception.BootcacheError):
        recording.finish()
    assert not os.path.exists(recording.store_path)


def test_a_base_that_cannot_be_opened(daemon, directory):
    gone = Recording(daemon, IMAGE, Base('/none', 'raw', SIZE).nodes('b-1'), SIZE,
                     f'{directory}/store')
    with pytest.raises(exception.StorageDaemonError):
        gone.open()
    gone.discard()
    assert daemon.nodes() == set() and not os.path.exists(f'{directory}/store')


def test_a_record_builds_a_cache_image(recording, daemon, base, directory):
    recording.open()
    handle = connect(daemon)
    read(handle, base, 5 * MIB, 100_000)
    read(handle, base, 0, 4096)
    handle.shutdown()
    built = cacheimage.build(base, recording.finish(), f'{directory}/cache', quota=MIB,
                             cluster_bytes=4096, backing_uri=None)
    entries = json.loads(qemu_img('map', '--output=json', qemuimg.file_node(built.path, 'qcow2')))
    placed = sorted((entry for entry in entries if entry['data']), key=lambda e: e['offset'])
    assert [entry['start'] for entry in placed] == [5 * MIB, 0]
