"""A manifest's base as QEMU reads it, wherever it is."""

from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache import exception, savefile
from bootcache.cacheimage import Base
from bootcache.ceph import places
from bootcache.manifest import Manifest


def base_of(manifest: Manifest, conf: cfg.ConfigOpts, image_format: str = '',
            virtual_bytes: int = 0) -> Base:
    """Return a manifest's base for QEMU, wherever it is.

    :param conf: configuration of the storage service.
    :param image_format: raw for the bytes of the stored file; the image's own if not given.
    :param virtual_bytes: of the base; needed to build from it.
    :raises StorageDaemonError: if its file is another one than was verified: see ReadErrors.
    """
    path = manifest.made.base_path
    if is_changed(manifest):
        raise exception.StorageDaemonError(
            f'{path} is another file than was verified, by its inode, size or time of change; it'
            ' is hashed again first')
    group = conf[bootcache_conf.GROUP]
    protocol = places.protocol(places.clone_of(path), group.rbd_store_ceph_conf,
                               group.rbd_store_user) if places.is_clone(path) else None
    return Base(path, image_format or manifest.made.image_format, virtual_bytes, protocol)


def is_changed(manifest: Manifest) -> bool:
    """Tell whether a base's file is there, and is another one than the one that was verified.

    Its device is not compared: a file system that is mounted again may have another number.
    """
    made = manifest.made
    return made.verified_file is not None and not places.is_clone(made.base_path) \
        and savefile.signature(made.base_path) not in (None, made.verified_file)
