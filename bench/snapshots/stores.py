"""The stores: Glance's own drivers, the product's snapshots in them, what they take of the medium.

Of Glance nothing else is there, nor are Nova, RPC and HTTP.
"""

import dataclasses
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from glance_store import location
from glance_store._drivers import filesystem, rbd
from oslo_config import cfg

from bench.replay.cephmachines import MachinesCeph
from bench.snapshots.servers import Disk, qemu, virtual_bytes
from bootcache import conf as bootcache_conf
from bootcache import naming
from bootcache.manifest import Made, Manifest, Standing
from glance_bootcache import conf as glance_conf
from glance_bootcache.filestore.snapshots import FileSnapshots
from glance_bootcache.imagefacts import ImageFacts
from glance_bootcache.images.cephbases import CephBases
from glance_bootcache.snapshots.rbdstore import RbdSnapshots
from glance_bootcache.snapshots.stores import SnapshotStore
from tools import storedimages

_ALGORITHM = 'sha512'
_STEADY_SECONDS = 1.0
_POOL = 'snapshots'


def configured(home: str, address: str, **options: object) -> cfg.ConfigOpts:
    """Return a storage service's configuration.

    :param home: of its state and sockets.
    :param address: at which hosts reach its exporter.
    """
    conf = cfg.ConfigOpts()
    conf([], project='bootcache', default_config_files=[], default_config_dirs=[])
    glance_conf.register_opts(conf)
    for name, value in {'state_dir': f'{home}/state', 'run_dir': f'{home}/run',
                        'export_host': address, **options}.items():
        conf.set_override(name, value, bootcache_conf.GROUP)
    return conf


class Store(Protocol):
    """A store with a base, and ways in which snapshots come into it.

    :ivar conf: the storage service's.
    :ivar snapshots: where the product makes them.
    :ivar manifest: of the base.
    :ivar base: path of the base's file, which hosts have.
    :ivar base_format: raw or qcow2.
    :ivar base_bytes: that the store takes for it.
    """

    conf: cfg.ConfigOpts
    snapshots: SnapshotStore
    manifest: Manifest
    base: str
    base_format: str
    base_bytes: int

    def used(self) -> int:
        """Return the bytes that are taken of the medium."""

    def upload(self, image_id: str, stream: Any, size: int) -> None:
        """Store what is uploaded, as Glance does."""

    def take(self, image_id: str, url: str, work: str) -> None:
        """Make a snapshot of ours an image; without a URL its file is uploaded."""

    def compare(self, image_id: str, disk: Disk, image_format: str) -> None:
        """Compare an image with the disk that it is of; it is an error if they differ."""

    def remove(self, image_id: str) -> None:
        """Remove an image."""


def _steady(look: Callable[[], int]) -> int:
    """Return a figure when it has stopped changing."""
    last = look()
    while True:
        time.sleep(_STEADY_SECONDS)
        if (now := look()) == last:
            return now
        last = now


class _Known:
    """Stands for what was found out of Glance: a directory is of a store that registers, or not."""

    def __init__(self, name: str):
        self._name = name

    def store_of(self, _directory: str) -> str:
        return self._name

    def doubt(self, _directory: str) -> None:
        pass

    def look(self) -> None:
        pass


class FilesStore:
    """Glance's file store, on the file system at a place.

    :param place: a directory of it, of this store alone.
    :param image: a qcow2, of which the base is made.
    :param apart: a directory elsewhere, where the storage service has the base; None: in the store.
    :param registers: whether Glance has our driver.
    """

    def __init__(self, place: str, image: str, base_format: str, address: str,
                 apart: str | None = None, registers: bool = True):
        self._place, self.base_format = place, base_format
        self._images = f'{place}/images'
        home = apart or place
        for path in (self._images, f'{home}/run', f'{home}/state'):
            os.makedirs(path, exist_ok=True)
        before = self.used()
        self.base = f'{home}/base'
        qemu('qemu-img', 'convert', '-f', 'qcow2', '-O', base_format, image, self.base)
        self.base_bytes = self.used() - before
        self.conf = configured(home, address, glance_store_dirs=[self._images])
        self.snapshots: Any = FileSnapshots(self.conf,
                                            _Known('file' if registers else ''))  # type: ignore[arg-type]
        image_id = str(uuid.uuid4())
        self.manifest = Manifest(image_id, Standing.DONE, made=Made(
            image_format=base_format, virtual_bytes=virtual_bytes(self.base, base_format),
            base_path=self.base, base_export=naming.export_name(naming.EXPORT_BASE, image_id)))
        self._glance = glance_store(filesystem.Store, 'file',
                                    {'filesystem_store_datadir': self._images})

    def used(self) -> int:
        """Return what is taken; XFS gives back a little later what is deleted."""
        return _steady(self._taken)

    def _taken(self) -> int:
        os.sync()
        status = os.statvfs(self._place)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def upload(self, image_id: str, stream: Any, size: int) -> None:
        self._glance.add(image_id, stream, size, _ALGORITHM)

    def take(self, image_id: str, url: str, work: str) -> None:
        if not url:
            with open(work, 'rb') as stream:
                self.upload(image_id, stream, os.stat(work).st_size)

    def compare(self, image_id: str, disk: Disk, image_format: str) -> None:
        qemu('qemu-img', 'compare', '-f', image_format, '-F', 'qcow2',
             f'{self._images}/{image_id}', disk.path)

    def remove(self, image_id: str) -> None:
        os.unlink(f'{self._images}/{image_id}')


