"""Of which content a host's cache image is."""

import dataclasses
import json

from bootcache.ceph.places import RbdOrigin
from bootcache.manifest import CacheInfo
from nova_bootcache.cache.cacheentry import CacheEntry
from nova_bootcache.storagenode import Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
NAMED = Remote(IMAGE, 'storage', 1, 'base-x-ab', 'sha512:ab')
EARLIER = Remote(IMAGE, 'storage', 1, 'base-x')


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


def test_an_entry_of_an_earlier_version():
    upgraded = Remote(IMAGE, 'storage', 1, 'base-x', 'sha512:ab')
    assert entry(EARLIER).is_of(upgraded, 4096)
    # The content has changed since: its base has another name.
    assert not entry(EARLIER).is_of(NAMED, 4096)
    # The storage service lost its state and got the same content again: the cache image tells.
    assert entry(EARLIER, info('1')).is_of(NAMED, 4096, info('1'))
    assert not entry(EARLIER, info('1')).is_of(NAMED, 4096, info('2'))


def test_entries_are_understood_both_ways(tmp_path):
    path = str(tmp_path / 'entry')
    entry(NAMED).save(path)
    assert CacheEntry.load(path) == entry(NAMED)
    with open(path) as stream:
        document = json.load(stream)
    # What an earlier version makes of it: its Remote knows four entries.
    assert set(document['remote']) == {'image_id', 'host', 'port', 'export'}
    del document['image_hash'], document['tls'], document['rbd']
    with open(path, 'w') as stream:
        json.dump(document, stream)
    assert CacheEntry.load(path).remote.image_hash == ''
    assert not CacheEntry.load(path).remote.tls
    by_tls = entry(dataclasses.replace(NAMED, tls=True))
    by_tls.save(path)
    assert CacheEntry.load(path) == by_tls
    in_ceph = entry(dataclasses.replace(NAMED, rbd=RbdOrigin('f', 'images', 'i', 'snap', '1a')))
    in_ceph.save(path)
    assert CacheEntry.load(path) == in_ceph
