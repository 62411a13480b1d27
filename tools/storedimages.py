"""The storage service's images, for benches and tests that begin with some."""

import os

from oslo_config import cfg

from bootcache import conf as bootcache_conf
from bootcache.ceph import places
from bootcache.manifest import Manifest
from glance_bootcache.db import start
from glance_bootcache.db.engine import Database
from glance_bootcache.nodes.node import StorageNode
from glance_bootcache.storage import nodefiles
from glance_bootcache.storage.nodefiles import FileKind
from glance_bootcache.storage.store import ImageStore


def opened(conf: cfg.ConfigOpts, database: Database | None = None) -> ImageStore:
    """Return the store of a configuration's state directory, which is made if missing.

    :param database: the configured one, if not given.
    """
    state_dir = conf[bootcache_conf.GROUP].state_dir
    os.makedirs(state_dir, exist_ok=True)
    database = database or start.wait_for(conf)
    return ImageStore(state_dir, database,
                      StorageNode(database, f'{state_dir}/node.json', 'storage-1').id)


def put(store: ImageStore, manifest: Manifest) -> Manifest:
    """Have an image be as a manifest says, as if the service had made what that names."""
    directory = store.directory(manifest.image_id)
    known = nodefiles.named(store.load(manifest.image_id), directory)
    for name in nodefiles.named(manifest, directory) - known:
        store.files.begin(manifest.image_id,
                          FileKind.CLONE if places.is_clone(name) else FileKind.BASE, name)
    stored = store.change(manifest.image_id, lambda _known: manifest) or store.add(manifest)
    assert stored is not None
    return stored
