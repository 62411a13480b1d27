"""What a server wrote over any base that is accepted, and the snapshot that is made of both: equal.

Bases as tenants may have made them, also to harm others: a snapshot is refused, or it is right.
"""

import os
import random
import subprocess

import pytest
from functional_tools import qemu_img
from glance_files import ALWAYS, MIB, NEVER, begun, configured, finished
from hostile_qcow2 import INCOMPATIBLE, OFFSET, REFCLUSTERS, patch, read, refblock, reftable
from hostile_qcow2 import l2 as l2_table
from reflinks import xfs

from bootcache import exception, qemuimg
from bootcache.manifest import Made, Manifest, Standing
from glance_bootcache.filestore import placing
from glance_bootcache.filestore.snapshots import FileSnapshots
from glance_bootcache.snapshots.stores import SnapshotUnfit
from glance_bootcache.snapshots.writing import SnapshotDaemon

SIZE = 32 * MIB
BASE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
SNAPSHOT = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e60'
# Within data, over its end, where there is none, and zeros over data.
WRITTEN = ('write -q -P 1 0 4k', 'write -q -P 2 1M 1M', 'write -q -P 3 7998k 100k',
           'write -q -P 4 20M 3M', 'write -q -z 5M 256k', 'write -q -P 5 31M 1M',
           'write -q -P 0 6M 64k')


@pytest.fixture(scope='module')
def place(tmp_path_factory):
    """A file system with reflinks."""
    with xfs(str(tmp_path_factory.mktemp('reflinks'))) as found:
        yield found


