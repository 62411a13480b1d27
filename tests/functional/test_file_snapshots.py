"""Snapshots on Glance's file store: real files, QEMU and Glance, on XFS and where nothing is
shared."""

import itertools
import os
import random
import shutil
import subprocess
import tempfile
import time

import pytest
from functional_tools import qemu_img, until
from glance_files import (
    ALWAYS,
    BASE,
    CHANGED,
    MIB,
    NEVER,
    PIECES,
    SIZE,
    Trial,
    Upload,
    begun,
    configured,
    finished,
    looked,
    made_of,
    tried,
)
from real_glance import Glance
from reflinks import used, xfs

from bootcache import exception
from bootcache.naming import nbd_unix_uri
from bootcache.storagedaemon import StorageDaemon, UnixListener
from glance_bootcache.filestore.registrars import Registrars
from glance_bootcache.filestore.snapshots import FileSnapshots
from glance_bootcache.snapshots.records import Record
from glance_bootcache.snapshots.stores import SnapshotUnfit
from glance_bootcache.snapshots.uploading import upload
from tools import storedimages


@pytest.fixture(scope='module')
def home():
    """A directory, for what need not be on XFS."""
    directory = tempfile.mkdtemp(prefix='bc', dir='/tmp')
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope='module')
def place(home):
    """A file system with reflinks."""
    with xfs(home) as found:
        yield found


@pytest.fixture(scope='module')
def glance(home, place):
    """A Glance with our store on it."""
    made = Glance(home, f'{place}/images')
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope='module')
def plain_glance(home, place):
    """A Glance with the stock file store on it."""
    made = Glance(f'{home}/plain', f'{place}/plain', 'file:file')
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture
def base(make_base):
    """Makes a base in a directory."""
    def make(directory, image_format='raw'):
        os.makedirs(directory, exist_ok=True)
        return make_base(f'{directory}/base', SIZE, PIECES, image_format)
    return make


def shared(snapshots, record):
    """Have upkeep come by until all is shared."""
    until(lambda: snapshots.settled(record, time.monotonic() + 10), 'the sharing')


