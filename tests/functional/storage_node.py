"""A storage node with one image, as the tests of the compute side need it."""

import os
import signal

from functional_tools import qemu_img, until

from bootcache import cacheimage, cachelayout, naming
from bootcache.cacheimage import Base
from bootcache.cachelayout import Compression
from bootcache.manifest import CacheInfo, Made, Manifest, Standing
from glance_bootcache.storage.exporters import Exporters
from nova_bootcache.storagenode import Remote

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
MIB = 1 << 20
SIZE = 6 * MIB + 512


class Node:
    """A storage node with one image, ready.

    :param kind: of the image's data, as make_base has it.
    """

    def __init__(self, conf, directory, make_base, kind='data'):
        os.mkdir(f'{directory}/store')
        self.conf = conf.bootcache
        self.exporter = Exporters(conf, f'{directory}/clients.json')
        self.base = make_base(f'{directory}/store/base', SIZE, [
            (0, MIB, kind), (2 * MIB, MIB, 'zeros'), (3 * MIB, SIZE, kind)], 'qcow2')
        self.manifest = Manifest(IMAGE, Standing.DONE, made=Made(
            image_format='qcow2', virtual_bytes=SIZE, base_path=self.base,
            base_export=naming.export_name(naming.EXPORT_BASE, IMAGE)))
        self.cache_path = ''

    def build(self, *extents, compression=Compression.NONE):
        """Build a cache image and serve it."""
        self.cache_path = f'{os.path.dirname(self.base)}/cache-{len(extents)}' \
            + cachelayout.file_suffix(compression)
        uri = naming.nbd_unix_uri(self.conf.gateway_socket, f'base-{IMAGE}')
        built = cacheimage.build(Base(self.base, 'qcow2', SIZE), extents, self.cache_path,
                                 quota=64 * MIB, cluster_bytes=4096, backing_uri=uri,
                                 compression=compression)
        self.manifest = self.manifest.making(cache_image=CacheInfo(
            os.path.basename(self.cache_path), built.bytes, built.data_bytes, len(built.extents),
            built.sha256, SIZE, 4096, 64 * MIB, uri, 0.1, cacheimage.VERIFY_RULES))
        self.serve()
        return self

    def serve(self):
        """Serve what there is."""
        self.exporter.ensure(self.manifest, self.cache_path or None)

    def answer(self):
        """Return what a compute host would be told."""
        return self.exporter.describe(self.manifest)

    def remote(self):
        """Return where a compute host finds the base."""
        return Remote.from_answer(IMAGE, self.answer())

    @property
    def exports(self):
        """The names of what is served."""
        return set(self.exporter.common._daemon.exports())

    def kill(self):
        """End the exporter as a crash does."""
        os.kill(self.exporter.common._daemon.pid(), signal.SIGKILL)
        until(lambda: self.exporter.common._daemon.pid() is None, 'the end of the exporter')


def content(node):
    """Return the bytes of a node's base."""
    raw = f'{node.base}.check'
    qemu_img('convert', '-f', 'qcow2', '-O', 'raw', node.base, raw)
    with open(raw, 'rb') as stream:
        return stream.read()