def data(path):
    """Write a raw disk with data in its first 8 MiB, every second MiB of it many times the same."""
    source = random.Random(1)
    with open(path, 'wb') as stream:
        for number in range(8):
            stream.write(b'same' * (MIB // 4) if number % 2 else source.randbytes(1024) * 1024)
        stream.truncate(SIZE)


def qcow2(*options):
    """Return what makes a qcow2 with that content."""
    def make(path):
        data(f'{path}.raw')
        qemu_img('convert', '-f', 'raw', '-O', 'qcow2', *options, f'{path}.raw', path)
        os.unlink(f'{path}.raw')
    return make


def io(path, *commands):
    subprocess.run(['qemu-io', '-f', 'qcow2', path], input='\n'.join(commands), check=True,
                   text=True, capture_output=True)


def entries(path):
    """Return the places of the L2 entries of data, and the entries."""
    table = l2_table(path)
    found = [(table + 8 * number, read(path, table + 8 * number)) for number in range(128)]
    return [(at, entry) for at, entry in found if entry & OFFSET]


def unreferenced(path):
    """All data is free, as the refcounts say."""
    qcow2()(path)
    for _at, entry in entries(path):
        patch(path, refblock(path) + 2 * ((entry & OFFSET) >> 16), 0, '>H')


def shared(path):
    """Half of the disk leads to the other half's data; the refcounts are as they were."""
    qcow2()(path)
    found = entries(path)
    for (_from, entry), (at, _entry) in zip(found[16:32], found[48:64], strict=True):
        patch(path, at, entry)


def shared_and_counted(path):
    """The same, with refcounts of two, which a writer knows by."""
    shared(path)
    subprocess.run(['qemu-img', 'check', '-q', '-r', 'all', path], check=True,
                   capture_output=True)
    assert any(not entry >> 63 for _at, entry in entries(path))


def leaking(path):
    """A cluster that nothing leads to."""
    qcow2()(path)
    patch(path, entries(path)[3][0], 0)


def with_snapshots(path):
    """Internal snapshots: most clusters have more than one owner."""
    qcow2()(path)
    qemu_img('snapshot', '-c', 'one', path)
    io(path, 'write -q -P 9 2M 2M')
    qemu_img('snapshot', '-c', 'two', path)
    io(path, 'write -q -P 8 12M 1M')


def with_zeros(path):
    """Clusters that read as zeros, with data of their own and without."""
    qcow2()(path)
    io(path, 'write -q -z 1M 1M', 'write -q -z 24M 1M', 'discard -q 4M 1M')


def not_closed(path):
    """A writer has ended before it wrote its refcounts; QEMU makes them when it writes again."""
    qcow2('-o', 'lazy_refcounts=on')(path)
    patch(path, INCOMPATIBLE, 1)
    for _at, entry in entries(path)[-20:]:
        patch(path, refblock(path) + 2 * ((entry & OFFSET) >> 16), 0, '>H')


def wrong_in_many_places(path):
    """QEMU has a line for each of some 16,000 clusters, more than 1 MiB in all."""
    qcow2('-o', 'cluster_size=512')(path)
    for number in range(read(path, REFCLUSTERS, '>I') * 64):
        if block := read(path, reftable(path) + 8 * number) & OFFSET:
            patch(path, block, bytes(512))


RIGHT = {
    'raw': ('raw', data), 'qcow2': ('qcow2', qcow2()), 'compressed': ('qcow2', qcow2('-c')),
    'zstd': ('qcow2', qcow2('-c', '-o', 'compression_type=zstd')),
    'clusters of 512': ('qcow2', qcow2('-o', 'cluster_size=512')),
    'clusters of 2 MiB': ('qcow2', qcow2('-o', 'cluster_size=2M')),
    'version 2': ('qcow2', qcow2('-o', 'compat=0.10')),
    'subclusters': ('qcow2', qcow2('-o', 'extended_l2=on,cluster_size=128k')),
    'refcounts of 64 bits': ('qcow2', qcow2('-o', 'refcount_bits=64')),
    'lazy refcounts': ('qcow2', qcow2('-o', 'lazy_refcounts=on')),
    'zeros': ('qcow2', with_zeros), 'snapshots': ('qcow2', with_snapshots),
    'leaking': ('qcow2', leaking), 'refcounts of 1 bit': ('qcow2', qcow2('-o', 'refcount_bits=1')),
    'shared and counted': ('qcow2', shared_and_counted)}
WRONG = {'unreferenced': unreferenced, 'shared': shared}
REFUSED = {**WRONG, 'not closed': not_closed, 'wrong in many places': wrong_in_many_places}


def made(directory, image_format, virtual_bytes=SIZE):
    return Manifest(BASE, Standing.DONE, made=Made(
        image_format=image_format, virtual_bytes=virtual_bytes, base_path=f'{directory}/base',
        base_export=f'base-{BASE}'))


def wanted(directory, image_format, size):
    """Return what a server's disk reads as, as a raw file: an overlay over the base."""
    overlay = f'{directory}/disk'
    qemu_img('create', '-q', '-f', 'qcow2', '-F', image_format, '-b', f'{directory}/base', overlay,
             size)
    io(overlay, *WRITTEN)
    qemu_img('convert', '-f', 'qcow2', '-O', 'raw', overlay, f'{overlay}.raw')
    return f'{overlay}.raw'


def sent(directory, snapshots, manifest, size):
    """Begin a snapshot, and write the same as a host does; returns its record."""
    record, node = begun(snapshots, manifest, SNAPSHOT, size)
    daemon = SnapshotDaemon(f'{directory}/run')
    try:
        opened = daemon.open('snapshot-1', node)
        uri = f'nbd+unix:///snapshot-1?socket={opened["server"]["path"]}'
        subprocess.run(['qemu-io', '-f', 'raw', uri], input='\n'.join((*WRITTEN, 'flush')),
                       check=True, text=True, capture_output=True)
        daemon.close('snapshot-1')
    finally:
        daemon.rest(lambda: True)
    return record


def content(path):
    with open(path, 'rb') as stream:
        return stream.read()


@pytest.fixture
def snapshots(place, directory):
    """Makes them, where files can share extents or not, with or without a store that registers."""
    def make(home, registrars=ALWAYS):
        os.makedirs(f'{home}/images', exist_ok=True)
        return FileSnapshots(configured(f'{home}/state', f'{home}/images'), registrars)
    return make


@pytest.mark.parametrize('larger', [0, 5 * MIB + 512], ids=['', 'larger'])
@pytest.mark.parametrize('what', RIGHT)
def test_it_reads_as_the_servers_disk(place, directory, snapshots, what, larger):
    image_format, make = RIGHT[what]
    home = f'{place}/{what.replace(" ", "-")}-{larger}'
    os.mkdir(home)
    make(f'{home}/base')
    before = content(f'{home}/base')
    size = SIZE + larger
    found = snapshots(home)
    finished(found, sent(directory, found, made(home, image_format), size), directory)
    final = f'{home}/images/{SNAPSHOT}'
    expected = wanted(home, image_format, size)
    qemu_img('compare', '-f', image_format, '-F', 'raw', final, expected)
    assert qemuimg.info(final, image_format)['virtual-size'] == os.path.getsize(expected) == size
    if image_format == 'qcow2' and what not in ('leaking', 'shared and counted'):
        qemuimg.check(final)
    assert content(f'{home}/base') == before
    assert os.listdir(f'{home}/images/.bootcache') == []


@pytest.mark.parametrize('what', ['raw', 'compressed', 'snapshots'])
def test_it_does_so_where_files_share_nothing(directory, snapshots, what):
    image_format, make = RIGHT[what]
    make(f'{directory}/base')
    found = snapshots(directory, NEVER)
    record = sent(directory, found, made(directory, image_format), SIZE)
    finished(found, record, directory)
    qemu_img('compare', '-f', image_format, '-F', 'raw', record.work,
             wanted(directory, image_format, SIZE))


@pytest.mark.parametrize('what', REFUSED)
def test_what_is_not_for_writers_is_refused_and_leaves_nothing(directory, snapshots, what):
    REFUSED[what](f'{directory}/base')
    found = snapshots(directory)
    with pytest.raises(SnapshotUnfit, match='qemu-img check failed') as refusal:
        sent(directory, found, made(directory, 'qcow2'), SIZE)
    assert len(str(refusal.value)) < 400
    assert os.listdir(f'{directory}/state/snapshots') == [] and not found.left()


@pytest.mark.parametrize('what', WRONG)
def test_what_does_not_read_as_it_was_written_is_never_finished(directory, snapshots, what,
                                                                monkeypatch):
    """Also if refcounts were taken for right."""
    WRONG[what](f'{directory}/base')
    monkeypatch.setattr(placing, 'check_base', lambda path, image_format: None)
    found = snapshots(directory)
    record = sent(directory, found, made(directory, 'qcow2'), SIZE)
    for _again in range(2):
        with pytest.raises(exception.BootcacheError, match='does not read as what was written'):
            finished(found, record, directory)
    assert found.discard(record)
    assert os.listdir(f'{directory}/state/snapshots') == []
    assert os.listdir(f'{directory}/images/.bootcache') == [] \
        and os.listdir(f'{directory}/images') == ['.bootcache']


def test_a_base_that_goes_meanwhile_ends_it(directory, snapshots):
    data(f'{directory}/base')
    found = snapshots(directory)
    record = sent(directory, found, made(directory, 'raw'), SIZE)
    os.unlink(f'{directory}/base')
    with pytest.raises(exception.BootcacheError):
        finished(found, record, directory)
    assert found.left() == [SNAPSHOT] and found.discard(record) and not found.left()
