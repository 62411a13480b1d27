"""An image's facts as Glance tells them, and where its base comes from."""

import dataclasses
import errno
import hashlib
import os
from unittest import mock

import pytest

from bootcache import exception, savefile
from glance_bootcache.glance.images import facts
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images import imagework
from tools import storedimages

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


def test_an_id_that_was_given_in_capital_letters_is_the_same_one():
    """Whoever registers an image may choose it, and Glance's MariaDB finds it by either."""
    assert facts({'id': IMAGE.upper(), 'status': 'queued'}).image_id == IMAGE


class Glance:
    """Stands for Glance's download; the real one is used in tests/e2e.

    :param now: the image as it is after that, or an error.
    """

    def __init__(self, pieces, now=None):
        self.pieces, self.now, self.asked = pieces, now, 0

    def get(self, image_id):
        if isinstance(self.now, Exception):
            raise self.now
        return self.now

    def download(self, image_id):
        assert image_id == IMAGE
        self.asked += 1
        yield from self.pieces


@pytest.fixture
def place(tmp_path, storage_conf, database):
    """A store, a directory of Glance's file store, and an image's facts by its hash."""
    glance = tmp_path / 'glance'
    glance.mkdir()

    def image(image_hash=GOOD):
        return ImageFacts(IMAGE, 'active', 'raw', 'bare', len(CONTENT), image_hash, 0, 0, {})

    return storedimages.opened(storage_conf, database), glance, image


def test_a_file_of_the_store_is_linked(place):
    store, glance, image = place
    (glance / IMAGE).write_bytes(CONTENT)
    images = Glance([])
    path, file = imagework.obtain(image(), store, images, ['/nonexistent', str(glance)],
                                 lambda: None)
    assert os.path.samefile(path, glance / IMAGE) and path.startswith(store.directory(IMAGE))
    assert file == savefile.signature(path)
    assert images.asked == 0


def test_it_is_used_in_place_where_it_cannot_be_linked(place, monkeypatch):
    store, glance, image = place
    (glance / IMAGE).write_bytes(CONTENT)

    def refuse(source, target):
        raise OSError(18, 'Invalid cross-device link')

    monkeypatch.setattr(os, 'link', refuse)
    path = str(glance / IMAGE)
    assert imagework.obtain(image(), store, Glance([]), [str(glance)], lambda: None) \
        == (path, savefile.signature(path))


@pytest.mark.parametrize('there', [CONTENT[:-1], CONTENT + b'x', b'y' + CONTENT[1:]],
                         ids=['short', 'long', 'other'])
@pytest.mark.parametrize('linked', [True, False])
def test_a_store_file_of_other_content_is_not_there_yet(place, monkeypatch, there, linked):
    """As that of an image that Glance has in another store already, and copies into this one."""
    store, glance, image = place
    partial = glance / 'one'
    partial.mkdir()
    (partial / IMAGE).write_bytes(there)
    (glance / IMAGE).write_bytes(CONTENT)
    images = Glance([CONTENT])
    if not linked:
        monkeypatch.setattr(os, 'link', mock.Mock(side_effect=OSError(18, 'another device')))
    # Another store has it.
    path, _file = imagework.obtain(image(), store, images, [str(partial), str(glance)],
                                  lambda: None)
    assert os.path.samefile(path, glance / IMAGE) and images.asked == 0
    # Only Glance can give it.
    path, file = imagework.obtain(image(), store, images, [str(partial)], lambda: None)
    with open(path, 'rb') as stream:
        assert stream.read() == CONTENT
    assert images.asked == 1 and file == savefile.signature(path)
    assert (partial / IMAGE).read_bytes() == there and os.stat(partial / IMAGE).st_nlink == 1


@pytest.mark.parametrize('number, cure', [
    (errno.EPERM, 'as the owner of that file'), (errno.ENOSPC, ''), (errno.EMLINK, '')])
def test_a_refused_link_is_told_with_its_own_cure(place, monkeypatch, caplog, number, cure):
    store, glance, image = place
    (glance / IMAGE).write_bytes(CONTENT)
    monkeypatch.setattr(os, 'link', mock.Mock(side_effect=OSError(number, os.strerror(number))))
    imagework.obtain(image(), store, Glance([]), [str(glance)], lambda: None)
    said, = (record for record in caplog.records if 'cannot be linked' in record.message)
    assert said.levelname == 'WARNING' and os.strerror(number) in said.message
    assert ('owner' in said.message) == bool(cure) and cure in said.message


def test_each_failure_leaves_no_link(place, monkeypatch):
    store, glance, image = place
    (glance / IMAGE).write_bytes(CONTENT)

    def cancel():
        raise exception.Cancelled

    with pytest.raises(exception.Cancelled):
        imagework.obtain(image(), store, Glance([]), [str(glance)], cancel)
    (glance / IMAGE).write_bytes(b'y' + CONTENT[1:])
    with pytest.raises(exception.ImageRefused, match='download'):
        imagework.obtain(image(), store, Glance([b'z' + CONTENT[1:]], image()), [str(glance)],
                        lambda: None)
    assert os.listdir(store.directory(IMAGE)) == [] and os.stat(glance / IMAGE).st_nlink == 1


