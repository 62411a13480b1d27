"""Of which content a host's cache image is."""

import dataclasses
import json

import pytest

from bootcache import exception
from bootcache.ceph.places import RbdOrigin
from bootcache.manifest import CacheInfo
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.storagenode import Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
NAMED = Remote(IMAGE, 'storage', 1, 'base-x-ab', 'sha512:ab')
UNKNOWN = Remote(IMAGE, 'storage', 1, 'base-x')


def info(sha256):
    return CacheInfo('file', 1, 1, 1, sha256, 4096, 4096, 1, 'uri', 0.1, 1)


def entry(remote, cache_image=None):
    return CacheEntry(remote, cache_image, 'cd', 4096)


def test_the_hash_decides_where_both_have_one():
    assert entry(NAMED).is_of(Remote(IMAGE, 'moved', 2, 'base-y', 'sha512:ab'), 4096)
    assert not entry(NAMED).is_of(Remote(IMAGE, 'storage', 1, 'base-x-ab', 'sha512:cd'), 4096)
    # Also where the cache image seems to be the same.
    assert not entry(NAMED, info('1')).is_of(Remote(IMAGE, 'storage', 1, 'base-x', 'sha512:cd'),
                                             4096, info('1'))


def test_a_disk_of_another_size_is_of_another_content():
    assert not entry(NAMED).is_of(NAMED, 8192)
    assert entry(NAMED).is_of(NAMED, 0)


def test_the_cache_image_or_the_bases_name_decides_where_a_hash_is_not_known():
    told = Remote(IMAGE, 'storage', 1, 'base-x', 'sha512:ab')
    assert entry(UNKNOWN).is_of(told, 4096)
    assert not entry(UNKNOWN).is_of(NAMED, 4096)
    assert entry(UNKNOWN, info('1')).is_of(NAMED, 4096, info('1'))
    assert not entry(UNKNOWN, info('1')).is_of(NAMED, 4096, info('2'))


def test_entries_are_read_as_they_were_written(tmp_path):
    path = str(tmp_path / 'entry')
    in_ceph = RbdOrigin('f', 'images', 'i', 'snap', '1a', '4')
    for remote in (NAMED, dataclasses.replace(NAMED, tls=True),
                   dataclasses.replace(NAMED, rbd=in_ceph)):
        entry(remote).save(path)
        assert CacheEntry.load(path) == entry(remote)


@pytest.mark.parametrize('change', [{'version': 1}, {'image_hash': None}, {'remote': {}}])
def test_a_damaged_entry_is_refused(tmp_path, change):
    path = tmp_path / 'entry'
    entry(NAMED).save(str(path))
    document = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({key: value for key, value in document.items()
                                if value is not None}))
    with pytest.raises(exception.InvalidManifest, match=str(path)):
        CacheEntry.load(str(path))
