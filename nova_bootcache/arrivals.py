"""The cache images that are on their way to one host while its servers boot from them."""

import dataclasses
import threading
import time

from oslo_log import log as logging

from bootcache import exception
from bootcache.tier import Medium
from nova_bootcache import arrival, gateway
from nova_bootcache.cacheentry import Entry
from nova_bootcache.gateway import Gateway
from nova_bootcache.hostcache import HostCache
from nova_bootcache.offer import Offered

LOG = logging.getLogger(__name__)


class Arrivals:
    """Fetches cache images without a server having to wait for them: nova_bootcache/arrival.py.

    :param cache: the host's cache images.
    :param gateway: the host's.
    """

    def __init__(self, cache: HostCache, gateway: Gateway):
        self._cache = cache
        self._gateway = gateway
        # Threads by image id. Guarded by the lock, which is held for dictionary steps.
        self._coming: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()
        # Makes beginning one step for whoever tidies up the gateway: some milliseconds, and ten
        # seconds where storage hangs.
        self.beginning = threading.Lock()

    def has(self, image_id: str) -> bool:
        """Tell whether an image's cache image is on its way."""
        with self._lock:
            return image_id in self._coming

    def is_worth_it(self, offered: Offered, medium: Medium) -> bool:
        """Tell whether servers may read from a cache image on its way, instead of waiting for it.

        :param medium: the tier that it is to come into.
        """
        info = offered.cache_image
        assert info is not None and offered.remote is not None
        return arrival.is_worth_it(info.bytes) and self._cache.has_room(
            medium, offered.remote.image_id, arrival.room(info.bytes))

    def begin(self, offered: Offered, medium: Medium) -> bool:
        """Have servers of an image read from its cache image, which comes in the background.

        The image has a cache image on this host, as a rule an empty one, that what comes replaces.

        :returns: False if that is not possible: it is logged.
        """
        info, remote = offered.cache_image, offered.remote
        assert info is not None and remote is not None
        thread = threading.Thread(target=self._run, args=(offered, medium), daemon=True,
                                  name='bootcache-arrival')
        with self._lock:
            if remote.image_id in self._coming:
                return True
            self._coming[remote.image_id] = thread
        try:
            self._gateway.ensure_base(remote)
            gateway.check_reachable(remote)
            source = self._gateway.remote_node(
                '', dataclasses.replace(remote, export=offered.cache_export))
            with self.beginning:
                # Of one that could not be cleared up, as storage hung.
                arrival.discard(self._gateway, remote.image_id)
                arrival.begin(self._gateway, remote.image_id, info.bytes,
                              self._cache.coming_path(remote.image_id, medium), source)
        except (exception.BootcacheError, OSError) as error:
            LOG.warning('image %s: its cache image is fetched before a server boots: %s',
                        remote.image_id, error)
            self._end(remote.image_id)
            return False
        thread.start()
        return True

    def _end(self, image_id: str) -> None:
        with self._lock:
            self._coming.pop(image_id, None)

    def _run(self, offered: Offered, medium: Medium) -> None:
        remote = offered.remote
        assert remote is not None
        image_id = remote.image_id
        try:
            self._receive(offered, medium)
            arrival.land(self._gateway, image_id, self._cache.path(image_id))
        except (exception.BootcacheError, OSError) as error:
            LOG.warning('image %s: its cache image did not arrive, and is read from the base: %s',
                        image_id, error)
        except Exception:
            LOG.exception('bootcache: unexpected error')
        finally:
            try:
                self._clear_up(image_id, medium)
            finally:
                self._end(image_id)

    def _clear_up(self, image_id: str, medium: Medium) -> None:
        try:
            arrival.discard(self._gateway, image_id)
        except exception.BootcacheError as error:
            # Upkeep sees it there, and that nobody waits for it.
            LOG.warning('image %s: the gateway keeps what arrived, for now: %s', image_id, error)
        try:
            arrival.clean(self._cache.coming_path(image_id, medium))
        except OSError as error:
            LOG.warning('image %s: what is left of its arrival stays: %s', image_id, error)

    def _receive(self, offered: Offered, medium: Medium) -> None:
        info, remote = offered.cache_image, offered.remote
        assert info is not None and remote is not None
        path = self._cache.coming_path(remote.image_id, medium)
        self._cache.receive(
            Entry(remote, info, info.sha256, info.virtual_bytes, offered.pinned,
                  offered.generation), medium, path,
            lambda patience: arrival.bring(self._gateway, remote.image_id, info.bytes, path,
                                           patience.seconds, patience.stalled),
            room=arrival.room(info.bytes))

    def wait(self, image_id: str, seconds: float) -> bool:
        """Wait until an image's cache image has arrived, or did not; False if it is on its way.

        :param seconds: at most.
        """
        deadline = time.monotonic() + seconds
        while self.has(image_id) and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self.has(image_id)
