"""Downloads of bases into a file system that is small: Glance's own may be on it."""

import hashlib
import os
import subprocess

import pytest

from bootcache import exception
from glance_bootcache.db import start
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images import imagework
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.storage.store import ImageStore

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
MIB = 1 << 20
PLACE = 256 * MIB


@pytest.fixture
def small(directory):
    """A file system of 256 MiB."""
    path = f'{directory}/small'
    os.mkdir(path)
    subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={PLACE}', 'tmpfs', path], check=True)
    yield path
    subprocess.run(['umount', '-l', path], check=True)


def free(path):
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


class Glance:
    """Stands for Glance's download; others write into the same file system meanwhile."""

    def __init__(self, content, place, others=0):
        self.content, self.place, self.others = content, place, others
        self.least, self.asked = PLACE, False

    def facts(self):
        return ImageFacts(IMAGE, 'active', 'raw', 'bare', len(self.content) * MIB,
                          f'sha256:{self.hash()}', 0, 0, {})

    def hash(self):
        digest = hashlib.sha256()
        for piece in self.content:
            digest.update(piece)
        return digest.hexdigest()

    def download(self, image_id):
        self.asked = True
        for number, piece in enumerate(self.content):
            if number == 32 and self.others:
                with open(f'{self.place}/others', 'wb') as stream:
                    os.posix_fallocate(stream.fileno(), 0, self.others)
            yield piece
            self.least = min(self.least, free(self.place))


def opened(storage_conf, place):
    """A store there; the database is elsewhere."""
    os.makedirs(storage_conf.bootcache.state_dir, exist_ok=True)
    database = start.wait_for(storage_conf)
    node = StorageNode(database, f'{storage_conf.bootcache.state_dir}/node.json', 'storage-1')
    return ImageStore(f'{place}/state', database, node.id)


def obtain(storage_conf, glance):
    store = opened(storage_conf, glance.place)
    try:
        return imagework.obtain(glance.facts(), store, glance, [], lambda: None)
    finally:
        glance.left = os.listdir(store.directory(IMAGE))


def test_one_that_fits(small, storage_conf):
    glance = Glance([b'x' * MIB] * 200, small)
    path, _file = obtain(storage_conf, glance)
    assert os.path.getsize(path) == 200 * MIB and glance.left == [os.path.basename(path)]


def test_one_that_does_not_fit_is_not_begun(small, storage_conf):
    glance = Glance([b'x' * MIB] * 253, small)
    with pytest.raises(exception.StorageNodeFull, match=f'{small}.*make room'):
        obtain(storage_conf, glance)
    assert not glance.asked and glance.left == []


def test_one_for_which_others_leave_no_room_is_given_up(small, storage_conf):
    glance = Glance([b'x' * MIB] * 200, small, others=100 * MIB)
    with pytest.raises(exception.StorageNodeFull):
        obtain(storage_conf, glance)
    # Long before others have none.
    assert glance.least > 80 * MIB and glance.left == [] and free(small) > PLACE - 110 * MIB


def test_a_state_directory_that_is_a_mount_of_its_own(directory, storage_conf, caplog):
    """As systemd's StateDirectory= can be: Glance's store is on the same file system."""
    glance, content = Glance([b'x' * MIB], directory), f'{directory}/store/{IMAGE}'
    for path in (f'{directory}/state', f'{directory}/store'):
        os.mkdir(path)
    with open(content, 'wb') as stream:
        stream.write(b'x' * MIB)
    store = opened(storage_conf, directory)

    def base():
        return imagework.obtain(glance.facts(), store, glance, [f'{directory}/store'],
                                lambda: None)[0]

    subprocess.run(['mount', '--bind', f'{directory}/state', f'{directory}/state'], check=True)
    try:
        assert os.stat(content).st_dev == os.stat(f'{directory}/state').st_dev
        assert base() == content
    finally:
        subprocess.run(['umount', '-l', f'{directory}/state'], check=True)
    said, = (record for record in caplog.records if 'cannot be linked' in record.message)
    assert said.levelname == 'WARNING' and 'StateDirectory=' in said.message
    assert base() != content and not glance.asked
