"""The file of what is served: who is served what, and which file that was."""

import os

import pytest

from bootcache.manifest import CacheInfo, Made, Manifest
from glance_bootcache.storage.servedexports import ServedExports

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '8a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CACHE = CacheInfo('cache-1.qcow2', 4, 8192, 2, 'ab', 8192, 4096, 1 << 20, 'nbd:', 1.0, 1)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'exports.json')


@pytest.fixture
def files(tmp_path):
    """A base and a cache image."""
    for name in 'base', 'cache':
        (tmp_path / name).write_text(name)
    return str(tmp_path / 'base'), str(tmp_path / 'cache')


def manifest(files, image_id=IMAGE, **made):
    return Manifest(image_id, made=Made(
        base_path=files[0], base_export=f'base-{image_id}', image_format='raw', virtual_bytes=8192,
        cache_image=CACHE, **made))


def test_what_is_served_is_known_again(path, files):
    served = ServedExports(path)
    served.record(manifest(files), files[1])
    served.record(manifest(files, OTHER), None)
    served.write({'one': {f'base-{IMAGE}'}, '': {f'base-{IMAGE}', f'base-{OTHER}', 'stored-x'}})
    images = {image.image_id: image for image in ServedExports(path).images()}
    assert images[IMAGE].clients == ('', 'one') and images[OTHER].clients == ('',)
    assert images[IMAGE].cache_path == files[1]
    made = images[IMAGE].manifest().made
    assert (made.base_path, made.base_export, made.image_format, made.virtual_bytes) \
        == (files[0], f'base-{IMAGE}', 'raw', 8192)
    assert made.cache_image == CACHE and made.base_file[2] == 4
    assert images[OTHER].manifest().made.cache_image is None


def test_what_is_not_served_any_more_goes(path, files):
    served = ServedExports(path)
    for image_id in IMAGE, OTHER:
        served.record(manifest(files, image_id), None)
    served.write({'': {f'base-{IMAGE}', f'base-{OTHER}'}})
    served.write({'': {f'base-{OTHER}'}})
    assert [image.image_id for image in ServedExports(path).images()] == [OTHER]


def test_it_is_written_when_it_changes_and_not_else(path, files):
    served = ServedExports(path)
    for _round in range(3):
        served.record(manifest(files), files[1])
        served.write({'': {f'base-{IMAGE}'}})
        if not _round:
            os.unlink(path)
    assert not os.path.exists(path)
    served.record(manifest(files, base_file=(1, 2, 3)), files[1])
    served.write({'': {f'base-{IMAGE}'}})
    image, = ServedExports(path).images()
    assert image.file == (1, 2, 3)


def test_a_cache_image_whose_file_is_another_one_is_not_served(path, files):
    served = ServedExports(path)
    served.record(manifest(files), files[1])
    served.write({'': {f'base-{IMAGE}'}})
    os.utime(files[1], ns=(1, 1))
    image, = ServedExports(path).images()
    assert image.manifest().made.cache_image is None
    assert image.manifest().made.base_path == files[0]


def test_of_a_clone_there_is_no_file(path, files):
    served = ServedExports(path)
    served.record(manifest(files).making(base_path='rbd:p/n/c'), None)
    served.write({'': {f'base-{IMAGE}'}})
    image, = ServedExports(path).images()
    assert image.file is None and image.manifest().made.base_path == 'rbd:p/n/c'


@pytest.mark.parametrize('text', ['', '{', '[]', '{"version": 9}', '{"version": 1}',
                                  '{"version": 1, "images": [{"image_id": "x"}]}',
                                  '{"version": 1, "images": [{"cache_image": 5}]}'])
def test_a_damaged_one_says_nothing(path, text, caplog):
    with open(path, 'w') as stream:
        stream.write(text)
    assert ServedExports(path).images() == [] and 'cannot be used' in caplog.text


def test_it_is_told_once_that_it_has_no_room(path, files, caplog):
    served = ServedExports(path)
    os.mkdir(path)
    served.record(manifest(files), None)
    for _round in range(2):
        served.write({'': {f'base-{IMAGE}'}})
    assert caplog.text.count('cannot be written: Is a directory') == 1
    os.rmdir(path)
    served.write({'': {f'base-{IMAGE}'}})
    assert len(ServedExports(path).images()) == 1
