"""The storage service's RPC endpoints: what comes in is checked here and handed to the manager."""

import time
from typing import Any

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import naming, rpcapi
from bootcache.exception import RequestRefused
from glance_bootcache.hosts.holdings import MOST_IMAGES, Hosts, use_time
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images.manager import Manager
from glance_bootcache.images.reportedboots import ReportedBoots
from glance_bootcache.rpc.operators import Operators
from glance_bootcache.storage.tiers import StorageTiers
from glance_bootcache.warming.runner import Warming

LOG = logging.getLogger(__name__)


class Endpoints:
    """Serves bootcache/rpcapi.py, where the methods' meaning is described.

    :param manager: keeps the images.
    :param boots: answers compute hosts.
    :param tiers: keep cache images under quotas.
    :param hosts: know what compute hosts hold.
    :param operators: answers operators.
    :param warming: warms compute hosts.
    :param needs: knows which bases compute hosts need.
    """

    target = messaging.Target(version=rpcapi.VERSION)

    def __init__(self, manager: Manager, boots: ReportedBoots, tiers: StorageTiers, hosts: Hosts,
                 operators: Operators, warming: Warming, needs: ReportedNeeds):
        self._manager = manager
        self._boots = boots
        self._tiers = tiers
        self._hosts = hosts
        self._operators = operators
        self._warming = warming
        self._needs = needs

    def image_registered(self, ctxt: Any, image_id: str) -> None:
        """The Glance hook saw an import."""
        LOG.info('image %s: announced by the Glance hook', image_id)
        self._manager.consider(image_id)

    def plan_boot(self, ctxt: Any, image_id: str, host: str, server_id: str,
                  profile_token: str | None, owner: str = '') -> dict[str, Any]:
        """A compute host starts a server."""
        self._manager.host_reported()
        return self._boots.plan_boot(naming.canonical_image_id(image_id), host, server_id,
                                     profile_token, str(owner))

    def boot_progress(self, ctxt: Any, image_id: str, profile_token: str,
                      recorded_bytes: int) -> None:
        """A compute host records a profile boot."""
        self._boots.boot_progress(image_id, profile_token, recorded_bytes)

    def recording_progress(self, ctxt: Any, image_id: str, **_told: Any) -> None:
        """A compute host of version 1.4 records: its profile boot fails, with the cure."""

    def report_boot(self, ctxt: Any, image_id: str, image_hash: str, host: str, granularity: int,
                    extents: list[Any], ended_by: str, boot_seconds: float,
                    profile_token: str | None = None, line: str = '',
                    server_id: str = '') -> None:
        """A server has booted, and read what its host did not have; or a profile boot is over."""
        image_id = naming.canonical_image_id(image_id)
        if profile_token is not None:
            self._boots.report_profile(image_id, profile_token, granularity, extents, ended_by,
                                       line)
        else:
            self._boots.report_boot(image_id, image_hash, host, granularity, extents, ended_by,
                                    boot_seconds, only_host=len(self._hosts.seen()) <= 1,
                                    server_id=server_id)

    def report_use(self, ctxt: Any, host: str, images: dict[str, list[Any]]) -> None:
        """A compute host of version 1.1 tells what it used last."""
        self._manager.host_reported()
        now = time.time()
        for image_id, (when, _medium) in list(images.items())[:MOST_IMAGES]:
            # A host's clock may be wrong; nothing is used in the future.
            self._tiers.note_use(naming.canonical_image_id(image_id), use_time(when, now))

    def report_holdings(self, ctxt: Any, host: str,
                        report: dict[str, Any] | None) -> dict[str, Any]:
        """A compute host tells what it holds."""
        self._manager.host_reported()
        self._needs.note(host, report)
        return self._hosts.report(host, report)

    def report_warm(self, ctxt: Any, image_id: str, host: str, outcome: str, reason: str) -> None:
        """A compute host was warmed, or could not be."""
        self._warming.report(naming.canonical_image_id(image_id), host, outcome, reason)

    def promote_image(self, ctxt: Any, image_id: str) -> None:
        """A compute host is about to fetch a cache image."""
        self._boots.promote(naming.canonical_image_id(image_id))

    def pin_image(self, ctxt: Any, image_id: str, pinned: bool) -> bool:
        """An operator wants a cache image to stay, or no longer."""
        return self._operators.pin(naming.canonical_image_id(image_id), bool(pinned))

    def serve_stored(self, ctxt: Any, image_id: str) -> dict[str, Any] | None:
        """A compute host completes its local base."""
        return self._boots.serve_stored(naming.canonical_image_id(image_id))

    def list_images(self, ctxt: Any) -> list[dict[str, Any]]:
        """An operator looks."""
        return self._operators.list_images()

    def get_image(self, ctxt: Any, image_id: str) -> dict[str, Any] | None:
        """An operator looks at one image."""
        return self._operators.get_image(naming.canonical_image_id(image_id))

    def get_working_set(self, ctxt: Any, image_id: str) -> dict[str, Any] | None:
        """An operator looks at a working set."""
        return self._operators.get_working_set(naming.canonical_image_id(image_id))

    def list_hosts(self, ctxt: Any) -> list[dict[str, Any]]:
        """An operator looks at the hosts."""
        return self._operators.list_hosts()

    def image_hosts(self, ctxt: Any, image_id: str) -> dict[str, Any] | None:
        """An operator asks where an image's cache image is."""
        return self._operators.image_hosts(naming.canonical_image_id(image_id))

    @messaging.expected_exceptions(RequestRefused)  # type: ignore[untyped-decorator]
    def evict_image(self, ctxt: Any, image_id: str, hosts: list[str] | None) -> list[str]:
        """An operator wants hosts to let go of a cache image."""
        return self._operators.evict(naming.canonical_image_id(image_id), hosts)

    @messaging.expected_exceptions(RequestRefused)  # type: ignore[untyped-decorator]
    def warm_image(self, ctxt: Any, image_id: str, aggregates: list[str]) -> list[dict[str, Any]]:
        """An operator wants the hosts of aggregates to be warm."""
        return self._warming.warm(naming.canonical_image_id(image_id), aggregates)

    def get_warming(self, ctxt: Any, image_id: str) -> list[dict[str, Any]]:
        """An operator looks how far the warming is."""
        return self._warming.progress(naming.canonical_image_id(image_id))

    def build_image(self, ctxt: Any, image_id: str) -> None:
        """An operator wants an image recorded anew."""
        self._manager.consider(image_id, forced=True)

    def delete_image(self, ctxt: Any, image_id: str) -> bool:
        """An operator wants a cache image gone."""
        return self._manager.forget(image_id, held=True)
