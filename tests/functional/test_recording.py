"""Recording what is read through a growing store, in a real storage daemon."""

import json
import os
import time

import nbd
import pytest
from functional_tools import qemu_img, until

from bootcache import cacheimage, exception, growingstore, naming, qemuimg, workingset
from bootcache.cacheimage import Base
from bootcache.growingstore import StoreKeeper
from bootcache.recording import BASE, GRANULARITY, Recording, discard_leftovers
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


class Recorded:
    """A recording that is looked at, as its users do it.

    :ivar recording: it.
    """

    def __init__(self, daemon, base, path):
        self.recording = Recording(daemon, IMAGE, base.nodes(naming.node_name(BASE, IMAGE)), SIZE,
                                   path)
        self.path, self.keeper = path, StoreKeeper()

    def open(self):
        self.begin = self.recording.open()
        self.keeper.add(self.recording)

    def extents(self):
        return self.recording.extents_between(self.begin, self.recording.mark())

    def finish(self):
        try:
            return self.extents()
        finally:
            self.discard()

    def discard(self):
        self.keeper.stop()
        self.recording.discard()

    def grown(self):
        """Wait until it was seen how far it has grown."""
        until(lambda: self.recording._samples and
              self.recording._samples[-1].file_bytes == os.stat(self.path).st_size,
              'a look at the store')


@pytest.fixture
def recording(daemon, base, directory):
    recording = Recorded(daemon, base, f'{directory}/store')
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


READS = [(6 * MIB, 4096), (0, 8192), (5 * MIB + 4096, 512), (MIB, 65536), (SIZE - 512, 512),
         (0, 4096), (4 * MIB - 4096, 4096), (2 * MIB, 4096)]


def test_reads_are_recorded_in_order_with_ascending_times(recording, daemon, base):
    recording.open()
    handle = connect(daemon)
    for offset, length in READS:
        recording.grown()
        read(handle, base, offset, length)
    recording.grown()
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
    assert not os.path.exists(recording.path)
    assert daemon.exports() == {} and daemon.nodes() == set()


def test_the_overlays_own_reads_are_recorded(recording, daemon, base, directory):
    """A guest's small write makes the overlay read from below; that belongs to the boot."""
    recording.open()
    overlay = f'{directory}/overlay'
    qemuimg.create_overlay(overlay, SIZE, naming.nbd_unix_uri(daemon.listener.path,
                                                              recording.recording.export), 'raw',
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


def test_it_is_told_how_far_it_is(recording, daemon, base):
    before = time.monotonic()
    recording.open()
    handle = connect(daemon)
    read(handle, base, 0, MIB)
    recording.grown()
    handle.shutdown()
    assert recording.recording.size() - recording.begin.file_bytes >= MIB
    assert before < recording.recording.idle_since() <= time.monotonic()


def test_the_record_is_taken_while_the_server_runs(recording, daemon, base):
    """And goes on: a boot is over before its server is."""
    recording.open()
    handle = connect(daemon)
    read(handle, base, 5 * MIB, 4096)
    middle = recording.recording.mark()
    read(handle, base, 0, 4096)
    assert [extent.offset for extent in recording.extents()] == [5 * MIB, 0]
    assert [extent.offset for extent in recording.recording.extents_between(
        recording.begin, middle)] == [5 * MIB]
    handle.shutdown()


def test_what_an_earlier_process_left_is_replaced(recording, daemon, base, directory):
    recording.open()
    handle = connect(daemon)
    read(handle, base, 0, 4096)
    again = Recorded(daemon, base, f'{directory}/store')
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
    assert not os.path.exists(recording.path)


def test_what_an_earlier_process_left_is_removed(recording, daemon):
    recording.open()
    discard_leftovers(daemon, {IMAGE})
    assert recording.recording.export in daemon.exports()
    discard_leftovers(daemon)
    assert daemon.exports() == {} and daemon.nodes() == set()
    with daemon.session() as session:
        assert not [entry for entry in session.execute('qom-list', path='/objects')
                    if entry['name'].startswith('throttle-')]


@pytest.mark.parametrize('left', range(1, 6))
def test_what_is_left_without_an_export_is_removed(daemon, base, directory, left):
    """Whoever made or removed it was killed: its connection kept the base on the storage node."""
    def nodes(name):
        return base.nodes(naming.node_name(BASE, name))

    kept = Recording(daemon, 'kept', nodes('kept'), SIZE, f'{directory}/kept')
    kept.open()
    expected, before = daemon.nodes(), _groups(daemon)
    half = Recording(daemon, 'half', nodes('half'), SIZE, f'{directory}/half')
    half.open()
    daemon.remove_export(half.export, disconnect=True)
    # From above: the filter, the store, its throttle, its file, the base.
    present = [half.node(kind) for kind in growingstore.KINDS]
    daemon.remove_nodes(*present[:left - 1])
    discard_leftovers(daemon, {'kept', 'half'})
    assert daemon.nodes() > expected
    discard_leftovers(daemon, {'kept'})
    assert daemon.nodes() == expected and _groups(daemon) == before
    assert list(daemon.exports()) == [kept.export]
    kept.discard()


def _groups(daemon):
    with daemon.session() as session:
        return {entry['name'] for entry in session.execute('qom-list', path='/objects')
                if entry['name'].startswith('throttle-')}


def test_a_daemon_that_died_loses_the_record_and_leaves_nothing(recording, daemon):
    recording.open()
    os.kill(daemon.pid(), 9)
    until(lambda: daemon.pid() is None, 'the end of the daemon')
    with pytest.raises(exception.BootcacheError):
        recording.finish()
    assert not os.path.exists(recording.path)


def test_a_base_that_cannot_be_opened(daemon, directory):
    gone = Recording(daemon, IMAGE, Base('/none', 'raw', SIZE).nodes('b-1'), SIZE,
                     f'{directory}/store')
    with pytest.raises(exception.StorageDaemonError):
        gone.open()
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
