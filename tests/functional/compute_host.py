"""A compute host with real daemons, as several tests need it; the RPC is a stand-in."""

import os

import oslo_messaging as messaging
from functional_tools import qemu_img
from storage_node import IMAGE, SIZE

from bootcache.rpc.messages import HoldingsAnswer
from bootcache.tier import Medium
from bootcache.workingset import WorkingSet
from nova_bootcache.asking.client import Offered
from nova_bootcache.asking.placement import Offer, Server, Storage

# For boots that end when their server goes.
PROFILE_WATCH = {'quota': 1 << 30, 'linger': 900, 'silence': 900, 'timeout': 900,
                 'marker': 'login:'}
SERVER = Server(IMAGE, 'disk', '', False, False, False)


def fetched(fetches, remote, info, export, medium=Medium.DISK, rate=0):
    """Have a host get a cache image that it is offered; return what is noted of it."""
    return fetches.fetch_offered(
        Offered(Storage(Offer.CACHE), remote=remote, cache_image=info, cache_export=export),
        medium, rate)


class Service:
    """Stands for the storage service: answers with what the node has, notes what is reported."""

    def __init__(self, node):
        self.node, self.reports, self.frozen, self.away = node, [], None, False
        self.watch, self.extra, self.boots, self.used, self.promoted = None, {}, [], [], []
        self.dropped, self.warmed, self.told = set(), [], []
        self.profile_watch = PROFILE_WATCH
        # Of cache images by exchange; None if there are none.
        self.offers = None
        # What it has of further images, which are cold, by id.
        self.others = {}
        # Hosts that have asked, with the names in their certificates.
        self.named = set()

    def freeze(self):
        """Go on with what is known now."""
        self.frozen = self.node.answer()

    def send(self, message):
        return getattr(self, message.method)(message)

    def plan_boot(self, message):
        self.named.add((message.host, message.certificate))
        if self.away:
            raise messaging.MessagingTimeout('nobody')
        if message.image_id in self.others:
            return {'action': 'cold', 'image_hash': 'sha512:cd', **self.others[message.image_id]}
        answer = self.frozen or self.node.answer()
        is_profile = message.profile_token is not None
        action = 'record' if is_profile else 'cache' if 'cache_image' in answer else 'cold'
        answer = {'action': action, 'watch': self.profile_watch if is_profile else self.watch,
                  'image_hash': 'sha512:ab', 'verified': True, **answer, **self.extra}
        return self.offers.tell(answer, message.host) if self.offers else answer

    def report_boot(self, message):
        if message.profile_token is None:
            self.boots.append((message.image_id, message.image_hash, message.host,
                               message.granularity, message.extents, message.ended_by,
                               message.boot_seconds))
        else:
            self.reports.append((message.profile_token, WorkingSet.from_wire(
                message.image_id, '', SIZE, message.granularity, message.extents),
                message.ended_by))

    def report_holdings(self, message):
        self.used.append((message.host, message.report))
        return HoldingsAnswer(tuple(self.dropped))

    def report_warm(self, message):
        self.warmed.append(message)

    def exchange_cache(self, message):
        return self.offers and self.offers.offer(message)

    def exchange_base(self, message):
        return self.offers and self.offers.offer_base(message, message.host)

    def take_slot(self, message):
        return self.offers.take_slot(message.host) if self.offers else 0.0

    def hold_slot(self, message):
        if self.offers:
            self.offers.hold_slot(message.host, message.holds)

    def report_exchange(self, message):
        if self.offers is not None:
            assert self.offers.note(message)

    def promote_image(self, message):
        self.promoted.append(message.image_id)

    def report_progress(self, message):
        self.told.append((message.profile_token, message.recorded_bytes))


def boot(host, path, token=None, size=SIZE, server=SERVER, **more):
    """Make a server's root disk, as the image backend does."""
    return host.chains.make_overlay(server, f'server-{os.path.basename(path)}', token, path, size,
                                    False, **more)


def compare(path, node):
    """Check that a chain has the base's content."""
    qemu_img('compare', '-f', 'qcow2', '-F', 'qcow2', path, node.base)


def end_profile(host, server_id):
    """End a profile boot's server, as Nova does."""
    host.boots.server_goes(server_id)
    host.recordings.finish(server_id)
