"""A cache image's name tells how its clusters are stored, to this version and to earlier ones."""

import dataclasses

import pytest

from bootcache import cachelayout
from bootcache.cachelayout import Compression
from bootcache.manifest import CacheInfo

PLAIN = CacheInfo('cache-1a2b3c4d.qcow2', 2000, 1900, 3, 'ab', 1 << 30, 65536, 1 << 29, 'nbd:', 1.0,
                  1)
PRESSED = dataclasses.replace(PLAIN, file='cache-5e6f7a8b.zstd.qcow2', bytes=1000, sha256='cd')
IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'


@pytest.mark.parametrize('compression', Compression)
def test_a_name_tells_what_it_was_made_for(compression):
    suffix = cachelayout.file_suffix(compression)
    assert suffix.endswith('.qcow2')
    assert cachelayout.compression_of(f'cache-1a2b3c4d{suffix}') is compression


@pytest.mark.parametrize('file', ['cache-1a2b3c4d.qcow2', 'cache', 'cache-zstd.qcow2',
                                  'cache-1.zstd.qcow2.partial'])
def test_other_names_are_of_clusters_as_they_are(file):
    assert cachelayout.compression_of(file) is Compression.NONE


def test_a_file_s_name_tells_how_it_is_compressed():
    assert PRESSED.compression is Compression.ZSTD and PLAIN.compression is Compression.NONE


def test_the_same_data_stored_in_another_way():
    assert PLAIN.has_data_of(PRESSED) and PRESSED.has_data_of(PLAIN)


@pytest.mark.parametrize('changes', [{'file': 'cache-9.qcow2'}, {'data_bytes': 1901},
                                     {'extents': 4}, {'virtual_bytes': 1 << 31},
                                     {'cluster_bytes': 4096}])
def test_other_data(changes):
    other = dataclasses.replace(PRESSED, **changes)
    assert not PLAIN.has_data_of(other) and not other.has_data_of(PLAIN)
