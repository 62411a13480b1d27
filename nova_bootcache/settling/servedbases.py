"""Bases that no server of a host needs from the gateway any more."""

import os
from collections.abc import Callable

from oslo_log import log as logging

from bootcache import exception, tier
from nova_bootcache.cache.cachefiles import CacheFiles
from nova_bootcache.chains.computehost import ComputeHost

LOG = logging.getLogger(__name__)


def idle_images(host: ComputeHost, base_path: Callable[[str], str]) -> set[str]:
    """Return images that are not to be kept ready for the next server, if none stands on them.

    Those whose base is here: new servers do not need the gateway for them. Those whose cache image
    is empty: what served the last server is of no use to the next one, and that one may never have
    been seen here, as its domain did not start. And those whose cache image is open: the gateway
    reads it for servers that began while it came, and would keep it for good from being evicted
    where these came and went between two looks.

    :param base_path: gives where an image's full base is, or would be.
    """
    return {entry.remote.image_id for entry in host.cache.entries()
            if entry.cache_image is None
            or os.path.exists(base_path(entry.remote.image_id))
            or _is_open(host.cache, entry.remote.image_id)}


def _is_open(cache: CacheFiles, image_id: str) -> bool:
    try:
        return tier.is_open(cache.path(image_id))
    except OSError:
        return False


def let_go(host: ComputeHost, image_id: str) -> bool:
    """Take what nobody uses any more out of the gateway; False if that is not possible now."""
    try:
        if host.needs.is_booting(image_id):
            return False
        if not host.gateway.serves(image_id):
            return True
        if not host.below.stop_serving(image_id):
            return False
    except exception.BootcacheError as error:
        LOG.warning('image %s: its base stays in the gateway for now: %s', image_id, error)
        return False
    LOG.info('image %s: no server of this host needs the gateway for it any more', image_id)
    return True
