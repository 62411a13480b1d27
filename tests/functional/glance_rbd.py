"""Glance's RBD store, the real one, and what the storage service makes of an image there."""

import hashlib
import json

import nbd
from oslo_config import cfg

from bootcache import naming
from bootcache.manifest import Made, Manifest, Standing
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images.cephbases import CephBases
from tools import storedimages

MIB = 1 << 20
# Not a whole number of Ceph's objects.
SIZE = 21 * MIB + 512
READ_ONLY = 'profile rbd-read-only pool=images'
CAPS = f'{READ_ONLY}, profile rbd pool=bootcache namespace=storage'
HOST_CAPS = f'{READ_ONLY}, profile rbd pool=bootcache namespace=host-1'


class GlanceStore:
    """Glance's code that puts images into Ceph, and deletes them there.

    :param ceph: the cluster; its user ``glance`` may do all in the pool ``images``.
    """

    def __init__(self, ceph):
        # The tests of the storage service's own environment have none of Glance, and no such store.
        from glance_store._drivers import rbd
        self.ceph = ceph
        self._conf = cfg.ConfigOpts()
        self._conf([], project='glance', default_config_files=[], default_config_dirs=[])
        self._conf.register_opts(rbd.Store.OPTIONS, group='ceph')
        for name, value in {'rbd_store_pool': 'images', 'rbd_store_user': 'glance',
                            'rbd_store_ceph_conf': str(ceph.conf)}.items():
            self._conf.set_override(name, value, 'ceph')
        self._store = rbd.Store(self._conf, backend='ceph')
        self._store.configure()
        self._urls = {}

    def add(self, image_id, path, disk_format='raw'):
        """Store an image file, and return what Glance says of the image."""
        with open(path, 'rb') as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            url, stored, _checksum, digest, _metadata = self._store.add(
                image_id, stream, size, 'sha512')
        assert stored == size and digest == hashlib.sha512(content_of(path)).hexdigest()
        self._urls[image_id] = url
        return ImageFacts(image_id, 'active', disk_format, 'bare', size, f'sha512:{digest}', 0, 0,
                          {})

    def note(self, image_id, url):
        """Take the location of an image whose data came in another way."""
        self._urls[image_id] = url

    @staticmethod
    def described(image_id, path, url):
        """Return what Glance says of an image at a location, whose content a file has."""
        content = content_of(path)
        return ImageFacts(image_id, 'active', 'raw', 'bare', len(content),
                          f'sha512:{hashlib.sha512(content).hexdigest()}', 0, 0,
                          {'direct_url': url})

    def url(self, image_id):
        """Return the location that Glance notes."""
        return self._urls[image_id]

    def delete(self, image_id):
        """Delete an image as Glance does.

        :raises glance_store.InUseByStore: if it is in use; tenants are told so then.
        """
        from glance_store import location
        self._store.delete(location.Location('rbd', self._store.get_store_location_class(),
                                             self._conf, self._urls.pop(image_id)))


def content_of(path):
    """Return a file's bytes."""
    with open(path, 'rb') as stream:
        return stream.read()


def clones(glance, facts):
    """Return the names of an image's clones."""
    names = json.loads(glance.ceph.run('rbd', 'ls', '--format', 'json', 'bootcache/storage'))
    return [name for name in names if facts.image_id in name]


def go_on():
    """Nothing keeps a job from going on."""


def files(conf):
    """Return what was made on this storage node."""
    return storedimages.opened(conf).files


def obtained(conf, facts):
    """Return a manifest with an image's clone as its base."""
    path = CephBases(conf).obtain(facts, files(conf), go_on, lambda count: None)
    return path and Manifest(facts.image_id, Standing.DONE, made=Made(
        base_path=path, base_hash=facts.image_hash, image_format='raw',
        stored_bytes=facts.stored_bytes, virtual_bytes=facts.stored_bytes,
        base_export=naming.content_export_name(facts.image_id, facts.image_hash)))


def connected(conf, export):
    """Return a client of an export."""
    handle = nbd.NBD()
    handle.set_export_name(export)
    handle.connect_tcp('127.0.0.1', str(conf.bootcache.export_port))
    return handle


def served(conf, export):
    """Return all bytes of an export."""
    handle = connected(conf, export)
    try:
        return b''.join(handle.pread(min(MIB, handle.get_size() - offset), offset)
                        for offset in range(0, handle.get_size(), MIB))
    finally:
        handle.shutdown()
