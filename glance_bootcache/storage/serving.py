"""Serving what servers that run may read."""

from collections.abc import Callable, Iterable

from oslo_log import log as logging

from bootcache import exception, naming
from bootcache.manifest import Manifest
from bootcache.util.logthrottle import LogThrottle
from glance_bootcache.availability import served

LOG = logging.getLogger(__name__)
_THROTTLE = LogThrottle(LOG)


def has_base(manifest: Manifest) -> bool:
    """Tell whether an image has a base that can be served."""
    return bool(manifest.made.base_path and manifest.made.virtual_bytes)


def serve(manifest: Manifest, ensure: Callable[[Manifest], None]) -> None:
    """Serve an image's base, and its cache image if hosts are given it; what fails is logged.

    :param ensure: ``StorageTiers.serve``; at the start, when there are no tiers, the exporter's.
    """
    if not served(manifest.wished.availability).cache_image:
        manifest = manifest.making(cache_image=None, difference=None)
    try:
        ensure(manifest)
    except exception.StorageDaemonBusy as error:
        # Of the exporter it is told once, and not for each image.
        LOG.debug('image %s: its base cannot be served now: %s', manifest.image_id, error)
    except exception.BootcacheError as error:
        _THROTTLE.warning(manifest.image_id, 'image %s: its base cannot be served: %s',
                          manifest.image_id, error)
    else:
        _THROTTLE.recovered(manifest.image_id, 'image %s: its base can be served again',
                            manifest.image_id)


def serve_again(known: Callable[[str], Manifest | None], exports: Iterable[str],
                ensure: Callable[[Manifest], None]) -> None:
    """Serve the images of exports that an exporter had which was ended.

    :param known: returns an image's manifest; None for what is no image.
    """
    found = map(known, {naming.image_of(export) for export in exports})
    serve_all((manifest for manifest in found if manifest is not None), ensure)


def serve_all(manifests: Iterable[Manifest], ensure: Callable[[Manifest], None]) -> None:
    """Serve every base: servers may run from any, and the exporter may be a new one."""
    for manifest in manifests:
        if has_base(manifest):
            serve(manifest, ensure)
