"""A storage node with tiers, a real exporter, and readers that look at every byte."""

import hashlib
import os
import random
import shutil
import signal
import tempfile
import threading

import nbd
import pytest
from functional_tools import qemu_img, until

from bootcache import cacheimage
from bootcache.manifest import CacheInfo, Made, Manifest, Standing
from glance_bootcache.db import start
from glance_bootcache.storage.exporters import Exporters
from glance_bootcache.storage.lastuses import LastUses
from glance_bootcache.storage.nodefiles import FileKind
from glance_bootcache.storage.tiers import StorageTiers
from tools import storedimages

MIB = 1 << 20


class House:
    """A storage node: store, exporter, tiers, and images with cache images of random bytes."""

    def __init__(self, conf, directory, memory):
        self.conf, self.directory, self.memory = conf, directory, memory
        conf.set_override('storage_memory_directory', memory, 'bootcache')
        conf.set_override('storage_memory_quota', '64MiB', 'bootcache')
        self.store = storedimages.opened(conf)
        self.content = {}
        self.tiers = None
        self.restart()

    def restart(self, *manifests):
        """A new service process; the exporter is adopted."""
        if self.tiers is not None:
            self.tiers.stop()
        self.exporter = Exporters(self.conf, f'{self.directory}/clients.json')
        self.exporter.start()
        for manifest in manifests:
            self.exporter.ensure(manifest, self.disk_path(manifest))
        self.tiers = StorageTiers(self.conf, self.store, self.exporter,
                                  LastUses(start.wait_for(self.conf)))
        self.tiers.start(manifests)
        self.settle()

    def image(self, number, size=2 * MIB):
        """An image that is ready and served."""
        image_id = f'{number:08x}-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
        base = f'{self.directory}/base-{number}'
        qemu_img('create', '-q', '-f', 'qcow2', base, 4 * MIB)
        with open(base, 'ab') as stream:
            stream.write(b'end')
        name = self.store.begin_file(image_id, FileKind.CACHE_IMAGE, '.qcow2')
        data = random.Random(number).randbytes(size)
        with open(self.store.path(image_id, name), 'wb') as stream:
            stream.write(data)
        manifest = Manifest(image_id, Standing.DONE, made=Made(
            image_format='qcow2', virtual_bytes=4 * MIB, base_path=base,
            base_export=f'base-{image_id}',
            cache_image=CacheInfo(name, size, size, 1, hashlib.sha256(data).hexdigest(), 4 * MIB,
                                  65536, 64 * MIB, '', 0.1, cacheimage.VERIFY_RULES)))
        self.content[image_id] = data
        storedimages.put(self.store, manifest)
        self.serve(manifest)
        return manifest

    def serve(self, manifest):
        self.tiers.serve(manifest)

    def disk_path(self, manifest):
        return self.store.path(manifest.image_id, manifest.made.cache_image.file)

    def memory_path(self, manifest):
        return f'{self.memory}/{manifest.image_id}-{manifest.made.cache_image.sha256}.qcow2'

    def served_from(self, manifest):
        place, = self.exporter.cache_places().get(self.exporter.cache_export(manifest), {None})
        return place

    def withdraw(self, manifest):
        """Have a cache image served no more; False if it is being fetched."""
        with self.exporter.withdrawn(manifest) as gone:
            return gone

    def settle(self):
        """Wait for the tiers' worker."""
        self.tiers._worker.submit(lambda: None).result()

    def promote(self, manifest):
        self.tiers.promote(manifest)
        self.settle()
        return self.tiers.medium(manifest.image_id)

    def connect(self, export):
        handle = nbd.NBD()
        handle.set_export_name(export)
        handle.connect_tcp('127.0.0.1', str(self.conf.bootcache.export_port))
        return handle

    def read(self, export):
        """Return all bytes of an export."""
        handle = self.connect(export)
        try:
            return bytes(handle.pread(handle.get_size(), 0))
        finally:
            handle.shutdown()

    def check(self, manifest, path):
        """A cache image's export has the right bytes, out of the right file."""
        assert self.served_from(manifest) == path
        assert self.read(self.exporter.cache_export(manifest)) == self.content[manifest.image_id]

    def kill(self):
        """End the exporter as a crash does."""
        os.kill(self.exporter.common._daemon.pid(), signal.SIGKILL)
        until(lambda: self.exporter.common._daemon.pid() is None, 'the end of the exporter')

    def close(self):
        self.tiers.stop()
        self.exporter.stop()


@pytest.fixture
def memory():
    path = tempfile.mkdtemp(prefix='bc', dir='/dev/shm')
    yield path
    shutil.rmtree(path)


@pytest.fixture
def house(storage_conf, directory, memory):
    house = House(storage_conf, directory, memory)
    yield house
    house.close()


def flip(path):
    """Change a byte in the middle of a file."""
    with open(path, 'r+b') as stream:
        stream.seek(MIB)
        byte = stream.read(1)
        stream.seek(MIB)
        stream.write(bytes([byte[0] ^ 1]))


class Readers:
    """Clients that read an export at random places and compare what they get."""

    def __init__(self, house, manifest, count=4):
        self.errors, self.reads = [], [0] * count
        self._done = threading.Event()
        self._house, self._export = house, house.exporter.cache_export(manifest)
        self._content = house.content[manifest.image_id]
        self._threads = [threading.Thread(target=self._read, args=(n,)) for n in range(count)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error):
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _read(self, number):
        source = random.Random(number)
        try:
            handle = self._house.connect(self._export)
            while not self._done.is_set():
                offset = source.randrange(len(self._content) - 65536)
                if handle.pread(65536, offset) != self._content[offset:offset + 65536]:
                    self.errors.append(f'wrong bytes at {offset}')
                self.reads[number] += 1
            handle.shutdown()
        except nbd.Error as error:
            self.errors.append(error)

    def go_on(self):
        """Wait until every reader has read some more."""
        wanted = [reads + 3 for reads in self.reads]
        until(lambda: self.errors or all(map(int.__le__, wanted, self.reads)), 'reads')
