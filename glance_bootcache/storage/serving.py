"""Serving what servers that run may read: it needs the state directory and the exporter only."""

from oslo_log import log as logging

from bootcache import exception
from bootcache.manifest import Manifest
from glance_bootcache.storage.exporter import Exporter
from glance_bootcache.storage.store import ImageStore

LOG = logging.getLogger(__name__)


def has_base(manifest: Manifest) -> bool:
    """Tell whether an image has a base that can be served."""
    return bool(manifest.made.base_path and manifest.made.virtual_bytes)


def serve(manifest: Manifest, store: ImageStore, exporter: Exporter) -> None:
    """Serve an image's base, and its cache image if it has one; what fails is logged."""
    try:
        exporter.ensure(manifest, store.cache_path(manifest))
    except exception.BootcacheError as error:
        LOG.warning('image %s: its base cannot be served: %s', manifest.image_id, error)


def serve_all(store: ImageStore, exporter: Exporter) -> None:
    """Serve every base: servers may run from any, and the exporter may be a new one."""
    for manifest in store.manifests():
        if has_base(manifest):
            serve(manifest, store, exporter)
