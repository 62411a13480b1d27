"""Building cache images with the real tools: right to the bit, within the quota, in order."""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import nbd
import pytest
from functional_tools import processes_of, qemu_img
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bootcache import (
    cacheimage,
    cachelayout,
    exception,
    naming,
    qemuimg,
    savefile,
    scratch,
    workingset,
)
from bootcache.cacheimage import Base
from bootcache.cachelayout import Compression
from bootcache.storagedaemon import StorageDaemon
from bootcache.workingset import Extent

MIB = 1 << 20
URI = naming.nbd_unix_uri('/run/bootcache/gateway.sock', 'base-x')


@st.composite
def cases(draw):
    """A base, a working set, a cluster size, a quota and a compression."""
    sectors = draw(st.integers(1, 24 * MIB // 512))
    virtual_bytes = sectors * 512
    pieces = []
    for _ in range(draw(st.integers(0, 6))):
        pieces.append((draw(st.integers(0, virtual_bytes - 1)), draw(st.integers(1, 600_000)),
                       draw(st.sampled_from(['data', 'data', 'zeros']))))
    extents = []
    for _ in range(draw(st.integers(1, 10))):
        offset = draw(st.integers(0, virtual_bytes - 1))
        extents.append(Extent(offset, draw(st.integers(1, min(400_000, virtual_bytes - offset)))))
    cluster = draw(st.sampled_from([4096, 65536]))
    quota = draw(st.sampled_from([20 * cluster, MIB + 12345, 3 * MIB, 64 * MIB]))
    return (virtual_bytes, pieces, draw(st.sampled_from(['raw', 'qcow2'])), extents, cluster, quota,
            draw(st.integers(0, 99)), draw(st.sampled_from(Compression)))


def allocated(path):
    """Return what a qcow2 itself says: its data entries with host offsets, and its zero entries."""
    entries = json.loads(qemu_img('map', '--output=json', qemuimg.file_node(path, 'qcow2')))
    return ([entry for entry in entries if entry['data']],
            [entry for entry in entries if entry.get('present') and entry['zero']])


def pieces_between(extents, entries):
    """Map every cluster-sized place of the extents to its host offset, None where there is none."""
    for extent in extents:
        for entry in entries:
            start = max(extent.offset, entry['start'])
            end = min(extent.end, entry['start'] + entry['length'])
            if start < end:
                yield start, entry['offset'] + start - entry['start']


@given(case=cases())
@example(case=(MIB + 512, [(0, MIB + 512, 'data')], 'raw', [Extent(MIB, 512), Extent(0, 4096)],
               65536, 64 * MIB, 1, Compression.NONE))
@example(case=(MIB + 512, [(0, MIB + 512, 'data')], 'raw', [Extent(MIB, 512), Extent(0, 4096)],
               65536, 64 * MIB, 1, Compression.ZSTD))
@example(case=(512, [(0, 512, 'data')], 'qcow2', [Extent(0, 512)], 4096, MIB, 1,
               Compression.NONE))
# All of it a hole, and all of it written zeros.
@example(case=(4 * MIB, [], 'raw', [Extent(MIB, MIB)], 4096, 64 * MIB, 1, Compression.NONE))
@example(case=(4 * MIB, [(0, 4 * MIB, 'zeros')], 'raw', [Extent(MIB, MIB)], 65536, 64 * MIB, 1,
               Compression.ZSTD))
@settings(max_examples=25, deadline=None, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_cache_image_chained_to_its_base_is_the_base(directory, make_base, case):
    virtual_bytes, pieces, image_format, extents, cluster, quota, seed, compression = case
    with tempfile.TemporaryDirectory(dir=directory) as home:
        base = Base(make_base(f'{home}/base', virtual_bytes, pieces, image_format, seed),
                    image_format, virtual_bytes)
        target = f'{home}/cache'
        built = cacheimage.build(base, extents, target, quota=quota, cluster_bytes=cluster,
                                 backing_uri=URI, compression=compression)
        assert os.listdir(directory) == [os.path.basename(home)]
        assert sorted(os.listdir(home)) == ['base', 'cache']
        # The file is what it is said to be.
        assert built.path == target and built.bytes == os.path.getsize(target) <= quota
        assert built.bytes % 512 == 0
        cacheimage.verify(target, built.sha256, built.bytes)
        kept = cachelayout.fit(workingset.align(extents, cluster, virtual_bytes), quota, cluster,
                              virtual_bytes)
        assert built.extents == tuple(kept)
        assert built.data_bytes == workingset.total_bytes(kept)
        info = json.loads(qemu_img('info', '--output=json', qemuimg.file_node(target, 'qcow2')))
        assert (info['virtual-size'], info['cluster-size']) == (virtual_bytes, cluster)
        with open(target, 'rb') as stream:
            assert URI.encode() in stream.read(cluster)
        # Data lies in first-read order; all of the set is there, as data or as zeros.
        data, zeros = allocated(target)
        if compression is Compression.NONE:
            places = [offset for _start, offset in pieces_between(kept, data)]
            assert places == sorted(places)
        present = [Extent(entry['start'], entry['length']) for entry in (*data, *zeros)]
        assert workingset.uncovered(kept, present) == 0
        # And nothing but the set costs a byte of data.
        assert workingset.uncovered([Extent(entry['start'], entry['length']) for entry in data],
                                    kept) == 0
        qemu_img('check', qemuimg.file_node(target, 'qcow2'))
        qemu_img('rebase', '-u', '-f', 'qcow2', '-b', base.path, '-F', image_format, target)
        # It exits with 1 at the first byte that differs.
        qemu_img('compare', '-f', 'qcow2', '-F', image_format, target, base.path)


def compressed_places(path):
    """Return where a qcow2's compressed clusters lie in its file, by their place in the base.

    qemu-img does not tell; the format's specification says how the tables do.
    """
    with open(path, 'rb') as stream:
        content = stream.read()
    bits, = struct.unpack_from('>I', content, 20)
    entries, table = struct.unpack_from('>IQ', content, 36)
    places = {}
    for number in range(entries):
        l2, = struct.unpack_from('>Q', content, table + 8 * number)
        for index in range(1 << bits - 3 if l2 else 0):
            entry, = struct.unpack_from('>Q', content, (l2 & 0x00fffffffffffe00) + 8 * index)
            if entry >> 62 & 1:
                places[(number << 2 * bits - 3) + (index << bits)] \
                    = entry & (1 << 62 - (bits - 8)) - 1
    return places


@pytest.mark.parametrize('cluster', [4096, 16384, 65536])
def test_compressed_clusters_are_small_and_lie_in_first_read_order(directory, cluster):
    path = f'{directory}/text'
    with open(path, 'wb') as stream:
        stream.write(b''.join(b'line %7d of a text\n' % number for number in range(350_000)))
        stream.truncate(8 * MIB)
    extents = [Extent(4 * MIB, MIB), Extent(MIB, MIB), Extent(3 * MIB, MIB), Extent(0, MIB)]
    sizes = {}
    for compression in Compression:
        built = cacheimage.build(Base(path, 'raw', 8 * MIB), extents,
                                 f'{directory}/{compression}', quota=64 * MIB,
                                 cluster_bytes=cluster, backing_uri=URI, compression=compression)
        sizes[compression] = built.bytes
    assert sizes[Compression.ZSTD] < sizes[Compression.NONE] / 2
    places = compressed_places(built.path)
    assert len(places) == 4 * MIB // cluster
    read = [place for extent in extents
            for offset, place in sorted(places.items()) if extent.offset <= offset < extent.end]
    # QEMU compresses some clusters of a request at a time, and stores what is done first.
    firsts = [min(read[number:number + MIB // cluster]) for number in
              range(0, len(read), MIB // cluster)]
    assert firsts == sorted(firsts)


@pytest.fixture
def base(directory, make_base):
    """Two megabytes of data, one of zeros, one of data again."""
    os.mkdir(f'{directory}/images')
    path = make_base(f'{directory}/images/base', 4 * MIB, [(0, 2 * MIB, 'data'),
                                                           (3 * MIB, MIB, 'data')])
    return Base(path, 'raw', 4 * MIB)


def build(base, extents, **changes):
    return cacheimage.build(base, extents, f'{os.path.dirname(base.path)}/cache', **{
        'quota': 64 * MIB, 'cluster_bytes': 65536, 'backing_uri': URI, **changes})


@pytest.mark.parametrize('compression', Compression)
@pytest.mark.parametrize('cluster', [4096, 65536])
def test_the_set_and_zero_areas_are_served_with_the_base_gone(base, directory, daemons, cluster,
                                                              compression):
    extents = [Extent(3 * MIB + 5, 70000), Extent(100000, 300000)]
    with open(base.path, 'rb') as stream:
        content = stream.read()
    built = build(base, extents, cluster_bytes=cluster, compression=compression)
    os.unlink(base.path)
    daemon = daemons('reader')
    daemon.ensure_running()
    daemon.add_nodes(*Base(built.path, 'qcow2', 4 * MIB).nodes('c'),
                     # What is not in the cache image fails instead of reading as zeros.
                     {'driver': 'null-co', 'node-name': 'nothing', 'size': 4 * MIB},
                     {'driver': 'blkdebug', 'node-name': 'fault', 'image': 'nothing',
                      'inject-error': [{'event': 'none', 'iotype': 'read', 'errno': 5}]},
                     {'driver': 'qcow2', 'node-name': 'chain', 'file': 'cf', 'backing': 'fault',
                      'read-only': True})
    daemon.add_export('chain', 'chain')
    handle = nbd.NBD()
    handle.set_export_name('chain')
    handle.connect_unix(daemon.listener.path)
    for extent in (*extents, *built.extents, Extent(2 * MIB, MIB)):
        assert handle.pread(extent.length, extent.offset) \
            == content[extent.offset:extent.end]
    with pytest.raises(nbd.Error):
        handle.pread(4096, MIB)


def test_without_a_pointer_there_is_none(base):
    built = build(base, [Extent(0, MIB)], backing_uri=None)
    assert 'backing-filename' not in json.loads(qemu_img('info', '--output=json', built.path))


def test_the_same_set_twice_gives_the_same_file(base):
    one = build(base, [Extent(MIB, MIB), Extent(0, 4096)])
    os.unlink(one.path)
    assert build(base, [Extent(MIB, MIB), Extent(0, 4096)]).sha256 == one.sha256


def test_an_older_file_is_replaced_and_its_readers_keep_it(base):
    one = build(base, [Extent(0, MIB)])
    with open(one.path, 'rb') as reader:
        two = build(base, [Extent(MIB, MIB)])
        assert savefile.file_digest(one.path) == two.sha256 != one.sha256
        assert len(reader.read()) == one.bytes


def test_everybody_may_read_it(base):
    assert os.stat(build(base, [Extent(0, 1)]).path).st_mode & 0o777 == 0o644


@pytest.mark.parametrize('extents, quota', [([Extent(0, 4096)], 65536), ([Extent(0, 4096)], 0),
                                            ([], 64 * MIB)])
def test_no_room_is_told(base, extents, quota):
    with pytest.raises(exception.BuildFailed):
        build(base, extents, quota=quota)
    assert os.listdir(os.path.dirname(base.path)) == ['base']


def leaves_nothing(base, directory):
    assert os.listdir(os.path.dirname(base.path)) == ['base']
    assert os.listdir(directory) == ['images']


@pytest.mark.parametrize('step', ['_fill', '_compare', 'pad'])
def test_a_failure_leaves_nothing(base, directory, monkeypatch, step):
    def fail(*arguments):
        raise exception.BuildFailed('a fault')

    monkeypatch.setattr(cacheimage, step, fail)
    with pytest.raises(exception.BuildFailed, match='a fault'):
        build(base, [Extent(0, MIB)])
    leaves_nothing(base, directory)


def test_a_wrong_cache_image_is_found_out(base, directory, monkeypatch):
    real = cacheimage._fill

    def fill(daemon, base, path, *arguments):
        real(daemon, base, path, *arguments)
        with open(path, 'r+b') as stream:
            stream.seek(-1, os.SEEK_END)
            last = stream.read()
            stream.seek(-1, os.SEEK_END)
            stream.write(bytes([last[0] ^ 1]))

    monkeypatch.setattr(cacheimage, '_fill', fill)
    with pytest.raises(exception.BuildFailed, match='differs from the base'):
        build(base, [Extent(0, MIB)])
    leaves_nothing(base, directory)


def test_a_file_that_grew_over_its_quota_is_refused(base, directory, monkeypatch):
    monkeypatch.setattr(cachelayout, 'metadata_bytes', lambda *arguments: 0)
    with pytest.raises(exception.BuildFailed, match='over its quota'):
        build(base, [Extent(0, MIB)], quota=MIB)
    leaves_nothing(base, directory)


def test_a_base_that_is_gone(base, directory):
    with pytest.raises(exception.StorageDaemonError):
        build(Base(f'{base.path}-not', 'raw', 4 * MIB), [Extent(0, MIB)])
    leaves_nothing(base, directory)


@pytest.mark.skipif(os.geteuid() != 0, reason='it mounts a file system')
def test_a_medium_without_inodes_is_full(base, directory):
    """It has all of its bytes: what says so is the error, which QEMU's programs tell."""
    target = f'{directory}/inodes'
    os.mkdir(target)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=64M,nr_inodes=2', 'tmpfs', target],
                   check=True)
    try:
        Path(target, 'last').touch()
        with pytest.raises(exception.BootcacheError) as refused:
            cacheimage.build(base, [Extent(0, MIB)], f'{target}/cache', quota=64 * MIB,
                             cluster_bytes=65536, backing_uri=None)
        assert shutil.disk_usage(target).free > 32 * MIB
        assert savefile.means_full(refused.value)
    finally:
        subprocess.run(['umount', '-l', target], check=True)


def test_a_base_of_another_format(base, directory):
    with pytest.raises(exception.StorageDaemonError):
        build(Base(base.path, 'qcow2', 4 * MIB), [Extent(0, MIB)])
    leaves_nothing(base, directory)


def test_a_daemon_that_dies_in_the_midst(base, directory, monkeypatch):
    real = StorageDaemon.add_export

    def die(daemon, export, *arguments, **named):
        real(daemon, export, *arguments, **named)
        if export == 'base':
            os.kill(daemon.pid(), 9)

    monkeypatch.setattr(StorageDaemon, 'add_export', die)
    with pytest.raises((exception.BootcacheError, nbd.Error)):
        build(base, [Extent(0, MIB)])
    leaves_nothing(base, directory)


KILLED = '''
import os, sys
from bootcache import cacheimage, steps
from bootcache.cacheimage import Base
from bootcache.workingset import Extent
steps.install(lambda step: step == 'build: read' and os.kill(os.getpid(), 9))
cacheimage.build(Base(sys.argv[1], 'raw', 4 << 20), [Extent(0, 65536)], sys.argv[2],
                 quota=64 << 20, cluster_bytes=65536, backing_uri=None)
'''


def test_what_a_build_that_was_killed_left_is_ended(base, directory):
    target = f'{directory}/images/cache'
    subprocess.run([sys.executable, '-W', 'ignore', '-c', KILLED, base.path, target], check=False,
                   env={**os.environ, 'TMPDIR': directory})
    [left] = [name for name in os.listdir(directory) if name.startswith('bootcache-build-')]
    assert processes_of(f'{directory}/{left}')
    with scratch.directory() as other:
        scratch.end_left_over()
        assert processes_of(f'{directory}/{left}') == []
        assert os.path.isdir(other)
    assert os.listdir(directory) == ['images']
