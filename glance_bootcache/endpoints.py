"""The storage service's RPC endpoints: what comes in is checked here and handed to the manager."""

from typing import Any

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import naming, rpcapi
from glance_bootcache.manager import Manager

LOG = logging.getLogger(__name__)


class Endpoints:
    """Serves bootcache/rpcapi.py, where the methods' meaning is described.

    :param manager: does the work.
    """

    target = messaging.Target(version=rpcapi.VERSION)

    def __init__(self, manager: Manager):
        self._manager = manager

    def image_registered(self, ctxt: Any, image_id: str) -> None:
        """The Glance hook saw an import."""
        LOG.info('image %s: announced by the Glance hook', image_id)
        self._manager.consider(image_id)

    def plan_boot(self, ctxt: Any, image_id: str, host: str, server_id: str,
                  profile_token: str | None) -> dict[str, Any]:
        """A compute host starts a server."""
        return self._manager.plan_boot(naming.canonical_image_id(image_id), host, server_id,
                                       profile_token)

    def recording_progress(self, ctxt: Any, image_id: str, profile_token: str,
                           recorded_bytes: int, idle_seconds: float) -> None:
        """A compute host records."""
        self._manager.recording_progress(image_id, profile_token, recorded_bytes, idle_seconds)

    def report_working_set(self, ctxt: Any, image_id: str, profile_token: str, granularity: int,
                           extents: list[Any]) -> None:
        """A compute host has recorded."""
        self._manager.report_working_set(naming.canonical_image_id(image_id), profile_token,
                                         granularity, extents)

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
