"""A compute host that is looked after."""

import contextlib
import dataclasses
import os

import pytest
from fakes_clock import Clock

from bootcache import certificates, exception
from bootcache.manifest import CacheInfo
from bootcache.tier import Medium, TierLimits
from bootcache.util import logthrottle
from nova_bootcache import upkeep
from nova_bootcache.cache.cachefiles import CacheEntry
from nova_bootcache.gateway.graph import Present
from nova_bootcache.gateway.socketfault import GatewaySocket
from nova_bootcache.storagenode import PLAIN, Remote, TakenCertificates

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
OTHER = '00000000-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
INFO = CacheInfo('cache', 1000, 900, 3, 'ab', 1 << 30, 65536, 1 << 29, 'nbd://', 1.5, 1)
LIMITS = TierLimits(10 << 30, 9 << 30, 8 << 30)
# Doubled each time, to ten minutes.
TRIES = [0, 10, 30, 70, 150, 310, 630, 1230, 1830]


def offered(image=IMAGE):
    return {'action': 'cache', 'virtual_bytes': 1 << 30, 'server': ['10.0.0.1', 10810],
            'base_export': f'base-{image}', 'cache_export': 'cache-x',
            'cache_image': vars(INFO)}


class Faults:
    """Who does not answer: shared by the stand-ins, each of which knows itself by name."""

    def __init__(self):
        self.broken = set()

    def check(self, what):
        if what in self.broken:
            raise exception.StorageDaemonError(f'{what} does not answer')


class Gateway:
    """Stands for the gateway: which bases it serves."""

    socket_path = '/run/bootcache/gateway.sock'

    def __init__(self, faults):
        self.faults, self.exported = faults, set()

    def start(self):
        self.faults.check('start')
        return False

    def present(self, image_ids):
        self.faults.check('present')
        return {image_id: Present(is_exported=True, content=f'base-{image_id}')
                for image_id in image_ids if image_id in self.exported}

    def served(self):
        self.faults.check('present')
        return set(self.exported)


class Cache:
    """Stands for the host's cache images: entries, and files that are empty."""

    def __init__(self, directory):
        self.directory, self.held, self.placing = str(directory), {}, set()

    def holds(self, image, whole=True, used=1000.0, node='10.0.0.1'):
        """Put a cache image, or an empty one, into the cache."""
        remote = Remote(image, node, 10810, f'base-{image}')
        self.held[image] = CacheEntry(remote, INFO if whole else None, 'ab', 1 << 30)
        for name in (self.path(image), f'{self.path(image)}.json'):
            with open(name, 'w'):
                pass
        os.utime(f'{self.path(image)}.json', (used, used))

    def path(self, image_id):
        return os.path.join(self.directory, image_id)

    def entries(self):
        return list(self.held.values())

    def update(self, entry, remote, pinned, generation):
        changed = dataclasses.replace(entry, remote=remote, pinned=pinned, generation=generation)
        self.held[remote.image_id] = changed
        return changed

    def use_until_now(self):
        """No clock is set here."""

    def gone(self, unused_seconds):
        return []

    @contextlib.contextmanager
    def placing_if_free(self, image_id):
        yield image_id not in self.placing


class Needs:
    """Stands for who needs what: nothing arrives or boots, and all bases are needed."""

    def __init__(self):
        self.needed, self.booting, self.arriving = None, set(), set()

    def needs_base(self, image_id):
        return self.needed is None or image_id in self.needed

    def is_arriving(self, image_id):
        return image_id in self.arriving

    def is_booting(self, image_id):
        return image_id in self.booting


class Chains:
    """Stands for who serves a base through the gateway, where its storage node answers."""

    def __init__(self, faults, gateway):
        self.faults, self.gateway, self.tries = faults, gateway, []

    def keep_chain(self, image_id, guest_waits):
        assert guest_waits
        self.tries.append(image_id)
        self.faults.check('ensure_base')
        self.gateway.exported.add(image_id)


class Storage:
    """Stands for the storage service: what it answers, by image."""

    def __init__(self):
        self.answers, self.asked = {}, []

    def ask(self, image_id, server_id):
        assert server_id == '', 'no server boots'
        self.asked.append(image_id)
        return self.answers.get(image_id)


class Room:
    """Stands for the tiers' room.

    :ivar free: the tier that has some.
    :ivar in_use: images whose cache image does not go.
    """

    limits = {Medium.DISK: LIMITS}

    def __init__(self, cache):
        self.cache, self.free, self.in_use = cache, Medium.DISK, set()

    def room_for(self, image_id, size):
        assert size == INFO.bytes
        return self.free

    def let_go(self, image_id):
        if image_id in self.in_use:
            return False
        del self.cache.held[image_id]
        return True


