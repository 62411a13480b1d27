"""The storage service's RPC endpoints: what comes in is checked here and handed to the manager."""

import time
from typing import Any

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import naming, rpcapi
from glance_bootcache.boots import Boots
from glance_bootcache.manager import Manager
from glance_bootcache.tiers import StorageTiers

LOG = logging.getLogger(__name__)

# Images of one report that are looked at.
_MOST_IMAGES = 10_000


class Endpoints:
    """Serves bootcache/rpcapi.py, where the methods' meaning is described.

    :param manager: keeps the images.
    :param boots: answers compute hosts.
    :param tiers: keep cache images under quotas.
    """

    target = messaging.Target(version=rpcapi.VERSION)

    def __init__(self, manager: Manager, boots: Boots, tiers: StorageTiers):
        self._manager = manager
        self._boots = boots
        self._tiers = tiers

    def image_registered(self, ctxt: Any, image_id: str) -> None:
        """The Glance hook saw an import."""
        LOG.info('image %s: announced by the Glance hook', image_id)
        self._manager.consider(image_id)

    def plan_boot(self, ctxt: Any, image_id: str, host: str, server_id: str,
                  profile_token: str | None) -> dict[str, Any]:
        """A compute host starts a server."""
        return self._boots.plan_boot(naming.canonical_image_id(image_id), host, server_id,
                                     profile_token)

    def recording_progress(self, ctxt: Any, image_id: str, profile_token: str,
                           recorded_bytes: int, idle_seconds: float) -> None:
        """A compute host records."""
        self._boots.recording_progress(image_id, profile_token, recorded_bytes, idle_seconds)

    def report_working_set(self, ctxt: Any, image_id: str, profile_token: str, granularity: int,
                           extents: list[Any]) -> None:
        """A compute host has recorded."""
        self._boots.report_working_set(naming.canonical_image_id(image_id), profile_token,
                                       granularity, extents)

    def report_boot(self, ctxt: Any, image_id: str, image_hash: str, host: str, granularity: int,
                    extents: list[Any], ended_by: str, boot_seconds: float) -> None:
        """A server has booted, and read what its host did not have."""
        self._boots.report_boot(naming.canonical_image_id(image_id), image_hash, host, granularity,
                                extents, ended_by, boot_seconds)

    def report_use(self, ctxt: Any, host: str, images: dict[str, list[Any]]) -> None:
        """A compute host tells what it used last."""
        now = time.time()
        for image_id, (when, _medium) in list(images.items())[:_MOST_IMAGES]:
            # A host's clock may be wrong; nothing is used in the future.
            self._tiers.note_use(naming.canonical_image_id(image_id), min(float(when), now))

    def promote_image(self, ctxt: Any, image_id: str) -> None:
        """A compute host is about to fetch a cache image."""
        self._boots.promote(naming.canonical_image_id(image_id))

    def pin_image(self, ctxt: Any, image_id: str, pinned: bool) -> bool:
        """An operator wants a cache image to stay, or no longer."""
        return self._manager.pin(naming.canonical_image_id(image_id), bool(pinned))

    def serve_stored(self, ctxt: Any, image_id: str) -> dict[str, Any] | None:
        """A compute host completes its local base."""
        return self._boots.serve_stored(naming.canonical_image_id(image_id))

    def list_images(self, ctxt: Any) -> list[dict[str, Any]]:
        """An operator looks."""
        return self._manager.list_images()

    def get_image(self, ctxt: Any, image_id: str) -> dict[str, Any] | None:
        """An operator looks at one image."""
        return self._manager.get_image(naming.canonical_image_id(image_id))

    def get_working_set(self, ctxt: Any, image_id: str) -> dict[str, Any] | None:
        """An operator looks at a working set."""
        return self._manager.get_working_set(naming.canonical_image_id(image_id))

    def build_image(self, ctxt: Any, image_id: str) -> None:
        """An operator wants an image recorded anew."""
        self._manager.consider(image_id, forced=True)

    def delete_image(self, ctxt: Any, image_id: str) -> bool:
        """An operator wants a cache image gone."""
        return self._manager.forget(image_id, held=True)
