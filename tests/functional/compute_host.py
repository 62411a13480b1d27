"""A compute host with real daemons, as several tests need it; the RPC is a stand-in."""

import os

import oslo_messaging as messaging
from functional_tools import qemu_img
from storage_node import IMAGE, SIZE

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

    def plan_boot(self, image_id, host, server_id, profile_token, owner='',
                  certificate=''):
        self.named.add((host, certificate))
        if self.away:
            raise messaging.MessagingTimeout('nobody')
        if image_id in self.others:
            return {'action': 'cold', 'image_hash': 'sha512:cd', **self.others[image_id]}
        answer = self.frozen or self.node.answer()
        action = 'record' if profile_token else 'cache' if 'cache_image' in answer else 'cold'
        watch = self.profile_watch if profile_token else self.watch
        answer = {'action': action, 'watch': watch, 'image_hash': 'sha512:ab', 'verified': True,
                  **answer, **self.extra}
        return self.offers.tell(answer, host) if self.offers else answer

    def report_boot(self, image_id, image_hash, host, granularity, extents, ended_by, seconds,
                    profile_token=None, line='', server_id=''):
        if profile_token is None:
            self.boots.append((image_id, image_hash, host, granularity, extents, ended_by, seconds))
        else:
            self.reports.append((profile_token, WorkingSet.from_wire(
                image_id, '', SIZE, granularity, extents), ended_by))

    def report_holdings(self, host, report):
        self.used.append((host, report))
        return {'drop': list(self.dropped), 'resend': False}

    def report_warm(self, image_id, host, outcome, reason):
        self.warmed.append((image_id, host, outcome, reason))

    def exchange_cache(self, image_id, host, *membership):
        return self.offers and self.offers.offer(image_id, host, *membership)

    def exchange_base(self, image_id, host, *membership):
        return self.offers and self.offers.offer_base(image_id, host, *membership, host)

    def take_slot(self, host):
        return self.offers.take_slot(host) if self.offers else 0.0

    def hold_slot(self, host, holds):
        if self.offers:
            self.offers.hold_slot(host, holds)

    def report_exchange(self, *told, **more):
        if self.offers is not None:
            assert self.offers.note(*told, **more)

    def promote_image(self, image_id):
        self.promoted.append(image_id)

    def boot_progress(self, image_id, profile_token, recorded_bytes):
        self.told.append((profile_token, recorded_bytes))


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
