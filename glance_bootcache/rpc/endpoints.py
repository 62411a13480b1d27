"""The storage service's RPC endpoints: they hand on the messages that were validated."""

import dataclasses
from typing import Any

import oslo_messaging as messaging
from oslo_log import log as logging

from bootcache.exception import MessageRefused
from bootcache.rpc import messages
from bootcache.rpc.messages import SENDER, HoldingsAnswer, Message
from glance_bootcache.exchange.offers import ExchangeOffers
from glance_bootcache.hosts.holdings import Hosts
from glance_bootcache.hosts.reportedneeds import ReportedNeeds
from glance_bootcache.images.controller import Controller
from glance_bootcache.images.reportedboots import ReportedBoots
from glance_bootcache.metrics import ServiceMetrics
from glance_bootcache.nodes.commands import NodeCommands
from glance_bootcache.nodes.routing import ALONE, NODE, Alone
from glance_bootcache.rpc import messagesize
from glance_bootcache.rpc.operators import Operators
from glance_bootcache.rpc.rejected import RejectedMessages
from glance_bootcache.snapshots.snapshotjobs import SnapshotJobs
from glance_bootcache.warming.runner import Warming

LOG = logging.getLogger(__name__)


class Endpoints:
    """Has a method for each message of bootcache.rpc.messages, where its meaning is described.

    :param controller: keeps the images.
    :param boots: answers compute hosts.
    :param hosts: know what compute hosts hold.
    :param operators: answers operators.
    :param warming: warms compute hosts.
    :param needs: knows which bases compute hosts need.
    :param rejected: counts messages that were not asked for.
    :param offers: know who has a cache image by exchange.
    :param snapshots: those that hosts send.
    :param metrics: count the boots that are planned.
    :param nodes: answers operators about storage nodes.
    :param routing: tells other storage nodes what hosts report.
    """

    target = messaging.Target(version=messages.VERSION)

    def __init__(self, controller: Controller, boots: ReportedBoots, hosts: Hosts,
                 operators: Operators, warming: Warming, needs: ReportedNeeds,
                 rejected: RejectedMessages, offers: ExchangeOffers, snapshots: SnapshotJobs,
                 metrics: ServiceMetrics, nodes: NodeCommands, routing: Alone = ALONE):
        self._controller = controller
        self._boots = boots
        self._hosts = hosts
        self._operators = operators
        self._warming = warming
        self._needs = needs
        self._rejected = rejected
        self._offers = offers
        self._snapshots = snapshots
        self._metrics = metrics
        self._nodes = nodes
        self._routing = routing

    def image_registered(self, ctxt: Any, message: messages.ImageRegistered) -> None:
        """The Glance hook saw an import."""
        LOG.info('image %s: announced by the Glance hook', message.image_id)
        self._controller.image_changed(message.image_id)

    def plan_boot(self, ctxt: Any, message: messages.PlanBoot) -> dict[str, Any]:
        """A compute host starts a server."""
        self._controller.host_reported()
        answer = self._offers.tell(self._boots.plan_boot(message), message.host)
        if message.server_id:
            # Else nobody boots: a host asks for what it has, or is warmed.
            self._metrics.count_plan(answer)
        return answer

    def report_progress(self, ctxt: Any, message: messages.ReportProgress) -> None:
        """A compute host records a profile boot."""
        if not self._boots.report_progress(message):
            self._unasked(message, 'profile_token', 'of no profile boot that is in hand')

    def report_boot(self, ctxt: Any, message: messages.ReportBoot) -> None:
        """A server has booted, and read what its host did not have; or a profile boot is over."""
        if message.profile_token is not None:
            if not self._boots.report_profile(message):
                self._unasked(message, 'profile_token', 'of no profile boot that is in hand',
                              message.host)
            return
        why_not = self._boots.report_boot(message, only_host=self._hosts.count() <= 1)
        if why_not:
            self._unasked(message, 'image_id', why_not, message.host)

    def report_holdings(self, ctxt: Any, message: messages.ReportHoldings) -> HoldingsAnswer:
        """A compute host tells what it holds."""
        self._controller.host_reported()

        def reject(refusal: MessageRefused) -> None:
            self._rejected.record(message.method, refusal, message.host)

        answer = self._hosts.report(message.host, message.report, reject,
                                    ctxt[SENDER], message.number)
        if answer.resend:
            return answer
        self._needs.note(message.host, message.report, is_told=NODE in ctxt)
        self._routing.tell_others(message, ctxt)
        return dataclasses.replace(
            answer, moved=self._needs.of(message.host, self._routing.moved()))

    def report_warm(self, ctxt: Any, message: messages.ReportWarm) -> None:
        """A compute host was warmed, or could not be."""
        if not self._warming.report(message):
            self._unasked(message, 'host', f'nobody warms it for image {message.image_id}',
                          message.host)

    def promote_image(self, ctxt: Any, message: messages.PromoteImage) -> None:
        """A compute host is about to fetch a cache image."""
        self._boots.promote(message.image_id)

    def serve_stored(self, ctxt: Any, message: messages.ServeStored
                     ) -> messages.StoredExport | None:
        """A compute host completes its local base."""
        return self._boots.serve_stored(message)

    def exchange_cache(self, ctxt: Any, message: messages.ExchangeCache
                       ) -> messages.ExchangeOffer | None:
        """A compute host is about to get a cache image, and takes part in the exchange."""
        return self._offers.offer(message)

    def exchange_base(self, ctxt: Any, message: messages.ExchangeBase
                      ) -> messages.ExchangeOffer | None:
        """A compute host is about to get an image's stored file, and takes part in the exchange."""
        return self._offers.offer_base(message, ctxt[SENDER])

    def take_slot(self, ctxt: Any, message: messages.TakeSlot) -> float:
        """A compute host is about to get a full base from this storage node."""
        return self._offers.take_slot(ctxt[SENDER])

    def hold_slot(self, ctxt: Any, message: messages.HoldSlot) -> None:
        """A compute host is at it, or has done so."""
        self._offers.hold_slot(ctxt[SENDER], message.holds)

    def report_exchange(self, ctxt: Any, message: messages.ReportExchange) -> None:
        """A compute host has got a file that it had asked for by exchange."""
        if not self._offers.note(message):
            self._unasked(message, 'file', 'not asked for by this host', message.host)

    def begin_snapshot(self, ctxt: Any, message: messages.BeginSnapshot
                       ) -> messages.SnapshotProgress:
        """A compute host is about to send a snapshot of a server, or is at it."""
        return self._snapshots.begin(message)

    def finish_snapshot(self, ctxt: Any, message: messages.FinishSnapshot
                       ) -> messages.SnapshotProgress:
        """A compute host has sent all of it."""
        return self._snapshots.finish(message.snapshot_id, message.token)

    def upload_snapshot(self, ctxt: Any, message: messages.UploadSnapshot
                       ) -> messages.SnapshotProgress:
        """Nova has told Glance what its image is."""
        return self._snapshots.upload(message.snapshot_id, message.token)

    def abandon_snapshot(self, ctxt: Any, message: messages.AbandonSnapshot) -> bool:
        """A compute host does not go on with it."""
        return self._snapshots.abandon(message.snapshot_id, message.token)

    def list_hosts(self, ctxt: Any, message: messages.ListHosts) -> list[dict[str, Any]]:
        """An operator looks at the hosts."""
        return messagesize.page(self._hosts.describe(message.marker))

    def host_bases(self, ctxt: Any, message: messages.HostBases) -> dict[str, Any] | None:
        """An operator asks how a host reads bases."""
        return self._hosts.bases(message.host)

    def forget_host(self, ctxt: Any, message: messages.ForgetHost) -> bool:
        """An operator says that a host is gone for good."""
        is_known = self._needs.forget(message.host)
        self._routing.tell_others(message, ctxt)
        return is_known

    def list_nodes(self, ctxt: Any, message: messages.ListNodes) -> list[dict[str, Any]]:
        """An operator looks at the storage nodes."""
        return self._nodes.list_nodes()

    def set_node_wish(self, ctxt: Any, message: messages.SetNodeWish) -> bool:
        """An operator drains a storage node, or says that it is gone for good."""
        return self._nodes.set_wish(message.name, message.wish)

    def image_hosts(self, ctxt: Any, message: messages.ImageHosts) -> dict[str, Any] | None:
        """An operator asks where an image's cache image is."""
        return self._operators.image_hosts(message.image_id)

    def evict_image(self, ctxt: Any, message: messages.EvictImage) -> list[str]:
        """An operator wants hosts to let go of a cache image."""
        return self._operators.evict(message.image_id, message.hosts)

    def warm_image(self, ctxt: Any, message: messages.WarmImage) -> list[dict[str, Any]]:
        """An operator wants the hosts of aggregates to be warm."""
        return self._warming.warm(message.image_id, message.aggregates)

    def get_warming(self, ctxt: Any, message: messages.GetWarming) -> list[dict[str, Any]]:
        """An operator looks how far the warming is."""
        return self._warming.progress(message.image_id)

    def list_images(self, ctxt: Any, message: messages.ListImages) -> list[dict[str, Any]]:
        """An operator looks."""
        return messagesize.page(self._operators.list_images(message.marker))

    def get_image(self, ctxt: Any, message: messages.GetImage) -> dict[str, Any] | None:
        """An operator looks at one image."""
        return self._operators.get_image(message.image_id)

    def get_working_set(self, ctxt: Any, message: messages.GetWorkingSet) -> dict[str, Any] | None:
        """An operator looks at a working set."""
        return self._operators.get_working_set(message.image_id)

    def build_image(self, ctxt: Any, message: messages.BuildImage) -> None:
        """An operator wants an image recorded anew."""
        self._controller.build(message.image_id)

    def delete_image(self, ctxt: Any, message: messages.DeleteImage) -> bool:
        """An operator wants a cache image gone."""
        return self._controller.evict(message.image_id)

    def pin_image(self, ctxt: Any, message: messages.PinImage) -> bool:
        """An operator wants a cache image to stay, or no longer."""
        return self._operators.pin(message.image_id, message.pinned)

    def _unasked(self, message: Message[Any], field: str, why: str, host: str = '') -> None:
        """Count a message that can be and was not asked for; late hosts come to it, too."""
        self._rejected.record(message.method, MessageRefused(field, why), host, is_harmless=True)
