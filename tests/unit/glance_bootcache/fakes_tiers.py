"""The storage node's tiers."""

import hashlib
import os

import pytest
from fakes_manager import without_locks

from bootcache import conf as bootcache_conf
from bootcache import exception
from bootcache.manifest import CacheInfo, Made, Manifest, Standing
from glance_bootcache import conf as glance_conf
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.tiers import StorageTiers
from tools import storedimages

MIB = 1 << 20
ONE, TWO, THREE = (f'{number}5f0d3e0-1f2b-4c3d-8e9f-0a1b2c3d4e5f' for number in (1, 2, 3))


def cache_image(size=MIB, content=b'x'):
    return CacheInfo('cache-1.qcow2', size, size, 1, hashlib.sha256(content * size).hexdigest(),
                     size, 4096, size, '', 0.1, 1)


def manifest(image_id, size=MIB, updated_at='2026-01-02T03:04:05+00:00'):
    return Manifest(image_id, Standing.DONE, updated_at=updated_at,
                    made=Made(cache_image=cache_image(size)))


@without_locks('ensure', 'cache_places', 'switch_cache')
class FakeExporter:
    """Notes from where it is told to serve; refuses if it is told to."""

    def __init__(self):
        self.places, self.refuse, self.missing = {}, False, None
        self.on_switch = lambda manifest, path: None

    def cache_export(self, manifest):
        return manifest.image_id

    def ensure(self, manifest, path, certificates=('',)):
        if path == self.missing:
            raise exception.StorageDaemonError(f'{path} is gone')
        self.places[manifest.image_id] = path

    def cache_places(self):
        return {export: {path} for export, path in self.places.items()}

    def switch_cache(self, manifest, path):
        if self.refuse:
            raise exception.StorageDaemonError('refused')
        self.on_switch(manifest, path)
        self.places[manifest.image_id] = path


# Tiers.

@pytest.fixture
def exporter():
    return FakeExporter()


@pytest.fixture
def tiers(storage_conf, exporter, database, tmp_path):
    """Tiers of 2 and 4 MiB; "memory" is any directory here."""
    (tmp_path / 'memory').mkdir()
    for name, value in {'default_quota': '1MiB', 'max_quota': '4MiB', 'storage_disk_quota': '4MiB',
                        'storage_memory_quota': '2MiB',
                        'storage_memory_directory': str(tmp_path / 'memory')}.items():
        storage_conf.set_override(name, value, bootcache_conf.GROUP)
    glance_conf.check(storage_conf)
    store = storedimages.opened(storage_conf, database)
    for image_id in (ONE, TWO, THREE):
        os.makedirs(store.directory(image_id))
        storedimages.put(store, Manifest(image_id))
    tiers = StorageTiers(storage_conf, store, exporter, LastUses(database))
    yield tiers
    tiers._stopping = True
    tiers._worker.shutdown(wait=False)