def write(directory, node, seed=1, size=SIZE):
    """Write what differs as a host does: by NBD, into the node; returns a raw file to compare."""
    daemon = StorageDaemon('snapshot', f'{directory}/d', UnixListener(f'{directory}/d/nbd'))
    daemon.ensure_running()
    try:
        with daemon.session() as session:
            session.execute('blockdev-add', **{**node, 'node-name': 'snapshot'})
            session.execute('block-export-add', type='nbd', id='snapshot', name='x',
                            node_name='snapshot', writable=True)
        uri = nbd_unix_uri(f'{directory}/d/nbd', 'x')
        source = random.Random(seed)
        commands = []
        for number in range(CHANGED // 65536):
            begin = source.randrange(size // 65536) * 65536
            commands.append(f'write -q -P {number % 250 + 1} {begin} 64k')
        # What reads as zeros there.
        commands.append(f'write -q -z {8 * MIB} 1M')
        subprocess.run(['qemu-io', '-f', 'raw', uri], input='\n'.join(commands), check=True,
                       text=True, capture_output=True)
        qemu_img('convert', '-f', 'raw', '-O', 'raw', uri, f'{directory}/wanted')
    finally:
        daemon.stop()
    return f'{directory}/wanted'


def same(path, image_format, wanted):
    qemu_img('compare', '-f', image_format, '-F', 'raw', path, wanted)


@pytest.mark.parametrize('image_format', ['raw', 'qcow2'])
def test_a_snapshot_becomes_an_image_as_it_is(place, glance, base, directory, image_format):
    conf = configured(f'{directory}/state', glance.images)
    path = base(f'{place}/state-{image_format}', image_format)
    snapshots = tried(conf, glance)
    before = used(place)
    image = glance.image(disk_format=image_format)
    # Of a server whose disk is larger than its base.
    record, node = begun(snapshots, made_of(path, image_format), image, SIZE + 32 * MIB)
    assert snapshots.left() == [image]
    wanted = write(directory, node, size=SIZE + 32 * MIB)
    assert os.path.getsize(wanted) == SIZE + 32 * MIB
    with snapshots.looked_at(record, directory, lambda: None) as path_there:
        same(path_there, image_format, wanted)
    put = []
    url = snapshots.finish(record, put.append)
    assert url == f'bootcache://file/{image}' and snapshots.left() == []
    glance.add_location(image, url)
    glance.wait(image)
    assert snapshots.settled(put[-1], 0)
    assert os.listdir(f'{glance.images}/.bootcache') == []
    same(glance.file(image), image_format, wanted)
    assert used(place) - before < 2 * CHANGED
    # In any order.
    os.unlink(path)
    same(glance.file(image), image_format, wanted)
    glance.client().images.delete(image)
    assert not os.path.exists(glance.file(image))


@pytest.mark.parametrize('image_format', ['raw', 'qcow2'])
def test_one_that_is_uploaded_shares_afterwards(place, plain_glance, base, directory,
                                                image_format):
    conf = configured(f'{place}/state2', plain_glance.images)
    path = base(f'{place}/state2/images', image_format)
    snapshots = tried(conf, plain_glance)
    # Of the trial nothing is left.
    assert os.listdir(plain_glance.images) == ['.bootcache']
    assert Trial(plain_glance).there() == []
    before = used(place)
    image = plain_glance.image(disk_format=image_format)
    record, node = begun(snapshots, made_of(path, image_format), image)
    wanted = write(directory, node)
    assert finished(snapshots, record, directory) == (record, '')
    upload(Upload(plain_glance), image, record.work, lambda: None)
    assert plain_glance.status(image) == 'active'
    assert used(place) - before > SIZE * 3 // 4
    assert not snapshots.settled(record, 0)
    # A process that ends before it is done begins anew.
    snapshots = FileSnapshots(conf, NEVER)
    shared(snapshots, record)
    assert snapshots.left() == [] and not os.path.exists(record.work)
    same(plain_glance.file(image), image_format, wanted)
    assert used(place) - before < 2 * CHANGED
    plain_glance.client().images.delete(image)
    os.unlink(path)


@pytest.mark.parametrize('image_format', ['raw', 'qcow2'])
def test_without_reflinks_it_is_a_copy(plain_glance, base, directory, image_format, caplog):
    """The base is on another file system than the store."""
    conf = configured(f'{directory}/state', plain_glance.images)
    path = base(f'{directory}/bases', image_format)
    # A file that ends within a sector, as compressed ones do.
    if image_format == 'qcow2':
        with open(path, 'ab') as stream:
            stream.write(b'\0' * 100)
    snapshots = FileSnapshots(conf, NEVER)
    for seed in (1, 2):
        image = plain_glance.image(disk_format=image_format)
        record, node = begun(snapshots, made_of(path, image_format), image)
        wanted = write(directory, node, seed)
        finished(snapshots, record, directory)
        upload(Upload(plain_glance), image, record.work, lambda: None)
        shared(snapshots, record)
        same(plain_glance.file(image), image_format, wanted)
        plain_glance.client().images.delete(image)
    assert caplog.text.count('each snapshot takes the space of all of its base') == 1
    assert os.listdir(f'{directory}/state/snapshots') == []


def test_nothing_replaces_an_image(place, glance, base, directory):
    """A host that lies names another one's image."""
    conf = configured(f'{directory}/state', glance.images)
    path = base(f'{place}/state3')
    image = glance.upload(b'of somebody else')
    snapshots = FileSnapshots(conf, ALWAYS)
    record, _node = begun(snapshots, made_of(path, 'raw'), image)
    with pytest.raises(SnapshotUnfit, match='nothing replaces'):
        finished(snapshots, record, directory)
    assert snapshots.discard(record)
    assert snapshots.left() == [] and glance.content(image) == b'of somebody else'


def test_what_a_crash_leaves_is_listed_and_removed(place, glance, base, directory):
    conf = configured(f'{directory}/state', glance.images)
    path = base(f'{place}/state4')
    ids = [f'7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e0{number}' for number in range(4)]
    first = FileSnapshots(conf, ALWAYS)
    records = [begun(first, made_of(path, 'raw'), image)[0] for image in ids]
    for number in (0, 3):
        records[number], _url = finished(first, records[number], directory)
    # A crash between the two names of a file that gets its place.
    os.link(glance.file(ids[3]), f'{glance.images}/.bootcache/{ids[3]}.snapshot')
    second = FileSnapshots(conf, NEVER)
    # What is in the store, for Glance to have, is not for the taking.
    assert second.left() == ids[1:]
    # Of some nothing is known but the id.
    for record in (records[0], Record(ids[1]), Record(ids[2]), records[3]):
        assert second.discard(record)
    assert not any(os.path.exists(glance.file(image)) for image in ids)
    assert os.listdir(f'{glance.images}/.bootcache') == []
    assert os.listdir(f'{directory}/state/snapshots') == []


def test_what_is_in_its_place_by_now_is_not_removed(place, glance, base, directory):
    conf = configured(f'{directory}/state', glance.images)
    image = glance.image()
    snapshots = FileSnapshots(conf, ALWAYS)
    record, _node = begun(snapshots, made_of(base(f'{place}/state5'), 'raw'), image)
    record, _url = finished(snapshots, record, directory)
    # Glance's own, another file: the stock way came first.
    os.rename(glance.file(image), f'{place}/older')
    with open(glance.file(image), 'wb') as stream:
        stream.write(b'another')
    snapshots.discard(record)
    assert os.path.exists(glance.file(image))
    os.unlink(glance.file(image))
    os.unlink(f'{place}/older')


def test_an_upload_can_be_given_up(plain_glance, base, directory):
    class StopError(Exception):
        pass

    def stop():
        raise StopError

    conf = configured(f'{directory}/state', plain_glance.images)
    image = plain_glance.image()
    snapshots = FileSnapshots(conf, NEVER)
    record, _node = begun(snapshots, made_of(base(f'{directory}/bases'), 'raw'), image)
    finished(snapshots, record, directory)
    with pytest.raises(StopError):
        upload(Upload(plain_glance), image, record.work, stop)
    assert snapshots.left() == [image]
    snapshots.discard(record)
    assert snapshots.left() == [] and os.listdir(f'{directory}/state/snapshots') == []


def test_what_does_not_fit_is_refused_and_leaves_nothing(base, directory):
    path = base(f'{directory}/bases')
    unset = FileSnapshots(configured(f'{directory}/state'), NEVER)
    assert 'glance_store_dirs is not set' in unset.refusal(made_of(path, 'raw'))
    os.mkdir(f'{directory}/images')
    conf = configured(f'{directory}/state', f'{directory}/images')
    snapshots = FileSnapshots(conf, NEVER)
    assert 'vmdk' in snapshots.refusal(made_of(path, 'vmdk'))
    assert 'no file' in snapshots.refusal(made_of('rbd:a/b/c', 'raw'))
    with pytest.raises(SnapshotUnfit, match='its base'):
        begun(snapshots, made_of(path, 'raw'), BASE, SIZE - 512)
    with pytest.raises(FileNotFoundError):
        begun(snapshots, made_of(f'{directory}/absent', 'raw'), BASE)
    with xfs(directory, size=400 << 20) as small:
        # Of the copy, and of what Glance would store of it.
        os.mkdir(f'{small}/images')
        large = FileSnapshots(configured(f'{directory}/state', f'{small}/images'), NEVER)
        with pytest.raises(SnapshotUnfit, match='no room'):
            begun(large, made_of(path, 'raw'), BASE, 1 << 30)
        large.discard(Record(BASE))
        full = FileSnapshots(configured(f'{small}/state', f'{directory}/images'), NEVER)
        with open(f'{small}/other', 'wb') as stream:
            status = os.statvfs(small)
            os.posix_fallocate(stream.fileno(), 0, status.f_bavail * status.f_frsize - 8 * MIB)
        with pytest.raises(SnapshotUnfit, match='no room'):
            begun(full, made_of(path, 'raw'), BASE)
        full.discard(Record(BASE))
        assert full.left() == [] and os.listdir(f'{small}/state/snapshots') == []
        # While it is written.
        os.unlink(f'{small}/other')
        small_base = f'{small}/base'
        shutil.copy(path, small_base)
        shared = FileSnapshots(configured(f'{small}/state', f'{small}/images'), ALWAYS)
        record, _node = begun(shared, made_of(small_base, 'raw'), BASE)
        shared.check_room(record)
        with open(f'{small}/other', 'wb') as stream:
            status = os.statvfs(small)
            os.posix_fallocate(stream.fileno(), 0, status.f_bavail * status.f_frsize - 4 * MIB)
        with pytest.raises(exception.StorageNodeFull):
            shared.check_room(record)
    assert snapshots.left() == []


def test_a_store_is_found_when_glance_gets_one(home, place, directory):
    clock = itertools.count(0, 1e6).__next__
    rows = storedimages.opened(configured(f'{directory}/state')).files
    glance = Glance(f'{home}/later', f'{place}/later', 'file:file')
    try:
        found = Registrars([glance.images], Trial(glance.start()), rows, clock=clock)
        looked(found.look)
        assert not found.store_of(glance.images)
        glance.stop()
        glance.start('other:file,file:bootcache')
        looked(found.look)
        assert found.store_of(glance.images) == 'file'
        # Another directory in its place.
        os.rename(glance.images, f'{place}/moved')
        os.mkdir(glance.images)
        assert not found.store_of(glance.images)
        looked(found.look)
        assert found.store_of(glance.images) == 'file'
        found.doubt(glance.images)
        assert not found.store_of(glance.images)
        refused = Registrars([glance.images], Trial(glance, 'bootcache.service.member.'), rows,
                             clock=clock)
        looked(refused.look)
        assert not refused.store_of(glance.images)
        assert os.listdir(glance.images) == ['.bootcache']
        assert os.listdir(f'{glance.images}/.bootcache') == []
    finally:
        glance.stop()
