"""An image's facts as Glance tells them, and where its base comes from."""

import hashlib
import os
import threading

import pytest

from bootcache import exception
from glance_bootcache.decisions import ImageFacts
from glance_bootcache.glance.images import facts
from glance_bootcache.images import basefile
from glance_bootcache.storage.store import ImageStore

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CONTENT = b'boot' * 50000
GOOD = 'sha512:' + hashlib.sha512(CONTENT).hexdigest()


def test_facts_of_an_active_image():
    assert facts({'id': IMAGE, 'status': 'active', 'disk_format': 'qcow2', 'size': 5,
                  'container_format': 'bare', 'os_hash_algo': 'sha512', 'os_hash_value': 'ab',
                  'min_ram': 64, 'min_disk': 1, 'bootcache_mode': 'off', 'owner': 'me'}) \
        == ImageFacts(IMAGE, 'active', 'qcow2', 'bare', 5, 'sha512:ab', 64, 1,
                      {'bootcache_mode': 'off'}, owner='me')


def test_facts_of_an_image_without_data():
    assert facts({'id': IMAGE, 'status': 'queued', 'disk_format': None, 'container_format': None,
                  'size': None, 'os_hash_algo': None, 'os_hash_value': None, 'min_ram': None,
                  'min_disk': None}) \
        == ImageFacts(IMAGE, 'queued', 'unset', 'unset', 0, '', 0, 0, {})


class Glance:
    """Stands for Glance's download; the real one is used in tests/e2e."""

    def __init__(self, pieces, then=None):
        self.pieces, self.then, self.asked = pieces, then, 0

    def download(self, image_id):
        assert image_id == IMAGE
        self.asked += 1
        for piece in self.pieces:
            yield piece
            if self.then:
                self.then()


@pytest.fixture
def place(tmp_path):
    """A store, a directory of Glance's file store, and an image's facts by its hash."""
    glance = tmp_path / 'glance'
    glance.mkdir()

    def image(image_hash=GOOD):
        return ImageFacts(IMAGE, 'active', 'raw', 'bare', len(CONTENT), image_hash, 0, 0, {})

    return ImageStore(str(tmp_path / 'state')), glance, image


def test_a_file_of_the_store_is_linked(place):
    store, glance, image = place
    (glance / IMAGE).write_bytes(CONTENT)
    images = Glance([])
    path = basefile.obtain(image(), store, images, ['/nonexistent', str(glance)], threading.Event())
    assert os.path.samefile(path, glance / IMAGE) and path.startswith(store.directory(IMAGE))
    assert images.asked == 0


def test_it_is_used_in_place_where_it_cannot_be_linked(place, monkeypatch):
    store, glance, image = place
    (glance / IMAGE).write_bytes(CONTENT)

    def refuse(source, target):
        raise OSError(18, 'Invalid cross-device link')

    monkeypatch.setattr(os, 'link', refuse)
    assert basefile.obtain(image(), store, Glance([]), [str(glance)], threading.Event()) \
        == str(glance / IMAGE)


def test_a_store_file_of_other_content_is_refused(place):
    store, glance, image = place
    (glance / IMAGE).write_bytes(CONTENT + b'x')
    with pytest.raises(exception.ImageRefused, match='sha512'):
        basefile.obtain(image(), store, Glance([]), [str(glance)], threading.Event())
    assert (glance / IMAGE).exists()


@pytest.mark.parametrize('store_dirs', [[], ['/nonexistent']])
def test_else_it_is_downloaded(place, store_dirs):
    store, _glance, image = place
    path = basefile.obtain(image(), store, Glance([CONTENT[:7], CONTENT[7:]]), store_dirs,
                           threading.Event())
    with open(path, 'rb') as stream:
        assert stream.read() == CONTENT
    assert os.listdir(store.directory(IMAGE)) == [os.path.basename(path)]


@pytest.mark.parametrize('pieces', [[], [CONTENT[:-1]], [CONTENT, b'x'], [b'y' + CONTENT[1:]]],
                         ids=['none', 'short', 'long', 'other'])
def test_a_wrong_download_is_refused_and_leaves_nothing(place, pieces):
    store, _glance, image = place
    with pytest.raises(exception.ImageRefused, match='sha512'):
        basefile.obtain(image(), store, Glance(pieces), [], threading.Event())
    assert os.listdir(store.directory(IMAGE)) == []


def test_a_cancelled_download_ends_and_leaves_nothing(place):
    store, _glance, image = place
    cancelled = threading.Event()
    with pytest.raises(exception.Cancelled):
        basefile.obtain(image(), store, Glance([b'a', b'b'], cancelled.set), [], cancelled)
    assert os.listdir(store.directory(IMAGE)) == []


@pytest.mark.parametrize('image_hash', ['', 'sha512', 'sha512:'])
def test_without_a_hash_nothing_is_trusted(place, image_hash):
    store, glance, image = place
    (glance / IMAGE).write_bytes(CONTENT)
    with pytest.raises(exception.ImageRefused, match='os_hash_value'):
        basefile.obtain(image(image_hash), store, Glance([CONTENT]), [str(glance)],
                        threading.Event())


@pytest.mark.parametrize('visibility', ['public', 'community', 'shared', 'private'])
def test_facts_say_who_may_see_an_image(visibility):
    seen = facts({'id': IMAGE, 'status': 'active', 'visibility': visibility})
    assert seen.visibility == visibility and seen.properties == {}
