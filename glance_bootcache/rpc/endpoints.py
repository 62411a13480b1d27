"""The storage service's RPC endpoints: they hand on what the doorkeeper has let through.

What was read by door/arguments.py can be; what of it was not asked for is counted here.
"""

from typing import Any

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache import rpcapi
from bootcache.exception import MessageRefused
from glance_bootcache.door.doorkeeper import Refusals
from glance_bootcache.exchange.offers import ExchangeOffers
from glance_bootcache.hosts.holdings import Hosts
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images.manager import Manager
from glance_bootcache.images.reportedboots import ReportedBoots
from glance_bootcache.rpc.operators import Operators
from glance_bootcache.snapshots.snapshotjobs import SnapshotJobs
from glance_bootcache.warming.runner import Warming

LOG = logging.getLogger(__name__)


class Endpoints:
    """Serves bootcache/rpcapi.py, where the methods' meaning is described.

    :param manager: keeps the images.
    :param boots: answers compute hosts.
    :param hosts: know what compute hosts hold.
    :param operators: answers operators.
    :param warming: warms compute hosts.
    :param needs: knows which bases compute hosts need.
    :param refusals: counts what was not asked for.
    :param offers: know who has a cache image by exchange.
    :param snapshots: those that hosts send.
    """

    target = messaging.Target(version=rpcapi.VERSION)

    def __init__(self, manager: Manager, boots: ReportedBoots, hosts: Hosts, operators: Operators,
                 warming: Warming, needs: ReportedNeeds, refusals: Refusals,
                 offers: ExchangeOffers, snapshots: SnapshotJobs):
        self._manager = manager
        self._boots = boots
        self._hosts = hosts
        self._operators = operators
        self._warming = warming
        self._needs = needs
        self._refusals = refusals
        self._offers = offers
        self._snapshots = snapshots

    def image_registered(self, ctxt: Any, image_id: str) -> None:
        """The Glance hook saw an import."""
        LOG.info('image %s: announced by the Glance hook', image_id)
        self._manager.consider(image_id)

    def plan_boot(self, ctxt: Any, image_id: str, host: str, server_id: str,
                  profile_token: str | None, owner: str = '',
                  certificate: str = '') -> dict[str, Any]:
        """A compute host starts a server."""
        self._manager.host_reported()
        return self._offers.tell(self._boots.plan_boot(image_id, host, server_id, profile_token,
                                                       owner, certificate), host)

    def boot_progress(self, ctxt: Any, image_id: str, profile_token: str,
                      recorded_bytes: int) -> None:
        """A compute host records a profile boot."""
        if not self._boots.boot_progress(image_id, profile_token, recorded_bytes):
            self._unasked('boot_progress', 'profile_token', 'of no profile boot that is in hand')

    def report_boot(self, ctxt: Any, image_id: str, image_hash: str, host: str, granularity: int,
                    extents: list[Any], ended_by: str, boot_seconds: float,
                    profile_token: str | None = None, line: str = '',
                    server_id: str = '') -> None:
        """A server has booted, and read what its host did not have; or a profile boot is over."""
        if profile_token is not None:
            if not self._boots.report_profile(image_id, profile_token, granularity, extents,
                                              ended_by, boot_seconds, line):
                self._unasked('report_boot', 'profile_token', 'of no profile boot that is in hand',
                              host)
            return
        why_not = self._boots.report_boot(image_id, image_hash, host, granularity, extents,
                                          ended_by, boot_seconds,
                                          only_host=len(self._hosts.seen()) <= 1,
                                          server_id=server_id)
        if why_not:
            self._unasked('report_boot', 'image_id', why_not, host)

    def report_holdings(self, ctxt: Any, host: str,
                        report: dict[str, Any] | None) -> dict[str, Any]:
        """A compute host tells what it holds."""
        self._manager.host_reported()

        def refuse(refusal: MessageRefused) -> None:
            self._refusals.note('report_holdings', refusal, host)

        answer = self._hosts.report(host, report, refuse, ctxt[rpcapi.SENDER])
        if not answer['resend']:
            self._needs.note(host, report, refuse)
        return answer

    def report_warm(self, ctxt: Any, image_id: str, host: str, outcome: str, reason: str) -> None:
        """A compute host was warmed, or could not be."""
        if not self._warming.report(image_id, host, outcome, reason):
            self._unasked('report_warm', 'host', f'nobody warms it for image {image_id}', host)

    def promote_image(self, ctxt: Any, image_id: str) -> None:
        """A compute host is about to fetch a cache image."""
        self._boots.promote(image_id)

    def exchange_cache(self, ctxt: Any, image_id: str, host: str, sha256: str, address: str,
                       port: int, rack: str) -> dict[str, Any] | None:
        """A compute host is about to get a cache image, and takes part in the exchange."""
        return self._offers.offer(image_id, host, sha256, address, port, rack)

    def exchange_base(self, ctxt: Any, image_id: str, host: str, image_hash: str, address: str,
                      port: int, rack: str) -> dict[str, Any] | None:
        """A compute host is about to get an image's stored file, and takes part in the exchange."""
        return self._offers.offer_base(image_id, host, image_hash, address, port, rack,
                                       ctxt[rpcapi.SENDER])

    def take_slot(self, ctxt: Any, host: str) -> float:
        """A compute host is about to get a full base from this storage node."""
        return self._offers.take_slot(ctxt[rpcapi.SENDER])

    def hold_slot(self, ctxt: Any, host: str, holds: bool) -> None:
        """A compute host is at it, or has done so."""
        self._offers.hold_slot(ctxt[rpcapi.SENDER], holds)

    def report_exchange(self, ctxt: Any, image_id: str, host: str, file: str, way: str,
                        got: list[tuple[str, int]], copied: int, gives: bool) -> None:
        """A compute host has got a file that it had asked for by exchange."""
        if not self._offers.note(image_id, host, file, way, got, copied, gives):
            self._unasked('report_exchange', 'file', 'not asked for by this host', host)

    def begin_snapshot(self, ctxt: Any, image_id: str, snapshot_id: str, host: str,
                       certificate: str, token: str, virtual_bytes: int) -> dict[str, Any]:
        """A compute host is about to send a snapshot of a server, or is at it."""
        return self._snapshots.begin(image_id, snapshot_id, host, certificate, token, virtual_bytes)

    def finish_snapshot(self, ctxt: Any, snapshot_id: str, token: str) -> dict[str, Any]:
        """A compute host has sent all of it."""
        return self._snapshots.finish(snapshot_id, token)

    def upload_snapshot(self, ctxt: Any, snapshot_id: str, token: str) -> dict[str, Any]:
        """Nova has told Glance what its image is."""
        return self._snapshots.upload(snapshot_id, token)

    def abandon_snapshot(self, ctxt: Any, snapshot_id: str, token: str) -> bool:
        """A compute host does not go on with it."""
        return self._snapshots.abandon(snapshot_id, token)

    def pin_image(self, ctxt: Any, image_id: str, pinned: bool) -> bool:
        """An operator wants a cache image to stay, or no longer."""
        return self._operators.pin(image_id, pinned)

    def serve_stored(self, ctxt: Any, image_id: str, host: str = '',
                     certificate: str = '') -> dict[str, Any] | None:
        """A compute host completes its local base."""
        return self._boots.serve_stored(image_id, host, certificate)

    def list_images(self, ctxt: Any) -> list[dict[str, Any]]:
        """An operator looks."""
        return self._operators.list_images()

    def get_image(self, ctxt: Any, image_id: str) -> dict[str, Any] | None:
        """An operator looks at one image."""
        return self._operators.get_image(image_id)

    def get_working_set(self, ctxt: Any, image_id: str) -> dict[str, Any] | None:
        """An operator looks at a working set."""
        return self._operators.get_working_set(image_id)

    def list_hosts(self, ctxt: Any) -> list[dict[str, Any]]:
        """An operator looks at the hosts."""
        return self._hosts.describe()

    def host_bases(self, ctxt: Any, host: str) -> dict[str, Any] | None:
        """An operator asks how a host reads bases."""
        return self._hosts.bases(host)

    def image_hosts(self, ctxt: Any, image_id: str) -> dict[str, Any] | None:
        """An operator asks where an image's cache image is."""
        return self._operators.image_hosts(image_id)

    def evict_image(self, ctxt: Any, image_id: str, hosts: list[str] | None) -> list[str]:
        """An operator wants hosts to let go of a cache image."""
        return self._operators.evict(image_id, hosts)

    def warm_image(self, ctxt: Any, image_id: str, aggregates: list[str]) -> list[dict[str, Any]]:
        """An operator wants the hosts of aggregates to be warm."""
        return self._warming.warm(image_id, aggregates)

    def get_warming(self, ctxt: Any, image_id: str) -> list[dict[str, Any]]:
        """An operator looks how far the warming is."""
        return self._warming.progress(image_id)

    def build_image(self, ctxt: Any, image_id: str) -> None:
        """An operator wants an image recorded anew."""
        self._manager.consider(image_id, forced=True)

    def delete_image(self, ctxt: Any, image_id: str) -> bool:
        """An operator wants a cache image gone."""
        return self._manager.forget(image_id, held=True)

    def _unasked(self, method: str, field: str, why: str, host: str = '') -> None:
        """Count what can be and was not asked for; hosts that are late come to it, too."""
        self._refusals.note(method, MessageRefused(field, why), host, is_harmless=True)