class Fetches:
    """Stands for fetching: a cache image is whole after that."""

    def __init__(self, faults, cache):
        self.faults, self.cache, self.fetched = faults, cache, []

    def fetch_offered(self, offered, medium):
        self.faults.check('fetch')
        image_id, held = offered.remote.image_id, self.cache.held
        self.fetched.append((image_id, offered.cache_image, offered.cache_export, medium,
                             offered.pinned))
        held[image_id] = dataclasses.replace(held[image_id], cache_image=offered.cache_image)


class Serving:
    """Stands for whether new servers are served."""

    def __init__(self):
        self.refusal, self.socket = '', GatewaySocket(Gateway.socket_path, '/cache')


class Reports:
    """Stands for the reports of boots that are still to be sent.

    :param done: a list in which it is noted that they were.
    """

    def __init__(self, faults, done):
        self.faults, self.done = faults, done

    def send_again(self):
        self.faults.check('reports')
        self.done.append('told')


class Below:
    """Stands for the space of stores that do not grow any more, as ``Reports`` does.

    :param done: the same list.
    """

    def __init__(self, faults, done):
        self.faults, self.done = faults, done

    def give_back_space(self):
        self.faults.check('space')
        self.done.append('gave back')


class Expansions:
    """Stands for expanding cache images, as ``Reports`` does.

    :param done: the same list.
    """

    def __init__(self, faults, done):
        self.faults, self.done = faults, done

    def look(self):
        self.faults.check('expand')
        self.done.append('expanded')


class Connections:
    """Stands for who looks after what bases are read by, as ``Reports`` does.

    :ivar wanted: where bases are that are to be read, by their exports.

    :param done: the same list.
    """

    def __init__(self, faults, done):
        self.faults, self.done, self.wanted = faults, done, {}

    def reconcile(self, remotes):
        self.faults.check('access')
        self.wanted = remotes
        self.done.append('access')


class Boots:
    """Stands for the boots that are watched."""

    def __init__(self, reports):
        self.reports = reports


class Holdings:
    """Stands for what tells the storage service what is here.

    :ivar away: why that is not reached.
    """

    def __init__(self, faults):
        self.faults, self.told, self.away = faults, [], ''

    def exchange(self):
        self.faults.check('bus')
        self.told.append('what is here')
        return self.away


class Host:
    """A compute host of these stand-ins, wired as ComputeHost wires its parts.

    :ivar done: what upkeep had it do, in that order.
    :ivar holdings: no part of a ComputeHost; whoever looks after one has it beside it.
    """

    report_interval = 60

    def __init__(self, directory):
        self.faults, self.done = Faults(), []
        self.gateway, self.cache, self.needs = Gateway(self.faults), Cache(directory), Needs()
        self.connections = Connections(self.faults, self.done)
        self.chains = Chains(self.faults, self.gateway)
        self.storage = Storage()
        self.room, self.fetches = Room(self.cache), Fetches(self.faults, self.cache)
        self.serving, self.boots = Serving(), Boots(Reports(self.faults, self.done))
        self.below = Below(self.faults, self.done)
        self.expansions = Expansions(self.faults, self.done)
        self.holdings = Holdings(self.faults)
        self.expiry, self.encryption = certificates.Expiry(None, ()), PLAIN
        self.certificates = TakenCertificates(None)

    def reconcile(self):
        self.faults.check('left over')
        self.done.append('reconciled')

    def drop_useless_stores(self):
        self.faults.check('useless')
        self.done.append('dropped')


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(upkeep, 'time', clock)
    monkeypatch.setattr(logthrottle, 'time', clock)
    return clock


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def upkeep_of(host):
    """Return what looks after a host of these stand-ins."""
    return upkeep.HostUpkeep(host, host.holdings)


def looks(clock, step, count, seconds=upkeep.PERIOD_SECONDS):
    """Do a step now and then; give the seconds at which something was noted in a list."""
    began = clock.now
    for _ in range(count):
        step()
        yield clock.now - began
        clock.now += seconds


def times_of(clock, step, noted, count=190):
    """Return when, in seconds, a step added to a list of what was tried."""
    found, before = [], len(noted)
    for now in looks(clock, step, count):
        found += [now] * (len(noted) - before)
        before = len(noted)
    return found