class CephStore:
    """Glance's RBD store, in a small real Ceph of one OSD.

    :param home: a directory of the storage service.
    :param image: a qcow2, of which the base is made.
    """

    def __init__(self, home: str, image: str, address: str, ceph: MachinesCeph):
        self._ceph, self.base_format = ceph, 'raw'
        for path in (home, f'{home}/run', f'{home}/state'):
            os.makedirs(path, exist_ok=True)
        ceph.make_pool(_POOL)
        ceph.make_user('glance', f'profile rbd pool=images, profile rbd pool={_POOL}')
        ceph.make_user('bootcache', 'profile rbd-read-only pool=images, profile rbd pool=bootcache'
                       f' namespace=storage, profile rbd pool={_POOL}')
        self._glance = glance_store(rbd.Store, 'ceph', {
            'rbd_store_pool': 'images', 'rbd_store_user': 'glance',
            'rbd_store_ceph_conf': str(ceph.conf)})
        self._urls: dict[str, str] = {}
        self.base = f'{home}/base'
        qemu('qemu-img', 'convert', '-f', 'qcow2', '-O', 'raw', image, self.base)
        before = self.used()
        facts = self._stored_base()
        self.base_bytes = self.used() - before
        self.conf = configured(home, address, rbd_store_pool='images',
                               rbd_store_ceph_conf=str(ceph.conf), rbd_snapshot_pool=_POOL)
        files = storedimages.opened(self.conf).files
        self.snapshots: Any = RbdSnapshots(self.conf, files)
        clone = CephBases(self.conf).obtain(facts, files, lambda: None, lambda count: None)
        if clone is None:
            raise RuntimeError('the base is not read in Ceph; its log says why')
        self.manifest = Manifest(facts.image_id, Standing.DONE, made=Made(
            base_path=clone, base_hash=facts.image_hash, image_format='raw',
            base_export=naming.content_export_name(facts.image_id, facts.image_hash),
            stored_bytes=facts.stored_bytes, virtual_bytes=facts.stored_bytes))

    def _stored_base(self) -> ImageFacts:
        image_id, size = str(uuid.uuid4()), os.stat(self.base).st_size
        with open(self.base, 'rb') as stream:
            self.upload(image_id, stream, size)
            stream.seek(0)
            digest = hashlib.file_digest(stream, _ALGORITHM).hexdigest()
        return ImageFacts(image_id, 'active', 'raw', 'bare', size, f'{_ALGORITHM}:{digest}', 0, 0,
                          {})

    def used(self) -> int:
        """Return what BlueStore has allocated; what is deleted is given back a little later."""
        return _steady(self._allocated)

    def _allocated(self) -> int:
        [socket] = Path(self._ceph.directory, 'run').glob('*osd.0.*.asok')
        told = json.loads(self._ceph.run('ceph', '--admin-daemon', str(socket), 'perf', 'dump',
                                         'bluestore'))
        return int(told['bluestore']['bluestore_allocated'])

    def upload(self, image_id: str, stream: Any, size: int) -> None:
        self._urls[image_id] = self._glance.add(image_id, stream, size, _ALGORITHM)[0]

    def take(self, image_id: str, url: str, work: str) -> None:
        self._urls[image_id] = url

    def compare(self, image_id: str, disk: Disk, image_format: str) -> None:
        pool, image, snapshot = self._urls[image_id].split('/')[3:]
        node = {'driver': image_format, 'file': {
            'driver': 'rbd', 'pool': pool, 'image': image, 'snapshot': snapshot,
            'conf': str(self._ceph.conf), 'user': 'glance'}}
        overlay = {'driver': 'qcow2', 'file': {'driver': 'file', 'filename': disk.path}}
        qemu('qemu-img', 'compare', f'json:{json.dumps(node)}', f'json:{json.dumps(overlay)}')

    def remove(self, image_id: str) -> None:
        self._glance.delete(location.Location('rbd', rbd.StoreLocation, self._glance.conf,
                                              self._urls.pop(image_id)))


def glance_store(driver: Callable[..., Any], group: str, options: dict[str, str]) -> Any:
    """Return one of Glance's own stores."""
    conf = cfg.ConfigOpts()
    conf([], project='glance', default_config_files=[], default_config_dirs=[])
    conf.register_opts(driver.OPTIONS, group=group)  # type: ignore[attr-defined]
    for name, value in options.items():
        conf.set_override(name, value, group)
    store = driver(conf, backend=group)
    store.configure()
    store.configure_add()
    return store


@dataclasses.dataclass(frozen=True)
class Setup:
    """A store, and what the report calls it.

    :ivar name: of the store.
    :ivar way: of the product's snapshots there.
    :ivar beside: whether stock's way is measured there as well.
    """

    name: str
    way: str
    store: Store
    beside: bool