@pytest.mark.parametrize('store_dirs', [[], ['/nonexistent']])
def test_else_it_is_downloaded(place, store_dirs):
    store, _glance, image = place
    path, _file = imagework.obtain(image(), store, Glance([CONTENT[:7], CONTENT[7:]]), store_dirs,
                                  lambda: None)
    with open(path, 'rb') as stream:
        assert stream.read() == CONTENT
    assert os.listdir(store.directory(IMAGE)) == [os.path.basename(path)]


@pytest.mark.parametrize('more', [b'x', b'\0'], ids=['data', 'holes'])
def test_a_download_that_goes_on_past_the_image_s_size_is_refused_there(place, more):
    """Nobody looked how much room it takes: a Glance that does not end filled the file system."""
    store, _glance, image = place
    came = []

    def pieces():
        yield CONTENT
        for _again in range(1000):
            came.append(more)
            yield more * len(CONTENT)

    with pytest.raises(exception.ImageRefused, match=f'more than the {len(CONTENT)} bytes'):
        imagework.obtain(image(), store, Glance(pieces(), image()), [], lambda: None)
    assert len(came) == 1 and os.listdir(store.directory(IMAGE)) == []


def test_zeros_of_a_download_are_holes(place):
    """Whoever copies it, or hashes it at a rate, is spared them."""
    store, _glance, image = place
    pieces = [b'one' * 4096, bytes(8 << 20), b'two' * 4096, bytes(8 << 20)]
    content = b''.join(pieces)
    facts_of_it = dataclasses.replace(
        image(f'sha512:{hashlib.sha512(content).hexdigest()}'), stored_bytes=len(content))
    path, _file = imagework.obtain(facts_of_it, store, Glance(pieces), [], lambda: None)
    with open(path, 'rb') as stream:
        assert stream.read() == content
    assert os.stat(path).st_blocks * 512 < 1 << 20


@pytest.mark.parametrize('pieces', [[], [CONTENT[:-1]]], ids=['none', 'short'])
def test_a_download_that_ends_early_is_worth_another_try_and_leaves_nothing(place, pieces):
    store, _glance, image = place
    with pytest.raises(exception.ServiceAway, match=f'of {len(CONTENT)} bytes'):
        imagework.obtain(image(), store, Glance(pieces, image()), [], lambda: None)
    assert os.listdir(store.directory(IMAGE)) == []


@pytest.mark.parametrize('pieces', [[CONTENT, b'x'], [b'y' + CONTENT[1:]]], ids=['long', 'other'])
def test_a_wrong_download_is_refused_and_leaves_nothing(place, pieces):
    store, _glance, image = place
    with pytest.raises(exception.ImageRefused, match='sha512'):
        imagework.obtain(image(), store, Glance(pieces, image()), [], lambda: None)
    assert os.listdir(store.directory(IMAGE)) == []


@pytest.mark.parametrize(('now', 'error'), [
    (None, exception.Cancelled), (GOOD.replace('a', 'b'), exception.Cancelled),
    (RuntimeError('it is away'), exception.ServiceAway)], ids=['gone', 'another', 'away'])
def test_a_download_of_what_was_replaced_meanwhile_is_not_refused_for_good(place, now, error):
    store, _glance, image = place
    images = Glance([b'y' + CONTENT[1:]], image(now) if isinstance(now, str) else now)
    with pytest.raises(error):
        imagework.obtain(image(), store, images, [], lambda: None)
    assert os.listdir(store.directory(IMAGE)) == []


def test_a_cancelled_download_ends_and_leaves_nothing(place):
    store, _glance, image = place
    images = Glance([b'a', b'b'])

    def check():
        raise exception.Cancelled

    with pytest.raises(exception.Cancelled):
        imagework.obtain(image(), store, images, [], check)
    assert images.asked == 1
    assert os.listdir(store.directory(IMAGE)) == []


@pytest.mark.parametrize('image_hash', ['', 'sha512', 'sha512:'])
def test_without_a_hash_nothing_is_trusted(place, image_hash):
    store, glance, image = place
    (glance / IMAGE).write_bytes(CONTENT)
    with pytest.raises(exception.ImageRefused, match='os_hash_value'):
        imagework.obtain(image(image_hash), store, Glance([CONTENT]), [str(glance)],
                        lambda: None)


@pytest.mark.parametrize('visibility', ['public', 'community', 'shared', 'private'])
def test_facts_say_who_may_see_an_image(visibility):
    seen = facts({'id': IMAGE, 'status': 'active', 'visibility': visibility})
    assert seen.visibility == visibility and seen.properties == {}
